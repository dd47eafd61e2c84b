/* SPDX-License-Identifier: MIT */
/*
 * Pools: arenas that share no memory with other pools.
 *
 * Every device has a default pool, which serves requests that name no pool.  The application
 * creates *private* pools; one more private pool of the library serves guarded blocks (segments.h).
 * A pool has one arena per stream and size class, created by the first request.
 *
 * Lifetime of a private pool:
 *
 *     created --> has holders --> retired --> destroyed --> freed
 *                 retain, release   |            |            no visitor remains
 *                                   |            no segment remains
 *                                   the last holder released the pool
 *
 * A retired pool serves no requests.  Its allocated blocks stay valid, and its cached memory is
 * reclaimed like that of the default pool.  `references` counts 1 for all holders together and 1
 * for each segment.  The thread that drops the last reference destroys the pool (reclaim.h).
 * If the pool has a callback (`on_destroy`), it is called as soon as that thread holds no lock;
 * until the callback has returned, the pool can be queried and trimmed.  Then the pool is freed,
 * and its arenas move to a free list of the device: arenas are not freed before the device closes,
 * because a thread that finds an arena through the page map locks it before it checks that the
 * arena has the address.
 *
 * A *visitor* defers the freeing of a pool, so that a thread that iterates over the pools of a
 * device can continue with the next one.  The pool itself counts as one visitor until it is
 * destroyed and its callback has returned.
 *
 * Locking: TABLE guards the list of pools, visitors, free arenas and the insertion of arenas; the
 * list of arenas of a pool is read without a lock.  A thread may read a pool while it is a holder
 * or visitor, or holds the device memory lock or the lock of an arena with a segment of the pool.
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/base/check.h"
#include "src/core/block/arena.h"
#include "xseg/pool.h"

/* States of a pool (pause.h). */
enum xseg_pool_state {
    XSEG_POOL_RUNNING,
    XSEG_POOL_TRANSITION, /* a thread pauses or resumes the pool */
    XSEG_POOL_PAUSED
};

struct xseg_pool {
    struct xseg_device *device;
    _Atomic(struct xseg_arena *) arenas;
    atomic_bool no_split, allows_fallback; /* options, may be changed by xseg_pool_set() */
    atomic_bool is_single; /* single_page; constant after the first arena was created */
    bool is_private;
    bool is_guarded;     /* the pool of guarded blocks, which have a segment each (segments.h) */
    bool has_own_memory; /* memory is allocated by functions of the application */
    atomic_bool is_captured; /* a capture allocated from the pool */
    /* The limit of the pool denied the last growth; guarded by the device memory lock. */
    bool is_at_limit;
    enum xseg_pool_state state; /* guarded by the device memory lock */
    uint32_t id; /* ID of a pool of the application, from 1; 0: the default or guarded pool */
    /* Unique among all pools that the device ever had: the owner of pages (vmm/page_cache.h). */
    uint64_t serial;
    atomic_uint_fast64_t limit; /* maximum reserved bytes; UINT64_MAX: no limit */
    /* The options at creation; later changes are in `limit` and the flags above. */
    struct xseg_pool_options options;
    char label[XSEG_POOL_NAME_MAX + 3]; /* the name in quotes, or the ID */
    atomic_uint holders;                /* 0: retired.  The default pool always has a holder. */
    atomic_uint references;           /* 1 for the holders, and 1 for each segment; 0: destroyed */
    uint32_t visitors;                /* guarded by TABLE */
    struct xseg_list link;            /* in the list of the device; guarded by TABLE */
    struct xseg_pool *next_destroyed; /* the next pool whose callback is due */
    /* Saved contents of a paused pool, or NULL; guarded by the device memory lock. */
    struct xseg_contents *contents;
    /* Reserved bytes: of the pool, of its small and large arenas, and the peaks by enum
     * xseg_stat_group.  Written under the device memory lock. */
    atomic_uint_fast64_t reserved, reserved_by_size[2], reserved_peak[XSEG_STAT_GROUPS];
    atomic_uint_fast64_t addresses; /* bytes of virtual address ranges */
};

/* The private pools of a device. */
struct xseg_pools {
    struct xseg_list list;                 /* the newest first; guarded by TABLE */
    struct xseg_arena *free_arena[2];      /* small, large; linked by `next`; guarded by TABLE */
    _Atomic(struct xseg_pool *) destroyed; /* pools whose callback is due, the newest first */
    atomic_uint_fast64_t serials;          /* number of pools that were ever initialized */
    atomic_size_t host_bytes;              /* of pools */
};

/* --- Creation and arenas. --- */

/* Initialize a zeroed pool.  options: NULL for the default pool */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options);

/* Destroy the arenas of a pool, which have no segments. */
void xseg_pool_fini(struct xseg_pool *pool);

void xseg_pools_init(struct xseg_device *device);

/* Free all pools and arenas; no arena has segments. */
void xseg_pools_fini(struct xseg_device *device);

/*
 * Create a private pool with one holder.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pools_create(struct xseg_device *device, const struct xseg_pool_options *options,
                              bool is_guarded, struct xseg_pool **out);

/* The arena of a stream, or NULL. */
struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small);

/*
 * Get the arena of a stream, and create it if it does not exist.  The caller retains the pool.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out);

/* Iterate over the arenas of a pool. */
#define XSEG_POOL_FOR_ARENAS(arena, pool)                                                        \
    for (struct xseg_arena *arena = atomic_load_explicit(&(pool)->arenas, memory_order_acquire); \
         arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire))

/* Account for memory that was mapped for an arena of a pool, or released.  The caller holds the
 * device memory lock. */
