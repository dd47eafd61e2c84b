/* SPDX-License-Identifier: MIT */
#include "src/core/cache/walk.h"

#include "src/core/cache/extent_blocks.h"
#include "src/core/small/cell.h"
#include "src/core/small/tract.h"

static struct xseg_part part_of_record(const struct xseg_block *record)
{
    struct xseg_part part = {0};

    XSEG_ASSERT(record->state != XSEG_BLOCK_TRACT && record->bytes > 0);
    part.extent = record->extent;
    part.base = record->base;
    part.bytes = record->bytes;
    part.requested = record->requested;
    part.state = (enum xseg_block_state)record->state;
    /* The uses of a freed block are guarded by PENDING, not by ARENA. */
    part.has_uses = part.state == XSEG_BLOCK_LIVE && record->uses != NULL;
    part.is_lent = xseg_block_is_lent(record);
    part.record = record;
    return part;
}

/* The cell of a tract that begins at a quantum. */
static struct xseg_part part_of_cell(const struct xseg_block *tract, uint32_t quantum)
{
    const struct xseg_cells *cells = &tract->extent->cells;
    struct xseg_part part = {0};

    XSEG_ASSERT(tract->state == XSEG_BLOCK_TRACT && quantum < cells->quanta);
    part.extent = tract->extent;
    part.base = tract->extent->segment.base + ((uint64_t)quantum << XSEG_CELLS_SHIFT);
    part.bytes = (uint64_t)(xseg_cells_next(cells, quantum + 1) - quantum) << XSEG_CELLS_SHIFT;
    part.state = XSEG_BLOCK_CACHED;
    if (xseg_cells_is_live(xseg_cells_word(cells, quantum), quantum)) {
        part.state = XSEG_BLOCK_LIVE;
        part.requested = xseg_cells_requested(cells, quantum, part.bytes);
    }
    XSEG_ASSERT(part.base + part.bytes <= xseg_block_end(tract));
    part.record = tract;
    return part;
}

/* The first part of a record, which may be NULL. */
static struct xseg_part first_of(const struct xseg_block *record)
{
    if (record == NULL)
        return (struct xseg_part){0};
    return record->state == XSEG_BLOCK_TRACT
               ? part_of_cell(record, xseg_cell_quantum_of(record->extent, record->base))
               : part_of_record(record);
}

struct xseg_part xseg_walk_first(const struct xseg_extent *extent)
{
    return first_of(extent->first);
}

struct xseg_part xseg_walk_next(const struct xseg_part *part)
{
    const struct xseg_block *record = part->record;

    XSEG_ASSERT(part->extent != NULL && xseg_part_end(part) <= xseg_block_end(record));
    if (record->state == XSEG_BLOCK_TRACT && xseg_part_end(part) < xseg_block_end(record))
        return part_of_cell(record, xseg_cell_quantum_of(record->extent, xseg_part_end(part)));
    return first_of(record->next);
}

struct xseg_part xseg_walk_at(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_block *record = xseg_extent_block_over(extent, address);

    if (record->state != XSEG_BLOCK_TRACT)
        return part_of_record(record);
    return part_of_cell(
        record, xseg_cells_last(&extent->cells, xseg_cell_quantum_of(record->extent, address)));
}
