/* SPDX-License-Identifier: MIT */
/* The steps of a trim, for every caller that takes memory.  GROWTH is held. */
#ifndef XSEG_CORE_TRIM_STEPS_H
#define XSEG_CORE_TRIM_STEPS_H

#include "src/core/reclaim/trim.h"

/*
 * Give the addresses of a segment back if it holds no memory.  GROWTH is held, no other lock.
 *
 * Returns: whether it has ended
 */
bool xseg_trim_end_hole(struct xseg_extent *extent);

/* The same for the first `most` segments of an arena that hold no memory. */
void xseg_trim_end_some_holes(struct xseg_arena *arena, uint32_t most);

/*
 * Give the addresses of an arena's segments back that hold no memory.  GROWTH is held, no other lock.
 *
 * Returns: whether no segment is left
 */
bool xseg_trim_end_holes(struct xseg_arena *arena);

/* Whether a cached block can go: a whole classic segment, or one with a whole page. */
bool xseg_trim_can_go(const struct xseg_block *block);

/*
 * Claim cached blocks of an arena that can go, whole or in whole pages, the smallest first; they are
 * chained through `right`, which no tree uses meanwhile, the largest first.
 *
 * Returns: the first, or NULL; *claimed_bytes is what they have
 */
struct xseg_block *xseg_trim_claim(struct xseg_arena *arena, const struct xseg_trim_wish *wish,
                                   uint64_t *claimed_bytes) XSEG_REQUIRES(arena->lock);

/*
 * Claim whole pages inside a cached block, `count` granules from `first` on; what lies before and
 * behind them stays cached.  Two block records must be in stock.
 */
struct xseg_block *xseg_trim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                         uint32_t first, uint32_t count) XSEG_REQUIRES(arena->lock);

/* Whether the work queued on a stream has finished, waiting for it if `wait`. */
xseg_status xseg_trim_is_idle(struct xseg_device *device, struct xseg_known_stream *stream,
                              bool wait, bool *idle);

/*
 * Take the memory of one claimed block away; what the driver refuses is cached again.
 *
 * keep:    its pages are idle afterwards; else they, and a classic segment always, go to the driver
 * Returns: the bytes
 */
uint64_t xseg_trim_give(struct xseg_block *block, bool keep);

/* Claimed blocks of one arena are cached again. */
void xseg_trim_put_back(struct xseg_arena *arena, struct xseg_block *claimed);

#endif
