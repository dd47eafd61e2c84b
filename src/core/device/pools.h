/* SPDX-License-Identifier: MIT */
/*
 * The private pools of a device: creation, visits, destruction.
 *
 * A pool is in the device's list from its creation until it is freed.  The thread that drops the last reference destroys the
 * pool (release.h): visits skip it.  If it has a callback (`on_destroy`), the callback is called as soon as the thread holds
 * no lock; until it has returned, the pool can be queried and trimmed.  Then the pool is freed, and its arenas go to a free
 * list: threads that find an arena through the page map take its lock before they check that it has the address, so arenas
 * are never freed before the device closes.
 *
 * A *visitor* of a pool defers its freeing, so that a thread that reads the list can go on to the next pool.  The pool
 * itself counts as one visitor until it is destroyed and its callback has returned.
 *
 * Locking: TABLE guards the list, the visitors and the free arenas.
 */
#ifndef XSEG_CORE_POOLS_H
#define XSEG_CORE_POOLS_H

#include "src/core/device/pool.h"

struct xseg_pools {
    struct xseg_list list;                 /* the newest first; guarded by TABLE */
    struct xseg_arena *free_arena[2];      /* small, large; linked by `next`; guarded by TABLE */
    _Atomic(struct xseg_pool *) destroyed; /* pools whose callback is due, the newest first */
    atomic_uint_fast64_t serials;          /* number of pools that were ever initialized */
    atomic_size_t host_bytes;              /* of pools */
};

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

/* Count a segment of a pool that has references. */
void xseg_pool_add_reference(struct xseg_pool *pool);

/* Drop a reference; the caller holds no ARENA lock.  Returns whether it was the last one: then the caller destroys the pool,
 * else it must not read the pool any more, unless it visits the pool. */
bool xseg_pool_drop_reference(struct xseg_pool *pool) __attribute__((warn_unused_result));

/* Destroy a pool without references, whose arenas have no fences. */
void xseg_pools_destroy(struct xseg_pool *pool);

/* Remove a holder; `is_last` is set to whether none is left, and the caller then drops the holders' reference.  False if
 * the pool has no holder. */
bool xseg_pool_release_last(struct xseg_pool *pool, bool *is_last);

/* Call the callbacks of destroyed pools.  No lock is held. */
void xseg_pools_notify(struct xseg_device *device);

/* Call the callbacks of all pools because the device closes: its memory is released.  No lock is held. */
void xseg_pools_notify_all(struct xseg_device *device);

/* End the visit of `pool` (NULL: none), and begin that of the next pool that is not destroyed.  Returns NULL after the
 * last pool.  A pool that is created during the visits may be left out. */
struct xseg_pool *xseg_pools_next(struct xseg_device *device, struct xseg_pool *pool);

/* Remove a visitor. */
void xseg_pool_end_visit(struct xseg_pool *pool);

/* Take an arena from the free list, or NULL; put one there that is in no list. */
struct xseg_arena *xseg_pools_acquire_arena(struct xseg_device *device, bool is_small);
void xseg_pools_release_arena(struct xseg_arena *arena);

/* Host bytes of pools, and of arenas that belong to no pool. */
uint64_t xseg_pools_host_bytes(struct xseg_device *device);

#endif
