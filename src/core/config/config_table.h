/* SPDX-License-Identifier: MIT */
/*
 * The table of configuration keys, and the other names that a configuration string may contain:
 * ignored keys of PyTorch, and actions of the history.
 *
 * Locking: none; the tables are constant.
 */
#ifndef XSEG_CORE_CONFIG_TABLE_H
#define XSEG_CORE_CONFIG_TABLE_H

#include <stddef.h>

#include "src/core/config/config.h"
#include "xseg/history.h"

/* The type of a key: the type of its member, and its grammar. */
enum xseg_config_type {
    XSEG_CONFIG_BOOL,      /* bool: True or False */
    XSEG_CONFIG_MIB,       /* uint64_t bytes: an integer, in MiB; larger ones are clamped */
    XSEG_CONFIG_NUMBER,    /* uint32_t: an integer */
    XSEG_CONFIG_PERIOD,    /* int64_t: an integer, or -1 for never */
    XSEG_CONFIG_REAL,      /* double */
    XSEG_CONFIG_CHOICE,    /* uint32_t: index in `choice` */
    XSEG_CONFIG_ACTIONS,   /* uint32_t: set of enum xseg_history_action, as a list of names */
    XSEG_CONFIG_DIVISIONS, /* uint32_t[XSEG_CONFIG_INTERVALS]: a power of two, or a list */
    XSEG_CONFIG_SIZE,      /* struct xseg_config_reserve: a fraction, or a size such as 40G */
    XSEG_CONFIG_PATH       /* char[XSEG_CONFIG_PATH_BYTES]: a name or path */
};

/* The default value "no limit" of a size, and "never" of a period. */
#define XSEG_CONFIG_UNSET UINT64_MAX

struct xseg_config_row {
    const char *name;
    enum xseg_config_type type;
    bool needs_expandable;  /* the key has no effect if expandable_segments is False */
    bool is_at_least_large; /* the minimum is large_segment_size_mb */
    bool allows_minus_one;  /* -1 is unlimited, as PyTorch reports it */
    bool accepts_unset;     /* unset_name is the spelling of XSEG_CONFIG_UNSET */
    bool excludes_ends;     /* real_min and real_max themselves are rejected */
    size_t offset;          /* of the member in struct xseg_config */
    uint64_t min, max;      /* range in the unit of the string; max 0: no maximum */
    uint64_t default_value; /* in the unit of the string, or XSEG_CONFIG_UNSET */
    double real_min, real_max;
    double real_min_nonzero; /* values between real_min and real_min_nonzero are rejected */
    const char *choice[5];   /* names of the values of a choice; ends with NULL */
    const char *accepted;    /* completes "expected ..." */
    const char *unset_name;  /* name of a value that has no spelling, or NULL */
    const char *description;
};

extern const struct xseg_config_row xseg_config_table[XSEG_CONFIG_KEYS];

/* The row with this name, or NULL. */
const struct xseg_config_row *xseg_config_find_key(const char *name, size_t length);

/*
 * Keys of PyTorch that the library accepts and ignores.  PyTorch itself applies `backend` and the
 * keys of pinned host memory; the others belong to PyTorch's own allocator.
 */
extern const char *const xseg_config_ignored[XSEG_CONFIG_IGNORED];

/* The index of a name in xseg_config_ignored[], or XSEG_CONFIG_IGNORED. */
unsigned xseg_config_find_ignored(const char *name, size_t length);

/* The value of an ignored key as in the string, or NULL if the key is not set. */
const char *xseg_config_ignored_value(const struct xseg_config *config, const char *name);

/* The names of the actions of the history. */
extern const char *const xseg_config_actions[XSEG_HISTORY_ACTIONS];

/* Extend the error message about an unknown key with the closest name, or with a hint. */
void xseg_config_suggest_key(const char *name, size_t length);

#endif
