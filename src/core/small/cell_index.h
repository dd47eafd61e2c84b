/* SPDX-License-Identifier: MIT */
/*
 * Where the cached cells of a small arena are found: narrow cells in its bins, wide cells in its free index, but
 * for one wide cell, which is its victim (small.h).
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_CELL_INDEX_H
#define XSEG_CORE_CELL_INDEX_H

#include "src/core/arena/arena.h"
#include "src/core/small/cell.h"

/* Put a wide cached cell in the free index. */
void xseg_cell_index_put_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* Take a wide cached cell out of the free index, unless it is the victim, which is none then.  Returns whether it
 * was the victim. */
bool xseg_cell_index_take_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* Let searches find a cached cell, whose bits are set. */
static inline void xseg_cell_index_put(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    XSEG_ASSERT(cell->quanta > 0);
    if (__builtin_expect(cell->quanta < XSEG_CELLS_WIDE, 1))
        xseg_bins_insert(&arena->small.bins, xseg_cells_chunk(&cell->extent->cells, cell->quantum),
                         cell->quantum, cell->quanta);
    else
        xseg_cell_index_put_wide(arena, cell);
}

/* Let searches find a cached cell no longer, whose bits are still set.  Returns whether it was the victim. */
static inline bool xseg_cell_index_take_off(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                                            uint32_t quantum, uint32_t quanta)
{
    const struct xseg_cell cell = {chunk->extent, quantum, quanta};

    XSEG_ASSERT(quanta > 0 && chunk == xseg_cells_chunk(&chunk->extent->cells, quantum));
    if (__builtin_expect(quanta >= XSEG_CELLS_WIDE, 0))
        return xseg_cell_index_take_wide(arena, &cell);
    xseg_bins_remove_cell(&arena->small.bins, chunk, quantum, quanta);
    return false;
}

static inline bool xseg_cell_index_take(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    return xseg_cell_index_take_off(arena, xseg_cells_chunk(&cell->extent->cells, cell->quantum),
                                    cell->quantum, cell->quanta);
}

/* Put the victim in the free index, if there is one. */
static inline void xseg_cell_index_put_victim(struct xseg_arena *arena)
{
    if (arena->small.last_remainder.quanta != 0)
        xseg_cell_index_put_wide(arena, &arena->small.last_remainder);
    arena->small.last_remainder = (struct xseg_cell){0};
}

/* Let searches find the rest of a cell that was cut; a wide rest becomes the victim. */
static inline void xseg_cell_index_put_rest(struct xseg_arena *arena, const struct xseg_cell *rest)
{
    XSEG_ASSERT(rest->quanta > 0);
    if (rest->quanta < XSEG_CELLS_WIDE) {
        xseg_cell_index_put(arena, rest);
    } else {
        xseg_cell_index_put_victim(arena);
        arena->small.last_remainder = *rest;
    }
}

#endif
