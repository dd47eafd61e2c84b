/* SPDX-License-Identifier: MIT */
/*
 * Retiring: what becomes of pools that nobody holds any more.
 *
 * A retired pool ends once it has no block that is live, pending or being worked on, and is not paused.
 * Its cached memory goes to the device's *orphans* (orphan.h), where it stays until it is given back or
 * taken.  Its arenas are *spent*: they serve other private pools.  So does its body.
 *
 * Whether a pool can end is looked at when its last holder lets go.  Those that cannot are looked at again
 * later: a few whenever a pool is made or released, all of them by a trim.
 *
 * *Visitors* read bodies and lists of arenas without GROWTH.  What has ended is not used again while there
 * are any.
 *
 * Locking: pools end under GROWTH; lists are guarded by TABLE as well.
 */
#ifndef XSEG_CORE_RETIRE_H
#define XSEG_CORE_RETIRE_H

#include "src/core/device/pool.h"

struct xseg_pending;
struct xseg_retire_chunk;

/* Of a device. */
struct xseg_retirement {
    struct xseg_list retired;    /* bodies of pools that have not ended; guarded by TABLE */
    struct xseg_list ended;      /* bodies that visitors may still see; guarded by TABLE */
    struct xseg_list spare;      /* bodies for new pools; guarded by TABLE */
    struct xseg_arena *spent[2]; /* small, large; chained through `next`; guarded by TABLE */
    struct xseg_pool nobody;     /* whose spent arenas are */
    struct xseg_pool_body over;  /* that of all pools which have ended */
    struct xseg_pool orphans[2]; /* with memory of the driver, and of users' functions */
    struct xseg_pool_body orphans_body[2];
    struct xseg_retire_chunk *chunks; /* where pools lie; guarded by TABLE */
    uint32_t used;                    /* of the first chunk */
    /* Takes the event of an arena that is spent: xseg_pending_put_event(). */
    void (*put_event)(struct xseg_pending *pending, xseg_event event);
    atomic_uint visitors;
    atomic_size_t host_bytes; /* of chunks and bodies */
};

void xseg_retire_init(struct xseg_device *device);
/* End all private pools of a device; no arena has extents. */
void xseg_retire_fini(struct xseg_device *device);

/*
 * Make a private pool, held once.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_retire_make_pool(struct xseg_device *device,
                                  const struct xseg_pool_options *options, struct xseg_pool **out);

/* Let go of a pool once; false if nobody holds it.  No lock is held. */
bool xseg_retire_release(struct xseg_pool *pool);

/* Look at a few pools that could not end, unless another thread has GROWTH.  No lock is held. */
void xseg_retire_look(struct xseg_device *device);

/* End all that can.  GROWTH is held. */
void xseg_retire_look_at_all(struct xseg_device *device);

/* Whether a pool has ended.  It stays so; one that has not may do so next, unless GROWTH or TABLE is held. */
static inline bool xseg_retire_is_over(const struct xseg_pool *pool)
{
    return atomic_load(&pool->body)->pool != pool;
}

/* A spent arena, in no list, or NULL; put one back that is in no list.  No lock above GROWTH is held. */
struct xseg_arena *xseg_retire_take_arena(struct xseg_device *device, bool is_small);
void xseg_retire_put_arena(struct xseg_arena *arena);

/* Be a visitor of a device.  Visits may be nested. */
void xseg_retire_begin_visit(struct xseg_device *device);
void xseg_retire_end_visit(struct xseg_device *device);

/* Host bytes of pools, and of arenas that are in none. */
uint64_t xseg_retire_host_bytes(struct xseg_device *device);

#endif
