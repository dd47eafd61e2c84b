/* SPDX-License-Identifier: MIT */
/*
 * Release of pools, and discard of paused pools (pause.h).
 *
 * A pool is released by its holders and by segments that end.  The last holder retires the pool;
 * the last reference destroys it (pool.h).  A paused pool that cannot be resumed any more is
 * discarded: its saved contents are freed, and its evicted blocks become unmapped blocks.
 *
 * Locking: functions that release a pool state their locks; functions that discard are called with
 * the device memory lock held and no other lock.
 */
#ifndef XSEG_CORE_POOL_RELEASE_H
#define XSEG_CORE_POOL_RELEASE_H

#include "src/core/device/pool.h"

struct xseg_contents;
struct xseg_device;

/*
 * Remove a holder of a pool.  The last holder retires the pool; a pool without memory is destroyed,
 * and its `on_destroy` is called.  The caller holds no lock.
 *
 * Returns: false if the pool has no holder
 * Cost:    if the pool has segments without memory, one cuMemAddressFree per segment
 */
bool xseg_release_pool(struct xseg_pool *pool);

/* Drop a reference of a pool; the last one destroys the pool.  Locks PENDING.  The caller holds no
 * ARENA lock and must not read the pool afterwards, unless it visits the pool. */
void xseg_release_pool_reference(struct xseg_pool *pool);

/* Free the saved contents of a pool; NULL is ignored.  No lock is needed. */
void xseg_discard_contents(struct xseg_contents *contents);

/* Discard paused pools without holders and without allocated blocks. */
void xseg_discard_paused_pools(struct xseg_device *device);

/* Discard all paused pools, because the device closes. */
void xseg_discard_all_paused(struct xseg_device *device);

/* Free the saved contents of all pools and nothing else, because the device is lost. */
void xseg_discard_lost_contents(struct xseg_device *device);

#endif
