/* SPDX-License-Identifier: MIT */
/*
 * The configuration: PyTorch's string of `key:value` pairs, parsed into a structure and printed
 * back.
 *
 * A configuration is a value: one member of struct xseg_config for each key, plus members that
 * xseg_config_derive() computes from them, so that a call tests one flag instead of several keys.
 * The allocator publishes a configuration by pointer and never changes a published one.  All sizes
 * are in bytes; UINT64_MAX is "no limit".
 *
 * xseg_config_table[] (config_table.h) describes every key in one row: name, type, member, range,
 * default and description.  The parser (config_parse.c), the printer (config.c) and
 * docs/options.md follow the table, so a new key is one row, one member and one value of enum
 * xseg_config_key_id.
 *
 * The parser applies a string to a copy of the configuration and assigns the copy only if the
 * whole string is valid.  A value is checked against the range in its row first, then against the
 * other keys (CONFIG-1 to CONFIG-3).  No other module repeats these checks.
 *
 * A printed configuration is a string that the parser reads as the same configuration.  A value
 * without a spelling in the grammar, such as "no limit", is omitted: such a value is always the
 * default.
 *
 * Invariants:
 *   CONFIG-1  large_segment_bytes <= max_split_bytes, max_non_split_rounding_bytes.
 *   CONFIG-2  If expandable_segments is True, large_segment_bytes is a multiple of 2 MiB.
 *   CONFIG-3  keep_bytes <= soft_limit_bytes <= hard_limit_bytes, where these limits are set.
 *
 * Locking: none.  The caller serializes changes of a configuration that is not published yet.
 */
#ifndef XSEG_CORE_CONFIG_H
#define XSEG_CORE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/align.h"
#include "src/base/string_util.h"
#include "xseg/allocator.h"
#include "xseg/status.h"

/* Intervals of roundup_power2_divisions: interval i has the sizes from 2^(20+i) to 2^(21+i).  The
 * first interval has all smaller sizes as well, the last one all larger sizes. */
#define XSEG_CONFIG_INTERVALS 16u

/* Size of the buffer for a path, with its terminator. */
#define XSEG_CONFIG_PATH_BYTES 256u

/* Size of the buffer for a printed value. */
#define XSEG_CONFIG_VALUE_BYTES 320u

/* All keys, in the order of xseg_config_table[].  A set of keys is a uint64_t: bit k is key k, and
 * bit XSEG_CONFIG_KEYS + i is xseg_config_ignored[i]. */
enum xseg_config_key_id {
    XSEG_CONFIG_EXPANDABLE_SEGMENTS,
    XSEG_CONFIG_LARGE_SEGMENT_SIZE,
    XSEG_CONFIG_MAX_SPLIT_SIZE,
    XSEG_CONFIG_MAX_NON_SPLIT_ROUNDING,
    XSEG_CONFIG_ROUNDUP_DIVISIONS,
    XSEG_CONFIG_MEMORY_FRACTION,
    XSEG_CONFIG_GARBAGE_COLLECTION,
    XSEG_CONFIG_CAPTURE_REUSE,
    XSEG_CONFIG_THROW_ON_OOM,
    XSEG_CONFIG_RESERVE,
    XSEG_CONFIG_PAGE,
    XSEG_CONFIG_DEBUG_FILL,
    XSEG_CONFIG_UNMAP_ON_FREE,
    XSEG_CONFIG_GUARD_PAGE,
    XSEG_CONFIG_BLOCK_USER,
    XSEG_CONFIG_HISTORY,
    XSEG_CONFIG_HISTORY_STACKS,
    XSEG_CONFIG_HISTORY_EVENTS,
    XSEG_CONFIG_HISTORY_SKIP,
    XSEG_CONFIG_IDLE,
    XSEG_CONFIG_KEEP,
    XSEG_CONFIG_KEEP_WINDOW,
    XSEG_CONFIG_RECLAIM_TIME,
    XSEG_CONFIG_SOFT_LIMIT,
    XSEG_CONFIG_HARD_LIMIT,
    XSEG_CONFIG_DEVICE_FREE_MIN,
    XSEG_CONFIG_BACKGROUND_THREAD,
    XSEG_CONFIG_PAGE_CACHE,
    XSEG_CONFIG_EXPORTABLE,
    XSEG_CONFIG_RDMA,
    XSEG_CONFIG_OOM_SNAPSHOT,
    XSEG_CONFIG_OOM_SNAPSHOT_MS,
    XSEG_CONFIG_OOM_SNAPSHOT_MB,
    XSEG_CONFIG_PUBLISH,
    XSEG_CONFIG_BUDGET_FILE,
    XSEG_CONFIG_BUDGET_SHARE,
    XSEG_CONFIG_BUDGET_MIN,
    XSEG_CONFIG_BUDGET_WAIT,
    XSEG_CONFIG_KEYS
};

