/* SPDX-License-Identifier: MIT */
/*
 * Statistics with PyTorch's names and definitions.
 *
 *     struct xseg_scope scope = XSEG_SCOPE_ALL;
 *     struct xseg_statistics stats = XSEG_STATISTICS_INIT;
 *     scope.device = 0;
 *     if (xseg_stats_get(allocator, &scope, &stats) == XSEG_OK) // Makes no driver call.
 *         printf("%llu of %llu bytes\n", (unsigned long long)stats.allocated_bytes[XSEG_STAT_ALL].current,
 *                (unsigned long long)stats.reserved_bytes[XSEG_STAT_ALL].current);
 *
 * All values are counted, not estimated.  Current values and totals are exact.  Peaks equal PyTorch's while one thread
 * at a time allocates on a device.  With concurrent threads a peak may differ by the allocations and frees of other
 * threads during the read of a few counters.
 */
#ifndef XSEG_STATS_H
#define XSEG_STATS_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A statistic: current value, peak, and the sums of all increases and decreases. */
struct xseg_stat {
    uint64_t current, peak, allocated, freed;
};

enum xseg_stat_group { XSEG_STAT_ALL, XSEG_STAT_SMALL, XSEG_STAT_LARGE, XSEG_STAT_GROUPS };

/** Statistics of one device or private pool.  Initialize with XSEG_STATISTICS_INIT. */
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
    struct xseg_stat
        requested_bytes[XSEG_STAT_GROUPS]; /* requested sizes of live and pending blocks */
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
    uint64_t imported_bytes;     /* imported memory (export.h); in no other statistic */
    uint64_t registered_bytes;   /* in registrations (registration.h), counted for each one */
};
/* clang-format off */
#define XSEG_STATISTICS_INIT {sizeof(struct xseg_statistics), {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

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

#ifdef __cplusplus
}
#endif

#endif
