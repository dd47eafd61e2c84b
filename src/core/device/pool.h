/* SPDX-License-Identifier: MIT */
/*
 * A pool: the arenas of one wall.  Every device has a default pool; users make private ones.
 *
 * A pool is what users have the address of, 16 bytes that stay until the device closes, so that a release
 * too many is told.  All else is its *body*, which is used again once the pool has ended.  What is known
 * of ended pools is the same for all, so they share one body, which has nothing (retire.h).
 *
 * A private pool that nobody holds any more is *retired*: its cached memory goes like the default
 * pool's, and its live blocks stay valid.  When it has none, it ends.
 *
 * Locking: TABLE guards making arenas, and GROWTH as well taking them away; finding them needs no lock.
 * Bodies and arenas are never freed before the device closes.  Who reads a body without GROWTH may find
 * another pool's there, unless the pool is held, or the reader is counted as a visitor (retire.h).
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/base/check.h"
#include "src/core/cache/arena.h"
#include "xseg/pool.h"

/* Whether a pool has its memory; see pause.h. */
enum xseg_pool_state {
    XSEG_POOL_RUNS,
    XSEG_POOL_MOVES, /* its memory is going, or coming */
    XSEG_POOL_PAUSED
};

struct xseg_pool_body {
    struct xseg_device *device;              /* fixed */
    _Atomic(struct xseg_pool *) pool;        /* whose it is */
    _Atomic(struct xseg_pool_body *) next;   /* in its device */
    _Atomic(struct xseg_pool_body *) *place; /* that leads to it there; guarded by TABLE */
    struct xseg_list retired;                /* in its device's list of these; guarded by TABLE */
    struct xseg_pool_options options;        /* fixed; the limit is the one below */
    char label[XSEG_POOL_NAME_MOST + 3];     /* its name in quotes, or its number; fixed */
    atomic_uint_fast64_t limit;              /* bytes that it may reserve; UINT64_MAX: no limit */
    atomic_bool is_captured;                 /* a capture went to it, or took memory of it */
    _Atomic(struct xseg_arena *) arenas;
    bool is_full;                   /* its own limit refused the last growth; guarded by GROWTH */
    enum xseg_pool_state state;     /* guarded by GROWTH */
    struct xseg_contents *contents; /* what is kept of a paused pool, or NULL; guarded by GROWTH */
    /* Bytes mapped or allocated, and the most that they were; written under GROWTH. */
    atomic_uint_fast64_t reserved, reserved_peak;
};

struct xseg_pool {
    _Atomic(struct xseg_pool_body *) body; /* never NULL */
    atomic_uint holders;                   /* 0: retired.  The default pool is always held. */
    /* Fixed from here on, so that they can be read whatever has become of the pool. */
    bool is_private : 1;
    bool is_guarded : 1;     /* the device's own, for blocks with a segment each: guarded.h */
    bool is_orphans : 1;     /* the device's own, for what pools leave that have ended: orphan.h */
    bool no_split : 1;       /* as its options say */
    bool has_own_memory : 1; /* which comes from the user's own functions */
};

_Static_assert(sizeof(struct xseg_pool) == 16, "what stays of a pool that was released");

/* Begin with a body of the device that is spare, or zeroed.  options: NULL for the default pool */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_pool_body *body,
                    const struct xseg_pool_options *options);

/* Be visited with the device's other private pools, and no longer.  TABLE is held. */
void xseg_pool_link(struct xseg_pool_body *body);
void xseg_pool_unlink(struct xseg_pool_body *body);

/* End the arenas of a body; they have no extents left. */
void xseg_pool_fini(struct xseg_pool_body *body);

/* The pool as users are shown it: NULL for the default pool, whose blocks may have segments of their own. */
static inline struct xseg_pool *xseg_pool_shown(struct xseg_pool *pool)
{
    return pool->is_private && !pool->is_guarded ? pool : NULL;
}

/* Whether a private pool has been let go by all its holders. */
static inline bool xseg_pool_is_retired(const struct xseg_pool *pool)
{
    return pool->is_private && atomic_load_explicit(&pool->holders, memory_order_relaxed) == 0;
}

/* Have sentences call a pool by its name, or without one by the next number. */
void xseg_pool_set_label(struct xseg_pool_body *body, const char *name);

/* How sentences call it: `pool "kv cache" is paused`, `pool 3 is paused`.  A released one's name may be
 * another pool's by now. */
static inline const char *xseg_pool_label(const struct xseg_pool *pool)
{
    return xseg_pool_is_retired(pool) ? "(released)" : pool->body->label;
}

/* Whether memory can be had from a pool: XSEG_OK, XSEG_ERR_PAUSED.  GROWTH is held. */
xseg_status xseg_pool_check_running(const struct xseg_pool *pool);

/* Whether the pool's cached memory may go back to the driver.  GROWTH is held. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    return pool->body->state == XSEG_POOL_RUNS &&
           (!pool->is_private || pool->is_guarded || xseg_pool_is_retired(pool));
}

/* The same where a trim names one: its holder may ask for that, unless a graph may use what is cached
 * there. */
static inline bool xseg_pool_may_trim(const struct xseg_pool *pool, const struct xseg_pool *named)
{
    return xseg_pool_may_shrink(pool) ||
           (pool == named && pool->body->state == XSEG_POOL_RUNS &&
            !atomic_load_explicit(&pool->body->is_captured, memory_order_relaxed));
}

/* Whether its cached memory serves the default pool when memory is short: not what a graph may use. */
static inline bool xseg_pool_may_lend(const struct xseg_pool *pool)
{
    return pool->body->options.use_on_oom && !xseg_pool_is_retired(pool) &&
           !atomic_load_explicit(&pool->body->is_captured, memory_order_relaxed);
}

/* Whether its memory comes from the user's own functions. */
static inline bool xseg_pool_has_own_memory(const struct xseg_pool *pool)
{
    return pool->has_own_memory;
}

/* The pool that memory of an extent is said to be of; NULL: the default one, or none that users know. */
static inline struct xseg_pool *xseg_pool_of(const struct xseg_extent *extent)
{
    const struct xseg_arena *arena = extent->arena;

    return !arena->pool->is_private || arena->is_guarded
               ? NULL
               : (struct xseg_pool *)(uintptr_t)extent->segment.owner;
}

/* What the pool may reserve by its own limit. */
static inline uint64_t xseg_pool_limit(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->body->limit, memory_order_relaxed);
}

/* The arena of a stream, or NULL. */
struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small);

/* Visit every arena of a body. */
void xseg_pool_visit_arenas(struct xseg_pool_body *body,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Memory was taken for the pool, or given back.  GROWTH is held. */
void xseg_pool_note_growth(struct xseg_pool *pool, uint64_t bytes);
void xseg_pool_note_shrink(struct xseg_pool *pool, uint64_t bytes);

/* Memory of one pool is another's from now on.  GROWTH is held. */
void xseg_pool_move_reserved(struct xseg_pool *from, struct xseg_pool *to, uint64_t bytes);

/*
 * The arena of a stream, made if there is none.  It may be another pool's by the time that its lock is
 * taken, unless the pool is held or has a block.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (the pool has ended), XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out);

/* Hold once more.  False if nobody holds it. */
bool xseg_pool_hold(struct xseg_pool *pool);

#endif
