/* SPDX-License-Identifier: MIT */
/*
 * A device: its context, pools, streams and totals.
 *
 * Rooms above work on devices: device_open.h opens and closes them, slow_path.h serves requests,
 * growth.h gets memory, and trim.h gives it back.
 *
 * Locking: see src/base/mutex.h for the order.  growth_lock guards everything that talks to the
 * driver about memory; table_lock the insertion of streams, arenas and pools.
 */
#ifndef XSEG_CORE_DEVICE_H
#define XSEG_CORE_DEVICE_H

#include "src/base/host_memory.h"
#include "src/core/block/page_map.h"
#include "src/core/cache/walk.h"
#include "src/core/device/device_limits.h"
#include "src/core/device/pools.h"
#include "src/core/device/route.h"
#include "src/core/history/history.h"
#include "src/core/stats/timestamped.h"
#include "vmm/context.h"

struct xseg_allocator;
struct xseg_budget_device;
struct xseg_decay;
struct xseg_pending_unmap;
struct xseg_debug_fill;
struct xseg_pending;
struct xseg_ranges;
struct xseg_sharing;

/* Counters of a device, each with its member of struct xseg_statistics.  A reset of the totals sets them to 0. */
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
    /* Memory has been short, and little of it is free: new pages are small.  Guarded by the device memory lock. */
    bool is_short;
    /* A classic segment replaced one that got no addresses; guarded by the device memory lock. */
    bool lacks_addresses;
    /* Pages could not be made, for another reason than a shortage, so new segments are classic (fallback_chain.h).  Set under
     * the device memory lock, never cleared. */
    atomic_bool is_unpaged;
    /* Memory has been short once: events of pending blocks are queried where that may serve. */
    atomic_bool asks_late;
    /* Bytes that quotas of ranges promise beyond what these have.  Guarded by the device memory lock. */
    uint64_t promised;
    /* Bytes that may be taken while other processes wait for what is theirs (budget.h); UINT64_MAX: any number. */
    atomic_uint_fast64_t allowance;
    /* enum xseg_oom_cause of the last growth that was refused.  Guarded by the device memory lock. */
    unsigned oom_cause;
    struct xseg_page_cache
        page_cache; /* unmapped physical memory; guarded by the device memory lock */
    struct xseg_allocator *allocator;
    const struct xseg_fork_guard *fork; /* the allocator's */
    struct xseg_page_map *page_map;     /* the allocator's */
    struct xseg_mutex growth_lock;      /* The device memory lock */
    struct xseg_mutex table_lock;       /* TABLE */
    struct xseg_streams streams;
    struct xseg_routes routes;
    /* State that rooms above keep for a device. */
    struct xseg_pending *pending;
    struct xseg_debug_fill *fill;
    struct xseg_decay *decay;
    struct xseg_pending_unmap *pending_unmaps;
    struct xseg_sharing *sharing;
    struct xseg_ranges *ranges;
    struct xseg_budget_device *budget;
    /* Stream that waits for users' events; NULL until needed; guarded by the device memory lock. */
    xseg_stream side;
    /* Stream that copies contents of paused pools; NULL until needed; guarded by the device memory lock. */
    xseg_stream copier;
    struct xseg_totals totals;
    struct xseg_pool pool;   /* the default pool */
    struct xseg_pools pools; /* the private pools */
    /* The private pool of guarded blocks, see guarded.h; or NULL. */
    _Atomic(struct xseg_pool *) guarded_pool;
    /* Searches of the default pool while garbage is collected by age: the clock of ages. */
    atomic_uint searches;
    struct xseg_device_limits limits;
    struct xseg_history history;
    /* The position of the segment that is registered next (extent.h); guarded by the device memory lock. */
    uint64_t next_position;
    /* Ended extents, for reuse: concurrent lookups may still read them. */
    struct xseg_list spare_extents;
    atomic_uint_fast64_t reserved;  /* bytes mapped or allocated */
    atomic_uint_fast64_t evicted;   /* bytes of blocks whose pages are evicted, see pause.h */
    atomic_uint_fast64_t addresses; /* bytes of reserved ranges */
    /* stranded: cached bytes on pages that blocks in use share, by the last explain or look of decay; memory of pools that
     * are held is left out.  used_elsewhere: what others have of the device, by the driver's last answer. */
    struct xseg_timestamped stranded, used_elsewhere;
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

/* Most bytes of physical memory: the fraction's bytes, the hard limit, or UINT64_MAX. */
uint64_t xseg_device_limit(const struct xseg_device *device);

/* Most bytes that new memory may make it at this moment: the limit, or less while other processes wait. */
uint64_t xseg_device_allowance(const struct xseg_device *device);

/* Whether new memory of a device can be pages. */
static inline bool xseg_device_makes_pages(const struct xseg_device *device)
{
    return device->context.has_vmm &&
           !atomic_load_explicit(&device->is_unpaged, memory_order_relaxed);
}

/* Bytes of device memory taken: reserved bytes, idle pages, and memory that the driver refused
 * to take back. */
uint64_t xseg_device_physical(const struct xseg_device *device);

/*
 * Ask the driver for free and total memory of the device, and note what others have.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_device_memory(struct xseg_device *device, uint64_t *free, uint64_t *total);

/* Have the stream that copies (`copier`).  The device memory lock is held.  Cost: one stream is made, once */
xseg_status xseg_device_make_copier(struct xseg_device *device);

/* Visit every arena of the device. */
void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Walk all blocks and unmapped ranges of the device, O(blocks).  Each arena is locked while its blocks are visited. */
void xseg_device_walk(struct xseg_device *device, xseg_walk_visitor *visit, void *self);

/*
 * Take the locks of all arenas of the device, so that what is read of them is of one moment.  The device memory lock is held, and no
 * other lock.  Hits wait meanwhile.
 *
 * Returns: the first arena; the others follow by `held_next`.  An arena that is made meanwhile is not among them, and
 *          has no memory
 */
struct xseg_arena *xseg_device_retain_arenas(struct xseg_device *device);

/* Give these locks.  The arenas can be gone through until the device memory lock is given. */
void xseg_device_release_arenas(struct xseg_arena *first);

#endif
