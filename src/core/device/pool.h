/* SPDX-License-Identifier: MIT */
/*
 * A pool: arenas that share no memory with other pools.  Every device has a default pool; users create private ones
 * (pools.h).
 *
 * Lifetime: users retain and release a private pool.  A pool without holders is *retired*: it serves no requests, its
 * live blocks stay valid, and its cached memory is reclaimed like the default pool's.  `references` counts the holders
 * together as one, and each segment; at 0 the pool is destroyed.
 *
 * Locking: TABLE guards the list of arenas, which is read without a lock.  An arena stays in its pool's list until the
 * pool is freed.  A thread reads a pool while it holds the pool, holds the device memory lock or the lock of an arena with a segment of
 * the pool, or visits the pool (pools.h).
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/base/check.h"
#include "src/core/arena/arena.h"
#include "xseg/pool.h"

/* States of a pool; see pause.h. */
enum xseg_pool_state {
    XSEG_POOL_RUNNING,
    XSEG_POOL_TRANSITION, /* memory is being taken away, or brought back */
    XSEG_POOL_PAUSED
};

struct xseg_pool {
    struct xseg_device *device; /* fixed */
    _Atomic(struct xseg_arena *) arenas;
    atomic_bool no_split, allows_fallback; /* as its options say, or xseg_pool_set() */
    atomic_bool is_single;                 /* single_page; fixed from the first arena on */
    bool is_private;
    bool is_guarded;         /* the device's own, for blocks with a segment each: guarded.h */
    bool has_own_memory;     /* memory comes from the user's own functions */
    atomic_bool is_captured; /* a capture went to it, or took memory of it */
    bool
        is_full; /* the pool's own limit refused the last growth; guarded by the device memory lock */
    enum xseg_pool_state state; /* guarded by the device memory lock */
    uint32_t number; /* of the users' pools, from 1 on; 0: the default pool, or the guarded one */
    /* Unique among all pools that the device ever had: the owner of pages (vmm/page_cache.h). */
    uint64_t serial;
    atomic_uint_fast64_t limit; /* bytes that it may reserve; UINT64_MAX: no limit */
    /* The options at creation; `limit` and the flags hold later changes. */
    struct xseg_pool_options options;
    char label[XSEG_POOL_NAME_MAX + 3]; /* the pool's name in quotes, or its number; fixed */
    atomic_uint holders;                /* 0: retired.  The default pool always has a holder. */
    atomic_uint references;     /* 1 for the holders, and 1 for each segment; 0: destroyed */
    uint32_t visitors;          /* see pools.h; guarded by TABLE */
    struct xseg_list link;      /* in the list of the device; guarded by TABLE */
    struct xseg_pool *notified; /* the next destroyed pool whose callback is due; see pools.h */
    /* Saved contents of a paused pool, or NULL; guarded by the device memory lock. */
    struct xseg_contents *contents;
    /* Bytes mapped or allocated; of these the small and the large arenas'; and the peaks, by enum
     * xseg_stat_group.  Written under the device memory lock. */
    atomic_uint_fast64_t reserved, reserved_part[2], reserved_peak[XSEG_STAT_GROUPS];
    atomic_uint_fast64_t addresses; /* bytes of reserved ranges */
};

/* Initialize a pool that is zeroed.  options: NULL for the default pool */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options);

/* Destroy the arenas of a pool, which have no segments. */
void xseg_pool_fini(struct xseg_pool *pool);

/* The pool that is shown to users: NULL for the default pool, whose blocks may have guarded
 * segments. */
static inline struct xseg_pool *xseg_pool_shown(struct xseg_pool *pool)
{
    return pool->is_private && !pool->is_guarded ? pool : NULL;
}

/* Whether a private pool has been released by all its holders. */
static inline bool xseg_pool_is_retired(const struct xseg_pool *pool)
{
    return pool->is_private && atomic_load_explicit(&pool->holders, memory_order_relaxed) == 0;
}

/* Fail because all holders have released the pool. */
xseg_status xseg_pool_fail_released(const struct xseg_pool *pool);

