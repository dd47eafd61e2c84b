/* SPDX-License-Identifier: MIT */
/* The fragments of classic segments, as counts of their arena. */
#include "src/core/arena.h"

void xseg_arena_note_head(struct xseg_arena *arena, bool was_split, uint64_t bytes)
{
    xseg_counts_up(&arena->counts, XSEG_COUNT_INACTIVE_SPLIT, was_split ? 1 : 2);
    if (!was_split)
        xseg_counts_up(&arena->counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
}

void xseg_arena_note_cut(struct xseg_arena *arena, bool was_split, uint64_t bytes, uint64_t rest)
{
    struct xseg_counts *counts = &arena->counts;

    if (rest != 0 && was_split) {
        xseg_counts_down(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
    } else if (rest != 0) {
        xseg_counts_up(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, rest);
        xseg_counts_up(counts, XSEG_COUNT_INACTIVE_SPLIT, 1);
    } else if (was_split) {
        xseg_counts_down(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, bytes);
        xseg_counts_down(counts, XSEG_COUNT_INACTIVE_SPLIT, 1);
    }
}

/* The fragments that merge away, and the one that is left, are one change. */
void xseg_arena_note_merge(struct xseg_arena *arena, bool is_split, int64_t pieces, int64_t merged,
                           uint64_t bytes)
{
    struct xseg_counts *counts = &arena->counts;

    if (is_split) {
        pieces += 1;
        merged += (int64_t)bytes;
    }
    if (pieces > 0)
        xseg_counts_up(counts, XSEG_COUNT_INACTIVE_SPLIT, (uint64_t)pieces);
    else if (pieces < 0)
        xseg_counts_down(counts, XSEG_COUNT_INACTIVE_SPLIT, (uint64_t)-pieces);
    if (merged > 0)
        xseg_counts_up(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, (uint64_t)merged);
    else if (merged < 0)
        xseg_counts_down(counts, XSEG_COUNT_INACTIVE_SPLIT_BYTES, (uint64_t)-merged);
}
