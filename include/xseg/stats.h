/* SPDX-License-Identifier: MIT */
/*
 * Statistics and inspection: counters as in PyTorch, blocks, mappings, the reason why each page is reserved, and
 * metrics.
 *
 *     struct xseg_scope scope = XSEG_SCOPE_ALL;
 *     struct xseg_statistics stats = {sizeof(stats)};
 *     scope.device = 0;
 *     if (xseg_stats_get(allocator, &scope, &stats) == XSEG_OK) // Makes no driver call.
 *         printf("%llu of %llu bytes\n", (unsigned long long)stats.allocated_bytes[XSEG_STAT_ALL].current,
 *                (unsigned long long)stats.reserved_bytes[XSEG_STAT_ALL].current);
 *
 * The counters have PyTorch's names and definitions.  All values are counted, not estimated.  Current values and totals
 * are exact.  Peaks equal PyTorch's while one thread at a time allocates on a device.  With concurrent threads a peak
 * may differ by the allocations and frees of other threads during the read of a few counters.
 *
 * No function changes memory, queries an event or synchronizes a stream.  Callbacks run without a lock and may call the
 * library.  The argument of a callback describes a moment before the callback.
 */
#ifndef XSEG_STATS_H
#define XSEG_STATS_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A statistic. */
struct xseg_stat {
    uint64_t current;   /* current value */
    uint64_t peak;      /* highest value */
    uint64_t allocated; /* sum of all increases */
    uint64_t freed;     /* sum of all decreases */
};

/** Groups of a statistic. */
enum xseg_stat_group {
    XSEG_STAT_ALL,   /* all segments */
    XSEG_STAT_SMALL, /* small segments */
    XSEG_STAT_LARGE, /* large segments */
    XSEG_STAT_GROUPS /* number of groups */
};

/** Statistics of one device or private pool.  Arrays are indexed by enum xseg_stat_group. */
struct xseg_statistics {
    size_t struct_size;                                      /* sizeof(struct xseg_statistics) */
    struct xseg_stat allocation[XSEG_STAT_GROUPS];           /* allocated blocks */
    struct xseg_stat segment[XSEG_STAT_GROUPS];              /* classic segments */
    struct xseg_stat active[XSEG_STAT_GROUPS];               /* allocated and pending blocks */
    struct xseg_stat inactive_split[XSEG_STAT_GROUPS];       /* cached parts of classic segments */
    struct xseg_stat allocated_bytes[XSEG_STAT_GROUPS];      /* in allocated blocks */
    struct xseg_stat reserved_bytes[XSEG_STAT_GROUPS];       /* mapped pages, classic segments */
    struct xseg_stat active_bytes[XSEG_STAT_GROUPS];         /* in allocated and pending blocks */
    struct xseg_stat inactive_split_bytes[XSEG_STAT_GROUPS]; /* in inactive_split blocks */
    struct xseg_stat requested_bytes[XSEG_STAT_GROUPS];      /* requested sizes of active blocks */
    struct xseg_stat oversize_allocations; /* blocks of max_split_size_mb or more */
    struct xseg_stat oversize_segments;    /* classic segments of max_split_size_mb or more */
    uint64_t num_alloc_retries;            /* growths retried after cached memory was released */
    uint64_t num_ooms;                     /* requests that failed because of memory or a limit */
    uint64_t num_sync_all_streams;         /* waits for all pending blocks */
    uint64_t num_device_alloc;             /* growths: a mapped run of pages, or one cuMemAlloc */
    uint64_t num_device_free;    /* releases: an unmapped run of pages, or one cuMemFree */
    uint64_t max_split_size;     /* max_split_size_mb, in bytes; UINT64_MAX: unlimited */
    uint64_t device_bytes;       /* memory of the device */
    uint64_t limit_bytes;        /* maximum of physical_bytes; UINT64_MAX: unlimited */
    uint64_t physical_bytes;     /* reserved memory, page cache, unreleased_bytes */
    uint64_t unreleased_bytes;   /* memory that the driver did not release */
    uint64_t address_bytes;      /* VA of expandable segments */
    uint64_t host_bytes;         /* resident host memory for the metadata of the device */
    uint64_t overwrites;         /* blocks that were written after their free (debug_fill) */
    uint64_t num_oom_rejections; /* rejections by throw_on_cudamalloc_oom; not in num_ooms */
    uint64_t idle_page_bytes;    /* pages in the page cache (page_cache_mb) */
    uint64_t paused_bytes;       /* in blocks and cached memory of paused pools */
    uint64_t imported_bytes;     /* imported memory (share.h); in no other statistic */
    uint64_t registered_bytes;   /* registered memory, once for each registration (register.h) */
};

