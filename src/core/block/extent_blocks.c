/* SPDX-License-Identifier: MIT */
#include "src/core/block/extent_blocks.h"

#include <inttypes.h>

#include "src/core/block/arena.h"
#include "src/core/block/origins.h"
#include "src/core/block/page_map.h"
#include "src/core/config/size.h"

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

/* The page map that leads to an extent. */
static struct xseg_page_map *page_map_of(const struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->arena != NULL);
    return ((const struct xseg_arena *)extent->arena)->page_map;
}

bool xseg_extent_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end)
{
    struct xseg_page_map *page_map = page_map_of(extent);

    XSEG_ASSERT(begin < end && end <= extent->segment.bytes);
    /* A classic extent got its leaves when it was inserted into the page map. */
    if (!extent->has_starts && !xseg_extent_is_expandable(extent))
        return true;
    xseg_mutex_lock(&page_map->lock);
    const bool is_covered = xseg_page_map_cover(page_map, extent, begin, end);
    xseg_mutex_unlock(&page_map->lock);
    return is_covered;
}

uint64_t xseg_extent_host_bytes(const struct xseg_extent *extent)
{
    return xseg_origins_host_bytes(extent) + xseg_page_map_host_bytes(page_map_of(extent), extent);
}

struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent, uint64_t address)
{
    const struct xseg_page_map *page_map = page_map_of(extent);

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
    const struct xseg_page_map *page_map = page_map_of(extent);
    struct xseg_block *block = extent->has_starts
                                   ? xseg_page_map_last_start(page_map, extent, address)
                                   : xseg_page_map_last_slot(page_map, extent, address);

    if (block == NULL)
        block = extent->first;

    /* The slot of the address may lead to a block behind the address, whose neighbour covers the address. */
    while (block->base > address)
        block = block->prev;
    while (xseg_block_end(block) <= address)
        block = block->next;
    XSEG_ASSERT(block->extent == extent && block->base <= address);
    return block;
}

static bool is_in_use(const struct xseg_block *block)
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
                   "the block behind %#" PRIx64 " does not follow it", block->base);
    XSEG_INVARIANT(violation, "BLK-2",
                   next == NULL || next->state != block->state ||
                       (block->state != XSEG_BLOCK_CACHED && block->state != XSEG_BLOCK_UNMAPPED),
                   "two neighbours in state %d at %#" PRIx64, block->state, block->base);
    XSEG_INVARIANT(violation, "BLK-3", block->bytes != 0 && block->bytes % XSEG_SIZE_UNIT == 0,
                   "%" PRIu64 " bytes at %#" PRIx64, block->bytes, block->base);
    XSEG_INVARIANT(violation, "BLK-4",
                   block->state == XSEG_BLOCK_CLAIMED ||
                       block->mapped == (block->state != XSEG_BLOCK_UNMAPPED),
                   "state %d, mapped %d at %#" PRIx64, block->state, block->mapped, block->base);
    XSEG_INVARIANT(violation, "BLK-6", block->flags == 0 || is_in_use(block),
                   "flags %#x of a block in state %d at %#" PRIx64, block->flags, block->state,
                   block->base);
    XSEG_INVARIANT(violation, "BLK-1", block->extent == extent, "a stranger at %#" PRIx64,
                   block->base);
    return true;
}

static bool has_start(const struct xseg_block *block)
{
    return block->state == XSEG_BLOCK_ALLOCATED || block->state == XSEG_BLOCK_PENDING_FREE;
}

/* Whether a block that a start or a slot leads to may be there. */
static bool may_start(const struct xseg_block *block)
{
    return has_start(block) || block->state == XSEG_BLOCK_CLAIMED;
}

/* Audit the slots of an extent of large blocks. */
static bool audit_slots(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    const struct xseg_page_map *page_map = page_map_of(extent);
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    for (uint64_t at = extent->segment.base >> XSEG_SLOT_SHIFT << XSEG_SLOT_SHIFT; at < end;
         at += XSEG_MIB) {
        const xseg_slot *start = xseg_page_map_slot(page_map, at);
        const struct xseg_block *block = xseg_slot_block_of(start, extent->arena);

        XSEG_INVARIANT(violation, "START-2",
                       block == NULL || (block->base >> XSEG_SLOT_SHIFT == at >> XSEG_SLOT_SHIFT &&
                                         may_start(block)),
                       "the slot of %#" PRIx64 " leads to a block that does not begin there", at);
        /* A GiB without a leaf has no slots: go on behind its last one. */
        at = start == NULL ? at | (XSEG_GIB - XSEG_MIB) : at;
    }
    return true;
}

/* Audit the starts of an extent of small blocks. */
static bool audit_starts(const struct xseg_extent *extent, struct xseg_violation *violation)
{
    const struct xseg_page_map *page_map = page_map_of(extent);
    const uint64_t unit = (uint64_t)1 << XSEG_STARTS_UNIT_SHIFT;
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    for (uint64_t at = extent->segment.base; at < end; at += XSEG_SIZE_UNIT) {
        const xseg_start *start = xseg_page_map_start(page_map, at);
        const struct xseg_block *block = xseg_page_map_block(page_map, start);

        XSEG_INVARIANT(violation, "START-2",
                       block == NULL || (block->base == at && may_start(block)),
                       "the start at %#" PRIx64 " leads to a block that does not begin there", at);
        /* A unit without a table has no starts: go on behind its last one. */
        at = start == NULL ? at | (unit - XSEG_SIZE_UNIT) : at;
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
