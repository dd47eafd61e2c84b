/* SPDX-License-Identifier: MIT */
/*
 * Statistics, with PyTorch's names and meanings.
 *
 * Everything here is counted, nothing is modelled.  Current values and totals are always exact.
 * Peaks are exactly PyTorch's while one thread at a time allocates on a device.  With several at
 * once a peak may be off by what the other threads allocate or free while it is taken, which is the
 * time of one look at a few counters.
 *
 * Threads: any; readable while everything runs.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_STATS_H
#define XSEG_STATS_H

#include "xseg/trim.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A quantity: its value, its highest value, and the sums of all increases and decreases. */
struct xseg_stat {
    uint64_t current, peak, allocated, freed;
};

enum xseg_stat_group { XSEG_STAT_ALL, XSEG_STAT_SMALL, XSEG_STAT_LARGE, XSEG_STAT_GROUPS };

/** Statistics of one device.  Start from XSEG_STATISTICS_INIT. */
struct xseg_statistics {
    size_t struct_bytes; /* sizeof(struct xseg_statistics) */
    /* Each for all, for the small and for the large pools. */
    struct xseg_stat allocation[XSEG_STAT_GROUPS];           /* live blocks */
    struct xseg_stat segment[XSEG_STAT_GROUPS];              /* classic segments */
    struct xseg_stat active[XSEG_STAT_GROUPS];               /* live and pending blocks */
    struct xseg_stat inactive_split[XSEG_STAT_GROUPS];       /* cached parts of classic segments */
    struct xseg_stat allocated_bytes[XSEG_STAT_GROUPS];      /* in live blocks */
    struct xseg_stat reserved_bytes[XSEG_STAT_GROUPS];       /* mapped pages + classic segments */
    struct xseg_stat active_bytes[XSEG_STAT_GROUPS];         /* in live and pending blocks */
    struct xseg_stat inactive_split_bytes[XSEG_STAT_GROUPS]; /* in inactive_split blocks */
    struct xseg_stat requested_bytes[XSEG_STAT_GROUPS];      /* asked for, live and pending */
    /* Blocks and classic segments of max_split_size_mb or more. */
    struct xseg_stat oversize_allocations;
    struct xseg_stat oversize_segments;
    uint64_t num_alloc_retries;    /* allocations tried again after the cache was given back */
    uint64_t num_ooms;             /* allocations refused for want of memory */
    uint64_t num_sync_all_streams; /* waits for all pending blocks */
    uint64_t num_device_alloc;     /* growths: a hole mapped, or one cuMemAlloc */
    uint64_t num_device_free;      /* shrinks: a cached run unmapped, or one cuMemFree */
    uint64_t max_split_size;       /* bytes; UINT64_MAX when unlimited */
    uint64_t device_bytes;         /* memory of the device */
    uint64_t limit_bytes;          /* what physical may reach; UINT64_MAX when unlimited */
    uint64_t physical_bytes;       /* reserved + stuck + idle pages: memory taken from the driver */
    uint64_t stuck_bytes;          /* pages that the driver would not take back */
    uint64_t address_bytes;        /* reserved addresses of expandable segments */
    uint64_t host_bytes;           /* host memory that this device's bookkeeping has touched */
    uint64_t overwrites;           /* blocks found written to after their free (debug_fill) */
    uint64_t num_oom_rejections;   /* refused at once, see throw_on_cudamalloc_oom; no num_ooms */
    uint64_t idle_page_bytes; /* pages that are mapped nowhere, kept for reuse: page_cache_mb */
    uint64_t paused_bytes;    /* in blocks and cached memory of paused pools: addresses only */
    uint64_t imported_bytes;  /* memory of others that is mapped here (export.h); in no other sum */
    uint64_t
        registered_bytes; /* that have entered (registration.h); what is registered twice counts twice */
};
/* clang-format off */
#define XSEG_STATISTICS_INIT {sizeof(struct xseg_statistics), {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}}, {0, 0, 0, 0}, {0, 0, 0, 0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
/* clang-format on */

