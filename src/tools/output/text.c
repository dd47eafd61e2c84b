/* SPDX-License-Identifier: MIT */
#include "src/tools/output/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ESCAPE_BYTES 4 /* of \xNN */

size_t text_escape(const char *text, char *out, size_t bytes)
{
    size_t at = 0;

    for (; text[at] && bytes > ESCAPE_BYTES; at++) {
        const char byte = text[at];
        const int is_printable = byte >= ' ' && byte <= '~';
        const int length = snprintf(out, bytes, is_printable ? "%c" : "\\x%02x",
                                    is_printable ? byte : (unsigned char)byte);

        out += length;
        bytes -= (size_t)length;
    }
    *out = '\0';
    return at;
}

void text_print(FILE *out, const char *text)
{
    char escaped[1024];

    while (*text) {
        text += text_escape(text, escaped, sizeof(escaped));
        (void)fputs(escaped, out);
    }
}

json_t *text_json(const char *text)
{
    json_t *string = json_string(text);
    const size_t bytes = (strlen(text) + 1) * ESCAPE_BYTES + 1;
    char *escaped;

    if (string)
        return string;
    escaped = malloc(bytes);
    if (!escaped)
        return NULL;
    (void)text_escape(text, escaped, bytes);
    string = json_string(escaped);
    free(escaped);
    return string;
}

#define WRAP_COLUMNS 80

static enum text_color color_mode = TEXT_COLOR_AUTO;

void text_set_color(enum text_color color)
{
    color_mode = color;
}

static bool has_colors(FILE *file)
{
    const char *no_color = secure_getenv("NO_COLOR"), *terminal = secure_getenv("TERM");

    if (color_mode != TEXT_COLOR_AUTO)
        return color_mode == TEXT_COLOR_ALWAYS;
    return (!no_color || !*no_color) && terminal && strcmp(terminal, "dumb") != 0 &&
           isatty(fileno(file));
}

const char *text_style_on(FILE *file, enum text_style style)
{
    static const char *const codes[] = {
        [TEXT_STRONG] = "\033[1m", [TEXT_GOOD] = "\033[32m", [TEXT_BAD] = "\033[1;31m"};

    return has_colors(file) ? codes[style] : "";
}

const char *text_style_off(FILE *file)
{
    return has_colors(file) ? "\033[m" : "";
}

void text_print_strong(FILE *out, const char *text)
{
    (void)fputs(text_style_on(out, TEXT_STRONG), out);
    text_print(out, text);
    (void)fputs(text_style_off(out), out);
}

void text_print_heading(FILE *out, const char *format, ...)
{
    va_list arguments;

    (void)fprintf(out, "\n%s", text_style_on(out, TEXT_STRONG));
    va_start(arguments, format);
    (void)vfprintf(out, format, arguments);
    va_end(arguments);
    (void)fprintf(out, "%s\n", text_style_off(out));
}

/* Print a word.  A backquote switches TEXT_STRONG on or off, also for the next words. */
static void print_word(FILE *out, const char *word, size_t length)
{
    static bool is_code;

    for (size_t i = 0; i < length; i++) {
        if (word[i] != '`') {
            (void)fputc(word[i], out);
            continue;
        }
        is_code = !is_code;
        (void)fputs(is_code ? text_style_on(out, TEXT_STRONG) : text_style_off(out), out);
    }
}

/* Measure the length of a word, and its columns without backquotes. */
static size_t measure_word(const char *word, unsigned *columns)
{
    size_t length = strcspn(word, " \n");

    *columns = 0;
    for (size_t i = 0; i < length; i++)
        *columns += word[i] != '`';
    return length;
}

void text_wrap(FILE *out, const char *text, unsigned column)
{
    unsigned at = column, columns;

    while (*text) {
        const size_t length = measure_word(text, &columns);

        if (at > column && at + 1 + columns > WRAP_COLUMNS) {
            (void)fprintf(out, "\n%*s", (int)column, "");
            at = column;
        } else if (at > column) {
            (void)fputc(' ', out);
            at++;
        }
        print_word(out, text, length);
        at += columns;
        text += length;
        if (text[0] == '\n' && text[1] == '\n') {
            (void)fprintf(out, "\n\n%*s", (int)column, "");
            at = column;
        }
        text += strspn(text, " \n");
    }
    (void)fputc('\n', out);
}
