/* SPDX-License-Identifier: MIT */
/*
 * Growth: mapping or allocating memory for a request that no cached block can serve.
 *
 * An expandable arena grows in the virtual address ranges of its segments.  The candidate range is PyTorch's
 * choice: the lowest sequence of unmapped and cached blocks that is long enough.  A growth claims the candidate range under
 * the lock of the arena, checks limits, maps the unmapped blocks without the lock, and settles the range under the lock:
 *
 *     claim   the blocks of the range are claimed, so no other thread uses them; without a range, a new segment is reserved
 *     check   limits of the pool, the device and the budget, with the bytes that idle pages of the page cache cover
 *     map     one xseg_segment_map() for each unmapped block
 *     settle  the mapped blocks become one cached block, from which the request is served
 *
 * If a step fails, the blocks return to their previous states; memory that was mapped stays cached.
 *
 * Page sizes: full pages (page_bytes of the segment) while memory is plentiful, small pages (the granularity) under memory
 * pressure, longer pages with page_size:auto.
 *
 * segments.h declares the creation of segments, and growth in other kinds of segments.
 *
 * These functions return memory pressure as a status; the fallback chain (fallback_chain.h) handles it.
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
 *                            only the needed pages of the last unmapped block
 *
 * A growth uses the lowest range by position (block.h), which is PyTorch's choice, or under memory pressure the range that
 * needs the fewest bytes.  Both searches walk the tree of unmapped blocks of the arena: O(unmapped blocks + blocks in the
 * ranges that begin there).
 *
 * A candidate range is claimed under the lock of the arena, mapped without that lock, and settled under it again.  In
 * between its blocks are in the state XSEG_BLOCK_CLAIMED, so no other thread allocates or coalesces them.  A cached small
 * block gets a record when it is claimed.  The growth maps unmapped blocks in the order of addresses and stops at the first
 * failure (`failed`).  The settle turns the blocks before it into cached memory and the others into unmapped blocks again.
 *
 * Locking: the device memory lock is held from the claim to the settle; the lock of the arena where a function says so.
 */

struct xseg_candidate {
    struct xseg_block *first, *last; /* these and all blocks in between are claimed */
    uint64_t missing;                /* bytes of its unmapped blocks */
    bool small;                      /* map small pages, and full pages only from the page cache */
    uint64_t max_page_bytes;         /* unless `small`: maximum size of a page; 0: full pages */
    struct xseg_block *failed;       /* the first block that could not be mapped, or NULL */
};

/* Find the candidate range of `bytes` that needs the fewest bytes, the lowest of equal ones.  Returns the first block of the
 * range, or NULL if there is none.  The arena is locked.
 * min_missing: set to the bytes to be mapped in small pages; UINT64_MAX if there is no range */
struct xseg_block *xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                                uint64_t *min_missing);

/*
 * Map the unmapped blocks of a candidate range, lowest first, up to the first failure.  No arena is locked.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_candidate_map(struct xseg_candidate *candidate);

/* Settle a candidate range: mapped blocks become cached, the others unmapped.  mapped: false if xseg_candidate_map() was not
 * called.  Returns the coalesced block that contains the last block of the range.  The arena is locked. */
struct xseg_block *xseg_candidate_settle(struct xseg_arena *arena,
                                         const struct xseg_candidate *candidate, bool mapped);

/* Get the number of full-page slots in the unmapped blocks of a candidate range, independent of the alignment of pages. */
uint64_t xseg_candidate_full_pages(const struct xseg_candidate *candidate);

/* Get the number of missing bytes that idle pages of the page cache can cover.  filter: selects the pages */
uint64_t xseg_candidate_covered(const struct xseg_candidate *candidate,
                                const struct xseg_page_filter *filter);

/* Notify observers (mapping.h) of the blocks of a candidate range that were mapped. */
void xseg_candidate_notify(const struct xseg_candidate *candidate);

/* --- Growth. --- */

/*
 * Grow for a request, and serve the request.
 *
 * Returns: XSEG_OK and the block, allocated (cached if params->is_prewarm);
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_PAUSED,
 *          XSEG_ERR_DRIVER, XSEG_ERR_UNSUPPORTED, and nothing has changed
 */
xseg_status xseg_growth_run(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                            struct xseg_alloc_result *out);

/*
 * The two steps of a growth in an expandable segment.  The first step claims a candidate range, in a new segment if necessary.
 * The second step maps the range and serves the request from it.
 *
 * small:  claim the range that needs the fewest small pages; else the lowest range
 * status: XSEG_OK; or an error that prevents mapping, which is returned after the range is settled
 */
xseg_status xseg_growth_claim(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                              bool small, struct xseg_candidate *candidate);
xseg_status xseg_growth_finish(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                               struct xseg_candidate *candidate, xseg_status status,
                               struct xseg_alloc_result *out);

/*
 * Check all limits for a growth of a pool by `more` bytes.
 *
 * covered: the number of these bytes that idle pages cover; idle pages already count as physical memory
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY (more than the device has), XSEG_ERR_LIMIT; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    with device_free_min_mb a memory query, unless another limit denies the growth or idle pages cover it
 */
xseg_status xseg_growth_check(struct xseg_pool *pool, uint64_t more, uint64_t covered);

/*
 * Check that device_free_min_mb of the device's memory remain free if a pool grows by `more` bytes.
 *
 * Returns: XSEG_OK, XSEG_ERR_LIMIT; XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 * Cost:    a memory query if there is a minimum
 */
xseg_status xseg_growth_check_free(struct xseg_pool *pool, uint64_t more);

/* Check the pool's own limit for a growth by `more` bytes: XSEG_OK, XSEG_ERR_LIMIT. */
xseg_status xseg_growth_check_pool(struct xseg_pool *pool, uint64_t more);

/* Fail with XSEG_ERR_UNSUPPORTED because virtual memory management is not available on a device. */
xseg_status xseg_growth_fail_unpaged(const struct xseg_device *device);

#endif
