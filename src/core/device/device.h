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
 * device_free_min_mb is a limit whose position depends on other users of the device: the physical
 * memory at which this much device memory remains free.  Other users change it at any time, so
 * each growth queries the free memory (free_memory.h).
 *
 * Limits come from the configuration until xseg_limits_set() sets the limits of one device.  A
 * later xseg_config_set() sets the limits whose keys it contains for all devices again.
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

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "src/core/block/block.h"
#include "src/core/block/page_map.h"
#include "src/core/config/config.h"
#include "src/core/device/pool.h"
#include "src/core/history/history.h"
#include "src/core/stats/observers.h"
#include "src/core/stream/streams.h"
#include "vmm/context.h"
#include "xseg/reclaim.h"
#include "xseg/stats.h"

/* --- Timestamped values. --- */

/*
 * A timestamped value: a number of bytes that is queried rarely, with the time of the query, so
 * that a reader can report its age.
 *
 * Locking: none.  Any thread sets and reads the value.  A reader may combine the bytes of one query
 * with the time of another.
 */

struct xseg_timestamped {
    atomic_uint_fast64_t bytes;
    atomic_uint_fast64_t recorded; /* nanoseconds of the allocator's clock, plus 1; 0: never */
};

static inline void xseg_timestamped_set(struct xseg_timestamped *timestamped, uint64_t now,
                                        uint64_t bytes)
{
    atomic_store_explicit(&timestamped->bytes, bytes, memory_order_relaxed);
    atomic_store_explicit(&timestamped->recorded, now + 1, memory_order_release);
}

/* Read the value and its age in nanoseconds.  Returns false if there is none. */
static inline bool xseg_timestamped_read(const struct xseg_timestamped *timestamped, uint64_t now,
                                         uint64_t *bytes, uint64_t *age)
{
    const uint64_t recorded = atomic_load_explicit(&timestamped->recorded, memory_order_acquire);

    if (recorded == 0)
        return false;
    *bytes = atomic_load_explicit(&timestamped->bytes, memory_order_relaxed);
    /* The clocks of the writer and the reader may have different resolutions. */
    *age = now > recorded - 1 ? now - (recorded - 1) : 0;
    return true;
}

/* --- Routes. --- */

/*
 * Routes: the selection of a pool for requests that name no pool.
 *
 * A route directs requests on streams that its predicate accepts to its pool.  A capture is a route
 * that accepts the streams of the capture, which the driver reports.  If several routes accept a
 * stream, the newest route is used.
 *
 * Allocating threads read the list of routes without a lock, because predicates are code of the
 * application.  A thread that removes a route waits until no thread reads the previous list:
 * readers are counted by epoch, as in sleepable read-copy-update (SRCU).
 *
 * Locking: changes lock TABLE of the device and hold it while readers finish; readers are
 * lock-free.
 */

struct xseg_pool;

struct xseg_route {
    _Atomic(struct xseg_route *) next; /* the next older route */
    struct xseg_pool *pool;
    /* The predicate of a route that is not a capture; NULL: accepts every stream. */
    bool (*accepts)(void *self, xseg_stream stream);
    void *self;
    /* The origin stream of the capture; NULL: the route is not a capture. */
    struct xseg_known_stream *origin;
    atomic_uint_fast64_t capture_id; /* 0: not known yet */
};

/* The routes of a device. */
struct xseg_routes {
    struct xseg_context *context;
    struct xseg_mutex *table_lock;       /* TABLE */
    _Atomic(struct xseg_route *) latest; /* NULL: none */
    atomic_uint epoch, readers[2];
};

void xseg_routes_init(struct xseg_routes *routes, struct xseg_context *context,
                      struct xseg_mutex *table_lock);
void xseg_routes_fini(struct xseg_routes *routes);

/* Whether any route exists. */
static inline bool xseg_routes_exist(struct xseg_routes *routes)
{
    return __builtin_expect(atomic_load_explicit(&routes->latest, memory_order_relaxed) != NULL, 0);
}

/*
 * Begin a route; `route` is copied.
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the pool has a route, or another capture began on the stream),
 *          XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_routes_begin(struct xseg_routes *routes, const struct xseg_route *route);

/* End the route of a pool.  Returns false if the pool has no route of this kind. */
bool xseg_routes_end(struct xseg_routes *routes, const struct xseg_pool *pool, bool is_capture);

/* Mark every pool that has a route as captured. */
void xseg_routes_record_capture(struct xseg_routes *routes);

/* Whether an active capture began on a stream. */
bool xseg_routes_captures_on(struct xseg_routes *routes, const struct xseg_known_stream *stream);

/*
 * Find the pool for a request on a stream, and retain it for the caller.  The result is NULL if no
 * route accepts the stream.
 *
 * Returns: XSEG_OK, or the error of a driver query about a capture
 * Cost:    during a capture, one query of the stream's capture state, and one more until the ID of
 *          the capture is known
 */