/**
 * Read the statistics of a device, or of one pool of it.
 *
 * Of a pool there are the groups, the oversize counts, physical_bytes (its reserved bytes),
 * limit_bytes, address_bytes, paused_bytes and registered_bytes; everything else is 0, and so are peaks but those of
 * reserved_bytes, which are exact.  They can be read as long as the handle is valid (xseg_pool_release()).  What the pool
 * has lent (use_on_oom) is reserved by it, but its holder, the default pool, has allocated it: it counts in
 * `reserved_bytes` of the pool, not in what is live, active or requested.
 *
 * @param where  names one device, or a private pool; selecting a stream is XSEG_ERR_UNSUPPORTED
 * @param out    filled in up to out->struct_bytes, which the caller sets
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_UNSUPPORTED, XSEG_ERR_FORKED; XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DEVICE_LOST (the device could not be opened)
 * Cost:    no driver call once the device is open.  host_bytes takes a system call for each pool of a stream, and up
 *          to two for each segment; a caller whose struct_bytes ends before that member does not pay for it.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_stats(struct xseg_allocator *allocator,
                                               const struct xseg_where *where,
                                               struct xseg_statistics *out);

enum {
    XSEG_RESET_PEAK = 1,        /* peaks fall to the current values */
    XSEG_RESET_ACCUMULATED = 2, /* totals, num_* counters, overwrites: again at 0 */
};

/**
 * Reset statistics of a device, or of one pool of it.  Neither changes the other's.
 *
 * @param what  XSEG_RESET_PEAK, XSEG_RESET_ACCUMULATED, or both
 *
 * Returns: as xseg_stats()
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_stats_reset(struct xseg_allocator *allocator,
                                                     const struct xseg_where *where, unsigned what);

/** How often one entry point of the driver was called, by this allocator. */
struct xseg_driver_call {
    const char *name; /* lives as long as the library */
    uint64_t count, failed;
};

/**
 * Driver calls by name, of all devices together.  Counted since xseg_open().
 *
 * @param calls     where they go; NULL when capacity is 0
 * @param capacity  entries in calls
 * @param count     NULL, or how many entry points there are
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call, no lock.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_driver_calls(struct xseg_allocator *allocator,
                                                      struct xseg_driver_call *calls,
                                                      size_t capacity, size_t *count);

/** What a device has, as the library knows it without the driver. */
struct xseg_device_figures {
    size_t struct_bytes;     /* sizeof(struct xseg_device_figures), as the library knows it */
    int device;              /* CUDA ordinal: the place in the array */
    bool is_open;            /* false: this allocator has not used the device yet; all below is 0 */
    bool is_lost;            /* no request succeeds (XSEG_ERR_DEVICE_LOST) */
    uint64_t total_bytes;    /* memory of the device */
    uint64_t limit_bytes;    /* what physical_bytes may reach; UINT64_MAX when unlimited */
    uint64_t physical_bytes; /* memory taken from the driver */
    uint64_t reserved_bytes; /* mapped pages + classic segments */
    uint64_t live_bytes;     /* in live blocks; those of paused pools have addresses only */
    uint64_t pending_bytes;  /* in blocks that were freed and that another stream may still use */
    /* In no block: cached memory of all pools, of those that are held, too, and pages that are kept for reuse.
     * xseg_explain() says how much of it can go back. */
    uint64_t idle_bytes;
    /* total_bytes less physical_bytes, and less what others had when the driver was last asked: what is taken here is that
     * of now, what others take is that of then.  Others are other processes and allocators, and this process's context.
     * UINT64_MAX: the driver was never asked.  It is asked when memory is short, and with device_free_min_mb each time
     * that decay looks. */
    uint64_t free_bytes;
    uint64_t free_age_ms; /* milliseconds since the driver was asked; UINT64_MAX: it never was */
};

/**
 * The figures of all devices, for a scheduler that looks at them at each step.
 *
 * Opens no device, waits for nothing, and changes nothing: a device that grows, trims or waits holds up neither its own
 * figures nor those of others.  While other threads allocate, figures of a device may be of slightly different moments.
 *
 * @param devices      where they go, the device of ordinal 0 first; NULL when capacity is 0
 * @param entry_bytes  sizeof(struct xseg_device_figures), as the caller knows it; each entry is filled in so far
 * @param capacity     entries in devices
 * @param count        NULL, or how many devices there are
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_FORKED
 * Cost:    no driver call, no lock; a few words read of each pool of a stream.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_devices(struct xseg_allocator *allocator,
                                                 struct xseg_device_figures *devices,
                                                 size_t entry_bytes, size_t capacity,
                                                 size_t *count);

#ifdef __cplusplus
}
#endif

#endif
