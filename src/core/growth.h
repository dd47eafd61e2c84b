/* SPDX-License-Identifier: MIT */
/*
 * Growth: what an allocation does that finds nothing cached.
 *
 * An expandable arena grows at its lowest stretch of holes and cached blocks that is long enough,
 * as PyTorch does: first fit by address, holes before the tail.  Only when no segment has the room
 * is a new one reserved.  A classic arena asks the driver for a segment.
 *
 * When the driver or the limit says no: everything pending is waited for, all idle memory of the
 * device goes back, growth is tried once more, and the cache is searched once more.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/device.h"

/*
 * Serve a request that was a miss.  No lock is held.
 *
 * Returns: XSEG_OK and the block, live; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES,
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 */
xseg_status xseg_growth_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                              struct xseg_block **out);

#endif
