/* SPDX-License-Identifier: MIT */
/*
 * A pool: the arenas of one wall.  Every device has a default pool; users make private ones.
 *
 * A private pool that nobody holds any more is retired: its cached memory goes like the default
 * pool's, and its live blocks stay valid.  Its arenas serve other private pools once nothing is in
 * them.  Then it is *buried*: nobody visits it any more, but the record stays until the device closes,
 * so that a release too many is told.
 *
 * Locking: TABLE guards making arenas, and GROWTH as well taking them away; finding them needs no lock.
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/core/arena.h"
#include "xseg/pool.h"

/* Whether a pool has its memory; see pause.h. */
enum xseg_pool_state {
    XSEG_POOL_RUNS,
    XSEG_POOL_MOVES, /* its memory is going, or coming */
    XSEG_POOL_PAUSED
};

struct xseg_pool {
    _Atomic(struct xseg_pool *) next; /* in its device */
    struct xseg_pool *buried;         /* the one that was buried before */
    struct xseg_device *device;
    bool is_private;
    bool is_alone; /* the device's own, for blocks with a segment each: alone.h */
    struct xseg_pool_options options; /* fixed; the limit is the one below */
    atomic_uint_fast64_t limit;       /* bytes that it may reserve; UINT64_MAX: no limit */
    atomic_uint holders;              /* 0: retired.  The default pool is always held. */
    atomic_bool is_captured;          /* a capture went to it, or took memory of it */
    _Atomic(struct xseg_arena *) arenas;
    /* Searches of large arenas while garbage is collected by age: the clock of that age. */
    atomic_uint searches;
    bool is_full;                   /* its own limit refused the last growth; guarded by GROWTH */
    enum xseg_pool_state state;     /* guarded by GROWTH */
    struct xseg_contents *contents; /* what is kept of a paused pool, or NULL; guarded by GROWTH */
    /* Bytes mapped or allocated, and the most that they were; written under GROWTH. */
    atomic_uint_fast64_t reserved, reserved_peak;
};

/* options: NULL for the default pool */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options);

/* End the pool's arenas; they have no extents left. */
void xseg_pool_fini(struct xseg_pool *pool);

/* The pool as users are shown it: NULL for the default pool, whose blocks may have segments of their own. */
static inline struct xseg_pool *xseg_pool_shown(struct xseg_pool *pool)
{
    return pool->is_private && !pool->is_alone ? pool : NULL;
}

/* Whether a private pool has been let go by all its holders. */
static inline bool xseg_pool_is_retired(const struct xseg_pool *pool)
{
    return pool->is_private && atomic_load_explicit(&pool->holders, memory_order_relaxed) == 0;
}

/* Whether the pool's cached memory may go back to the driver.  GROWTH is held. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    return pool->state == XSEG_POOL_RUNS &&
           (!pool->is_private || pool->is_alone || xseg_pool_is_retired(pool));
}

/* The same where a trim names one: its holder may ask for that, unless a graph may use what is cached
 * there. */
static inline bool xseg_pool_may_trim(const struct xseg_pool *pool, const struct xseg_pool *named)
{
    return xseg_pool_may_shrink(pool) ||
           (pool == named && pool->state == XSEG_POOL_RUNS &&
            !atomic_load_explicit(&pool->is_captured, memory_order_relaxed));
}

/* Whether its cached memory serves the default pool when memory is short: not what a graph may use. */
static inline bool xseg_pool_may_lend(const struct xseg_pool *pool)
{
    return pool->options.use_on_oom && !xseg_pool_is_retired(pool) &&
           !atomic_load_explicit(&pool->is_captured, memory_order_relaxed);
}

/* Whether its memory comes from the user's own functions. */
static inline bool xseg_pool_has_own_memory(const struct xseg_pool *pool)
{
    return pool->options.memory.alloc != NULL;
}

/* What the pool may reserve by its own limit. */
static inline uint64_t xseg_pool_limit(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->limit, memory_order_relaxed);
}

/* The arena of a stream, or NULL. */
struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small);

/* Visit every arena of the pool. */
void xseg_pool_visit_arenas(struct xseg_pool *pool,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* An arena of the pool belongs to another stream from now on, which has none of its kind there.
 * TABLE is held. */
void xseg_pool_hand_over(struct xseg_arena *arena, struct xseg_known_stream *stream);

/* Memory was taken for the pool, or given back.  GROWTH is held. */
void xseg_pool_note_growth(struct xseg_pool *pool, uint64_t bytes);
void xseg_pool_note_shrink(struct xseg_pool *pool, uint64_t bytes);

/*
 * The arena of a stream, made if there is none.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out);

/* Hold once more, or let go once.  False if nobody holds it. */
bool xseg_pool_hold(struct xseg_pool *pool);
bool xseg_pool_let_go(struct xseg_pool *pool);

#endif
