/* SPDX-License-Identifier: MIT */
/*
 * Growth: mapping or allocating memory for a request that no cached block can serve.
 *
 * An expandable arena grows in the virtual address ranges of its segments.  The candidate range (candidate.h) is PyTorch's
 * choice: the lowest sequence of unmapped and cached blocks that is long enough.  A growth claims the candidate range under
 * the lock of the arena, checks limits, maps the unmapped blocks without the lock, and settles the range under the lock:
 *
 *     claim   the blocks of the range are claimed, so no other thread uses them; a new segment is reserved if there is no range
 *     check   limits of the pool, the device and the budget, with the bytes that idle pages of the page cache cover
 *     map     one xseg_segment_map() for each unmapped block
 *     settle  the mapped blocks become one cached block, from which the request is served
 *
 * If a step fails, the blocks become what they were; memory that was mapped stays cached.
 *
 * A new segment reserves 9/8 of the device's memory in addresses, as PyTorch does, so that a segment never moves.  A device
 * has a limited budget of addresses (XSEG_GROWTH_ADDRESSES).  When the budget runs low, segments become shorter.
 *
 * Page sizes: full pages (page_bytes of the segment) while memory is plentiful, small pages (the granularity) under memory
 * pressure, longer pages with page_size:auto.
 *
 * Other kinds of segments: a classic arena allocates a segment from the driver or from the memory function of its pool; a
 * pool with single_page maps one page in a segment of that length; a guarded block (guarded.h) has a segment to itself.
 *
 * A new segment is described by an extent (extent.h): its tables are allocated, it is added to the page map and to the list of
 * its arena, and it has one claimed block.  Extents of destroyed segments are reused, because lookups without a lock can still
 * read them; they are type-stable.
 *
 * Memory pressure is a status of these functions; fallback_chain.h decides what happens then.
 *
 * Locking: the caller holds the device memory lock and no other lock.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/device/device.h"
#include "src/core/grow/candidate.h"

/* The budget of addresses of a device: a quarter of the 47 bits that every GPU has.  That leaves addresses to other users,
 * and suffices for 350 segments as long as PyTorch's on a device of 80 GiB. */
#define XSEG_GROWTH_ADDRESSES ((uint64_t)1 << 45)

/*
 * Grow for a request, and serve the request.
 *
 * Returns: XSEG_OK and the block, allocated (cached if params->keep);
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_PAUSED,
 *          XSEG_ERR_DRIVER, XSEG_ERR_UNSUPPORTED, and nothing has changed
 */
xseg_status xseg_growth_run(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            struct xseg_alloc_result *out);

/*
 * The two halves of a growth in an expandable segment.  The first claims a candidate range, in a new segment if necessary.
 * The second maps the range and serves the request from it.
 *
 * small:  claim the range that needs the fewest small pages; else the lowest range
 * status: XSEG_OK; or the reason why no memory may be mapped, which is returned after the range is settled
 */
xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool small, struct xseg_candidate *candidate);
xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_candidate *candidate, xseg_status status,
                               struct xseg_alloc_result *out);

/*
 * Check all limits for a growth of a pool by `more` bytes.
 *
 * covered: the number of these bytes that idle pages cover, which count as physical memory already
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY (more than the device has), XSEG_ERR_LIMIT
 */
xseg_status xseg_growth_check(struct xseg_pool *pool, uint64_t more, uint64_t covered);

/* Check the pool's own limit for a growth by `more` bytes: XSEG_OK, XSEG_ERR_LIMIT. */
xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more);

/*
 * Give an extent without mapped memory the next positions of its device, before memory is mapped in it.  PyTorch destroys a
 * segment that has lost all of its memory, and registers a new one, which comes last in the order of segments.  The lock of
 * the arena is held as well.
 */
void xseg_growth_renew_positions(struct xseg_extent *extent);

/*
 * Reserve and register an elastic extent (elastic.h), whose tables exist already.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one reserve
 */
xseg_status xseg_growth_reserve_elastic(struct xseg_arena *arena,
                                        const struct xseg_segment_reservation *reservation,
                                        struct xseg_elastic *elastic, struct xseg_extent **out);

/* Fail with XSEG_ERR_UNSUPPORTED because a device makes no pages. */
xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device);

#endif