/* Number of keys of PyTorch that the library accepts and ignores: xseg_config_ignored[]. */
#define XSEG_CONFIG_IGNORED 11u

/* Size of the buffer for the value of an ignored key. */
#define XSEG_CONFIG_IGNORED_BYTES 128u

/* The values of page_size. */
enum { XSEG_CONFIG_PAGES_FIXED, XSEG_CONFIG_PAGES_AUTO, XSEG_CONFIG_PAGES_SMALL };

/* Virtual address space of an expandable segment.  Amount 0: the key is not set. */
struct xseg_config_reserve {
    double amount;
    bool in_gib; /* else a fraction of the device memory */
};

/* The values of history and history_stacks, in the order of the table. */
enum xseg_history_level { XSEG_HISTORY_NOTHING, XSEG_HISTORY_STATE, XSEG_HISTORY_ALL };
enum xseg_history_stacks {
    XSEG_HISTORY_STACKS_NONE,
    XSEG_HISTORY_STACKS_STATE,
    XSEG_HISTORY_STACKS_ALLOC,
    XSEG_HISTORY_STACKS_ALL
};

struct xseg_config {
    uint64_t large_segment_bytes;
    uint64_t max_split_bytes; /* UINT64_MAX: unlimited */
    uint64_t max_non_split_rounding_bytes;
    uint32_t roundup_divisions[XSEG_CONFIG_INTERVALS]; /* 0 and 1: none */
    double memory_fraction;
    double garbage_collection_threshold; /* 0: off */
    struct xseg_config_reserve expandable_segments_reserve;
    char oom_snapshot[XSEG_CONFIG_PATH_BYTES]; /* directory; empty: none */
    char budget_file[XSEG_CONFIG_PATH_BYTES];  /* name or path; empty: none */
    /* Values as in the string, for snapshots.  Empty: the key is not set, or its value is too
     * long. */
    char ignored[XSEG_CONFIG_IGNORED][XSEG_CONFIG_IGNORED_BYTES];
    double budget_share; /* 0: an equal part of the remainder */
    uint64_t budget_min_bytes;
    uint64_t oom_snapshot_bytes; /* UINT64_MAX: no limit */
    uint32_t oom_snapshot_ms;
    uint32_t budget_wait_ms;
    int64_t idle_ms; /* -1: never */
    uint64_t keep_bytes;
    uint64_t soft_limit_bytes;      /* UINT64_MAX: none */
    uint64_t hard_limit_bytes;      /* UINT64_MAX: none */
    uint64_t device_free_min_bytes; /* 0: none; UINT64_MAX: the default of the device */
    uint32_t keep_window_s;         /* 0: none */
    uint32_t reclaim_us_per_s;
    uint32_t page_sizes; /* XSEG_CONFIG_PAGES_* */
    bool expandable_segments;
    bool graph_capture_record_stream_reuse;
    bool throw_on_cudamalloc_oom;
    uint64_t page_cache_bytes;
    bool background_thread;
    bool exportable;
    bool rdma;
    bool publish;
    /* Not keys: the allocator sets them before xseg_config_derive(). */
    bool has_device_soft_limit; /* xseg_limits_set() has set a soft limit of a device */
    bool has_device_fraction;   /* xseg_limits_set() has set a memory fraction of a device */
    /* Derived: idle memory is released automatically; calls of the program run the decay passes. */
    bool decays, decays_on_calls;
    bool traced;             /* not a key: an observer has `on_trace` */
    bool has_free_checks;    /* derived: a free runs checks without the arena lock */
    bool has_call_epilogue;  /* derived: every slow-path call ends with additional work */
    bool has_alloc_epilogue; /* derived: every allocation and free ends with additional work */
    bool records_blocks;     /* derived: events or origins of blocks are recorded (recorder.h) */
    bool has_fast_frees;     /* derived: frees take the fast path */
    bool has_fast_allocs;    /* derived: allocations take the fast path, see alloc.h */
    bool debug_fill;
    bool unmap_on_free;
    bool guard_page;
    bool block_user;         /* the user values of requests are recorded with their blocks */
    uint32_t history;        /* enum xseg_history_level */
    uint32_t history_stacks; /* enum xseg_history_stacks */
    uint32_t history_events; /* capacity of the event ring of an arena */
    uint32_t history_skip;   /* set of enum xseg_history_action */
};

