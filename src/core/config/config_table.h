/* SPDX-License-Identifier: MIT */
/*
 * The one table of configuration keys: name, type, unit, bounds, default, effect, sentence.
 */
#ifndef XSEG_CORE_CONFIG_TABLE_H
#define XSEG_CORE_CONFIG_TABLE_H

#include <stddef.h>

#include "src/core/config/config.h"

enum xseg_config_type {
    XSEG_CONFIG_BOOL, /* bool: True, False */
    XSEG_CONFIG_MIB,  /* uint64_t bytes: whole MiB; too many are UINT64_MAX, or the most there is */
    XSEG_CONFIG_NUMBER,    /* uint32_t: a whole number */
    XSEG_CONFIG_PERIOD,    /* int64_t: a whole number, or -1 for never */
    XSEG_CONFIG_REAL,      /* double */
    XSEG_CONFIG_CHOICE,    /* uint32_t: index of a word */
    XSEG_CONFIG_ACTIONS,   /* uint32_t: set of enum xseg_history_action, as a list of words */
    XSEG_CONFIG_DIVISIONS, /* uint32_t[XSEG_CONFIG_INTERVALS]: a power of two, or a list */
    XSEG_CONFIG_SPAN,      /* struct xseg_config_reserve: 0.5, or 40G */
    XSEG_CONFIG_PATH       /* char[XSEG_CONFIG_PATH_BYTES]: the name of a folder */
};

/* The default of a size without a limit; of a period: never. */
#define XSEG_CONFIG_UNSET UINT64_MAX

struct xseg_config_row {
    const char *name;
    enum xseg_config_type type;
    bool is_expandable;    /* the key has no effect while expandable_segments is False */
    bool is_above_large;   /* the value must not be below large_segment_size_mb */
    bool takes_minus_one;  /* -1 is unlimited, as PyTorch reports it */
    bool is_open;          /* values equal to low or high are refused */
    size_t offset;         /* of the member of struct xseg_config */
    uint64_t min, max;     /* bounds in the unit of the string; most is 0 where there is none */
    uint64_t start;        /* the default in the unit of the string, or XSEG_CONFIG_UNSET */
    double low, high;      /* bounds of a real number */
    double smallest;       /* real numbers above low and below it are rejected */
    const char *choice[5]; /* the words of a choice; NULL behind the last */
    const char *accepts;   /* completes "expected ..." */
    const char *unset;     /* name of a value that has no spelling, or NULL */
    const char *sentence;
    const char *source; /* who asks for the key: PyTorch, or threads of public issue trackers */
};

extern const struct xseg_config_row xseg_config_table[XSEG_CONFIG_KEYS];

#endif
