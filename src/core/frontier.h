/* SPDX-License-Identifier: MIT */
/*
 * The frontier of a small arena (small.h): cutting a block from it, and giving one back to it.
 *
 * A programme that frees what it has just allocated, or that grows, does nothing else.  So this is the
 * shortest of all ways: what begins and ends in one word of a sheet, and no more.  Everything else is
 * left to small.c, which would come to the same.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_FRONTIER_H
#define XSEG_CORE_FRONTIER_H

#include "src/core/arena.h"
#include "src/core/size.h"

/* Whether nothing but the frontier could serve a small request of an expandable configuration without
 * max_split_size_mb. */
static inline bool xseg_frontier_is_all(const struct xseg_arena *arena)
{
    const uint64_t *sizes = arena->small.rack.sizes;

    return (sizes[0] | sizes[1] | sizes[2] | sizes[3]) == 0 && arena->shelf.filled.top == 0 &&
           !arena->small.has_filled;
}

/*
 * Serve a request of a small arena with the head of the frontier, where nothing else could.
 *
 * bytes:   as the user said, not 0
 * Returns: the address; 0, and nothing has changed, where there is more to it
 */
static inline uint64_t xseg_frontier_cut(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    struct xseg_extent *extent = frontier->extent;
    const uint32_t quanta = (uint32_t)((bytes + XSEG_SIZE_QUANTUM - 1) >> XSEG_CELLS_SHIFT);
    const uint32_t quantum = frontier->quantum, rest = quantum + quanta;

    if (!xseg_frontier_is_all(arena) || frontier->quanta < XSEG_CELLS_WIDE + quanta ||
        quantum / 64 != rest / 64 || !xseg_extent_is_expandable(extent))
        return 0;
    const uint64_t rounded = (uint64_t)quanta << XSEG_CELLS_SHIFT;
    if (!xseg_counts_try_alloc(&arena->counts, rounded, bytes))
        return 0;
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(rest);

    /* The frontier's own bits are set at its head, and nothing is set inside it. */
    word->start |= behind;
    word->free ^= head | behind;
    if ((word->open & head) != 0)
        word->open ^= head | behind;
    sheet->slack[quantum % XSEG_CELLS_SHEET] = (uint16_t)(rounded - bytes);
    frontier->quantum = rest;
    frontier->quanta -= quanta;
    return extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
}

/* Free the live cell at an address of an extent, if it lies just before the frontier and nothing
 * cached before it; else false, and nothing has changed. */
static inline bool xseg_frontier_join(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint64_t address)
{
    struct xseg_cell *frontier = &arena->small.frontier;
    const uint64_t offset = address - extent->segment.base;
    const uint32_t quantum = (uint32_t)(offset >> XSEG_CELLS_SHIFT), end = frontier->quantum;

    if (frontier->extent != extent || frontier->quanta == 0 || offset % XSEG_SIZE_QUANTUM != 0 ||
        offset >= extent->segment.bytes || quantum / 64 != end / 64 || quantum >= end ||
        (quantum % 64 == 0 && quantum != 0) || !xseg_extent_is_expandable(extent) ||
        arena->now != 0)
        return false;
    struct xseg_sheet *sheet = xseg_cells_sheet(&extent->cells, quantum);
    struct xseg_cells_word *word = &sheet->word[quantum / 64 % XSEG_CELLS_WORDS];
    const uint64_t head = xseg_cells_bit(quantum), behind = xseg_cells_bit(end);
    const uint16_t slack = sheet->slack[quantum % XSEG_CELLS_SHEET];

    /* A live cell's start, and no other before the frontier's; nothing cached ends before it. */
    if (((word->start & (behind - head)) ^ head) != 0 ||
        ((word->free & (head | head >> 1)) | (word->record & head)) != 0 ||
        slack == XSEG_CELLS_MUCH_SLACK)
        return false;
    const uint64_t bytes = (uint64_t)(end - quantum) << XSEG_CELLS_SHIFT;
    word->start ^= behind;
    word->free ^= head | behind;
    if ((word->open & behind) != 0)
        word->open ^= head | behind;
    frontier->quantum = quantum;
    frontier->quanta += end - quantum;
    xseg_counts_free(&arena->counts, bytes, bytes - slack);
    return true;
}

#endif
