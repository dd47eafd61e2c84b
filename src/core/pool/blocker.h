/* SPDX-License-Identifier: MIT */
/*
 * Obstacles: reasons why the memory beneath a pool's live blocks cannot be taken away.
 *
 *   - work that is queued on a stream of the pool, or on one that uses a live block of the pool
 *   - freed blocks that wait for other streams, and granules of ranges that leave and do not go
 *   - blocks that the pool has lent
 *   - pages that are pinned or exported
 *   - blocks that another thread is growing or freeing
 *   - classic segments
 *
 * Locking: the device memory lock is held, no other lock.
 */
#ifndef XSEG_CORE_BLOCKER_H
#define XSEG_CORE_BLOCKER_H

#include "src/core/device/device.h"

/*
 * Close a pool, so that it hands out nothing, and look for obstacles.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, XSEG_ERR_UNSUPPORTED; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST.  The
 *          pool is closed in any case
 * Cost:    a query for each stream
 */
xseg_status xseg_blocker_close(struct xseg_pool *pool);

/* Fail with XSEG_ERR_BUSY because a pool contains a block of the default pool. */
xseg_status xseg_blocker_fail_fallback(const struct xseg_pool *pool, uint64_t base, uint64_t bytes);

/* Open a pool that was closed. */
void xseg_blocker_open(struct xseg_pool *pool);

#endif
