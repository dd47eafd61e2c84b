/* SPDX-License-Identifier: MIT */
/*
 * The options of all commands, in one table: option_table[].  Parsing, help, manual pages, completion
 * of shells and the tables of the documents are made from it; command.h says which commands take
 * which.
 *
 * Texts of the table are plain sentences, in which `...` is what a user types.
 *
 * Locking: none.
 */
#ifndef TOOLS_OPTION_TABLE_H
#define TOOLS_OPTION_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Every row of option_table[]; commands that give one name two meanings have two rows. */
enum option_id {
    OPTION_NONE, /* ends a list of options; no row */
    OPTION_HELP,
    OPTION_VERSION,
    OPTION_COLOR,
    OPTION_NAME_CALLS,
    OPTION_ALL_KEYS,
    OPTION_JSON,
    OPTION_KEYS,
    OPTION_CONFIG,
    OPTION_DEVICE_MEMORY,
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
    OPTION_COUNT
};

enum option_takes {
    OPTION_TAKES_NOTHING,
    OPTION_TAKES_TEXT,
    OPTION_TAKES_KEYS,   /* a configuration string */
    OPTION_TAKES_WORD,   /* one of words; its number is the value */
    OPTION_TAKES_CHOICE, /* the same, or a file: then the value is OPTION_WORDS */
    OPTION_TAKES_NUMBER, /* from least to most */
    OPTION_TAKES_SIZE,   /* 4096, 900MiB, 24G: bytes, from least to most */
    OPTION_TAKES_OUTPUT  /* a file to write; `-` is standard output */
};

#define OPTION_WORDS 10u

struct option_row {
    const char *name; /* without its dashes */
    char letter;      /* 0: none */
    enum option_takes takes;
    bool may_lack;                   /* the argument; the first word is meant then */
    const char *argument;            /* what help calls it */
    const char *words[OPTION_WORDS]; /* NULL behind the last */
    uint64_t least, most;
    uint64_t standard; /* the number where the option is not given */
    const char *unit;  /* of a number: completes "takes ..." */
    const char *meaning;
};

extern const struct option_row option_table[OPTION_COUNT];

#endif
