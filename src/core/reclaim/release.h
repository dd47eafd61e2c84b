/* SPDX-License-Identifier: MIT */
/*
 * Release of a pool, by a holder or by a segment that ends.  The last release destroys the pool.
 */
#ifndef XSEG_CORE_RELEASE_H
#define XSEG_CORE_RELEASE_H

#include "src/core/device/pool.h"

/*
 * Remove a holder of a pool.  With the last holder the pool is retired; without memory it is destroyed, and its callback
 * is called.  No lock is held.
 *
 * Returns: false if the pool has no holder
 * Cost:    if the pool has no memory but addresses, one cuMemAddressFree per segment
 */
bool xseg_release_pool(struct xseg_pool *pool);

/* Drop a reference of a pool; the last one destroys it.  Takes PENDING.  The caller holds no ARENA lock, and must not read
 * the pool afterwards unless it visits the pool. */
void xseg_release_reference(struct xseg_pool *pool);

#endif