xseg_status xseg_routes_find(struct xseg_routes *routes, struct xseg_known_stream *stream,
                             struct xseg_pool **out);

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

/* Causes of a failed growth. */
enum xseg_oom_cause {
    /* No limit denied the growth: the driver, or the memory function of the pool, had no memory. */
    XSEG_OOM_CAUSE_DRIVER,
    XSEG_OOM_CAUSE_DEVICE,     /* the device has less memory than this process would use */
    XSEG_OOM_CAUSE_HARD_LIMIT, /* hard_limit_mb, or xseg_limits_set() of the device */
    XSEG_OOM_CAUSE_FRACTION,   /* per_process_memory_fraction */
    XSEG_OOM_CAUSE_BUDGET,     /* budget_file: other processes wait for their shares */
    XSEG_OOM_CAUSE_FREE_MIN,   /* device_free_min_mb: too little device memory would remain free */
    XSEG_OOM_CAUSE_POOL,       /* limit_bytes of the pool */
    XSEG_OOM_CAUSE_REJECTION   /* throw_on_cudamalloc_oom, and no limit */
};

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
    /* Unused bytes of the quotas of ranges.  Guarded by the device memory lock. */
    uint64_t unused_quota;
    /* Maximum physical bytes while other processes wait for memory within their shares (budget.h);
     * UINT64_MAX: no maximum. */
    atomic_uint_fast64_t allowance;
    /* The cause of the last denied growth; guarded by the device memory lock. */
    enum xseg_oom_cause oom_cause;
    /* Unmapped physical memory; guarded by the device memory lock. */
    struct xseg_page_cache page_cache;
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
    /* The private pool of guarded blocks (segments.h), or NULL. */
    _Atomic(struct xseg_pool *) guarded_pool;
    /* Searches of the default pool while garbage collection is enabled: the clock of block ages. */
    atomic_uint searches;
    struct xseg_device_limits limits;
    struct xseg_history history;
    /* The position of the next extent (block.h); guarded by the device memory lock. */
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
    /* Of xseg_device_query_free_limit(): the free memory of the device, and the maximum of the
     * physical memory that leaves device_free_min_mb free (UINT64_MAX without a minimum).  Guarded
     * by the device memory lock. */
    uint64_t free_bytes, free_limit;
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

/* Maximum physical bytes after a growth: the limit, or less while other processes wait. */
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
 * Query the free and the total memory of the device (free_memory.h), and record the memory of other
 * processes.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_device_query_memory(struct xseg_device *device, uint64_t *free, uint64_t *total);

/* Bytes of device memory that growth leaves free: device_free_min_mb.  The default is 0.  On an
 * integrated device the default is a sixteenth of the memory, at least 512 MiB, because the host
 * stops responding when its memory runs out. */
uint64_t xseg_device_free_min(const struct xseg_device *device, const struct xseg_config *config);

/*
 * Query the free memory of the device and set free_bytes and free_limit, if there is a minimum of
 * free memory.  Other processes can allocate memory between this query and a growth.  The caller
 * holds the device memory lock.
 *
 * Returns: XSEG_OK; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    a memory query with a minimum, else none
 */
xseg_status xseg_device_query_free_limit(struct xseg_device *device);

/* Create copy_stream unless it exists.  The caller holds the device memory lock. */
xseg_status xseg_device_create_copy_stream(struct xseg_device *device);

/* --- Visits. --- */

/* Iterate over the pools of a device, the default pool first.  Do not leave the loop early: the
 * loop visits the private pools (pool.h). */
#define XSEG_DEVICE_FOR_POOLS(each, device)                      \
    for (struct xseg_pool *each = &(device)->pool; each != NULL; \
         each = xseg_pools_next((device), each == &(device)->pool ? NULL : each))

