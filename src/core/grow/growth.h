/* SPDX-License-Identifier: MIT */
/*
 * Growth: memory is mapped or allocated for a request that no cached block can serve.
 *
 * An expandable arena grows at its lowest stretch of holes and cached blocks that is long enough,
 * as PyTorch does: first fit by address, holes before the tail.  A new segment is reserved only when no
 * segment has the room.  A classic arena asks the driver for a segment.
 *
 * When the driver or a limit refuses, the ladder (fallback_chain.h) decides what happens.
 *
 * Locking: the device memory lock is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/device/device.h"
#include "src/core/grow/candidate.h"

/* The budget of addresses of a device: a quarter of the 47 bits that every GPU has.  That leaves room for other
 * users of addresses, and for 350 segments as long as PyTorch's on a device of 80 GiB. */
#define XSEG_GROWTH_ADDRESSES ((uint64_t)1 << 45)

/*
 * Grow for a request, and serve the request.
 *
 * Returns: XSEG_OK and the block, live (cached, if the memory is only to be ready);
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER, XSEG_ERR_UNSUPPORTED, and nothing has changed
 */
xseg_status xseg_growth_run(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            struct xseg_alloc_result *out);

/*
 * The two halves of a growth of an expandable arena: claim a stretch, in a new segment if need be; map the
 * stretch, and serve the request from it.
 *
 * small:  claim the stretch that needs the fewest small pages; else the lowest stretch
 * status: XSEG_OK; or the error why no memory may be mapped, which is returned once the stretch is settled
 */
xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool small, struct xseg_candidate *candidate);
xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_candidate *candidate, xseg_status status,
                               struct xseg_alloc_result *out);

/*
 * Whether a pool may have `more` bytes.
 *
 * covered: how many of these bytes idle pages have; idle pages count as taken already
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY (more than the device has), XSEG_ERR_LIMIT
 */
xseg_status xseg_growth_check(struct xseg_pool *pool, uint64_t more, uint64_t covered);

/* Whether a pool may have `more` bytes by its own limit: XSEG_OK, XSEG_ERR_LIMIT. */
xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more);

/* Fail with XSEG_ERR_UNSUPPORTED because a device makes no pages. */
xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device);

#endif
