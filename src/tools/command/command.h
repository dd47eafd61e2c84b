/* SPDX-License-Identifier: MIT */
/*
 * The subcommands of the `xseg` tool, in one table: commands[].
 *
 * A command is its row there and a file command_NAME.c with the function that runs it.  The row has its
 * options (option.h) and its texts; help, manual pages and completion of shells are made from them.
 *
 * Texts are plain sentences, in which `...` is what a user types; a blank line parts paragraphs.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <stdint.h>

#include "src/tools/command/option.h"

/* Exit statuses, for every subcommand. */
enum command_exit {
    COMMAND_FINE,
    COMMAND_MISMATCH,      /* a check found a difference, or something was left over */
    COMMAND_BAD,           /* a bad file or argument */
    COMMAND_OUT_OF_MEMORY, /* that was not in the file */
    COMMAND_EXITS
};

/* What stands behind the options; completion offers it. */
enum command_operands { COMMAND_NO_OPERANDS, COMMAND_FILES, COMMAND_NAMES, COMMAND_TEXT };

#define COMMAND_OPTIONS  20
#define COMMAND_EXAMPLES 6

struct command {
    const char *name;                                  /* NULL: the tool itself */
    int (*run)(const struct option_values *arguments); /* NULL: the tool itself */
    const char *sentence;                              /* what it does; no capital, no full stop */
    const char *usage; /* what stands behind `[OPTION]...`; "": nothing */
    const char *needs; /* completes "needs ..." */
    enum command_operands operands;
    int least_operands, most_operands;
    uint8_t options[COMMAND_OPTIONS]; /* enum option_id; OPTION_NONE behind the last */
    const char *description;
    struct {
        const char *line, *does;
    } examples[COMMAND_EXAMPLES];     /* NULL behind the last */
    const char *exits[COMMAND_EXITS]; /* what each exit status means; NULL: there is none such */
};

/* The tool itself, and its commands; a row without a name ends them. */
extern const struct command command_tool;
extern const struct command commands[];

/* The command with this name; NULL: there is none. */
const struct command *command_find(const char *name);

/* "xseg replay"; valid until the next call. */
const char *command_full_name(const struct command *command);

/* Print one line on standard error, which begins with the command's name. */
void command_complain(const struct command *command, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

int command_advise(const struct option_values *arguments);
int command_blame(const struct option_values *arguments);
int command_compare(const struct option_values *arguments);
int command_config(const struct option_values *arguments);
int command_export(const struct option_values *arguments);
int command_help(const struct option_values *arguments);
int command_probe(const struct option_values *arguments);
int command_replay(const struct option_values *arguments);
int command_top(const struct option_values *arguments);
int command_view(const struct option_values *arguments);

#endif