/* Iterate over the arenas of all pools.  Do not leave the loop early. */
#define XSEG_DEVICE_FOR_ARENAS(arena, device)   \
    XSEG_DEVICE_FOR_POOLS(arena##_pool, device) \
    XSEG_POOL_FOR_ARENAS(arena, arena##_pool)

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
 * Check the limits that a device has after the values of some keys have replaced them; with
 * `store`, set these limits.
 *
 * keys: bit mask of the keys of the configuration that are applied
 * Returns: XSEG_OK; XSEG_ERR_CONFIG if a key contradicts a limit that xseg_limits_set() has set for
 *          the device
 */
xseg_status xseg_device_limits_apply_config(struct xseg_device *device,
                                            const struct xseg_config *config, uint64_t keys,
                                            bool store);

/* --- Counters. --- */

/*
 * Counters: memory and blocks of a device or a pool, without a walk over blocks.
 *
 * Every arena counts its blocks and memory (counts.h), and every pool its reserved memory.  A read
 * sums over the arenas of the scope, O(arenas), without an arena lock.  While other threads
 * allocate and free, the values of one read are not a consistent snapshot.
 *
 * Memory counts for the pool to which it belongs.  A block that serves the default pool as a
 * fallback (use_on_oom) is included in struct xseg_counters of its pool.  It is not included in the
 * statistics of the pool, because the holder of the pool did not allocate it.
 *
 * Locking: a visit of pools locks TABLE, statistics of a device lock STATS, and a reset locks the
 * device memory lock and ARENA.
 */

/* Bytes.  A pool that is not paused has reserved = allocated + pending + cached.  Blocks of a
 * paused pool are allocated without being reserved. */
struct xseg_counters {
    uint64_t allocated, pending, cached, reserved;
};

struct xseg_counters xseg_counters_of_pool(struct xseg_pool *pool);
struct xseg_counters xseg_counters_of_device(struct xseg_device *device);

/* Read the statistics of a device or a pool.  Members that modules above count are 0. */
void xseg_counters_read_device(struct xseg_device *device, struct xseg_statistics *out);
void xseg_counters_read_pool(struct xseg_pool *pool, struct xseg_statistics *out);

/* Reset statistics as xseg_stats_reset() specifies.  No lock is held. */
void xseg_counters_reset_device(struct xseg_device *device, unsigned flags);
void xseg_counters_reset_pool(struct xseg_pool *pool, unsigned flags);

/* --- The allocator. --- */

/*
 * The allocator: one driver, its devices, and the configuration in effect.
 *
 * A device is opened by the first call that names it.  A configuration is immutable after its
 * publication: xseg_config_set() publishes a new version.  All versions are kept until the
 * allocator closes, so that the fast path reads the current version with one load and without a
 * lock.  A version that equals an older one is not stored again: the older one is published.
 *
 * State of modules above this one (background thread, registrations, budget, ...) is allocated
 * together with the allocator (allocator_open.c) and referenced by pointers to incomplete types.
 *
 * Locking: open_lock (DRIVER) guards the opening of devices and changes of the configuration; the
 * lock of the page map (TABLE) guards changes of the stream lookup cache.
 */

struct xseg_background;
struct xseg_oom_snapshots;
struct xseg_publisher;
struct xseg_registrations;
struct xseg_budget;

/* A configuration, and the previous version. */
struct xseg_config_version {
    struct xseg_config config;
    struct xseg_config_version *older;
};

struct xseg_allocator {
    struct xseg_driver *driver;
    struct xseg_log log;
    struct xseg_clock clock;
    struct xseg_fork_guard fork;
    struct xseg_mutex open_lock; /* DRIVER */
    struct xseg_page_map page_map;
    struct xseg_stream_cache stream_cache;
    /* Whether the configuration allows fast-path frees.  The kernel wipes this in a forked child,
     * whose frees are rejected. */
    atomic_bool *fast_frees_enabled;
    bool fast_frees_are_wiped;
    _Atomic(struct xseg_config_version *) config;
    struct xseg_config_version *versions; /* all versions, newest first; guarded by DRIVER */
    const char *config_source;
    struct xseg_background *background;       /* instance.h */
    struct xseg_registrations *registrations; /* register.h */
    struct xseg_oom_snapshots *oom_snapshots; /* snapshot.h */
    struct xseg_budget *budget;               /* budget.h */
    struct xseg_publisher *publisher;         /* memory_stats.h */
    struct xseg_observers observers;
    struct xseg_history_store history;
    atomic_uint pools_created; /* number of pools that the application created */
    int device_count;
    _Atomic(struct xseg_device *) *device; /* [device_count], NULL until opened */
};

/*
 * Whether a call may use an allocator.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT for NULL; XSEG_ERR_FORKED in a forked child
 */
xseg_status xseg_allocator_check(const struct xseg_allocator *allocator);

/* Fail with the error of calls in a forked child. */
xseg_status xseg_allocator_fail_forked(void);

/* Fail because an address is not in a segment of the allocator. */
xseg_status xseg_allocator_fail_foreign(uint64_t address);

static inline const struct xseg_config *xseg_allocator_config(struct xseg_allocator *allocator)
{
    return &atomic_load_explicit(&allocator->config, memory_order_acquire)->config;
}

/* An open device, or NULL. */
static inline struct xseg_device *xseg_allocator_open_device(struct xseg_allocator *allocator,
                                                             int ordinal)
{
    XSEG_ASSERT(ordinal >= 0 && ordinal < allocator->device_count);
    return atomic_load_explicit(&allocator->device[ordinal], memory_order_acquire);
}

/* Deliver the queued events to observers with `on_trace`.  No lock is held. */
static inline void xseg_allocator_deliver(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->traced, 0))
        xseg_observers_deliver(&allocator->observers);
}

/* Whether a pool belongs to the allocator. */
static inline bool xseg_allocator_owns(const struct xseg_allocator *allocator,
                                       const struct xseg_pool *pool)
{
    XSEG_ASSERT(pool != NULL);
    return pool->device->fork == &allocator->fork;
}

#endif
