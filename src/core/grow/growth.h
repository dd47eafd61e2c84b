/* SPDX-License-Identifier: MIT */
/*
 * Growth: memory that is mapped or allocated for a request that finds nothing cached.
 *
 * An expandable arena grows at its lowest stretch of holes and cached blocks that is long enough,
 * as PyTorch does: first fit by address, holes before the tail.  Only when no segment has the room
 * is a new one reserved.  A classic arena asks the driver for a segment.
 *
 * What happens when the driver or a limit says no is up to the ladder (ladder.h).
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/device/device.h"
#include "src/core/grow/stretch.h"

/* The budget of addresses of a device: a quarter of the 47 bits that every GPU has.  Taste; it leaves
 * room for others, and for 350 segments as long as PyTorch's on a device of 80 GiB. */
#define XSEG_GROWTH_ADDRESSES ((uint64_t)1 << 45)

/*
 * Grow for a request, and serve it.
 *
 * Returns: XSEG_OK and the block, live (cached, if the memory is only to be ready);
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER, XSEG_ERR_UNSUPPORTED, and nothing has changed
 */
xseg_status xseg_growth_grow(struct xseg_arena *arena, const struct xseg_need *need,
                             struct xseg_grant *out);

/*
 * The two halves for an expandable arena: claim room, in a new segment if need be; map it, and serve
 * the request from it.
 *
 * small:  with small pages, where it takes the fewest
 * status: XSEG_OK; or why nothing is to be mapped, which is given back once the stretch is settled
 */
xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_need *need, bool small,
                              struct xseg_stretch *stretch);
xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_need *need,
                               struct xseg_stretch *stretch, xseg_status status,
                               struct xseg_grant *out);

/*
 * Whether a pool may have so much more.
 *
 * covered: bytes of these that idle pages have, which are counted already
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY (more than the device has), XSEG_ERR_LIMIT
 */
xseg_status xseg_growth_check(struct xseg_pool *pool, const struct xseg_config *config,
                              uint64_t more, uint64_t covered);

/* Whether it may by its own limit: XSEG_OK, XSEG_ERR_LIMIT. */
xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more);

#endif
