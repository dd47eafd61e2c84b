/* SPDX-License-Identifier: MIT */
/*
 * Flags: special properties of a few blocks, so that frees of all others test one byte.
 *
 * XSEG_BLOCK_OVERSIZE  the block is counted as an oversize allocation
 * XSEG_BLOCK_FALLBACK      the default pool holds the block, but its memory belongs to a private pool, which
 *                      lent it when memory was short (fallback_chain.h)
 *
 * The arena of a lent block counts it like its other blocks: totals of a device are sums over arenas.
 * Lent blocks are counted a second time, because the statistics of the private pool leave them out.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_FLAGS_H
#define XSEG_CORE_FLAGS_H

#include "src/core/block/block.h"
#include "src/core/stats/counts.h"

struct xseg_arena;

/* Sums of the blocks that an arena lent and got back, by quantity; current values are the differences.  Written under the
 * lock of the arena, read without. */
struct xseg_fallback_counts {
    atomic_uint_fast64_t up[XSEG_COUNTS], down[XSEG_COUNTS];
};

/* Lend a live block to the default pool. */
void xseg_flags_mark_fallback(struct xseg_arena *arena, struct xseg_block *block);

/* Count the end of a block with flags: a free at once; a free that leaves it pending; the end of being pending. */
void xseg_flags_free(struct xseg_arena *arena, struct xseg_block *block);
void xseg_flags_mark_pending(struct xseg_arena *arena, struct xseg_block *block);
void xseg_flags_free_pending(struct xseg_arena *arena, struct xseg_block *block);

/* Take back the flags of a block that is oversize and not lent.  Inline for the shortest path of a free, which wakes
 * the counts if need be. */
static inline void xseg_flags_end_oversize(struct xseg_counts *counts, struct xseg_block *block)
{
    XSEG_ASSERT(block->flags == XSEG_BLOCK_OVERSIZE);
    xseg_counts_decrease_only(counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    block->flags = 0;
}

static inline bool xseg_block_is_fallback(const struct xseg_block *block)
{
    return (block->flags & XSEG_BLOCK_FALLBACK) != 0;
}

#endif
