/* SPDX-License-Identifier: MIT */
#include "src/core/small/cell_index.h"

void xseg_cell_index_put_wide(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_block *node = xseg_cells_node(&cell->extent->cells, cell->quantum);

    XSEG_ASSERT(cell->quanta >= XSEG_CELLS_WIDE);
    XSEG_ASSERT(
        xseg_cells_is_free(xseg_cells_word(&cell->extent->cells, cell->quantum), cell->quantum));
    /* Members of the node that no caller reads stay as they are. */
    node->state = XSEG_BLOCK_CACHED;
    node->mapped = true;
    node->base = xseg_cell_address_of(cell->extent, cell->quantum);
    node->bytes = xseg_cell_bytes_of(cell->quanta);
    node->extent = cell->extent;
    xseg_free_index_insert(&arena->free_index, node);
}

bool xseg_cell_index_take_wide(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    XSEG_ASSERT(cell->quanta >= XSEG_CELLS_WIDE);
    if (xseg_cell_is_victim(&arena->small, cell)) {
        XSEG_ASSERT(arena->small.last_remainder.quanta == cell->quanta);
        arena->small.last_remainder = (struct xseg_cell){0};
        return true;
    }
    struct xseg_block *node = xseg_cells_node(&cell->extent->cells, cell->quantum);
    XSEG_ASSERT(node->base == xseg_cell_address_of(cell->extent, cell->quantum));
    XSEG_ASSERT(node->bytes == xseg_cell_bytes_of(cell->quanta));
    xseg_free_index_remove(&arena->free_index, node);
    return false;
}
