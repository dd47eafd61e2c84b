/* SPDX-License-Identifier: MIT */
/*
 * A pool: arenas that share no memory with other pools.  Every device has a default pool; users make
 * private ones.
 *
 * Users have the address of a pool: 16 bytes that stay until the device closes, so that one release too
 * many can be reported.  All other state is the pool's *body*, which is used again once the pool has
 * ended.  All ended pools share one empty body (retire.h).
 *
 * A private pool without holders is *retired*: its cached memory is given back like the default pool's,
 * and its live blocks stay valid.  When it has no live block, it ends.
 *
 * Locking: TABLE guards making arenas, and GROWTH as well taking them away; finding them needs no lock.
 * Bodies and arenas are never freed before the device closes.  A thread that reads a body without GROWTH
 * may find another pool's there, unless the pool is held, or the thread is a visitor (retire.h).
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/base/check.h"
#include "src/core/arena/arena.h"
#include "src/core/stats/recent_peak.h"
#include "xseg/pool.h"

/* States of a pool; see pause.h. */
enum xseg_pool_state {
    XSEG_POOL_RUNS,
    XSEG_POOL_MOVES, /* memory is being taken away, or brought back */
    XSEG_POOL_PAUSED
};

struct xseg_pool_body {
    struct xseg_device *device;            /* fixed */
    _Atomic(struct xseg_pool *) pool;      /* the pool that has this body */
    _Atomic(struct xseg_pool_body *) next; /* next body of the device */
    /* The pointer to this body in the list of the device; guarded by TABLE. */
    _Atomic(struct xseg_pool_body *) *place;
    struct xseg_list retired; /* in the list of retired bodies of the device; guarded by TABLE */
    /* As the pool was made.  What can be changed since lies elsewhere: `limit`, and members of the pool. */
    struct xseg_pool_options options;
    char label[XSEG_POOL_NAME_MOST + 3]; /* the pool's name in quotes, or its number; fixed */
    /* Of the users' pools, from 1 on; 0: the default pool, or one of the device's own. */
    _Atomic(uint32_t) number;
    atomic_uint_fast64_t limit; /* bytes that it may reserve; UINT64_MAX: no limit */
    atomic_bool is_captured;    /* a capture went to it, or took memory of it */
    _Atomic(struct xseg_arena *) arenas;
    bool is_full; /* the pool's own limit refused the last growth; guarded by GROWTH */
    enum xseg_pool_state state; /* guarded by GROWTH */
    /* Saved contents of a paused pool, or NULL; guarded by GROWTH. */
    struct xseg_contents *contents;
    /* Bytes mapped or allocated; of these the small and the large arenas'; and the peaks, by enum
     * xseg_stat_group.  Written under GROWTH. */
    atomic_uint_fast64_t reserved, reserved_part[2], reserved_peak[XSEG_STAT_GROUPS];
    struct xseg_recent_peak recent; /* of `reserved` */
};

struct xseg_pool {
    _Atomic(struct xseg_pool_body *) body; /* never NULL */
    atomic_uint holders;                   /* 0: retired.  The default pool is always held. */
    atomic_bool no_split, lends;           /* as its options say, or xseg_pool_set() */
    atomic_bool is_single;                 /* single_page; fixed from the first arena on */
    /* The members from here on are fixed, so that they can be read after the pool has ended. */
    bool is_private : 1;
    bool is_guarded : 1;     /* the device's own, for blocks with a segment each: guarded.h */
    bool is_orphans : 1;     /* the device's own, for segments of ended pools: orphan.h */
    bool has_own_memory : 1; /* memory comes from the user's own functions */
};

_Static_assert(sizeof(struct xseg_pool) == 16, "what stays of a pool that was released");

/* Initialise a pool with a body of its device that is spare or zeroed.  options: NULL for the
 * default pool */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_pool_body *body,
                    const struct xseg_pool_options *options);

/* Add a body to the private pools that are visited, and remove it.  TABLE is held. */
void xseg_pool_link(struct xseg_pool_body *body);
void xseg_pool_unlink(struct xseg_pool_body *body);

/* End the arenas of a body; the arenas have no extents left. */
void xseg_pool_fini(struct xseg_pool_body *body);

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

/* Set the name of a pool in texts: its name in quotes, or without a name the next number. */
void xseg_pool_set_label(struct xseg_pool_body *body, const char *name);

/* The name of a pool in texts: `pool "kv cache" is paused`, `pool 3 is paused`.  The name of a
 * released pool may be another pool's by now, so it is not used. */
static inline const char *xseg_pool_label(const struct xseg_pool *pool)
{
    return xseg_pool_is_retired(pool) ? "(released)" : pool->body->label;
}

/* Whether memory can be allocated from a pool: XSEG_OK, XSEG_ERR_PAUSED.  GROWTH is held. */
xseg_status xseg_pool_check_running(const struct xseg_pool *pool);

/* Whether the pool's cached memory may go back to the driver.  GROWTH is held. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    return pool->body->state == XSEG_POOL_RUNS &&
           (!pool->is_private || pool->is_guarded || xseg_pool_is_retired(pool));
}

/* Whether a trim that names one pool may give the pool's cached memory back: the holder may ask
 * for that, unless a graph may use what is cached there.  GROWTH is held. */
static inline bool xseg_pool_may_trim(const struct xseg_pool *pool, const struct xseg_pool *named)
{
    return xseg_pool_may_shrink(pool) ||
           (pool == named && pool->body->state == XSEG_POOL_RUNS &&
            !atomic_load_explicit(&pool->body->is_captured, memory_order_relaxed));
}

/* Whether the pool's cached memory serves the default pool when memory is short: not memory that
 * a graph may use. */
static inline bool xseg_pool_may_lend(const struct xseg_pool *pool)
{
    return atomic_load_explicit(&pool->lends, memory_order_relaxed) &&
           !xseg_pool_is_retired(pool) &&
           !atomic_load_explicit(&pool->body->is_captured, memory_order_relaxed);
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

/* Set that of a pool that has no arena yet: XSEG_OK, XSEG_ERR_BUSY, XSEG_ERR_ARGUMENT (nobody holds it any more).  No
 * lock is held. */
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

/* The pool that memory of an extent is reported for; NULL: the default pool, or none that users
 * know. */
static inline struct xseg_pool *xseg_pool_of(const struct xseg_extent *extent)
{
    const struct xseg_arena *arena = extent->arena;

    return !arena->pool->is_private || arena->is_guarded
               ? NULL
               : (struct xseg_pool *)(uintptr_t)extent->segment.owner;
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
    return atomic_load_explicit(&pool->body->limit, memory_order_relaxed);
}

/* The arena of a stream, or NULL. */
struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small);

/* Visit every arena of a body. */
void xseg_pool_visit_arenas(struct xseg_pool_body *body,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self);

/* Count memory that was taken for an arena of a pool, or given back.  GROWTH is held. */
void xseg_pool_note_growth(struct xseg_arena *arena, uint64_t bytes);
void xseg_pool_note_shrink(struct xseg_arena *arena, uint64_t bytes);

/* Count memory of one pool's arena for another's from now on.  GROWTH is held. */
void xseg_pool_move_reserved(struct xseg_arena *from, struct xseg_arena *to, uint64_t bytes);

/*
 * The arena of a stream, made if there is none.  Unless the pool is held or has a block, the arena
 * may belong to another pool by the time that the caller takes its lock.
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT (the pool has ended), XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out);

/* Hold a pool once more.  False if the pool has no holder. */
bool xseg_pool_hold(struct xseg_pool *pool);

#endif
