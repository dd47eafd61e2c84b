/* SPDX-License-Identifier: MIT */
#include "src/core/block/block.h"

#include <inttypes.h>
#include <string.h>

#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"

bool xseg_extent_init(struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->segment.bytes > 0 && extent->segment.bytes % XSEG_SIZE_UNIT == 0);
    extent->has_starts = extent->arena->has_starts;
    atomic_store(&extent->origins, NULL);
    return !extent->has_starts || extent->segment.bytes <= XSEG_STARTS_MAX;
}

void xseg_extent_fini(struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->arena != NULL && extent->has_starts == extent->arena->has_starts);
    xseg_origins_fini(extent);
}

uint64_t xseg_extent_host_bytes(const struct xseg_extent *extent)
{
    return xseg_origins_host_bytes(extent) +
           xseg_page_map_host_bytes(extent->arena->page_map, extent);
}

struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_page_map *page_map = extent->arena->page_map;

    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    struct xseg_block *block =
        extent->has_starts
            ? xseg_page_map_block(page_map, xseg_page_map_start(page_map, address))
            : xseg_slot_block_of(xseg_page_map_slot(page_map, address), extent->arena);
    return block != NULL && block->base == address ? block : NULL;
}

struct xseg_block *xseg_extent_block_over(const struct xseg_extent *extent, uint64_t address)
{
    XSEG_ASSERT(address - extent->segment.base < extent->segment.bytes);
    const struct xseg_page_map *page_map = extent->arena->page_map;
    struct xseg_block *block = extent->has_starts
                                   ? xseg_page_map_last_start(page_map, extent, address)
                                   : xseg_page_map_last_slot(page_map, extent, address);

    if (block == NULL)
        block = extent->first;

    /* The slot of the address may lead to a block above the address. */
    while (block->base > address)
        block = block->prev;
    while (xseg_block_end(block) <= address)
        block = block->next;
    XSEG_ASSERT(block->extent == extent && block->base <= address);
    return block;
}

/* --- Enumeration. --- */

static struct xseg_block_view view_record(const struct xseg_block *record)
{
    struct xseg_block_view view = {0};

    XSEG_ASSERT(record->bytes > 0);
    view.extent = record->extent;
    view.base = record->base;
    view.bytes = record->bytes;
    view.requested = record->state == XSEG_BLOCK_UNMAPPED ? 0 : record->requested;
    view.state = (enum xseg_block_state)record->state;
    /* PENDING guards the uses of a freed block, not the arena lock. */
    view.has_uses = view.state == XSEG_BLOCK_ALLOCATED && record->uses != NULL;
    view.is_fallback = xseg_block_is_fallback(record);
    view.record = record;
    return view;
}

static enum xseg_block_state granule_state(enum xseg_elastic_use use)
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

/* View the run of granules with one use that begins at a granule. */
static struct xseg_block_view view_granules(const struct xseg_extent *extent, uint32_t first)
{
    const struct xseg_segment *segment = &extent->segment;
    const uint8_t *use = extent->elastic->use;
    struct xseg_block_view view = {.extent = extent, .record = extent->first};
    uint32_t end = first + 1;

    XSEG_ASSERT(first < segment->granules);
    while (end < segment->granules && use[end] == use[first])
        end++;
    view.base = segment->base + first * segment->granule_bytes;
    view.bytes = (end - first) * segment->granule_bytes;
    view.state = granule_state((enum xseg_elastic_use)use[first]);
    view.requested = view.state == XSEG_BLOCK_ALLOCATED || view.state == XSEG_BLOCK_PENDING_FREE
                         ? view.bytes
                         : 0;
    return view;
}

/* View the run of granules with one use that contains a granule. */
static struct xseg_block_view view_granules_around(const struct xseg_extent *extent,
                                                   uint32_t granule)
{
    const uint8_t *use = extent->elastic->use;

    while (granule > 0 && use[granule - 1] == use[granule])
        granule--;
    return view_granules(extent, granule);
}

static uint32_t granule_index(const struct xseg_extent *extent, uint64_t address)
{
    return (uint32_t)((address - extent->segment.base) / extent->segment.granule_bytes);
}

/* Get the first view of a record, or the end of the enumeration for NULL. */
static struct xseg_block_view view_record_or_end(const struct xseg_block *record)
{
    if (record == NULL)
        return (struct xseg_block_view){0};
    if (record->extent->elastic != NULL)
        return view_granules(record->extent, 0);
    return view_record(record);
}

struct xseg_block_view xseg_extent_first_view(const struct xseg_extent *extent)
{
    return view_record_or_end(extent->first);
}

struct xseg_block_view xseg_extent_next_view(const struct xseg_block_view *view)
{
    const struct xseg_block *record = view->record;

    XSEG_ASSERT(view->extent != NULL && xseg_block_view_end(view) <= xseg_block_end(record));
    if (view->extent->elastic != NULL && xseg_block_view_end(view) < xseg_block_end(record))
        return view_granules(view->extent, granule_index(view->extent, xseg_block_view_end(view)));
    return view_record_or_end(record->next);
}

struct xseg_block_view xseg_extent_view_at(const struct xseg_extent *extent, uint64_t address)
{
    if (extent->elastic != NULL)
        return view_granules_around(extent, granule_index(extent, address));
    return view_record(xseg_extent_block_over(extent, address));
}

