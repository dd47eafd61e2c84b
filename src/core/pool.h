/* SPDX-License-Identifier: MIT */
/*
 * A pool: the arenas of one wall.  Every device has a default pool; users make private ones.
 *
 * A private pool that nobody holds any more is retired: its cached memory goes like the default
 * pool's, its live blocks stay valid, and the record stays until the device closes, because arenas
 * lead to it.
 *
 * Locking: TABLE guards making arenas; finding them needs no lock.
 */
#ifndef XSEG_CORE_POOL_H
#define XSEG_CORE_POOL_H

#include "src/core/arena.h"

struct xseg_pool {
    struct xseg_pool *next; /* in its device */
    struct xseg_device *device;
    bool is_private;
    bool is_alone;       /* the device's own, for blocks with a segment each: alone.h */
    atomic_uint holders; /* 0: retired.  The default pool is always held. */
    _Atomic(struct xseg_arena *) arenas;
};

void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device, bool is_private);

/* End the pool's arenas; they have no extents left. */
void xseg_pool_fini(struct xseg_pool *pool);

/* Whether a private pool has been let go by all its holders. */
static inline bool xseg_pool_is_retired(const struct xseg_pool *pool)
{
    return pool->is_private && atomic_load_explicit(&pool->holders, memory_order_relaxed) == 0;
}

/* Whether the pool's cached memory may go back to the driver. */
static inline bool xseg_pool_may_shrink(const struct xseg_pool *pool)
{
    return !pool->is_private || pool->is_alone || xseg_pool_is_retired(pool);
}

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
