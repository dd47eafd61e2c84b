/* SPDX-License-Identifier: MIT */
/*
 * Trim: idle cached memory goes back to the driver.
 *
 * Whole classic segments are freed; of expandable ones, the whole pages inside each cached block
 * are unmapped, and the parts before and behind stay cached:
 *
 *     [ cached ............................ ]         one cached block
 *     |    |        |        |        |    |          page boundaries
 *     [ca][ hole ..................... ][ca]          what is left
 *
 * Memory goes only when the work of its stream has finished: asked with a query, or waited for.
 */
#ifndef XSEG_CORE_TRIM_H
#define XSEG_CORE_TRIM_H

#include "src/core/device.h"
#include "xseg/trim.h"

/* Which arenas, and how. */
struct xseg_trim_plan {
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    bool wait;                              /* for pending blocks and streams */
    bool held_pools;                        /* also pools that somebody holds: when closing */
    uint64_t leave;                         /* bytes that are to stay reserved in these arenas */
    uint64_t idle_ms;                       /* only what has been idle for so long */
};

/*
 * Trim a device.  GROWTH is held, no other lock.
 *
 * done: added to, not set
 * Returns: XSEG_OK; XSEG_ERR_DRIVER if a stream could not be asked or waited for;
 *          XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trimmed *done);

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

/* --- The steps of a trim, for whoever takes memory in another way.  GROWTH is held. --- */

/* Which cached blocks are meant. */
struct xseg_trim_wish {
    uint64_t least; /* bytes of a block; from 2 MiB on, since no segment and no page is smaller */
    uint64_t most;  /* bytes that are enough */
    /* Whether a block is meant; NULL: all are. */
    bool (*wants)(void *self, const struct xseg_block *block);
    void *self;
};

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

/*
 * Free whole classic segments of an arena, each of `least` bytes or more and cached: the smallest that
 * has `wanted` bytes; else the largest ones, until they have them together.  cuMemFree waits
 * for the device by itself.
 *
 * Returns: whether `wanted` bytes went; else nothing did
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t least, uint64_t wanted);

/* Claimed blocks of one arena are cached again. */
void xseg_trim_put_back(struct xseg_arena *arena, struct xseg_block *claimed);

#endif
