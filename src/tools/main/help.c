/* SPDX-License-Identifier: MIT */
#include "src/tools/main/help.h"

#include <string.h>

#include "src/tools/main/commands.h"
#include "src/tools/output/text.h"

#define COLUMN 25 /* where meanings begin */

/* `--check[=HOW]`, with its letter before it: "-v, --verbose". */
static void name_option(const struct option_row *row, char *text, size_t bytes)
{
    const char *argument = row->takes == OPTION_TAKES_NOTHING ? "" : row->argument;

    (void)snprintf(text, bytes, "%c%c%s--%s%s%s%s", row->letter ? '-' : ' ',
                   row->letter ? row->letter : ' ', row->letter ? ", " : "  ", row->name,
                   !*argument      ? ""
                   : row->may_lack ? "[="
                                   : " ",
                   argument, row->may_lack ? "]" : "");
}

/* A term and its meaning, in two columns; a long term has a line of its own. */
static void print_pair(FILE *out, const char *term, const char *meaning)
{
    const int width = (int)strlen(term);

    (void)fprintf(out, "  %s%s%s", text_style_on(out, TEXT_STRONG), term, text_style_off(out));
    if (width + 4 > COLUMN)
        (void)fprintf(out, "\n%*s", COLUMN, "");
    else
        (void)fprintf(out, "%*s", COLUMN - 2 - width, "");
    text_wrap(out, meaning, COLUMN);
}

static void print_options(FILE *out, const struct command *command)
{
    char term[64];

    text_print_heading(out, "Options:");
    for (const uint8_t *id = command->options; *id != OPTION_NONE; id++) {
        name_option(&option_table[*id], term, sizeof(term));
        print_pair(out, term, option_table[*id].meaning);
    }
}

static void print_examples(FILE *out, const struct command *command)
{
    text_print_heading(out, "Examples:");
    for (unsigned i = 0; i < COMMAND_EXAMPLES && command->examples[i].line; i++) {
        (void)fprintf(out, "  %s\n      ", command->examples[i].line);
        text_wrap(out, command->examples[i].does, 6);
    }
}

static void print_exits(FILE *out, const struct command *command)
{
    text_print_heading(out, "Exit status:");
    for (int status = 0; status < COMMAND_EXITS; status++)
        if (command->exits[status]) {
            (void)fprintf(out, "  %d  ", status);
            text_wrap(out, command->exits[status], 5);
        }
}

static void print_commands(FILE *out)
{
    text_print_heading(out, "Commands:");
    for (const struct command *const *command = commands; *command; command++)
        print_pair(out, (*command)->name, (*command)->sentence);
}

void help_print(FILE *out, const struct command *command)
{
    (void)fprintf(out, "usage: %s%s%s%s\n\n", commands_full_name(command),
                  command->name ? " [OPTION]..." : "", *command->usage ? " " : "", command->usage);
    text_wrap(out, command->description, 0);
    if (!command->name)
        print_commands(out);
    print_options(out, command);
    print_examples(out, command);
    print_exits(out, command);
    if (!command->name)
        (void)fprintf(out, "\n`xseg help COMMAND` says more.\n");
}
