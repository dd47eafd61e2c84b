/* SPDX-License-Identifier: MIT */
/*
 * Statistics and inspection: counters with PyTorch's names and definitions, the blocks and mappings of a moment, the
 * reason why each page is not free, and metrics.
 *
 *     struct xseg_scope scope = XSEG_SCOPE_ALL;
 *     struct xseg_statistics stats = {sizeof(stats)};
 *     scope.device = 0;
 *     if (xseg_stats_get(allocator, &scope, &stats) == XSEG_OK) // Makes no driver call.
 *         printf("%llu of %llu bytes\n", (unsigned long long)stats.allocated_bytes[XSEG_STAT_ALL].current,
 *                (unsigned long long)stats.reserved_bytes[XSEG_STAT_ALL].current);
 *
 * All values are counted, not estimated.  Current values and totals are exact.  Peaks equal PyTorch's while one thread
 * at a time allocates on a device.  With concurrent threads a peak may differ by the allocations and frees of other
 * threads during the read of a few counters.
 *
 * No function changes memory or queries an event, and none synchronizes a stream.  Callbacks run without a lock and may
 * call the library; their argument describes a moment before the call.
 */
#ifndef XSEG_STATS_H
#define XSEG_STATS_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A statistic: current value, peak, and the sums of all increases and decreases. */
struct xseg_stat {
    uint64_t current, peak, allocated, freed;
};

enum xseg_stat_group { XSEG_STAT_ALL, XSEG_STAT_SMALL, XSEG_STAT_LARGE, XSEG_STAT_GROUPS };

/** Statistics of one device or private pool. */
struct xseg_statistics {
    size_t struct_size; /* sizeof(struct xseg_statistics) */
    /* For all blocks, blocks in small segments, and blocks in large segments: enum xseg_stat_group. */
    struct xseg_stat allocation[XSEG_STAT_GROUPS];           /* live blocks */
    struct xseg_stat segment[XSEG_STAT_GROUPS];              /* classic segments */
    struct xseg_stat active[XSEG_STAT_GROUPS];               /* live and pending blocks */
    struct xseg_stat inactive_split[XSEG_STAT_GROUPS];       /* cached parts of classic segments */
    struct xseg_stat allocated_bytes[XSEG_STAT_GROUPS];      /* in live blocks */
    struct xseg_stat reserved_bytes[XSEG_STAT_GROUPS];       /* mapped pages and classic segments */
    struct xseg_stat active_bytes[XSEG_STAT_GROUPS];         /* in live and pending blocks */
    struct xseg_stat inactive_split_bytes[XSEG_STAT_GROUPS]; /* in inactive_split blocks */
    struct xseg_stat requested_bytes[XSEG_STAT_GROUPS];      /* requested, of active blocks */
    struct xseg_stat oversize_allocations; /* blocks of max_split_size_mb or more */
    struct xseg_stat oversize_segments;    /* classic segments of that size */
    uint64_t num_alloc_retries;    /* allocations retried after cached memory was released */
    uint64_t num_ooms;             /* allocations that failed because of memory or a limit */
    uint64_t num_sync_all_streams; /* waits for all pending blocks */
    uint64_t num_device_alloc;     /* growths: a mapped run of pages, or one cuMemAlloc */
    uint64_t num_device_free;      /* releases: an unmapped run of pages, or one cuMemFree */
    uint64_t max_split_size;       /* bytes; UINT64_MAX: unlimited */
    uint64_t device_bytes;         /* memory of the device */
    uint64_t limit_bytes;          /* maximum of physical_bytes; UINT64_MAX: unlimited */
    uint64_t physical_bytes; /* memory allocated from the driver: reserved, stuck and idle pages */
    uint64_t unreleased_bytes;   /* pages that the driver did not release */
    uint64_t address_bytes;      /* VA of expandable segments */
    uint64_t host_bytes;         /* resident host memory for the metadata of the device */
    uint64_t overwrites;         /* blocks that were written after their free (debug_fill) */
    uint64_t num_oom_rejections; /* rejections by throw_on_cudamalloc_oom; not in num_ooms */
    uint64_t idle_page_bytes;    /* unmapped pages in the page cache (page_cache_mb) */
    uint64_t paused_bytes;       /* in blocks and cached memory of paused pools */
    uint64_t imported_bytes;     /* imported memory (share.h); in no other statistic */
    uint64_t registered_bytes;   /* in registrations (register.h), counted for each one */
};

