/* SPDX-License-Identifier: MIT */
#include "src/core/walk.h"

static struct xseg_part part_of(const struct xseg_block *record)
{
    struct xseg_part part = {0};

    if (record == NULL)
        return part;
    part.extent = record->extent;
    part.base = record->base;
    part.bytes = record->bytes;
    part.requested = record->requested;
    part.state = (enum xseg_block_state)record->state;
    part.has_uses = record->uses != NULL;
    part.record = record;
    return part;
}

struct xseg_part xseg_walk_first(const struct xseg_extent *extent)
{
    return part_of(extent->first);
}

struct xseg_part xseg_walk_next(const struct xseg_part *part)
{
    return part_of(part->record->next);
}

struct xseg_part xseg_walk_at(const struct xseg_extent *extent, uint64_t address)
{
    return part_of(xseg_extent_block_over(extent, &extent->arena->blocks, address));
}