/**
 * Read the statistics of one device or one private pool.
 *
 * A pool has the members of type struct xseg_stat, max_split_size, physical_bytes (its reserved bytes), limit_bytes,
 * address_bytes, paused_bytes and registered_bytes.  Its other members are 0, and so are its peaks except those of
 * reserved_bytes.  The statistics of a pool can be read while its handle is valid (xseg_pool_release()).  A block of
 * the default pool in memory of a private pool (use_on_oom) counts as reserved by the private pool and as allocated by
 * the default pool.
 *
 * @param scope  names one device or one private pool, and no stream.
 * @param out    receives the statistics, up to out->struct_size bytes.
 *
 * @return XSEG_ERR_UNSUPPORTED  the scope names a stream.
 * Cost: no driver call once the device is open.  Statistics of a pool are O(streams of the pool) and take no lock of
 *       hits, so they can be polled.  host_bytes of a device needs a system call for each pool and stream, and up to
 *       two for each segment, under locks for which allocations wait.  host_bytes is not computed if struct_size ends
 *       before that member.
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
 * Threads: any; a reset of a pool waits for the device memory lock.
 * Cost: no driver call once the device is open.
 */
XSEG_API xseg_status xseg_stats_reset(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, unsigned what);

/** Number of calls of one driver entry point by an allocator. */
struct xseg_driver_call {
    const char *name; /* entry point, such as "cuMemCreate"; a static string */
    uint64_t count;   /* all calls */
    uint64_t failed;  /* failed calls, which `count` includes */
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
    size_t struct_size;       /* sizeof(struct xseg_device_stats) of the library */
    int device;               /* CUDA ordinal, equal to the index in the array */
    bool is_open;             /* false: the device is not open, and the members below are 0 */
    bool is_lost;             /* all requests fail with XSEG_ERR_DEVICE_LOST */
    uint64_t total_bytes;     /* memory of the device */
    uint64_t limit_bytes;     /* maximum of physical_bytes; UINT64_MAX: unlimited */
    uint64_t physical_bytes;  /* memory allocated from the driver */
    uint64_t reserved_bytes;  /* mapped pages and classic segments */
    uint64_t allocated_bytes; /* in allocated blocks, also of paused pools */
    uint64_t pending_bytes;   /* in pending blocks */
    uint64_t idle_bytes;      /* in cached blocks of all pools and in the page cache */
    uint64_t free_bytes;      /* estimated free memory of the device; UINT64_MAX: unknown */
    uint64_t free_age_ms;     /* time since the last query of free memory; UINT64_MAX: none */
    uint64_t free_min_bytes;  /* device_free_min_mb of the device: growth leaves this much free */
    bool is_integrated;       /* the device uses the memory of the host */
};

/**
 * Read the memory of all devices, for a scheduler that reads it at each step.
 *
 * The call opens no device and does not wait for the device memory lock.  While other threads allocate, the members of
 * a device may be of slightly different moments.
 *
 * free_bytes is total_bytes, less physical_bytes, less the memory of others at the last query.  Others are other
 * processes, other allocators, and the context of this process; on an integrated device also the host.  The driver, or
 * /proc/meminfo for an integrated device, is queried under memory pressure,
 * and with device_free_min_mb by each growth and each decay pass.  xseg_explain() reports how much of idle_bytes can be
 * released.
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
 * @param visit    called for each mapping, which is valid during the callback; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK  also if `visit` ended the walk.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_for_each_mapping(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_mapping *mapping), void *context);

/**
 * Visit every block, also unmapped ones, segment by segment in the order of addresses.
 *
 * A block that another thread changes during the walk may be reported in its old state, in its new state, or not at
 * all.
 *
 * @param scope    scope; NULL: all memory.  A pool includes the blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each block, which is valid during the callback; returns false to end the walk.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK  also if `visit` ended the walk.
 * Cost: no driver call.  Blocks are read in batches of 128, under a lock for which requests of the same pool and stream
 *       wait.
 */
