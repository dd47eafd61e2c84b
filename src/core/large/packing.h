/* SPDX-License-Identifier: MIT */
/*
 * Packing: with placement:pages, where a large arena puts a block so that whole pages become free.
 *
 * A page becomes free when the last of its blocks does, so blocks that end at about the same time belong
 * together, and a block that ends before its neighbours costs no page at all.  How long a block will live is
 * not known, but how long blocks of its size have lived is.  By Little's law the mean lifetime is the mean number
 * of live blocks divided by the arrivals in a unit of time.  That takes two sums for each size, and nothing
 * for a block.  The unit of time is an allocation of the arena.
 *
 * A page is expected to be in use *until* the latest end of its blocks, and has been in use since it was
 * *opened*.  Of the cached blocks in which a request fits, the smallest few are looked at, at their
 * beginning and their end.  A place costs more, the later the pages that it touches will end because of it,
 * counted in doublings; an idle page counts as one that ends now.  Among places that delay no page, the one on the
 * page that ends soonest is the best.  For a size of which nothing is known, the mean of all sizes is taken.
 *
 *     pages   [ weights, adapters ... ][ caches of requests .. ][ activations ][ idle ][ idle ]
 *     until     far away                 soon                     at once
 *
 * A size has an entry in a small table, where sizes that have not been seen for long make room.
 *
 * Invariants:
 *   PACK-1  the latest end of a page is never before that of a block that was put there since it was
 *           opened.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_PACKING_H
#define XSEG_CORE_PACKING_H

#include <stdbool.h>
#include <stdint.h>

struct xseg_arena;
struct xseg_block;
struct xseg_extent;
struct xseg_grant;
struct xseg_need;

#define XSEG_PACKING_SIZES 1024u

/* Blocks of one size, or all.  Times are allocations of the arena. */
struct xseg_packing_size {
    uint64_t bytes;    /* 0: nothing is known yet */
    uint64_t exposure; /* sum over time of the number of live blocks */
    uint64_t last;     /* when `exposure` was summed up to */
    uint32_t live, arrivals;
};

/* Of an arena. */
struct xseg_packing {
    uint64_t clock;
    struct xseg_packing_size all, size[XSEG_PACKING_SIZES];
};

/* Of a page of an extent, at its first granule. */
struct xseg_packing_page {
    uint64_t opened, until;
};

/*
 * Have the tables that packing needs.  ARENA is held, and may be let go for a while.
 *
 * Returns: false without host memory; then best fit is used
 */
bool xseg_packing_prepare(struct xseg_arena *arena);

/*
 * Choose where a request goes, and note it, unless memory is only to be ready.
 *
 * base:    set to the address, inside the block
 * Returns: the cached block, or NULL
 */
struct xseg_block *xseg_packing_find(struct xseg_arena *arena, const struct xseg_need *need,
                                     uint64_t *base);

/* Note that a request goes to an address of a cached block, which is still in the free index. */
void xseg_packing_note(struct xseg_arena *arena, const struct xseg_block *block, uint64_t base,
                       uint64_t bytes);

/* Note that a block of some size has been freed. */
void xseg_packing_note_end(struct xseg_arena *arena, uint64_t bytes);

/* How long blocks of a size live, in allocations; UINT64_MAX: not known. */
uint64_t xseg_packing_lifetime(struct xseg_packing *packing, uint64_t bytes);

#endif
