/* SPDX-License-Identifier: MIT */
/*
 * A device: its context, pools, streams, limits and totals.
 *
 * Modules above operate on devices: `instance` opens and closes them, `alloc` serves requests,
 * `grow` maps memory, and `reclaim` unmaps it.  State of those modules is allocated together with
 * the device (device_open.c) and referenced by pointers.
 *
 * Limits of a device:
 *
 *     0 ...... keep ................ soft ............. hard ........ the device's memory
 *              decay keeps idle      decay releases     requests above fail
 *              memory up to here     idle memory above
 *
 * They come from the configuration until xseg_limits_set() sets the limits of one device.  A key
 * that xseg_config_set() names sets its limit for all devices again.
 *
 * Two sums describe the memory of a device.  *Reserved* is mapped pages and classic segments.
 * *Physical* adds the page cache and handles that the driver did not release; limits use physical
 * memory.
 *
 * Invariants:
 *   LIMITS-1  keep <= soft <= hard, for the limits that are set.
 *   LIMITS-2  0 <= fraction <= 1 and 0 <= rejection <= 1.
 *
 * Locking: src/base/mutex.h has the order.  memory_lock, the device memory lock, guards everything
 * that calls the driver about memory; table_lock (TABLE) guards the insertion of streams, arenas
 * and pools.  Limits are written under DRIVER and read without a lock.  Arenas and stream entries
 * are not freed before the device closes.
 */
#ifndef XSEG_CORE_DEVICE_H
#define XSEG_CORE_DEVICE_H

#include "src/base/host_memory.h"
#include "src/core/block/extent.h"
#include "src/core/block/page_map.h"
#include "src/core/config/config.h"
#include "src/core/device/pool.h"
#include "src/core/device/route.h"
#include "src/core/history/history.h"
#include "src/core/stats/timestamped.h"
#include "vmm/context.h"
#include "xseg/reclaim.h"

struct xseg_allocator;
struct xseg_budget_device;
struct xseg_decay;
struct xseg_pending_unmap;
struct xseg_debug_fill;
struct xseg_pending;
struct xseg_ranges;
struct xseg_sharing;

/* Limits of a device in bytes; UINT64_MAX: no limit. */
struct xseg_device_limits {
    atomic_uint_fast64_t hard, soft, keep;
    _Atomic double fraction;  /* of the device's memory; 1: no limit */
    _Atomic double rejection; /* as xseg_limits.rejection_fraction */
};

/* Counters of a device, each with its member of struct xseg_statistics.  A reset of accumulated
 * statistics sets them to 0. */
#define XSEG_DEVICE_COUNTERS(X)       \
    X(retries, num_alloc_retries)     \
    X(ooms, num_ooms)                 \
    X(rejections, num_oom_rejections) \
    X(syncs, num_sync_all_streams)    \
    X(grown, num_device_alloc)        \
    X(shrunk, num_device_free)        \
    X(overwrites, overwrites)

struct xseg_device {
    struct xseg_context context;
    struct xseg_unreleased_list unreleased;
    /* The device was out of memory and little of it is free, so new pages are small.  Guarded by
     * the device memory lock. */
    bool is_memory_low;
    /* A classic segment replaced an expandable one that got no address range.  Guarded by the
     * device memory lock. */
    bool lacks_virtual_addresses;
    /* Pages could not be created for another reason than low memory, so new segments are classic
     * (fallback_chain.h).  Set under the device memory lock, never cleared. */
    atomic_bool is_unpaged;
    /* The device was out of memory once, so a miss polls the events of pending blocks. */
    atomic_bool polls_on_miss;
    /* Unused bytes of the quotas of ranges.  Guarded by the
     * device memory lock. */
    uint64_t unused_quota;
    /* Maximum physical bytes while other processes wait for memory within their shares (budget.h);
     * UINT64_MAX: no maximum. */
    atomic_uint_fast64_t allowance;
    /* enum xseg_oom_cause of the last denied growth.  Guarded by the device memory lock. */
    unsigned oom_cause;
    struct xseg_page_cache
        page_cache; /* unmapped physical memory; guarded by the device memory lock */
    struct xseg_allocator *allocator;
    const struct xseg_fork_guard *fork; /* of the allocator */
    struct xseg_page_map *page_map;     /* of the allocator */
    struct xseg_mutex memory_lock;      /* the device memory lock */
    struct xseg_mutex table_lock;       /* TABLE */
    struct xseg_streams streams;
    struct xseg_routes routes;
    /* State of modules above. */
    struct xseg_pending *pending;
    struct xseg_debug_fill *fill;
    struct xseg_decay *decay;
    struct xseg_pending_unmap *pending_unmaps;
    struct xseg_sharing *sharing;
    struct xseg_ranges *ranges;
    struct xseg_budget_device *budget;
    /* Streams of the library: one waits for events of the application, one copies contents of
     * paused pools.  NULL until needed; guarded by the device memory lock. */
    xseg_stream wait_stream, copy_stream;
    struct xseg_totals totals;
    struct xseg_pool pool;   /* the default pool */
    struct xseg_pools pools; /* the private pools */
    /* The private pool of guarded blocks (guarded.h), or NULL. */
    _Atomic(struct xseg_pool *) guarded_pool;
    /* Searches of the default pool while garbage collection is enabled: the clock of block ages. */
    atomic_uint searches;
    struct xseg_device_limits limits;
    struct xseg_history history;
    /* The position of the next extent (extent.h); guarded by the device memory lock. */
    uint64_t next_position;
    /* Destroyed extents for reuse; they are not freed, because concurrent lookups may still read
     * them. */
    struct xseg_list spare_extents;
    atomic_uint_fast64_t reserved;  /* bytes mapped or allocated */
    atomic_uint_fast64_t evicted;   /* bytes of blocks whose pages are evicted (pause.h) */
    atomic_uint_fast64_t addresses; /* bytes of virtual address ranges */
    /*
     * fragmented: cached bytes on pages that active blocks share, as of the last explain or decay
     *             pass, without pools that have holders.  used_elsewhere: bytes that other
     *             processes use, as of the last query of the driver.
     */
    struct xseg_timestamped fragmented, used_elsewhere;
#define XSEG_DEVICE_COUNTER(name, member) atomic_uint_fast64_t name;
    XSEG_DEVICE_COUNTERS(XSEG_DEVICE_COUNTER)
#undef XSEG_DEVICE_COUNTER
};

