/* SPDX-License-Identifier: MIT */
/*
 * The descriptor of a command of the `xseg` tool.  Each command_NAME.c defines one, after the function that runs the command.
 *
 * Help, manual pages and shell completion are generated from the descriptors and from the table of options
 * (option_table.h).  In texts, `...` marks what a user types, and an empty line separates paragraphs.
 */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include <stdint.h>

#include "src/tools/command/option_table.h"

/* Exit statuses of all commands. */
enum command_exit {
    COMMAND_SUCCESS,
    COMMAND_MISMATCH,      /* a comparison found a difference, or a resource was not released */
    COMMAND_ERROR,         /* an invalid file or argument, or an output error */
    COMMAND_OUT_OF_MEMORY, /* an out-of-memory error that is not in the recording */
    COMMAND_EXITS
};

#define COMMAND_EXIT_SUCCESS "success"
#define COMMAND_EXIT_DROPPED \
    "success, but the file has allocated blocks outside of its segments; the output omits them"
#define COMMAND_EXIT_ERROR "an invalid file or argument, or an output error"

/* The operands that shell completion offers. */
enum command_operands {
    COMMAND_NO_OPERANDS,
    COMMAND_FILES,
    COMMAND_NAMES,
    COMMAND_TEXT,
    COMMAND_PROGRAM /* the first operand ends the options of the command */
};

#define COMMAND_OPTIONS  20
#define COMMAND_EXAMPLES 6

struct option_values;

struct command {
    const char *name; /* NULL: the tool itself */
    /* Returns an exit status; NULL: the tool itself. */
    int (*run)(const struct option_values *arguments);
    const char *summary;           /* one line; no capital, no period */
    const char *usage;             /* operands, after `[OPTION]...`; "": none */
    const char *required_operands; /* completes "needs ..." */
    enum command_operands operands;
    int min_operands, max_operands;
    uint8_t options[COMMAND_OPTIONS]; /* enum option_id; OPTION_NONE ends the list */
    const char *description;
    struct {
        const char *line, *does;
    } examples[COMMAND_EXAMPLES];     /* NULL ends the list */
    const char *exits[COMMAND_EXITS]; /* meaning of each exit status; NULL: not used */
};

/* All commands, sorted by name. */
#define COMMAND_LIST(X) \
    X(advise)           \
    X(blame)            \
    X(compare)          \
    X(config)           \
    X(doctor)           \
    X(export)           \
    X(help)             \
    X(probe)            \
    X(replay)           \
    X(run)              \
    X(top)              \
    X(view)

#define COMMAND_ROW_(name) extern const struct command command_##name;
COMMAND_LIST(COMMAND_ROW_)
#undef COMMAND_ROW_

#endif
