/* SPDX-License-Identifier: MIT */
/*
 * Retiring: how pools without holders end.
 *
 * A retired pool ends once it is not paused, and has no block that is live, pending or being worked on.
 * Its cached memory moves to the device's *orphans* (orphan.h), and stays there until it is given back or
 * taken.  Its arenas become *spent*: they serve other private pools later.  Its body does, too.
 *
 * A pool is examined when its last holder releases it.  Pools that cannot end are examined again later:
 * a few whenever a pool is made or released, all of them by a trim.
 *
 * A pool that tells of its end does not end before its memory is back.  What it has to tell, with its last
 * statistics, is a *departure*: made under GROWTH, and told when no lock is held.
 *
 * *Visitors* read bodies and lists of arenas without GROWTH.  While there is a visitor, ended bodies and
 * arenas are not used again.
 *
 * Locking: pools end under GROWTH; lists are guarded by TABLE as well.
 */
#ifndef XSEG_CORE_RETIRE_H
#define XSEG_CORE_RETIRE_H

#include "src/core/device/pool.h"

struct xseg_pending;
struct xseg_retire_chunk;
struct xseg_departure;

/* The retired and ended pools of a device. */
struct xseg_retirement {
    struct xseg_list retired;    /* bodies of pools that have not ended; guarded by TABLE */
    struct xseg_list ended;      /* bodies that visitors may still see; guarded by TABLE */
    struct xseg_list spare;      /* bodies for new pools; guarded by TABLE */
    struct xseg_arena *spent[2]; /* small, large; chained through `next`; guarded by TABLE */
    struct xseg_pool nobody;     /* the pool of spent arenas */
    struct xseg_pool_body over;  /* the body of all ended pools */
    struct xseg_pool orphans[2]; /* for memory of the driver, and of users' functions */
    struct xseg_pool_body orphans_body[2];
    struct xseg_retire_chunk *chunks; /* memory of the pools; guarded by TABLE */
    uint32_t used;                    /* number of used places in the first chunk */
    /* Takes back the event of a spent arena: xseg_pending_put_event(). */
    void (*put_event)(struct xseg_pending *pending, xseg_event event);
    /* What is to be told, the newest first; added to under GROWTH. */
    _Atomic(struct xseg_departure *) departures;
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
                                  const struct xseg_pool_options *options, bool is_guarded,
                                  struct xseg_pool **out);

/* Release a pool once; false if the pool has no holder.  No lock is held. */
bool xseg_retire_release(struct xseg_pool *pool);

/* Examine a few retired pools that could not end, unless another thread has GROWTH.  No lock is
 * held. */
void xseg_retire_look(struct xseg_device *device);

/* End all retired pools that can end.  GROWTH is held. */
void xseg_retire_look_at_all(struct xseg_device *device);

/* Tell of the pools that are gone.  No lock is held. */
void xseg_retire_tell(struct xseg_device *device);

/* Tell of all pools, because the device closes: its memory is back.  No lock is held. */
void xseg_retire_tell_all(struct xseg_device *device);

/* Whether a pool has ended, which is final.  Unless GROWTH or TABLE is held, a pool may end
 * right after this says no. */
static inline bool xseg_retire_is_over(const struct xseg_pool *pool)
{
    return atomic_load(&pool->body)->pool != pool;
}

/* Take a spent arena, or NULL; put an arena back that is in no list.  No lock above GROWTH is
 * held. */
struct xseg_arena *xseg_retire_take_arena(struct xseg_device *device, bool is_small);
void xseg_retire_put_arena(struct xseg_arena *arena);

/* Begin and end a visit of a device.  Visits may be nested. */
void xseg_retire_begin_visit(struct xseg_device *device);
void xseg_retire_end_visit(struct xseg_device *device);

/* Host bytes of pools, and of arenas that belong to no pool. */
uint64_t xseg_retire_host_bytes(struct xseg_device *device);

#endif
