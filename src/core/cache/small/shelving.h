/* SPDX-License-Identifier: MIT */
/*
 * Where the cached cells of a small arena are found: narrow ones on its rack, wide ones on its shelf, and one
 * of those as its frontier (small.h).
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_SHELVING_H
#define XSEG_CORE_SHELVING_H

#include "src/core/cache/arena.h"
#include "src/core/cache/small/cell.h"

/* A wide cell is on the shelf from now on. */
void xseg_shelving_put_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* One is found no longer, on the shelf or as the frontier; whether it was that. */
bool xseg_shelving_take_wide(struct xseg_arena *arena, const struct xseg_cell *cell);

/* A cached cell can be found from now on. */
static inline void xseg_shelving_put(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    if (__builtin_expect(cell->quanta < XSEG_CELLS_WIDE, 1))
        xseg_rack_insert(&arena->small.rack, xseg_cells_sheet(&cell->extent->cells, cell->quantum),
                         cell->quantum, cell->quanta);
    else
        xseg_shelving_put_wide(arena, cell);
}

/* A cached cell is found no longer; its bits are still as they were.  Whether it was the frontier. */
static inline bool xseg_shelving_take_off(struct xseg_arena *arena, struct xseg_sheet *sheet,
                                          uint32_t quantum, uint32_t quanta)
{
    const struct xseg_cell cell = {sheet->extent, quantum, quanta};

    if (__builtin_expect(quanta >= XSEG_CELLS_WIDE, 0))
        return xseg_shelving_take_wide(arena, &cell);
    xseg_rack_remove_cell(&arena->small.rack, sheet, quantum, quanta);
    return false;
}

static inline bool xseg_shelving_take(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    return xseg_shelving_take_off(arena, xseg_cells_sheet(&cell->extent->cells, cell->quantum),
                                  cell->quantum, cell->quanta);
}

static inline void xseg_shelving_put_frontier(struct xseg_arena *arena)
{
    if (arena->small.frontier.quanta != 0)
        xseg_shelving_put_wide(arena, &arena->small.frontier);
    arena->small.frontier = (struct xseg_cell){0};
}

/* What is left of a cell that was cut. */
static inline void xseg_shelving_put_rest(struct xseg_arena *arena, const struct xseg_cell *rest)
{
    if (rest->quanta < XSEG_CELLS_WIDE) {
        xseg_shelving_put(arena, rest);
    } else {
        xseg_shelving_put_frontier(arena);
        arena->small.frontier = *rest;
    }
}

#endif
