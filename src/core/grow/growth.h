/* SPDX-License-Identifier: MIT */
/*
 * Growth: mapping or allocating memory for a request that no cached block can serve.
 *
 * An expandable arena grows in the virtual address ranges of its segments.  The candidate range is PyTorch's
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
 * Page sizes: full pages (page_bytes of the segment) while memory is plentiful, small pages (the granularity) under memory
 * pressure, longer pages with page_size:auto.
 *
 * segments.h has the creation of segments, and growth in other kinds of segments.
 *
 * Memory pressure is a status of these functions; fallback_chain.h decides what happens then.
 *
 * Locking: the caller holds the device memory lock and no other lock.
 */
#ifndef XSEG_CORE_GROWTH_H
#define XSEG_CORE_GROWTH_H

#include "src/core/block/arena.h"
#include "src/core/device/device.h"

/* --- Candidate ranges. --- */

/*
 * A candidate range: adjacent unmapped and cached blocks of one segment in which a request fits once the unmapped blocks are
 * mapped.
 *
 *     [ allocated ][ cached ][ unmapped ][ cached ][ unmapped ........ ][ allocated ]
 *                  |<------ candidate range of a request ------>|
 *                            of the last unmapped block only the pages that the request needs
 *
 * Two ranges are of interest: the lowest one by position (block.h), which is PyTorch's choice, and under memory pressure the
 * one that needs the fewest bytes.  Both searches walk the tree of unmapped blocks of the arena: O(unmapped blocks + blocks in
 * the ranges that begin there).
 *
 * A candidate range is claimed under the lock of the arena, mapped without that lock, and settled under it again.  In
 * between its blocks are in the state XSEG_BLOCK_CLAIMED, so no other thread allocates or coalesces them.  A cached small
 * block gets a record when it is claimed.  The growth maps unmapped blocks from the lowest address on and stops at the first
 * failure (`failed`).  The settle turns the blocks before it into cached memory and the others into unmapped blocks again.
 *
 * Locking: the device memory lock is held from the claim to the settle; the lock of the arena where a function says so.
 */

struct xseg_candidate {
    struct xseg_block *first, *last; /* claimed, and so are all blocks in between */
    uint64_t missing;                /* bytes of its unmapped blocks */
    bool small;                      /* to be mapped with small pages */
    uint64_t max_page_bytes;         /* not small: of the longest page; 0: full pages */
    struct xseg_block *failed;       /* the first block that could not be mapped, or NULL */
};

/* Find the candidate range of `bytes` that needs the fewest bytes, the lowest of equal ones.  Returns the first block of the
 * range, or NULL if there is none.  The arena is locked.
 * missing: set to the bytes to be mapped in small pages; UINT64_MAX if there is no range */
struct xseg_block *xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                                uint64_t *missing);

/*
 * Map the unmapped blocks of a candidate range, lowest first, up to the first failure.  No arena is locked.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_candidate_map(struct xseg_candidate *candidate);

/* Settle a candidate range: mapped blocks become cached, the others unmapped.  mapped: false if xseg_candidate_map() was not
 * called.  Returns what the last block has become, as xseg_arena_settle().  The arena is locked. */
struct xseg_block *xseg_candidate_settle(struct xseg_arena *arena,
                                         const struct xseg_candidate *candidate, bool mapped);

/* The number of full-page slots in the unmapped blocks of a candidate range, wherever pages start. */
uint64_t xseg_candidate_full_pages(const struct xseg_candidate *candidate);

/* The number of missing bytes that idle pages of the page cache can cover, as far as the filter accepts them. */
uint64_t xseg_candidate_covered(const struct xseg_candidate *candidate,
                                const struct xseg_page_filter *filter);

/* Notify observers (mapping.h) of the blocks of a candidate range that were mapped. */
void xseg_candidate_notify(const struct xseg_candidate *candidate);

/* --- Growth. --- */

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

/* Fail with XSEG_ERR_UNSUPPORTED because a device makes no pages. */
xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device);

#endif
