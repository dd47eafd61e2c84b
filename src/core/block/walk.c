/* SPDX-License-Identifier: MIT */
#include "src/core/block/walk.h"

#include "src/core/block/elastic.h"
#include "src/core/block/extent_blocks.h"

static struct xseg_part part_of_record(const struct xseg_block *record)
{
    struct xseg_part part = {0};

    XSEG_ASSERT(record->bytes > 0);
    part.extent = record->extent;
    part.base = record->base;
    part.bytes = record->bytes;
    part.requested = record->state == XSEG_BLOCK_UNMAPPED ? 0 : record->requested;
    part.state = (enum xseg_block_state)record->state;
    /* The uses of a freed block are guarded by PENDING, not by ARENA. */
    part.has_uses = part.state == XSEG_BLOCK_ALLOCATED && record->uses != NULL;
    part.is_fallback = xseg_block_is_fallback(record);
    part.record = record;
    return part;
}

static enum xseg_block_state state_of_use(enum xseg_elastic_use use)
{
    switch (use) {
    case XSEG_ELASTIC_ALLOCATED:
        return XSEG_BLOCK_ALLOCATED;
    case XSEG_ELASTIC_UNMAPPING:
        return XSEG_BLOCK_PENDING_FREE;
    case XSEG_ELASTIC_CLAIMED:
        return XSEG_BLOCK_CLAIMED;
    default:
        return XSEG_BLOCK_UNMAPPED;
    }
}

/* The run of granules of one use from a granule of an elastic extent on. */
static struct xseg_part part_of_granules(const struct xseg_extent *extent, uint32_t first)
{
    const struct xseg_segment *segment = &extent->segment;
    const uint8_t *use = extent->elastic->use;
    struct xseg_part part = {.extent = extent, .record = extent->first};
    uint32_t end = first + 1;

    XSEG_ASSERT(first < segment->granules);
    while (end < segment->granules && use[end] == use[first])
        end++;
    part.base = segment->base + first * segment->granule_bytes;
    part.bytes = (end - first) * segment->granule_bytes;
    part.state = state_of_use((enum xseg_elastic_use)use[first]);
    part.requested = part.state == XSEG_BLOCK_ALLOCATED || part.state == XSEG_BLOCK_PENDING_FREE
                         ? part.bytes
                         : 0;
    return part;
}

/* The run of granules of one use that a granule lies in. */
static struct xseg_part part_over_granule(const struct xseg_extent *extent, uint32_t granule)
{
    const uint8_t *use = extent->elastic->use;

    while (granule > 0 && use[granule - 1] == use[granule])
        granule--;
    return part_of_granules(extent, granule);
}

/* The granule of an address of an elastic extent. */
static uint32_t granule_of(const struct xseg_extent *extent, uint64_t address)
{
    return (uint32_t)((address - extent->segment.base) / extent->segment.granule_bytes);
}

/* The first part of a record, which may be NULL. */
static struct xseg_part first_of(const struct xseg_block *record)
{
    if (record == NULL)
        return (struct xseg_part){0};
    if (record->extent->elastic != NULL)
        return part_of_granules(record->extent, 0);
    return part_of_record(record);
}

struct xseg_part xseg_walk_first(const struct xseg_extent *extent)
{
    return first_of(extent->first);
}

struct xseg_part xseg_walk_next(const struct xseg_part *part)
{
    const struct xseg_block *record = part->record;

    XSEG_ASSERT(part->extent != NULL && xseg_part_end(part) <= xseg_block_end(record));
    if (part->extent->elastic != NULL && xseg_part_end(part) < xseg_block_end(record))
        return part_of_granules(part->extent, granule_of(part->extent, xseg_part_end(part)));
    return first_of(record->next);
}

struct xseg_part xseg_walk_at(const struct xseg_extent *extent, uint64_t address)
{
    if (extent->elastic != NULL)
        return part_over_granule(extent, granule_of(extent, address));
    return part_of_record(xseg_extent_block_over(extent, address));
}

void xseg_walk_arena(const struct xseg_arena *arena, xseg_walk_visitor *visit, void *self)
{
    XSEG_ASSERT(visit != NULL);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        XSEG_WALK(part, extent)
        {
            visit(self, &part);
        }
    }
}
