/* SPDX-License-Identifier: MIT */
/* Cells: from quanta to addresses, and back; and what lies behind one. */
#ifndef XSEG_CORE_CELL_H
#define XSEG_CORE_CELL_H

#include "src/core/small/small.h"

/* The state of a tract's record, beside those of enum xseg_block_state. */
#define XSEG_BLOCK_TRACT 16u

_Static_assert(XSEG_BLOCK_TRACT > XSEG_BLOCK_CLAIMED && XSEG_BLOCK_TRACT <= UINT8_MAX,
               "a tract is told apart from other blocks");

static inline uint64_t xseg_cell_address_of(const struct xseg_extent *extent, uint32_t quantum)
{
    XSEG_ASSERT(quantum <= extent->cells.quanta);
    return extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
}

/* The position of a cell, see extent.h. */
static inline uint64_t xseg_cell_position(const struct xseg_cell *cell)
{
    XSEG_ASSERT(cell->quanta > 0);
    return cell->extent->position + cell->quantum;
}

static inline uint32_t xseg_cell_quantum_of(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base <= extent->segment.bytes);
    return (uint32_t)((address - extent->segment.base) >> XSEG_CELLS_SHIFT);
}

static inline uint64_t xseg_cell_bytes_of(uint32_t quanta)
{
    return (uint64_t)quanta << XSEG_CELLS_SHIFT;
}

/* Whether a cell is all of its extent. */
static inline bool xseg_cell_is_whole(const struct xseg_cell *cell)
{
    XSEG_ASSERT(cell->quantum + cell->quanta <= cell->extent->cells.quanta);
    return cell->quanta == cell->extent->cells.quanta;
}

/* Whether a cell begins where the victim does. */
static inline bool xseg_cell_is_victim(const struct xseg_small *small, const struct xseg_cell *cell)
{
    return small->last_remainder.extent == cell->extent &&
           small->last_remainder.quantum == cell->quantum;
}

/* Whether a hole is behind a cached cell. */
static inline bool xseg_cell_is_open(const struct xseg_cell *cell)
{
    return (xseg_cells_word(&cell->extent->cells, cell->quantum)->open &
            xseg_cells_bit(cell->quantum)) != 0;
}

/* The cached cell that begins at a quantum, or none.  The quantum may be the extent's end. */
static inline struct xseg_cell xseg_cell_free_at(struct xseg_extent *extent, uint32_t quantum)
{
    const struct xseg_cells *cells = &extent->cells;
    struct xseg_cell none = {0};

    if (quantum >= cells->quanta || xseg_cells_chunk(cells, quantum) == NULL ||
        !xseg_cells_is_free(xseg_cells_word(cells, quantum), quantum))
        return none;
    return (struct xseg_cell){extent, quantum, xseg_cells_next(cells, quantum + 1) - quantum};
}

/* The record that begins where a cached cell ends, if one does: that behind the tract in which the cell lies. */
static inline struct xseg_block *xseg_cell_behind(const struct xseg_cell *cell)
{
    const struct xseg_block *tract =
        xseg_tree_last(cell->extent->records, xseg_cell_address_of(cell->extent, cell->quantum));

    XSEG_ASSERT(tract != NULL && tract->state == XSEG_BLOCK_TRACT);
    return tract->next;
}

/* Whether a hole begins where a cached cell ends. */
static inline bool xseg_cell_has_hole_behind(const struct xseg_cell *cell)
{
    const struct xseg_cells *cells = &cell->extent->cells;
    const uint32_t end = cell->quantum + cell->quanta;

    return end < cells->quanta &&
           (xseg_cells_word(cells, end)->record & xseg_cells_bit(end)) != 0 &&
           xseg_cell_behind(cell)->state == XSEG_BLOCK_UNMAPPED;
}

#endif