/* The device of an extent. */
static inline struct xseg_device *xseg_device_of(const struct xseg_extent *extent)
{
    const struct xseg_arena *arena = extent->arena;

    return arena->device;
}

/* --- Memory. --- */

/* Maximum physical bytes: the fraction, the hard limit, or UINT64_MAX. */
uint64_t xseg_device_limit(const struct xseg_device *device);

/* Maximum physical bytes after a growth now: the limit, or less while other processes wait. */
uint64_t xseg_device_allowance(const struct xseg_device *device);

/* Physical bytes: reserved bytes, the page cache, and memory that the driver did not release. */
uint64_t xseg_device_physical(const struct xseg_device *device);

/* Whether new segments of a device are expandable. */
static inline bool xseg_device_makes_pages(const struct xseg_device *device)
{
    return device->context.has_vmm &&
           !atomic_load_explicit(&device->is_unpaged, memory_order_relaxed);
}

/*
 * Query the free and the total memory of the device from the driver, and record the memory of other
 * processes.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_device_query_memory(struct xseg_device *device, uint64_t *free, uint64_t *total);

/* Create copy_stream unless it exists.  The caller holds the device memory lock. */
xseg_status xseg_device_create_copy_stream(struct xseg_device *device);

/* --- Visits. --- */

/* Visit every arena of the device. */
void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Walk all blocks and unmapped ranges of the device, O(blocks).  Each arena is locked while its
 * blocks are visited. */
void xseg_device_walk(struct xseg_device *device, xseg_block_visitor *visit, void *self);

/*
 * Lock all arenas of the device, so that their state is consistent across arenas.  Hits wait.  The
 * caller holds the device memory lock and no other lock.
 *
 * Returns: the first arena; the others follow by `locked_next`.  An arena that is created during
 *          the call is not locked, and has no memory
 */
struct xseg_arena *xseg_device_lock_arenas(struct xseg_device *device);

/* Unlock the arenas.  The list can be read until the device memory lock is unlocked. */
void xseg_device_unlock_arenas(struct xseg_arena *first);

/* --- Limits. --- */

static inline uint64_t xseg_device_limits_hard(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->hard, memory_order_relaxed);
}

static inline uint64_t xseg_device_limits_soft(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->soft, memory_order_relaxed);
}

static inline uint64_t xseg_device_limits_keep(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->keep, memory_order_relaxed);
}

static inline double xseg_device_limits_fraction(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->fraction, memory_order_relaxed);
}

/* The fraction of a device's memory above which throw_on_cudamalloc_oom rejects a growth
 * immediately. */
static inline double xseg_device_limits_rejection(const struct xseg_device_limits *limits)
{
    return atomic_load_explicit(&limits->rejection, memory_order_relaxed);
}

/* Initialize limits from the configuration. */
void xseg_device_limits_init(struct xseg_device_limits *limits, const struct xseg_config *config);

/* Read limits into the public structure. */
void xseg_device_limits_read(const struct xseg_device_limits *limits, struct xseg_limits *out);

/*
 * Set limits; the fraction only if set->has_fraction, the rejection fraction only if
 * set->has_rejection_fraction.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT if limits contradict each other or a fraction is out of
 *          range, and nothing has changed
 */
xseg_status xseg_device_limits_set(struct xseg_device_limits *limits,
                                   const struct xseg_limits *set);

/*
 * Check the limits of a device after the named keys of a configuration have replaced them; with
 * `store`, set these limits.
 *
 * Returns: XSEG_OK; XSEG_ERR_CONFIG if a key contradicts a limit that xseg_limits_set() has set for
 *          the device
 */
xseg_status xseg_device_limits_follow(struct xseg_device *device, const struct xseg_config *config,
                                      uint64_t named, bool store);

#endif
