/* SPDX-License-Identifier: MIT */
/*
 * The configuration: PyTorch's string of `key:value` pairs, parsed, bounded and printed back.
 *
 * Sizes are kept in bytes.  xseg_config_table[] (config_table.h) describes every key; the parser,
 * the printer and docs/options.md follow it.
 *
 * Invariants:
 *   CONFIG-1  large_segment_bytes <= max_split_bytes and <= max_non_split_rounding_bytes.
 *   CONFIG-2  while expandable_segments is on, large_segment_bytes is a multiple of 2 MiB.
 *   CONFIG-3  keep_bytes <= soft_limit_bytes <= hard_limit_bytes, as far as there are such limits.
 *
 * Locking: the owner's.
 */
#ifndef XSEG_CORE_CONFIG_H
#define XSEG_CORE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/string_util.h"
#include "xseg/status.h"

/* Sizes from 2^(20+i) to 2^(21+i) belong to interval i; the first and the last are open-ended. */
#define XSEG_CONFIG_INTERVALS 16u

/* Room for the name of a folder. */
#define XSEG_CONFIG_PATH_BYTES 256u

/* Every key, in the order of xseg_config_table[].  A set of keys is a uint64_t: bit k is key k, and bit XSEG_CONFIG_KEYS + i
 * is name i of xseg_config_ignored[]. */
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
    XSEG_CONFIG_RECLAIM_BUDGET,
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
    XSEG_CONFIG_SHARE_BUDGET,
    XSEG_CONFIG_BUDGET_SHARE,
    XSEG_CONFIG_BUDGET_MIN,
    XSEG_CONFIG_BUDGET_RETURN,
    XSEG_CONFIG_KEYS
};

/* Keys of PyTorch without an effect in the library: the parser accepts any value (config_names.h). */
#define XSEG_CONFIG_IGNORED 11u

/* Size of the buffer for the value of such a key. */
#define XSEG_CONFIG_IGNORED_BYTES 128u

/* The values of page_size. */
enum { XSEG_CONFIG_PAGES_FIXED, XSEG_CONFIG_PAGES_AUTO, XSEG_CONFIG_PAGES_SMALL };

/* Addresses of an expandable segment; amount 0 means that none was named. */
struct xseg_config_reserve {
    double amount;
    bool in_gib; /* else a fraction of the device's memory */
};

/* What is kept of what happened, and which call stacks are taken; in the order of the words in the table. */
enum xseg_history_kept { XSEG_HISTORY_NOTHING, XSEG_HISTORY_STATE, XSEG_HISTORY_ALL };
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
    char oom_snapshot[XSEG_CONFIG_PATH_BYTES]; /* folder; empty: none */
    char budget_file[XSEG_CONFIG_PATH_BYTES];  /* name or path; empty: none */
    char ignored
        [XSEG_CONFIG_IGNORED]
        [XSEG_CONFIG_IGNORED_BYTES]; /* verbatim, for snapshots; empty: not named, or too long */
    double budget_share;             /* 0: none is named */
    uint64_t budget_min_bytes;
    uint64_t oom_snapshot_bytes; /* of all of them; UINT64_MAX: no limit */
    uint32_t oom_snapshot_ms;
    uint32_t budget_wait_ms;
    int64_t idle_ms; /* -1: never */
    uint64_t keep_bytes;
    uint64_t soft_limit_bytes;      /* UINT64_MAX: none */
    uint64_t hard_limit_bytes;      /* UINT64_MAX: none */
    uint64_t device_free_min_bytes; /* 0: none */
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
    bool soft_by_device;     /* not a key: xseg_limits_set() has given a device a soft limit */
    bool fraction_by_device; /* not a key: likewise a fraction */
    /* Derived from the keys: idle memory is given back automatically; by calls of the user. */
    bool decays, decays_on_calls;
    bool traced;          /* not a key: an observer traces blocks */
    bool watches_frees;   /* derived: a free has work to do without the arena's lock */
    bool ends_with_work;  /* derived: the end of a call on the general path has work */
    bool follows_calls;   /* derived: the end of an allocation or free has such work */
    bool notes_blocks;    /* derived: something is noted of each block, see arena/recorder.h */
    bool has_fast_frees;  /* derived: freeing a block without uses takes the plain path */
    bool has_fast_allocs; /* derived: allocations take the plain path, see hit.h */
    bool debug_fill;
    bool unmap_on_free;
    bool guard_page;
    bool block_user;         /* words of requests are kept with their blocks */
    uint32_t history;        /* enum xseg_history_kept */
    uint32_t history_stacks; /* enum xseg_history_stacks */
    uint32_t history_events; /* most events of an arena */
    uint32_t history_skip;   /* set of enum xseg_history_action */
};

/* The defaults of a configuration without a string: expandable_segments is on. */
void xseg_config_init(struct xseg_config *config);

/*
 * Change the keys that a string names; the others stay.  On error nothing changes.
 *
 * Naming large_segment_size_mb sets max_non_split_rounding_mb too, unless the string names that
 * key.
 *
 * @param named  NULL, or the set of keys that the string names
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_CONFIG  the text names the key, the value, its column and what is accepted
 */
xseg_status xseg_config_parse(struct xseg_config *config, const char *text, uint64_t *named);

/*
 * Make the configuration of a new allocator from the first source that is present.
 *
 * @param argument  a string; or NULL: the first variable that is set of XSEG_ALLOC_CONF,
 *                  PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF, else the defaults
 * @param source    name of the source that was used; lives as long as the library
 * @param named     NULL, or the set of keys that the string names
 *
 * Returns: as xseg_config_parse(); the error text names the source, too
 */
xseg_status xseg_config_load(struct xseg_config *config, const char *argument, const char **source,
                             uint64_t *named);

/* Derive the members that follow from the keys. */
void xseg_config_sum_up(struct xseg_config *config);

/* Whether there is a background thread. */
static inline bool xseg_config_has_thread(const struct xseg_config *config)
{
    return config->background_thread || config->budget_file[0] != '\0';
}

#endif