/**
 * Read the statistics of one device or one private pool.
 *
 * A pool has the statistics of groups, the oversize counts, max_split_size, physical_bytes (its reserved bytes),
 * limit_bytes, address_bytes, paused_bytes and registered_bytes.  Other members are 0, and so are its peaks except
 * those of reserved_bytes.  They can be read while the handle is valid (xseg_pool_release()).  Memory of a
 * pool that the default pool uses (use_on_oom) counts as reserved by the pool and as allocated by the default pool.
 *
 * @param scope  names one device or one private pool, and no stream.
 * @param out    receives the statistics, up to out->struct_size bytes.
 *
 * @return XSEG_ERR_UNSUPPORTED  the scope names a stream.
 * Cost: no driver call once the device is open.  Statistics of a pool are O(streams of the pool) and take no lock of
 *       the fast path, so they can be polled.  host_bytes of a device needs a system call for each pool of a stream, and
 *       up to two for each segment, under locks for which allocations wait.  It is skipped if struct_size ends before
 *       that member.
 */
XSEG_API xseg_status xseg_stats_get(struct xseg_allocator *allocator,
                                    const struct xseg_scope *scope, struct xseg_statistics *out);

/** Statistics that xseg_stats_reset() resets. */
enum {
    XSEG_RESET_PEAK = 1,        /* peaks become the current values */
    XSEG_RESET_ACCUMULATED = 2, /* totals, num_* counters and overwrites become 0 */
};

/**
 * Reset statistics of one device or one private pool.  A reset of a device does not change its pools, and vice versa.
 *
 * @param scope  as for xseg_stats_get().
 * @param what   XSEG_RESET_PEAK, XSEG_RESET_ACCUMULATED, or both.
 *
 * Threads: any; a reset of a pool waits for a growth or trim of the device.
 * Cost: no driver call once the device is open.
 */
XSEG_API xseg_status xseg_stats_reset(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, unsigned what);

/** Number of calls of one driver entry point by an allocator. */
struct xseg_driver_call {
    const char *name;       /* static string */
    uint64_t count, failed; /* all calls; failed calls */
};

/**
 * Read the number of driver calls by entry point, of all devices, since xseg_open().
 *
 * @param calls     receives the counts; may be NULL if capacity is 0.
 * @param capacity  elements of calls.
 * @param count     receives the number of entry points; may be NULL.
 *
 * Cost: no driver call, no lock.
 */
XSEG_API xseg_status xseg_driver_calls(struct xseg_allocator *allocator,
                                       struct xseg_driver_call *calls, size_t capacity,
                                       size_t *count);

/** Memory of one device. */
struct xseg_device_stats {
    size_t struct_size; /* sizeof(struct xseg_device_stats) of the library */
    int device;         /* CUDA ordinal, equal to the index in the array */
    bool is_open; /* false: the allocator has not used the device, and the members below are 0 */
    bool is_lost; /* all requests fail with XSEG_ERR_DEVICE_LOST */
    uint64_t total_bytes;     /* memory of the device */
    uint64_t limit_bytes;     /* maximum of physical_bytes; UINT64_MAX: unlimited */
    uint64_t physical_bytes;  /* memory allocated from the driver */
    uint64_t reserved_bytes;  /* mapped pages and classic segments */
    uint64_t allocated_bytes; /* in live blocks, also of paused pools */
    uint64_t pending_bytes;   /* in pending blocks */
    uint64_t idle_bytes;      /* cached blocks of all pools, and the page cache */
    uint64_t free_bytes;      /* estimated free memory of the device; UINT64_MAX: unknown */
    uint64_t free_age_ms;     /* time since the last query of free memory; UINT64_MAX: none */
};

