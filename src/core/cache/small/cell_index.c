/* SPDX-License-Identifier: MIT */
#include "src/core/cache/small/cell_index.h"

void xseg_cell_index_put_wide(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    struct xseg_block *node = xseg_cells_node(&cell->extent->cells, cell->quantum);

    /* What nobody asks of a node is left as it is. */
    node->state = XSEG_BLOCK_CACHED;
    node->mapped = true;
    node->base = xseg_cell_address_of(cell->extent, cell->quantum);
    node->bytes = xseg_cell_bytes_of(cell->quanta);
    node->extent = cell->extent;
    xseg_free_index_insert(&arena->free_index, node);
}

bool xseg_cell_index_take_wide(struct xseg_arena *arena, const struct xseg_cell *cell)
{
    if (xseg_cell_is_victim(&arena->small, cell)) {
        arena->small.victim = (struct xseg_cell){0};
        return true;
    }
    xseg_free_index_remove(&arena->free_index,
                           xseg_cells_node(&cell->extent->cells, cell->quantum));
    return false;
}
