/* SPDX-License-Identifier: MIT */
/*
 * Where the cached cells of a small arena are found: narrow ones in its bins, wide ones in its free index, and one
 * of those as its victim (small.h).
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_CELL_INDEX_H
#define XSEG_CORE_CELL_INDEX_H

#include "src/core/cache/arena.h"
#include "src/core/cache/small/cell.h"

/* A wide cell is in the free index from now on. */
void xseg_cell_index_put_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* One is found no longer, in the free index or as the victim; whether it was that. */
bool xseg_cell_index_take_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* A cached cell can be found from now on. */
static inline void xseg_cell_index_put(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    if (__builtin_expect(cell->quanta < XSEG_CELLS_WIDE, 1))
        xseg_bins_insert(&arena->small.bins, xseg_cells_chunk(&cell->extent->cells, cell->quantum),
                         cell->quantum, cell->quanta);
    else
        xseg_cell_index_put_wide(arena, cell);
}

/* A cached cell is found no longer; its bits are still as they were.  Whether it was the victim. */
static inline bool xseg_cell_index_take_off(struct xseg_arena *arena, struct xseg_chunk_map *chunk,
                                            uint32_t quantum, uint32_t quanta)
{
    const struct xseg_cell cell = {chunk->extent, quantum, quanta};

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

static inline void xseg_cell_index_put_victim(struct xseg_arena *arena)
{
    if (arena->small.victim.quanta != 0)
        xseg_cell_index_put_wide(arena, &arena->small.victim);
    arena->small.victim = (struct xseg_cell){0};
}

/* What is left of a cell that was cut. */
static inline void xseg_cell_index_put_rest(struct xseg_arena *arena, const struct xseg_cell *rest)
{
    if (rest->quanta < XSEG_CELLS_WIDE) {
        xseg_cell_index_put(arena, rest);
    } else {
        xseg_cell_index_put_victim(arena);
        arena->small.victim = *rest;
    }
}

#endif