/**
 * Read the memory of all devices, for a scheduler that reads it at each step.
 *
 * The call opens no device and does not wait for a device that grows, trims or waits.  While other threads allocate,
 * the members of a device may be of slightly different moments.
 *
 * free_bytes is total_bytes, less physical_bytes now, less the memory of others at the last query of the driver: other
 * processes, other allocators, and the context of this process.  The driver is queried under memory pressure, and by
 * decay passes with device_free_min_mb.  xseg_explain() reports how much of idle_bytes can be released.
 *
 * @param devices      receives the devices in the order of ordinals; may be NULL if capacity is 0.
 * @param entry_bytes  sizeof(struct xseg_device_stats) of the caller; each element is filled up to this size.
 * @param capacity     elements of devices.
 * @param count        receives the number of devices; may be NULL.
 *
 * Cost: no driver call, no lock; O(pools x streams).
 */
XSEG_API xseg_status xseg_device_stats_get(struct xseg_allocator *allocator,
                                           struct xseg_device_stats *devices, size_t entry_bytes,
                                           size_t capacity, size_t *count);

/* --- Blocks, mappings and reasons. --- */

/**
 * Visit all mapped memory: each run of adjacent pages of one size and generation, and each classic segment.
 *
 * Libraries that register each physical page need this list (NVIDIA/nccl#1820, pytorch/pytorch#165419).  Memory of
 * paused pools is not mapped.  The result describes the state at the start of the call; to rely on it later, pin the
 * pages or compare generations.
 *
 * @param scope    scope; NULL: all memory.
 * @param visit    called without a lock for each mapping, which is valid during the call; returns false to end the
 *                 walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_for_each_mapping(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_mapping *mapping), void *context);

/**
 * Visit every block and every unmapped range, segment by segment in the order of addresses.
 *
 * A concurrent change during the walk may be reported in its old state, in its new state, or not at all.
 *
 * @param scope    scope; NULL: all memory.  A pool includes blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each block, which is valid during the call; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Cost: no driver call.  Blocks are read in batches of 128, under a lock for which requests of the same pool and stream
 *       wait.
 */
XSEG_API xseg_status xseg_for_each_block(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_block_info *block), void *context);

/** Reason why memory is reserved.  If several apply, the first in this order: ALLOCATED, PENDING, CLAIMED,
 * REGISTERED, PINNED, EXPORTED, POOL, CAPTURE, STREAM, ABOVE_SHARE, KEEP, DECAY, POLICY. */
enum xseg_reason_kind {
    XSEG_REASON_ALLOCATED,  /* it contains a live block */
    XSEG_REASON_PENDING,    /* it contains a pending block */
    XSEG_REASON_CLAIMED,    /* another thread is freeing a block in it */
    XSEG_REASON_PINNED,     /* idle, but pinned (xseg_pin()) */
    XSEG_REASON_POOL,       /* idle, but in a private pool that is retained */
    XSEG_REASON_CAPTURE,    /* idle, but a capture is active on the device */
    XSEG_REASON_STREAM,     /* idle, but the work of its stream has not completed */
    XSEG_REASON_KEEP,       /* idle, and kept by keep_mb or keep_window_s */
    XSEG_REASON_DECAY,      /* idle, and released by decay at the latest at the age of idle_ms */
    XSEG_REASON_POLICY,     /* idle, and released only by xseg_trim() or under memory pressure */
    XSEG_REASON_EXPORTED,   /* idle, but exported (share.h) */
    XSEG_REASON_REGISTERED, /* idle, but pinned by a registration (register.h) */
    XSEG_REASON_ABOVE_SHARE /* idle, above the share in the budget (budget_file), and released on request */
};

/** A run of adjacent pages with the same reason and block, or a classic segment. */
struct xseg_reason {
    size_t struct_size; /* sizeof(struct xseg_reason) of the library */
    enum xseg_reason_kind kind;
    int device;
    xseg_stream stream; /* stream of the memory */
    struct xseg_pool *
        pool; /* private pool of `block` (ALLOCATED, PENDING) or of the memory; NULL: default pool */
    bool is_small;      /* in small segments */
    bool is_expandable; /* pages; false: a classic segment */
    void *base;         /* start address */
    size_t bytes;       /* reserved bytes, the sum of the next four */
    size_t allocated_bytes, pending_bytes, claimed_bytes, cached_bytes;
    size_t allocated_blocks; /* live blocks in it, also in part */
    void *block; /* ALLOCATED, PENDING: the largest live or pending block; otherwise NULL */
    size_t block_bytes, block_requested; /* size and requested size of `block` */
    xseg_stream waits_for;               /* PENDING: a stream that used `block` */
    bool has_waits_for;                  /* waits_for is known */
    uint64_t age_ms;       /* time since the last free or map in it; UINT64_MAX: unknown */
    uint64_t block_age_ms; /* age of `block` as in struct xseg_block_info; UINT64_MAX: unknown */
    struct xseg_pool *fallback_pool; /* pool that has the memory of `block`, or NULL */
    uint64_t registered_bytes;       /* in registrations (register.h), counted for each one */
    bool is_single_page;             /* `block` has the whole page (single_page in pool.h) */
};

