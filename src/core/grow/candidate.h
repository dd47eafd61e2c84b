/* SPDX-License-Identifier: MIT */
/*
 * A stretch: neighbouring holes and cached blocks of one segment in which a request fits once the
 * holes are mapped.
 *
 *     [ live ][ cached ][ hole ][ cached ][ hole ........ ][ live ]
 *             |<------- stretch for a request ------>|
 *                       of the last hole only the pages that are needed
 *
 * A stretch is claimed under the arena's lock, mapped without that lock, and settled under it again.
 *
 * Locking: the device memory lock is held from the claim to the settling; ARENA where a function says so.
 */
#ifndef XSEG_CORE_CANDIDATE_H
#define XSEG_CORE_CANDIDATE_H

#include "src/core/arena/arena.h"

struct xseg_candidate {
    struct xseg_block *first, *last; /* busy, and so are all blocks in between */
    uint64_t missing;                /* bytes of its holes */
    bool small;                      /* to be mapped with small pages */
    uint64_t longest;                /* not small: bytes of the longest page; 0: full pages */
    struct xseg_block *failed;       /* the first hole that could not be mapped, or NULL */
};

/* Where a stretch begins: at a hole or a cached block. */
struct xseg_candidate_placement {
    struct xseg_extent *extent;
    uint64_t base;
    uint64_t missing; /* bytes to be mapped; only set by xseg_candidate_find_cheapest() */
};

/* Find the stretch of `bytes` with a hole at the lowest position (extent.h), which is PyTorch's choice.  An extent without
 * memory is chosen only if no other has such a stretch: PyTorch has destroyed that segment.  False if there is none.
 * ARENA is held. */
bool xseg_candidate_find_lowest(const struct xseg_arena *arena, uint64_t bytes,
                                struct xseg_candidate_placement *place);

/* Find the stretch of `bytes` with a hole that needs the least memory, the lowest of equal ones.  False if there is
 * none.  ARENA is held. */
bool xseg_candidate_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                  struct xseg_candidate_placement *place);

/* Claim a stretch.  ARENA is held; XSEG_ARENA_RECORDS must be in stock: a tract is cut at either end, and the last
 * hole once. */
void xseg_candidate_claim(struct xseg_arena *arena, const struct xseg_candidate_placement *place,
                          uint64_t bytes, bool small, struct xseg_candidate *candidate);

/*
 * Map the holes of a stretch, lowest first, up to the first failure.  No arena is locked.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_candidate_map(struct xseg_candidate *candidate);

/* Settle a stretch: mapped blocks become cached, the others holes.  mapped: false if xseg_candidate_map() was not called.
 * Returns what the last block has become, as xseg_arena_settle().  ARENA is held. */
struct xseg_block *xseg_candidate_settle(struct xseg_arena *arena,
                                         const struct xseg_candidate *candidate, bool mapped);

/* How many full pages the holes of a stretch have room for, wherever pages start. */
uint64_t xseg_candidate_full_pages(const struct xseg_candidate *candidate);

/* How many of the missing bytes can come from idle pages that a taker may use. */
uint64_t xseg_candidate_covered(const struct xseg_candidate *candidate,
                                const struct xseg_page_filter *filter);

/* Tell observers (notify.h) of the holes of a stretch that have been mapped. */
void xseg_candidate_notify(const struct xseg_candidate *candidate);

#endif
