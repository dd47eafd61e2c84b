/* SPDX-License-Identifier: MIT */
/*
 * A stretch: neighbouring holes and cached blocks of one segment in which a request fits once the
 * holes are mapped.
 *
 *     [ live ][ cached ][ hole ][ cached ][ hole ........ ][ live ]
 *             |<------- stretch for a request ------>|
 *                       of the last hole only the pages that are needed
 *
 * A stretch is claimed under the arena's lock, mapped without it, and settled under it again.
 *
 * Locking: GROWTH is held by whoever has a stretch; ARENA where a function says so.
 */
#ifndef XSEG_CORE_STRETCH_H
#define XSEG_CORE_STRETCH_H

#include "src/core/cache/arena.h"

struct xseg_stretch {
    struct xseg_block *first, *last; /* busy, with all in between */
    uint64_t missing;                /* bytes of its holes */
    bool small;                      /* to be mapped with small pages */
    uint64_t longest;                /* else with pages of up to so many bytes; 0: full ones */
    struct xseg_block *failed;       /* the first hole that could not be mapped, or NULL */
};

/* Where a stretch begins: at a hole or a cached block. */
struct xseg_stretch_place {
    struct xseg_extent *extent;
    uint64_t base;
    uint64_t missing; /* bytes to be mapped there; only of the cheapest */
};

/* The lowest stretch with a hole in it that is long enough: PyTorch's choice.  False if there is none.
 * ARENA is held. */
bool xseg_stretch_find_lowest(const struct xseg_arena *arena, uint64_t bytes,
                              struct xseg_stretch_place *place);

/* The one that needs the least memory; of equal ones the lowest.  ARENA is held. */
bool xseg_stretch_find_cheapest(const struct xseg_arena *arena, uint64_t bytes,
                                struct xseg_stretch_place *place);

/* Claim a stretch.  ARENA is held; XSEG_ARENA_RECORDS must be in stock: a tract is cut at either end,
 * and the last hole. */
void xseg_stretch_claim(struct xseg_arena *arena, const struct xseg_stretch_place *place,
                        uint64_t bytes, bool small, struct xseg_stretch *stretch);

/*
 * Map the holes, lowest first, up to the first failure.  No arena is locked.
 *
 * Returns: XSEG_OK, XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_stretch_map(struct xseg_pool *pool, struct xseg_stretch *stretch);

/* Settle a stretch: what was mapped is cached, the rest holes; without `mapped` nothing was.
 * Returns what the last block has become.  ARENA is held. */
struct xseg_block *xseg_stretch_settle(struct xseg_arena *arena, const struct xseg_stretch *stretch,
                                       bool mapped);

/* How many full pages its holes have room for, wherever they start. */
uint64_t xseg_stretch_full_pages(const struct xseg_stretch *stretch);

/* How many of the missing bytes idle pages have that a taker may use. */
uint64_t xseg_stretch_covered(const struct xseg_stretch *stretch,
                              const struct xseg_page_taker *taker);

/* Tell observers that the holes of a stretch have been mapped, up to where that failed.  As notice.h says. */
void xseg_stretch_tell(const struct xseg_stretch *stretch);

#endif