/** Sums in bytes.  Set struct_size before the call. */
struct xseg_explain_result {
    size_t struct_size; /* sizeof(struct xseg_explain_result) */
    uint64_t reserved;  /* sum of the kinds, equal to reserved_bytes of the statistics */
    uint64_t allocated, pending, claimed, pool, pinned, capture, stream, keep, decay,
        policy;                   /* by kind */
    uint64_t in_allocated_blocks; /* part of `allocated` that is in live blocks */
    uint64_t page_cache; /* not reserved: idle pages (page_cache_mb); 0 for a pool or stream */
    uint64_t unreleased; /* not reserved: pages that the driver did not release; likewise */
    uint64_t exported, registered; /* by kind */
    uint64_t single_page_padding;  /* part of in_allocated_blocks that single_page rounds up */
    uint64_t above_share;          /* by kind */
};

/**
 * Report why memory is not free.  Every reserved byte has one reason.
 *
 * No page of a device is mapped or unmapped while the device is examined, so the reasons add up to its reserved bytes.
 * Ages are known while a decay key or budget_file is set, from the first decay pass on.
 *
 * @param scope    scope; NULL: all memory.  A pool includes blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each reason, which is valid during the call; returns false to end the walk.  May be NULL.
 * @param context  first argument of visit.
 * @param out      receives the sums, up to out->struct_size bytes; may be NULL.
 *
 * @return XSEG_OK          also if visit ended the walk.
 *         XSEG_ERR_DRIVER  the stream of the scope does not exist.
 * Cost: a stream query for each stream with idle memory, and cuMemGetInfo with device_free_min_mb.  O(blocks): misses on
 *       the device wait during the call; hits and frees wait while the blocks of their pool and stream are visited.
 */
XSEG_API xseg_status xseg_explain(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  bool (*visit)(void *context, const struct xseg_reason *reason),
                                  void *context, struct xseg_explain_result *out);

/**
 * Get the description of a reason, such as "contains an allocated block".
 *
 * @return a static string; "unknown" for other numbers.
 */
XSEG_API const char *xseg_reason_message(enum xseg_reason_kind kind);

/* --- Metrics. --- */

/* The Content-Type of an HTTP response that contains the text of xseg_metrics(). */
#define XSEG_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/**
 * Write the metrics of an allocator as text.
 *
 * @param text    receives the text, terminated; "" if the whole text does not fit.  May be NULL if bytes is 0.
 * @param bytes   size of text.
 * @param needed  receives the size of the whole text in bytes, including the terminator; may be NULL.
 *
 * @return XSEG_OK  also if the text does not fit.
 * Cost: no driver call; O(pools x streams).  Locks the registrations briefly once memory was registered.  Host memory
 *       of about 300 bytes per listed pool during the call.
 */
XSEG_API xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text, size_t bytes,
                                  size_t *needed);

/**
 * Write the metrics of an allocator to a file, for the textfile collector of Prometheus's node exporter.
 *
 * The text is written to a temporary file in the same directory, whose name ends in ".part" and which then replaces the
 * file atomically.  Devices, pipes and /dev/stdout are written directly.
 *
 * @param path  path of the file; the collector reads files whose names end in ".prom".
 *
 * @return XSEG_ERR_FILE  the file could not be written; an earlier file is unchanged.
 * Cost: as xseg_metrics(), plus writing the file.
 */
XSEG_API xseg_status xseg_metrics_write(struct xseg_allocator *allocator, const char *path);

#ifdef __cplusplus
}
#endif

#endif
