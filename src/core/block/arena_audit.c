/* SPDX-License-Identifier: MIT */
#include "src/core/block/arena.h"

#include <inttypes.h>

#include "src/core/block/best_fit.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/stats/counts.h"
#include "vmm/alias.h"

struct block_sums {
    uint64_t allocated, allocated_bytes, active, active_bytes, mapped, unmapped_blocks;
    uint64_t fallback, fallback_bytes, fallback_active, fallback_active_bytes, origins;
    uint64_t last_remainders; /* cached blocks that are the last remainder */
    uint64_t indexed_blocks;  /* cached blocks that must be in the free index */
};

static void count_blocks(const struct xseg_arena *arena, const struct xseg_extent *extent,
                         struct block_sums *sums)
{
    XSEG_EXTENT_FOR_EACH(view, extent)
    {
        const bool allocated = view.state == XSEG_BLOCK_ALLOCATED;
        const bool active = allocated || view.state == XSEG_BLOCK_PENDING_FREE;
        const bool cached =
            view.state == XSEG_BLOCK_CACHED && view.record->bytes > arena->unindexed_max;

        sums->allocated += allocated;
        sums->allocated_bytes += allocated ? view.bytes : 0;
        sums->active += active;
        sums->active_bytes += active ? view.bytes : 0;
        sums->fallback += allocated && view.is_fallback;
        sums->fallback_bytes += allocated && view.is_fallback ? view.bytes : 0;
        sums->fallback_active += active && view.is_fallback;
        sums->fallback_active_bytes += active && view.is_fallback ? view.bytes : 0;
        sums->origins +=
            active && xseg_origins_age(view.extent, view.base, 1) != XSEG_ORIGINS_UNKNOWN;
        sums->mapped += view.record->mapped ? view.bytes : 0;
        sums->last_remainders += cached && view.record == arena->last_remainder;
        sums->indexed_blocks += cached && view.record != arena->last_remainder;
        sums->unmapped_blocks += view.state == XSEG_BLOCK_UNMAPPED;
    }
}

/* Add a granule, and its page if this is the first granule of the page.  Returns bytes of the page
 * that are not charged to the segment. */
static uint64_t count_page(const struct xseg_segment *segment, uint32_t granule, bool is_allocated,
                           struct block_sums *sums)
{
    const struct xseg_alias_record *page = xseg_alias_record(segment, granule);
    uint64_t alias_bytes = 0;

    if (xseg_page_state_is_present(segment->state[granule]) &&
        (page == NULL || page->audited.mapped + page->audited.evicted == 0)) {
        sums->active_bytes += segment->granule_bytes;
        sums->mapped += segment->granule_bytes;
    }
    if (is_allocated && (page == NULL || page->audited.committed == 0))
        sums->allocated_bytes += segment->granule_bytes;
    xseg_alias_audit_add(segment, granule, is_allocated, &alias_bytes);
    return alias_bytes;
}

/* Add the granules of an elastic extent to the sums, and check the extent. */
static bool audit_elastic(const struct xseg_extent *extent, struct block_sums *sums,
                          struct xseg_violation *violation)
{
    const struct xseg_segment *segment = &extent->segment;
    const struct xseg_elastic *elastic = extent->elastic;
    uint64_t allocated = 0, pending_unmaps = 0, alias_bytes = 0;

    for (uint32_t granule = 0; granule < segment->granules; granule++) {
        const bool is_allocated = elastic->use[granule] == XSEG_ELASTIC_ALLOCATED;
        const bool is_used = is_allocated || elastic->use[granule] == XSEG_ELASTIC_UNMAPPING;
        const bool has_page =
            xseg_segment_is_mapped(segment, granule) || xseg_segment_is_evicted(segment, granule);

        XSEG_INVARIANT(violation, "ELASTIC-1", is_used == has_page,
                       "granule %" PRIu32 " in state %d, for %d", granule, segment->state[granule],
                       elastic->use[granule]);
        XSEG_INVARIANT(violation, "ELASTIC-2",
                       (elastic->batch[granule] != 0) ==
                           (elastic->use[granule] == XSEG_ELASTIC_UNMAPPING),
                       "granule %" PRIu32 " in batch %" PRIu32, granule, elastic->batch[granule]);
        allocated += is_allocated;
        pending_unmaps += is_used && !is_allocated;
        alias_bytes += count_page(segment, granule, is_allocated, sums);
    }
    const uint64_t charged = (allocated + pending_unmaps) * segment->granule_bytes - alias_bytes;
    XSEG_INVARIANT(violation, "ALIAS-2", alias_bytes == segment->alias_bytes,
                   "alias_bytes is %" PRIu64 ", the sum over granules %" PRIu64,
                   segment->alias_bytes, alias_bytes);
    XSEG_INVARIANT(violation, "ELASTIC-3",
                   allocated == elastic->allocated && pending_unmaps == elastic->pending_unmaps &&
                       charged == elastic->charged,
                   "allocated %" PRIu32 ", counted %" PRIu64 "; pending %" PRIu32
                   ", counted %" PRIu64 "; charged %" PRIu64 ", counted %" PRIu64,
                   elastic->allocated, allocated, elastic->pending_unmaps, pending_unmaps,
                   elastic->charged, charged);
    return true;
}

