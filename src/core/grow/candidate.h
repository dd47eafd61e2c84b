/* SPDX-License-Identifier: MIT */
/*
 * A candidate range: adjacent unmapped and cached blocks of one segment in which a request fits once the unmapped blocks are
 * mapped.
 *
 *     [ allocated ][ cached ][ unmapped ][ cached ][ unmapped ........ ][ allocated ]
 *                  |<------ candidate range of a request ------>|
 *                            of the last unmapped block only the pages that the request needs
 *
 * Two ranges are of interest: the lowest one by position (extent.h), which is PyTorch's choice, and under memory pressure the
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
#ifndef XSEG_CORE_CANDIDATE_H
#define XSEG_CORE_CANDIDATE_H

#include "src/core/block/arena.h"

struct xseg_candidate {
    struct xseg_block *first, *last; /* claimed, and so are all blocks in between */
    uint64_t missing;                /* bytes of its unmapped blocks */
    bool small;                      /* to be mapped with small pages */
    uint64_t longest;                /* not small: bytes of the longest page; 0: full pages */
    struct xseg_block *failed;       /* the first block that could not be mapped, or NULL */
};

/* Find the lowest candidate range of `bytes` that has an unmapped block.  A range in an extent without mapped memory is chosen
 * only if no other extent has a range: PyTorch has destroyed that segment.  Returns the first block of the range, or NULL if
 * there is none.  The arena is locked. */
struct xseg_block *xseg_candidate_find_lowest(const struct xseg_arena *arena, uint64_t bytes);

/* Find the candidate range of `bytes` that needs the fewest bytes, the lowest of equal ones.  Returns the first block of the
 * range, or NULL if there is none.  The arena is locked.
 * missing: set to the bytes to be mapped in small pages; UINT64_MAX if there is no range */
struct xseg_block *xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                                uint64_t *missing);

/* Claim the candidate range that starts with a block.  The arena is locked, and XSEG_ARENA_RECORDS records are in stock,
 * because the last unmapped block can be split. */
void xseg_candidate_claim(struct xseg_arena *arena, struct xseg_block *first, uint64_t bytes,
                          bool small, struct xseg_candidate *candidate);

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

/* Notify registered callbacks (notify.h) of the blocks of a candidate range that were mapped. */
void xseg_candidate_notify(const struct xseg_candidate *candidate);

#endif