/* Set the label of a pool: its name in quotes, or without a name the next number. */
void xseg_pool_set_label(struct xseg_pool *pool, const char *name);

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

/* Whether memory can be allocated from a pool: XSEG_OK, XSEG_ERR_PAUSED.  The device memory lock is held. */
xseg_status xseg_pool_check_running(const struct xseg_pool *pool);

/* Whether the pool's cached memory may go back to the driver.  The device memory lock is held. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return pool->state == XSEG_POOL_RUNNING &&
           (!pool->is_private || pool->is_guarded || xseg_pool_is_retired(pool));
}

/* Whether a trim that names one pool may give the pool's cached memory back: the holder may ask
 * for that, unless a graph may use what is cached there.  The device memory lock is held. */
static inline bool xseg_pool_may_trim(const struct xseg_pool *pool, const struct xseg_pool *named)
{
    return xseg_pool_may_shrink(pool) ||
           (pool == named && pool->state == XSEG_POOL_RUNNING &&
            !atomic_load_explicit(&pool->is_captured, memory_order_relaxed));
}

/* Whether the pool's cached memory serves the default pool when memory is short: not memory that
 * a graph may use. */
static inline bool xseg_pool_allows_fallback(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->allows_fallback, memory_order_relaxed) &&
           !xseg_pool_is_retired(pool) &&
           !atomic_load_explicit(&pool->is_captured, memory_order_relaxed);
}

/* Whether a cached block of the pool is handed out whole. */
static inline bool xseg_pool_is_whole(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->no_split, memory_order_relaxed);
}

/* Whether a large block of the pool is one page. */
static inline bool xseg_pool_is_single(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->is_single, memory_order_relaxed);
}

/* Set that of a pool that has no arena yet: XSEG_OK, XSEG_ERR_BUSY.  No lock is held. */
xseg_status xseg_pool_set_single(struct xseg_pool *pool, bool is_single);

/* The properties of new pages of the pool, of enum xseg_page_property: what it was made for, as far as the device has
 * it. */
unsigned xseg_pool_properties(const struct xseg_pool *pool);

/* Whether the pool's memory comes from the user's own functions. */
static inline bool xseg_pool_has_own_memory(const struct xseg_pool *pool)
{
    return pool->has_own_memory;
}

/* Whether the pool's large blocks are parts of segments that the driver gave, so that a plain hit can serve them. */
static inline bool xseg_pool_is_plain(const struct xseg_pool *pool)
{
    return !pool->has_own_memory && !xseg_pool_is_single(pool);
}

/* The pool that memory of an extent is reported for; NULL: the default pool, or the guarded one. */
static inline struct xseg_pool *xseg_pool_of(const struct xseg_extent *extent)
{
    const struct xseg_arena *arena = extent->arena;

    return xseg_pool_shown(arena->pool);
}

/* Whether a segment is one page, since its pool has single_page. */
static inline bool xseg_pool_is_single_page(const struct xseg_extent *extent)
{
    const struct xseg_segment *segment = &extent->segment;
    const struct xseg_arena *arena = extent->arena;
    const struct xseg_pool *pool = xseg_pool_of(extent);

    return pool != NULL && xseg_pool_is_single(pool) && !arena->is_small &&
           xseg_segment_is_expandable(segment) && segment->page_bytes == segment->bytes;
}

/* The limit of the pool's own options on reserved bytes. */
static inline uint64_t xseg_pool_limit(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->limit, memory_order_relaxed);
}

/* The arena of a stream, or NULL. */
struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small);

/* Visit every arena of a pool. */
void xseg_pool_visit_arenas(struct xseg_pool *pool,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Count memory that was taken for an arena of a pool, or given back.  The device memory lock is held. */
void xseg_pool_record_growth(struct xseg_arena *arena, uint64_t bytes);
void xseg_pool_record_shrink(struct xseg_arena *arena, uint64_t bytes);

/*
 * The arena of a stream, created if there is none.  The caller holds the pool.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out);

/* Retain a pool.  False if the pool has no holder. */
bool xseg_pool_try_retain(struct xseg_pool *pool);

#endif