XSEG_API xseg_status xseg_for_each_block(
    struct xseg_allocator *allocator, const struct xseg_scope *scope,
    bool (*visit)(void *context, const struct xseg_block_info *block), void *context);

/**
 * Reason why memory is reserved.
 *
 * If several reasons apply, the first one of this order is reported: ALLOCATED, PENDING, CLAIMED, REGISTERED, PINNED,
 * EXPORTED, POOL, CAPTURE, STREAM, ABOVE_SHARE, KEEP, DECAY, POLICY.
 */
enum xseg_reason_kind {
    XSEG_REASON_ALLOCATED,  /* the memory contains an allocated block */
    XSEG_REASON_PENDING,    /* the memory contains a pending block */
    XSEG_REASON_CLAIMED,    /* the memory contains a claimed block */
    XSEG_REASON_PINNED,     /* idle, but pinned (xseg_pin(), XSEG_DMABUF_PIN) */
    XSEG_REASON_POOL,       /* idle, but in a private pool that is retained */
    XSEG_REASON_CAPTURE,    /* idle, but a capture is active on the device */
    XSEG_REASON_STREAM,     /* idle, but the work of its stream has not completed */
    XSEG_REASON_KEEP,       /* idle, and kept by keep_mb or keep_window_s */
    XSEG_REASON_DECAY,      /* idle, and released by decay at the latest at the age of idle_ms */
    XSEG_REASON_POLICY,     /* idle, and released only by xseg_trim() or under memory pressure */
    XSEG_REASON_EXPORTED,   /* idle, but exported (share.h) */
    XSEG_REASON_REGISTERED, /* idle, but pinned by a registration (register.h) */
    XSEG_REASON_ABOVE_SHARE /* idle, above the share of budget_file, and released on demand */
};

/** A run of adjacent pages with the same reason and block, or a classic segment. */
struct xseg_reason {
    size_t struct_size; /* sizeof(struct xseg_reason) of the library */
    enum xseg_reason_kind kind;
    int device;
    xseg_stream stream;      /* stream of the memory */
    struct xseg_pool *pool;  /* private pool of `block`, else of the memory; NULL: default pool */
    bool is_small;           /* in a small segment */
    bool is_expandable;      /* pages; false: a classic segment */
    void *base;              /* start address */
    size_t bytes;            /* reserved bytes, the sum of the next four members */
    size_t allocated_bytes;  /* in allocated blocks */
    size_t pending_bytes;    /* in pending blocks */
    size_t claimed_bytes;    /* in claimed blocks */
    size_t cached_bytes;     /* in cached blocks */
    size_t allocated_blocks; /* number of allocated blocks, also if they are only partly in it */
    void *block;             /* ALLOCATED, PENDING: the largest such block; otherwise NULL */
    size_t block_bytes;      /* size of `block` */
    size_t block_requested;  /* requested size of `block` */
    xseg_stream waits_for;   /* PENDING: a stream that used `block` */
    bool has_waits_for;      /* waits_for is known */
    uint64_t age_ms;         /* time since the last free or map in it; UINT64_MAX: unknown */
    uint64_t block_age_ms;   /* age of `block`, see struct xseg_block_info; UINT64_MAX: unknown */
    struct xseg_pool *fallback_pool; /* pool that has the memory of `block` (use_on_oom), or NULL */
    uint64_t registered_bytes;       /* registered bytes, once for each registration (register.h) */
    bool is_single_page; /* the run is one page that is its whole segment (single_page) */
};

