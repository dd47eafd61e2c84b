/* SPDX-License-Identifier: MIT */
/*
 * Fragments: the cached blocks of divided classic segments, as counts of their arena.
 *
 * A cut or a merge changes their number and their bytes, up or down.  The
 * direction cannot be predicted, so a number, possibly 0, is added to both sums, and both quantities
 * are compared with their quotas at once.  With branches, and out of line, this cost 3% of a hit.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_FRAGMENTS_H
#define XSEG_CORE_FRAGMENTS_H

#include "src/base/check.h"
#include "src/core/stats/counts.h"

/* Increase a quantity.  Returns whether it is above its quota, as a number, so that callers can
 * join results without a branch. */
static inline unsigned xseg_fragments_more(struct xseg_counts *counts, enum xseg_count what,
                                           uint64_t amount)
{
    XSEG_ASSERT(what == XSEG_COUNT_INACTIVE_SPLIT || what == XSEG_COUNT_INACTIVE_SPLIT_BYTES);
    xseg_single_writer_add(&counts->row[what].up, amount);
    return xseg_counts_is_above(&counts->row[what], &counts->quota[what]);
}

static inline void xseg_fragments_update(struct xseg_counts *counts, unsigned passes)
{
    if (__builtin_expect(passes != 0, 0))
        xseg_counts_reconcile_fragments(counts);
}

/* Take `bytes` of a fragment, of which `rest` bytes stay cached. */
static inline void xseg_fragments_split(struct xseg_counts *counts, uint64_t bytes, uint64_t rest)
{
    XSEG_ASSERT(bytes != 0);
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT, rest == 0);
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
}

/* Take `bytes` of a cached block; if the block was all of its segment, the rest becomes a
 * fragment. */
static inline void xseg_fragments_split_any(struct xseg_counts *counts, bool was_split,
                                            uint64_t bytes, uint64_t rest)
{
    const uint64_t was = was_split, is = rest != 0;

    XSEG_ASSERT(bytes != 0);
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT, was & (is ^ 1));
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes & -was);
    xseg_fragments_update(
        counts, xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT, is & (was ^ 1)) |
                    xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, rest & (was - 1)));
}

/* A block is handed out whose head stays cached as a block of its own; `bytes` of both. */
static inline void xseg_fragments_split_head(struct xseg_counts *counts, bool was_split,
                                             uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0);
    xseg_counts_increase(counts, XSEG_COUNT_INACTIVE_SPLIT, was_split ? 1 : 2);
    if (!was_split)
        xseg_counts_increase(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
}

/* Count a new fragment that merged with no neighbour. */
static inline void xseg_fragments_add(struct xseg_counts *counts, uint64_t bytes)
{
    XSEG_ASSERT(bytes != 0);
    xseg_fragments_update(counts,
                          xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT, 1) |
                              xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes));
}

/*
 * A block of `bytes` is cached again, and has merged with up to two neighbours of `merged` bytes.  The
 * fragments that merge and the one that is left are counted as one change.
 *
 * is_split: the merged block is not all of its segment
 */
static inline void xseg_fragments_merge(struct xseg_counts *counts, bool is_split,
                                        unsigned neighbours, uint64_t bytes, uint64_t merged)
{
    const uint64_t is = is_split;

    XSEG_ASSERT(neighbours <= 2 && (neighbours == 0) == (merged == 0));
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT, neighbours - (is & (neighbours != 0)));
    xseg_counts_lower(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, merged & (is - 1));
    xseg_fragments_update(
        counts, xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT, is & (neighbours == 0)) |
                    xseg_fragments_more(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes & -is));
}

#endif
