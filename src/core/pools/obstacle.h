/* SPDX-License-Identifier: MIT */
/*
 * Obstacles: what stands in the way of taking a pool's memory away beneath its live blocks.
 *
 * Work that is queued on a stream of the pool, or on one that uses a live block of it; freed blocks
 * that wait for other streams; blocks that the pool has lent; pages that are pinned or exported; blocks
 * that another thread is growing or freeing; classic segments.
 *
 * Locking: GROWTH is held, no other lock.
 */
#ifndef XSEG_CORE_OBSTACLE_H
#define XSEG_CORE_OBSTACLE_H

#include "src/core/device/device.h"

/*
 * Let a pool hand out nothing any more, and look what stands in the way.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, XSEG_ERR_UNSUPPORTED; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST.  The
 *          pool is closed in any case
 * Cost:    a query for each stream
 */
xseg_status xseg_obstacle_close(struct xseg_pool *pool);

/* The pool hands out again. */
void xseg_obstacle_open(struct xseg_pool *pool);

#endif