void xseg_arena_for_each_block(const struct xseg_arena *arena, xseg_block_visitor *visit,
                               void *self)
{
    XSEG_ASSERT(visit != NULL);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        XSEG_EXTENT_FOR_EACH(view, extent)
        {
            visit(self, &view);
        }
    }
}

/* --- Elastic extents. --- */

void xseg_elastic_set_use(struct xseg_extent *extent, uint32_t first, uint32_t count,
                          enum xseg_elastic_use use)
{
    struct xseg_arena *arena = extent->arena;

    xseg_biased_lock_lock(&arena->lock);
    memset(&extent->elastic->use[first], (int)use, count);
    xseg_biased_lock_unlock(&arena->lock);
}

/* --- Audit. --- */

static bool may_have_flags(const struct xseg_block *block)
{
    return block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE ||
           block->state == XSEG_BLOCK_CLAIMED;
}

static bool audit_block(const struct xseg_extent *extent, const struct xseg_block *block,
                        struct xseg_violation *violation)
{
    const struct xseg_block *next = block->next;

    XSEG_INVARIANT(violation, "BLK-1",
                   next == NULL || (next->base == xseg_block_end(block) && next->prev == block),
                   "the block after %#" PRIx64 " does not follow it", block->base);
    XSEG_INVARIANT(violation, "BLK-2",
                   next == NULL || next->state != block->state ||
                       (block->state != XSEG_BLOCK_CACHED && block->state != XSEG_BLOCK_UNMAPPED),
                   "two adjacent blocks in state %d at %#" PRIx64, block->state, block->base);
    XSEG_INVARIANT(violation, "BLK-3", block->bytes != 0 && block->bytes % XSEG_SIZE_UNIT == 0,
                   "%" PRIu64 " bytes at %#" PRIx64, block->bytes, block->base);
    XSEG_INVARIANT(violation, "BLK-4",
                   block->state == XSEG_BLOCK_CLAIMED ||
                       block->mapped == (block->state != XSEG_BLOCK_UNMAPPED),
                   "state %d, mapped %d at %#" PRIx64, block->state, block->mapped, block->base);
    XSEG_INVARIANT(violation, "BLK-6", block->flags == 0 || may_have_flags(block),
                   "flags %#x of a block in state %d at %#" PRIx64, block->flags, block->state,
                   block->base);
    XSEG_INVARIANT(violation, "BLK-1", block->extent == extent,
                   "block of another extent at %#" PRIx64, block->base);
    return true;
}

static bool has_start(const struct xseg_block *block)
{
    return block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE;
}

/* Whether a start or a slot may lead to a block. */
static bool may_have_start(const struct xseg_block *block)
{
    return has_start(block) || block->state == XSEG_BLOCK_CLAIMED;
}

/* Audit the slots of an extent of large blocks. */
static bool audit_slots(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    const struct xseg_page_map *page_map = extent->arena->page_map;
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    for (uint64_t address = extent->segment.base >> XSEG_SLOT_SHIFT << XSEG_SLOT_SHIFT;
         address < end; address += XSEG_MIB) {
        const xseg_slot *start = xseg_page_map_slot(page_map, address);
        const struct xseg_block *block = xseg_slot_block_of(start, extent->arena);

        XSEG_INVARIANT(
            violation, "START-2",
            block == NULL || (block->base >> XSEG_SLOT_SHIFT == address >> XSEG_SLOT_SHIFT &&
                              may_have_start(block)),
            "the slot of %#" PRIx64 " leads to a block that does not begin there", address);
        /* A GiB without a leaf has no slots: continue at the next one. */
        address = start == NULL ? address | (XSEG_GIB - XSEG_MIB) : address;
    }
    return true;
}

/* Audit the starts of an extent of small blocks. */
static bool audit_starts(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    const struct xseg_page_map *page_map = extent->arena->page_map;
    const uint64_t unit = (uint64_t)1 << XSEG_STARTS_UNIT_SHIFT;
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    for (uint64_t address = extent->segment.base; address < end; address += XSEG_SIZE_UNIT) {
        const xseg_start *start = xseg_page_map_start(page_map, address);
        const struct xseg_block *block = xseg_page_map_block(page_map, start);

        XSEG_INVARIANT(violation, "START-2",
                       block == NULL || (block->base == address && may_have_start(block)),
                       "the start at %#" PRIx64 " leads to a block that does not begin there",
                       address);
        /* A unit without a table has no starts: continue at the next one. */
        address = start == NULL ? address | (unit - XSEG_SIZE_UNIT) : address;
    }
    return true;
}

bool xseg_extent_audit(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    uint64_t end = extent->segment.base;

    for (const struct xseg_block *block = extent->first; block != NULL; block = block->next) {
        if (!audit_block(extent, block, violation))
            return false;
        XSEG_INVARIANT(violation, "START-1",
                       !has_start(block) || xseg_extent_block_at(extent, block->base) == block,
                       "the start of %#" PRIx64 " does not lead to the block", block->base);
        end = xseg_block_end(block);
    }
    XSEG_INVARIANT(violation, "BLK-1", end == extent->segment.base + extent->segment.bytes,
                   "blocks end at %#" PRIx64, end);
    return extent->has_starts ? audit_starts(extent, violation) : audit_slots(extent, violation);
}
