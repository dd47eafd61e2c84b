/* SPDX-License-Identifier: MIT */
#include "src/tools/main/help.h"

#include <string.h>

#include "src/tools/text/style.h"

#define WIDTH  80
#define COLUMN 25 /* where meanings begin */

void help_option(const struct option_row *row, char *text, size_t bytes)
{
    const char *argument = row->takes == OPTION_TAKES_NOTHING ? "" : row->argument;

    (void)snprintf(text, bytes, "%c%c%s--%s%s%s%s", row->letter ? '-' : ' ',
                   row->letter ? row->letter : ' ', row->letter ? ", " : "  ", row->name,
                   !*argument      ? ""
                   : row->may_lack ? "[="
                                   : " ",
                   argument, row->may_lack ? "]" : "");
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

void help_wrap(FILE *out, const char *text, unsigned column)
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

static void print_heading(FILE *out, const char *heading)
{
    (void)fprintf(out, "\n%s%s%s\n", style_on(out, STYLE_STRONG), heading, style_off(out));
}

/* A term and its meaning, in two columns; a long term has a line of its own. */
static void print_pair(FILE *out, const char *term, const char *meaning)
{
    const int width = (int)strlen(term);

    (void)fprintf(out, "  %s%s%s", style_on(out, STYLE_STRONG), term, style_off(out));
    if (width + 4 > COLUMN)
        (void)fprintf(out, "\n%*s", COLUMN, "");
    else
        (void)fprintf(out, "%*s", COLUMN - 2 - width, "");
    help_wrap(out, meaning, COLUMN);
}

static void print_options(FILE *out, const struct command *command)
{
    char term[64];

    print_heading(out, "Options:");
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        help_option(&option_table[*id], term, sizeof(term));
        print_pair(out, term, option_table[*id].meaning);
    }
}

static void print_examples(FILE *out, const struct command *command)
{
    print_heading(out, "Examples:");
    for (unsigned i = 0; i < COMMAND_EXAMPLES && command->examples[i].line; i++) {
        (void)fprintf(out, "  %s\n      ", command->examples[i].line);
        help_wrap(out, command->examples[i].does, 6);
    }
}

static void print_exits(FILE *out, const struct command *command)
{
    print_heading(out, "Exit status:");
    for (int status = 0; status < COMMAND_EXITS; status++)
        if (command->exits[status]) {
            (void)fprintf(out, "  %d  ", status);
            help_wrap(out, command->exits[status], 5);
        }
}

static void print_commands(FILE *out)
{
    print_heading(out, "Commands:");
    for (const struct command *command = commands; command->name; command++)
        print_pair(out, command->name, command->sentence);
}

void help_print(FILE *out, const struct command *command)
{
    (void)fprintf(out, "usage: %s%s%s%s\n\n", command_full_name(command),
                  command->name ? " [OPTION]..." : "", *command->usage ? " " : "", command->usage);
    help_wrap(out, command->description, 0);
    if (!command->name)
        print_commands(out);
    print_options(out, command);
    print_examples(out, command);
    print_exits(out, command);
    if (!command->name)
        (void)fprintf(out, "\n`xseg help COMMAND` says more.\n");
}
