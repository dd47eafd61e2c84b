/* SPDX-License-Identifier: MIT */
#include "src/tools/output/style.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/output/printable.h"

#define WIDTH 80

static enum style_when chosen = STYLE_AUTO;

void style_choose(enum style_when when)
{
    chosen = when;
}

static bool has_colours(FILE *file)
{
    const char *no = secure_getenv("NO_COLOR"), *terminal = secure_getenv("TERM");

    if (chosen != STYLE_AUTO)
        return chosen == STYLE_ALWAYS;
    return (!no || !*no) && terminal && strcmp(terminal, "dumb") != 0 && isatty(fileno(file));
}

const char *style_on(FILE *file, enum style style)
{
    static const char *const codes[] = {
        [STYLE_STRONG] = "\033[1m", [STYLE_GOOD] = "\033[32m", [STYLE_BAD] = "\033[1;31m"};

    return has_colours(file) ? codes[style] : "";
}

const char *style_off(FILE *file)
{
    return has_colours(file) ? "\033[m" : "";
}

void style_strong(FILE *out, const char *text)
{
    (void)fputs(style_on(out, STYLE_STRONG), out);
    printable_print(out, text);
    (void)fputs(style_off(out), out);
}

void style_heading(FILE *out, const char *format, ...)
{
    va_list arguments;

    (void)fprintf(out, "\n%s", style_on(out, STYLE_STRONG));
    va_start(arguments, format);
    (void)vfprintf(out, format, arguments);
    va_end(arguments);
    (void)fprintf(out, "%s\n", style_off(out));
}

/* Print a word; what stands between backquotes is set off where there are colours. */
static void print_word(FILE *out, const char *word, size_t length)
{
    static bool is_code;

    for (size_t i = 0; i < length; i++) {
        if (word[i] != '`') {
            (void)fputc(word[i], out);
            continue;
        }
        is_code = !is_code;
        (void)fputs(is_code ? style_on(out, STYLE_STRONG) : style_off(out), out);
    }
}

/* How long a word is that ends at a blank, and how much of it is seen. */
static size_t measure(const char *word, unsigned *seen)
{
    size_t length = strcspn(word, " \n");

    *seen = 0;
    for (size_t i = 0; i < length; i++)
        *seen += word[i] != '`';
    return length;
}

void style_wrap(FILE *out, const char *text, unsigned column)
{
    unsigned at = column, seen;

    while (*text) {
        const size_t length = measure(text, &seen);

        if (at > column && at + 1 + seen > WIDTH) {
            (void)fprintf(out, "\n%*s", (int)column, "");
            at = column;
        } else if (at > column) {
            (void)fputc(' ', out);
            at++;
        }
        print_word(out, text, length);
        at += seen;
        text += length;
        if (text[0] == '\n' && text[1] == '\n') {
            (void)fprintf(out, "\n\n%*s", (int)column, "");
            at = column;
        }
        text += strspn(text, " \n");
    }
    (void)fputc('\n', out);
}