void xseg_pool_record_growth(struct xseg_arena *arena, uint64_t bytes);
void xseg_pool_record_shrink(struct xseg_arena *arena, uint64_t bytes);

/* --- Lifetime. --- */

/* Add a holder.  Returns false if the pool is retired. */
bool xseg_pool_try_retain(struct xseg_pool *pool);

/* Remove a holder.  is_last: set to whether no holder remains; the caller then drops the reference
 * of the holders.  Returns false if the pool has no holder. */
bool xseg_pool_remove_holder(struct xseg_pool *pool, bool *is_last);

/* Whether all holders have released a private pool. */
static inline bool xseg_pool_is_retired(const struct xseg_pool *pool)
{
    return pool->is_private && atomic_load_explicit(&pool->holders, memory_order_relaxed) == 0;
}

/* Add a reference for a segment to a pool that has references. */
void xseg_pool_add_reference(struct xseg_pool *pool);

/*
 * Drop a reference.  The caller holds no ARENA lock.  Returns whether it was the last one, so that
 * the caller must destroy the pool; otherwise the caller must not read the pool afterwards, unless
 * it visits the pool.
 */
bool xseg_pool_drop_reference(struct xseg_pool *pool) __attribute__((warn_unused_result));

/* Destroy a pool without references, whose arenas have no fences. */
void xseg_pools_destroy(struct xseg_pool *pool);

/* Call the callbacks of destroyed pools.  The caller holds no lock. */
void xseg_pools_notify(struct xseg_device *device);

/* Call the callbacks of all pools, because the device closes and its memory was released.  The
 * caller holds no lock. */
void xseg_pools_notify_all(struct xseg_device *device);

/* End the visit of `pool` (NULL: none), and begin the visit of the next pool that is not destroyed.
 * Returns NULL after the last pool.  A pool that is created during the visits may be skipped. */
struct xseg_pool *xseg_pools_next(struct xseg_device *device, struct xseg_pool *pool);

/* Remove a visitor. */
void xseg_pool_end_visit(struct xseg_pool *pool);

/* Host bytes of pools, and of free arenas. */
uint64_t xseg_pools_host_bytes(struct xseg_device *device);

/* --- Properties. --- */

/* The pool as the application sees it: NULL for the default pool and the guarded pool. */
static inline struct xseg_pool *xseg_pool_visible(struct xseg_pool *pool)
{
    return pool->is_private && !pool->is_guarded ? pool : NULL;
}

/* The visible pool of an extent. */
static inline struct xseg_pool *xseg_pool_of(const struct xseg_extent *extent)
{
    const struct xseg_arena *arena = extent->arena;

    return xseg_pool_visible(arena->pool);
}

/* The name of a pool in messages: `pool is paused, "kv cache"`, `pool is paused, 3`. */
static inline const char *xseg_pool_label(const struct xseg_pool *pool)
{
    return pool->label;
}

/* The owner of pages of a pool. */
static inline const void *xseg_pool_owner(const struct xseg_pool *pool)
{
    return (const void *)(uintptr_t)(pool->serial + 1); /* NOLINT(performance-no-int-to-ptr) */
}

/* Fail because all holders have released the pool. */
xseg_status xseg_pool_fail_released(const struct xseg_pool *pool);

/* Check that a pool is not paused: XSEG_OK, XSEG_ERR_PAUSED.  The caller holds the device memory
 * lock. */
xseg_status xseg_pool_check_running(const struct xseg_pool *pool);

/* Whether cached memory of the pool may be released to the driver.  The caller holds the device
 * memory lock. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return pool->state == XSEG_POOL_RUNNING &&
           (!pool->is_private || pool->is_guarded || xseg_pool_is_retired(pool));
}

/*
 * Whether a trim that names one pool may release cached memory of `pool`.  A trim may name a pool
 * that has holders, unless a graph may use its cached memory.  The caller holds the device memory
 * lock.
 */
static inline bool xseg_pool_may_trim(const struct xseg_pool *pool, const struct xseg_pool *named)
{
    return xseg_pool_may_shrink(pool) ||
           (pool == named && pool->state == XSEG_POOL_RUNNING &&
            !atomic_load_explicit(&pool->is_captured, memory_order_relaxed));
}

/* Whether cached memory of the pool serves the default pool under memory pressure; not memory that
 * a graph may use. */
static inline bool xseg_pool_allows_fallback(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->allows_fallback, memory_order_relaxed) &&
           !xseg_pool_is_retired(pool) &&
           !atomic_load_explicit(&pool->is_captured, memory_order_relaxed);
}

/* Set single_page of a pool that has no arena yet: XSEG_OK, XSEG_ERR_BUSY.  The caller holds no
 * lock. */
xseg_status xseg_pool_set_single(struct xseg_pool *pool, bool is_single);

/* Whether a segment is one page because its pool has single_page. */
static inline bool xseg_pool_is_single_page(const struct xseg_extent *extent)
{
    const struct xseg_segment *segment = &extent->segment;
    const struct xseg_arena *arena = extent->arena;
    const struct xseg_pool *pool = xseg_pool_of(extent);

    return pool != NULL && atomic_load_explicit(&pool->is_single, memory_order_relaxed) &&
           !arena->is_small && xseg_segment_is_expandable(segment) &&
           segment->page_bytes == segment->bytes;
}

/* The properties of new pages of the pool, of enum xseg_page_property, as far as the device
 * supports them. */
unsigned xseg_pool_properties(const struct xseg_pool *pool);

/* Whether the fast path can serve large blocks of the pool: not with memory functions, and not with
 * single_page. */
static inline bool xseg_pool_has_fast_path(const struct xseg_pool *pool)
{
    return !pool->has_own_memory && !atomic_load_explicit(&pool->is_single, memory_order_relaxed);
}

#endif