static void begin_alias_audit(const struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        xseg_alias_audit_begin(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
}

static bool audit_aliases(const struct xseg_arena *arena, struct xseg_violation *violation)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        if (!xseg_alias_audit(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment, violation))
            return false;
    }
    return true;
}

static bool has_claimed_granule(const struct xseg_extent *extent)
{
    for (uint32_t granule = 0; granule < extent->segment.granules; granule++)
        if (extent->elastic->use[granule] == XSEG_ELASTIC_CLAIMED)
            return true;
    return false;
}

static bool has_claimed_block(const struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (extent->elastic != NULL && has_claimed_granule(extent))
            return true;
        if (extent->elastic != NULL)
            continue;
        for (const struct xseg_block *block = extent->first; block != NULL; block = block->next)
            if (block->state == XSEG_BLOCK_CLAIMED)
                return true;
    }
    return false;
}

/* Get the current value of a quantity, summed over the fallback blocks. */
static uint64_t current_fallback(const struct xseg_arena *arena, enum xseg_count quantity)
{
    return arena->fallback.up[quantity] - arena->fallback.down[quantity];
}

static bool audit_fallback(const struct xseg_arena *arena, const struct block_sums *sums,
                           struct xseg_violation *violation)
{
    XSEG_INVARIANT(
        violation, "ARENA-5",
        current_fallback(arena, XSEG_COUNT_ALLOCATION) == sums->fallback &&
            current_fallback(arena, XSEG_COUNT_ALLOCATED_BYTES) == sums->fallback_bytes &&
            current_fallback(arena, XSEG_COUNT_ACTIVE) == sums->fallback_active &&
            current_fallback(arena, XSEG_COUNT_ACTIVE_BYTES) == sums->fallback_active_bytes,
        "counted %" PRIu64 " fallback blocks, there are %" PRIu64,
        current_fallback(arena, XSEG_COUNT_ALLOCATION), sums->fallback);
    return true;
}

bool xseg_arena_audit(const struct xseg_arena *arena, struct xseg_violation *violation)
{
    const struct xseg_counts *counts = &arena->counts;
    struct block_sums sums = {0};

    begin_alias_audit(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (!xseg_extent_audit(extent, violation))
            return false;
        if (extent->elastic == NULL)
            count_blocks(arena, extent, &sums);
        else if (!has_claimed_granule(extent) && !audit_elastic(extent, &sums, violation))
            return false;
    }
    const uint64_t indexed = xseg_free_index_count(&arena->free_index);
    XSEG_INVARIANT(violation, "ARENA-1", indexed == sums.indexed_blocks,
                   "%" PRIu64 " in the free index, %" PRIu64 " cached", indexed,
                   sums.indexed_blocks);
    XSEG_INVARIANT(violation, "ARENA-1",
                   sums.last_remainders == xseg_cached_has_last_remainder(arena),
                   "%" PRIu64 " cached blocks are the last remainder", sums.last_remainders);
    const uint64_t unmapped_blocks = xseg_tree_count(arena->records, arena->unmapped_blocks);
    XSEG_INVARIANT(violation, "ARENA-2", unmapped_blocks == sums.unmapped_blocks,
                   "%" PRIu64 " in the tree, %" PRIu64 " unmapped", unmapped_blocks,
                   sums.unmapped_blocks);
    if (!xseg_free_index_audit(&arena->free_index, violation) ||
        !xseg_counts_audit(counts, violation))
        return false;
    if (has_claimed_block(arena))
        return true;
    XSEG_INVARIANT(
        violation, "ARENA-3",
        xseg_counts_read(counts, XSEG_COUNT_ALLOCATION).current == sums.allocated &&
            xseg_counts_read(counts, XSEG_COUNT_ALLOCATED_BYTES).current == sums.allocated_bytes &&
            xseg_counts_read(counts, XSEG_COUNT_ACTIVE).current == sums.active &&
            xseg_counts_read(counts, XSEG_COUNT_ACTIVE_BYTES).current == sums.active_bytes,
        "counted %" PRIu64 " allocated, there are %" PRIu64,
        xseg_counts_read(counts, XSEG_COUNT_ALLOCATION).current, sums.allocated);
    XSEG_INVARIANT(
        violation, "ARENA-4",
        xseg_counts_read(counts, XSEG_COUNT_RESERVED_BYTES).current + arena->evicted == sums.mapped,
        "counted %" PRIu64 " reserved and %" PRIu64 " evicted, mapped are %" PRIu64,
        xseg_counts_read(counts, XSEG_COUNT_RESERVED_BYTES).current, arena->evicted, sums.mapped);
    XSEG_INVARIANT(violation, "ARENA-6",
                   arena->origins == sums.origins &&
                       ((atomic_load(&arena->free_actions) & XSEG_ARENA_ORIGINS) != 0) ==
                           (sums.origins != 0),
                   "counted %" PRIu64 " origins, there are %" PRIu64, arena->origins, sums.origins);
    return audit_aliases(arena, violation) && audit_fallback(arena, &sums, violation);
}
