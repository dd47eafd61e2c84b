/* SPDX-License-Identifier: MIT */
/*
 * A subcommand of the `xseg` tool: a row, which stands in its file command_NAME.c behind the function that runs it.
 *
 * The row has its options (option_table.h) and its texts; help, manual pages and completion of shells are made from them.
 *
 * Texts are plain sentences, in which `...` is what a user types; a blank line parts paragraphs.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <stdint.h>

#include "src/tools/command/option_table.h"

/* Exit statuses, for every subcommand. */
enum command_exit {
    COMMAND_FINE,
    COMMAND_MISMATCH,      /* a check found a difference, or something was left over */
    COMMAND_BAD,           /* a bad file or argument */
    COMMAND_OUT_OF_MEMORY, /* that was not in the file */
    COMMAND_EXITS
};

#define COMMAND_EXIT_FINE "fine"
#define COMMAND_EXIT_DROPPED \
    "blocks are left out that no segment of the file contains; the output is complete otherwise"
#define COMMAND_EXIT_BAD "a bad file or argument, or output that cannot be written"

/* What stands behind the options; completion offers it. */
enum command_operands { COMMAND_NO_OPERANDS, COMMAND_FILES, COMMAND_NAMES, COMMAND_TEXT };

#define COMMAND_OPTIONS  20
#define COMMAND_EXAMPLES 6

struct option_values;

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

/* The commands, in the order of names. */
#define COMMAND_LIST(X) \
    X(advise)           \
    X(blame)            \
    X(compare)          \
    X(config)           \
    X(export)           \
    X(help)             \
    X(probe)            \
    X(replay)           \
    X(top)              \
    X(view)

#define COMMAND_ROW_(name) extern const struct command command_##name;
COMMAND_LIST(COMMAND_ROW_)
#undef COMMAND_ROW_

#endif
