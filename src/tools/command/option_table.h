/* SPDX-License-Identifier: MIT */
/*
 * The table of all options.  The parser, help, manual pages, shell completion and the tables in the documentation use it;
 * the descriptor of a command (command.h) lists the options that the command takes.
 *
 * In texts, `...` marks what a user types.
 *
 * Locking: none.
 */
#ifndef TOOLS_OPTION_TABLE_H
#define TOOLS_OPTION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* The rows of option_table[].  An option whose meaning depends on the command has several rows. */
enum option_id {
    OPTION_NONE, /* ends a list of options; has no row */
    OPTION_HELP,
    OPTION_VERSION,
    OPTION_COLOR,
    OPTION_LIST_CALLS,
    OPTION_ALL_KEYS,
    OPTION_JSON,
    OPTION_KEYS,
    OPTION_CONFIG,
    OPTION_DEVICE_MEMORY,
    OPTION_TARGET_MEMORY,
    OPTION_DRIVER,
    OPTION_COSTS,
    OPTION_PROBE_COSTS,
    OPTION_CHECK,
    OPTION_MIN_DEVICE,
    OPTION_COMPARE,
    OPTION_EXPLAIN,
    OPTION_SNAPSHOT_DEVICE,
    OPTION_PROBE_DEVICE,
    OPTION_SECONDS,
    OPTION_TABLE,
    OPTION_SAVE_COSTS,
    OPTION_TIMELINE,
    OPTION_HISTORY,
    OPTION_TICK,
    OPTION_BY,
    OPTION_LABEL,
    OPTION_DEPTH,
    OPTION_FLAME,
    OPTION_ROWS,
    OPTION_OUTPUT,
    OPTION_BLOCKS,
    OPTION_PERFETTO,
    OPTION_SLICES,
    OPTION_ONE_DEVICE,
    OPTION_ONCE,
    OPTION_SORT,
    OPTION_INTERVAL,
    OPTION_PID,
    OPTION_BUDGET,
    OPTION_PYTORCH,
    OPTION_KEEP_EXPANDABLE,
    OPTION_DECLARE_EXPANDABLE,
    OPTION_COUNT
};

/* The argument of an option. */
enum option_takes {
    OPTION_TAKES_NOTHING,
    OPTION_TAKES_TEXT,
    OPTION_TAKES_KEYS,   /* a configuration string */
    OPTION_TAKES_WORD,   /* one of words; the number is its index */
    OPTION_TAKES_CHOICE, /* one of words, or a file; the number of a file is OPTION_WORDS */
    OPTION_TAKES_NUMBER, /* from min to max */
    OPTION_TAKES_SIZE,   /* 4096, 900MiB, 24G: bytes, from min to max */
    OPTION_TAKES_OUTPUT  /* a file to write; `-` is standard output */
};

#define OPTION_WORDS 10u

struct option_row {
    const char *name; /* without dashes */
    char letter;      /* 0: none */
    enum option_takes takes;
    bool is_optional;                /* the argument; its default is the first word */
    const char *argument;            /* placeholder in help texts */
    const char *words[OPTION_WORDS]; /* NULL ends the list */
    uint64_t min, max;
    uint64_t default_number; /* if the option is not given */
    const char *unit;        /* of a number; completes "takes ..." */
    const char *meaning;
};

extern const struct option_row option_table[OPTION_COUNT];

#endif
