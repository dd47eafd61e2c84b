/* SPDX-License-Identifier: MIT */
/* The steps of a trim, for all modules that take memory away.  GROWTH is held. */
#ifndef XSEG_CORE_TRIM_STEPS_H
#define XSEG_CORE_TRIM_STEPS_H

#include "src/core/reclaim/trim.h"
#include "xseg/history.h"

/*
 * Give the addresses of a segment back if it holds no memory.  GROWTH is held, no other lock.
 *
 * Returns: whether it has ended
 */
bool xseg_trim_end_hole(struct xseg_extent *extent);

/* Give the addresses of the first `most` segments of an arena back that hold no memory.  GROWTH is held, no other
 * lock. */
void xseg_trim_end_some_holes(struct xseg_arena *arena, uint32_t most);

/* End an elastic extent without memory: its addresses go back to the driver.  GROWTH is held. */
void xseg_trim_end_elastic(struct xseg_extent *extent);

/*
 * Give the addresses of all segments of an arena back that hold no memory.  GROWTH is held, no other lock.
 *
 * Returns: whether no segment is left
 */
bool xseg_trim_end_holes(struct xseg_arena *arena);

/* Whether a cached block can go: a whole classic segment, or one with a whole page. */
bool xseg_trim_can_go(const struct xseg_block *block);

/*
 * Claim cached blocks of an arena that can go, whole or in whole pages, the smallest first.  They are
 * chained through `right`, which no tree uses meanwhile, the largest first.
 *
 * Returns: the first of the chain, or NULL; *claimed_bytes: the bytes of all
 */
struct xseg_block *xseg_trim_claim(struct xseg_arena *arena, const struct xseg_trim_wish *wish,
                                   uint64_t *claimed_bytes) XSEG_REQUIRES(arena->lock);

/*
 * Claim whole pages inside a cached block, `count` granules from `first` on; the parts before and
 * behind them stay cached.  XSEG_ARENA_RECORDS must be in stock.
 */
struct xseg_block *xseg_trim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                         uint32_t first, uint32_t count) XSEG_REQUIRES(arena->lock);

/* Set *idle to whether the work queued on a stream has finished; with `wait`, wait for the work. */
xseg_status xseg_trim_is_idle(struct xseg_device *device, struct xseg_known_stream *stream,
                              bool wait, bool *idle);

/*
 * Take the memory of one claimed block away; memory that the driver refuses is cached again.
 *
 * keep:    the pages become idle; else they go to the driver, as a classic segment always does
 * cause:   for the history: STEAL, DECAY, TRIM, GIVE, or SEGMENT_UNMAP where it is none of these
 * Returns: the bytes that went
 */
uint64_t xseg_trim_give(struct xseg_block *block, bool keep, enum xseg_history_action cause);

/* Settle claimed blocks of one arena, chained through `right`: they are cached again. */
void xseg_trim_put_back(struct xseg_arena *arena, struct xseg_block *claimed);

#endif