/* Set all keys to the defaults of a configuration without a string: expandable_segments is True. */
void xseg_config_init(struct xseg_config *config);

/*
 * Change the keys that a string names.  On error the configuration is unchanged.
 *
 * A string that names large_segment_size_mb but not max_non_split_rounding_mb sets both to the
 * same value.
 *
 * @param named  NULL, or the set of keys that the string names
 * @return XSEG_OK or XSEG_ERR_CONFIG.  The error message names the key, the value, its column and
 *         the accepted values
 */
xseg_status xseg_config_parse(struct xseg_config *config, const char *text, uint64_t *named);

/*
 * Create the configuration of a new allocator from the first source that is present: the
 * argument, one of three variables, or the defaults.  The variables are XSEG_ALLOC_CONF,
 * PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, in this order.
 *
 * @param argument  a string, or NULL
 * @param source    the name of the source that was used, a static string
 * @param named     NULL, or the set of keys that the string names
 * @return as xseg_config_parse(); the error message also names the source
 */
xseg_status xseg_config_load(struct xseg_config *config, const char *argument, const char **source,
                             uint64_t *named);

/* Compute the derived members. */
void xseg_config_derive(struct xseg_config *config);

/* Whether the library runs a background thread. */
static inline bool xseg_config_has_thread(const struct xseg_config *config)
{
    return config->background_thread || config->budget_file[0] != '\0';
}

/* Print all keys as a string that xseg_config_parse() reads as the same configuration. */
void xseg_config_print(const struct xseg_config *config, struct xseg_strbuf *text);

/* Print the value of one key.  Returns false and prints nothing if the value has no spelling. */
bool xseg_config_print_value(const struct xseg_config *config, enum xseg_config_key_id key,
                             struct xseg_strbuf *text);

/* Whether the value of a key differs from its default. */
bool xseg_config_is_set(const struct xseg_config *config, enum xseg_config_key_id key);

/* Whether a key has any effect in this configuration. */
bool xseg_config_has_effect(const struct xseg_config *config, enum xseg_config_key_id key);

/* Visit all keys in the order of the table until `visit` returns false. */
void xseg_config_for_each_key(const struct xseg_config *config, uint64_t named,
                              bool (*visit)(void *context, const struct xseg_config_key *key),
                              void *context);

/* --- Sizes. --- */

/*
 * Size arithmetic: exactly the constants and the rounding of PyTorch's CUDA caching allocator
 * (versions up to 2.15).
 */

/* The size of every block is a multiple of this unit, and no smaller remainder is split off. */
#define XSEG_SIZE_UNIT ((uint64_t)512)
/* The largest rounded size that the small pool serves. */
#define XSEG_SIZE_SMALL_MAX XSEG_MIB
/* The size of a small classic segment, and of a page of a small expandable segment. */
#define XSEG_SIZE_SMALL_SEGMENT (2 * XSEG_MIB)
/* A request of at least this size gets its own classic segment, rounded up to a step of 2 MiB. */
#define XSEG_SIZE_OWN_SEGMENT  (10 * XSEG_MIB)
#define XSEG_SIZE_SEGMENT_STEP (2 * XSEG_MIB)
/* A request above this size always fails: PyTorch's "1EB". */
#define XSEG_SIZE_MAX ((uint64_t)1 << 60)

_Static_assert(XSEG_SIZE_SMALL_MAX <= XSEG_SIZE_SMALL_SEGMENT &&
                   XSEG_SIZE_SMALL_MAX % XSEG_SIZE_UNIT == 0,
               "a small segment holds every small block");

/* The size of the block for a request, a multiple of XSEG_SIZE_UNIT.  bytes: 1 to XSEG_SIZE_MAX. */
uint64_t xseg_size_round(const struct xseg_config *config, uint64_t bytes);

/* The size of a new classic segment for a rounded size. */
uint64_t xseg_size_segment(const struct xseg_config *config, uint64_t rounded);

#endif