/** Sums of the reasons, in bytes.  Set struct_size before the call. */
struct xseg_explain_result {
    size_t struct_size; /* sizeof(struct xseg_explain_result) */
    uint64_t reserved;  /* sum of all reasons, equal to reserved_bytes of the statistics */
    uint64_t allocated; /* XSEG_REASON_ALLOCATED */
    uint64_t pending;   /* XSEG_REASON_PENDING */
    uint64_t claimed;   /* XSEG_REASON_CLAIMED */
    uint64_t pool;      /* XSEG_REASON_POOL */
    uint64_t pinned;    /* XSEG_REASON_PINNED */
    uint64_t capture;   /* XSEG_REASON_CAPTURE */
    uint64_t stream;    /* XSEG_REASON_STREAM */
    uint64_t keep;      /* XSEG_REASON_KEEP */
    uint64_t decay;     /* XSEG_REASON_DECAY */
    uint64_t policy;    /* XSEG_REASON_POLICY */
    uint64_t in_allocated_blocks; /* part of `allocated` that is in allocated blocks */
    uint64_t page_cache;          /* not in `reserved`: the page cache; see xseg_explain() */
    uint64_t unreleased;          /* not in `reserved`: memory that the driver did not release */
    uint64_t exported;            /* XSEG_REASON_EXPORTED */
    uint64_t registered;          /* XSEG_REASON_REGISTERED */
    uint64_t single_page_padding; /* part of in_allocated_blocks that single_page rounds up */
    uint64_t above_share;         /* XSEG_REASON_ABOVE_SHARE */
};

/**
 * Report why memory is reserved.  Every reserved byte has one reason.
 *
 * No page of a device is mapped or unmapped while the call examines the device, so the reasons add up to its reserved
 * bytes.  page_cache and unreleased are 0 if the scope selects a pool or a stream.  Ages of pages are known while a
 * decay key or budget_file is set, from the first decay pass on.
 *
 * @param scope    scope; NULL: all memory.  A pool includes the blocks of the default pool in its memory (use_on_oom).
 * @param visit    called for each reason, which is valid during the callback; returns false to end the walk.  May be
 *                 NULL.
 * @param context  first argument of visit.
 * @param out      receives the sums, up to out->struct_size bytes; may be NULL.
 *
 * @return XSEG_OK  also if `visit` ended the walk.
 * Threads: any; waits for the device memory lock.
 * Cost: a stream query for each stream with idle memory, and cuMemGetInfo with device_free_min_mb.  O(blocks): misses
 *       on the device wait during the call; hits and frees wait while the blocks of their pool and stream are visited.
 */
XSEG_API xseg_status xseg_explain(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                  bool (*visit)(void *context, const struct xseg_reason *reason),
                                  void *context, struct xseg_explain_result *out);

/**
 * Get the description of a reason, such as "contains an allocated block".
 *
 * @return a static string; "unknown" for a number that is not a reason.
 */
XSEG_API const char *xseg_reason_message(enum xseg_reason_kind kind);

/* --- Metrics. --- */

/** Content-Type of an HTTP response that contains the text of xseg_metrics(). */
#define XSEG_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

/**
 * Write the metrics of an allocator as text (docs/metrics.md).
 *
 * @param text    receives the text, terminated; "" if the whole text does not fit.  May be NULL if bytes is 0.
 * @param bytes   size of text.
 * @param needed  receives the size of the whole text in bytes, including the terminator; may be NULL.
 *
 * @return XSEG_OK  also if the text does not fit.
 * Cost: no driver call; O(pools x streams).  Once memory was registered, the call locks the table of registrations
 *       briefly.  Host memory of about 300 bytes per listed pool during the call.
 */
XSEG_API xseg_status xseg_metrics(struct xseg_allocator *allocator, char *text, size_t bytes,
                                  size_t *needed);

/**
 * Write the metrics of an allocator to a file, for the textfile collector of Prometheus's node exporter.
 *
 * The text is written to a temporary file in the same directory, whose name ends in ".part".  The temporary file then
 * replaces the file atomically.  Devices, pipes and /dev/stdout are written directly.
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
