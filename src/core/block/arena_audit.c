/* SPDX-License-Identifier: MIT */
#include "src/core/block/arena_audit.h"

#include <inttypes.h>

#include "src/core/block/best_fit.h"
#include "src/core/block/elastic.h"
#include "src/core/block/extent_blocks.h"
#include "src/core/block/origins.h"
#include "src/core/block/walk.h"
#include "src/core/stats/counts.h"
#include "vmm/alias.h"

struct tally {
    uint64_t live, live_bytes, active, active_bytes, mapped, unmapped_blocks;
    uint64_t fallback, fallback_bytes, fallback_active, fallback_active_bytes, origins;
    uint64_t last_remainders,
        to_index; /* cached: the victim; blocks that are neither the victim nor scraps */
};

static void tally_up(const struct xseg_arena *arena, const struct xseg_extent *extent,
                     struct tally *tally)
{
    XSEG_WALK(part, extent)
    {
        const bool live = part.state == XSEG_BLOCK_ALLOCATED;
        const bool active = live || part.state == XSEG_BLOCK_PENDING_FREE;
        const bool cached =
            part.state == XSEG_BLOCK_CACHED && !xseg_cached_is_unindexed(arena, part.record);

        tally->live += live;
        tally->live_bytes += live ? part.bytes : 0;
        tally->active += active;
        tally->active_bytes += active ? part.bytes : 0;
        tally->fallback += live && part.is_fallback;
        tally->fallback_bytes += live && part.is_fallback ? part.bytes : 0;
        tally->fallback_active += active && part.is_fallback;
        tally->fallback_active_bytes += active && part.is_fallback ? part.bytes : 0;
        tally->origins +=
            active && xseg_origins_age(part.extent, part.base, 1) != XSEG_ORIGINS_UNKNOWN;
        tally->mapped += part.record->mapped ? part.bytes : 0;
        tally->last_remainders += cached && part.record == arena->last_remainder;
        tally->to_index += cached && part.record != arena->last_remainder;
        tally->unmapped_blocks += part.state == XSEG_BLOCK_UNMAPPED;
    }
}

/* Add a granule, and the page of its first granule.  Returns bytes of the page that the segment is not charged for. */
static uint64_t tally_page(const struct xseg_segment *segment, uint32_t at, bool is_live,
                           struct tally *tally)
{
    const struct xseg_alias_record *page = xseg_alias_record(segment, at);
    uint64_t alias_bytes = 0;

    if (xseg_page_state_is_present(segment->state[at]) &&
        (page == NULL || page->audited.mapped + page->audited.evicted == 0)) {
        tally->active_bytes += segment->granule_bytes;
        tally->mapped += segment->granule_bytes;
    }
    if (is_live && (page == NULL || page->audited.committed == 0))
        tally->live_bytes += segment->granule_bytes;
    xseg_alias_audit_add(segment, at, is_live, &alias_bytes);
    return alias_bytes;
}

/* Add the granules of an elastic extent, which are no blocks. */
static bool tally_elastic(const struct xseg_extent *extent, struct tally *tally,
                          struct xseg_violation *violation)
{
    const struct xseg_segment *segment = &extent->segment;
    const struct xseg_elastic *elastic = extent->elastic;
    uint64_t live = 0, pending_unmaps = 0, alias_bytes = 0;

    for (uint32_t at = 0; at < segment->granules; at++) {
        const bool is_live = elastic->use[at] == XSEG_ELASTIC_ALLOCATED;
        const bool is_used = is_live || elastic->use[at] == XSEG_ELASTIC_UNMAPPING;
        const bool has_page =
            xseg_segment_is_mapped(segment, at) || xseg_segment_is_evicted(segment, at);

        XSEG_INVARIANT(violation, "ELASTIC-1", is_used == has_page,
                       "granule %" PRIu32 " in state %d, for %d", at, segment->state[at],
                       elastic->use[at]);
        XSEG_INVARIANT(violation, "ELASTIC-2",
                       (elastic->batch[at] != 0) == (elastic->use[at] == XSEG_ELASTIC_UNMAPPING),
                       "granule %" PRIu32 " in batch %" PRIu32, at, elastic->batch[at]);
        live += is_live;
        pending_unmaps += is_used && !is_live;
        alias_bytes += tally_page(segment, at, is_live, tally);
    }
    const uint64_t own = (live + pending_unmaps) * segment->granule_bytes - alias_bytes;
    XSEG_INVARIANT(violation, "ALIAS-2", alias_bytes == segment->alias_bytes,
                   "alias_bytes says %" PRIu64 ", granules %" PRIu64, segment->alias_bytes,
                   alias_bytes);
    XSEG_INVARIANT(violation, "ELASTIC-3",
                   live == elastic->live && pending_unmaps == elastic->pending_unmaps &&
                       own == elastic->own,
                   "live says %" PRIu32 ", there are %" PRIu64 "; leaving %" PRIu32 ", %" PRIu64
                   "; own %" PRIu64 ", %" PRIu64,
                   elastic->live, live, elastic->pending_unmaps, pending_unmaps, elastic->own, own);
    return true;
}

static void begin_aliases(const struct xseg_arena *arena)
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

static bool has_claimed(const struct xseg_extent *extent)
{
    for (uint32_t at = 0; at < extent->segment.granules; at++)
        if (extent->elastic->use[at] == XSEG_ELASTIC_CLAIMED)
            return true;
    return false;
}

static bool has_busy(const struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (extent->elastic != NULL && has_claimed(extent))
            return true;
        if (extent->elastic != NULL)
            continue;
        for (const struct xseg_block *block = extent->first; block != NULL; block = block->next)
            if (block->state == XSEG_BLOCK_CLAIMED)
                return true;
    }
    return false;
}

/* How much of a quantity is lent now. */
static uint64_t fallback_of(const struct xseg_arena *arena, enum xseg_count what)
{
    return arena->fallback.up[what] - arena->fallback.down[what];
}

static bool audit_fallback(const struct xseg_arena *arena, const struct tally *tally,
                           struct xseg_violation *violation)
{
    XSEG_INVARIANT(violation, "ARENA-5",
                   fallback_of(arena, XSEG_COUNT_ALLOCATION) == tally->fallback &&
                       fallback_of(arena, XSEG_COUNT_ALLOCATED_BYTES) == tally->fallback_bytes &&
                       fallback_of(arena, XSEG_COUNT_ACTIVE) == tally->fallback_active &&
                       fallback_of(arena, XSEG_COUNT_ACTIVE_BYTES) == tally->fallback_active_bytes,
                   "counted %" PRIu64 " lent, there are %" PRIu64,
                   fallback_of(arena, XSEG_COUNT_ALLOCATION), tally->fallback);
    return true;
}

bool xseg_arena_audit(const struct xseg_arena *arena, struct xseg_violation *violation)
{
    const struct xseg_counts *counts = &arena->counts;
    struct tally tally = {0};

    begin_aliases(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (!xseg_extent_audit(extent, violation))
            return false;
        if (extent->elastic == NULL)
            tally_up(arena, extent, &tally);
        else if (!has_claimed(extent) && !tally_elastic(extent, &tally, violation))
            return false;
    }
    const uint64_t indexed = xseg_free_index_count(&arena->free_index);
    XSEG_INVARIANT(violation, "ARENA-1", indexed == tally.to_index,
                   "%" PRIu64 " in the free index, %" PRIu64 " cached", indexed, tally.to_index);
    XSEG_INVARIANT(violation, "ARENA-1",
                   tally.last_remainders == xseg_cached_has_last_remainder(arena),
                   "%" PRIu64 " cached blocks are the victim", tally.last_remainders);
    const uint64_t unmapped_blocks = xseg_tree_count(arena->records, arena->unmapped_blocks);
    XSEG_INVARIANT(violation, "ARENA-2", unmapped_blocks == tally.unmapped_blocks,
                   "%" PRIu64 " in the tree, %" PRIu64 " holes", unmapped_blocks,
                   tally.unmapped_blocks);
    if (!xseg_free_index_audit(&arena->free_index, violation) ||
        !xseg_counts_audit(counts, violation))
        return false;
    if (has_busy(arena))
        return true;
    XSEG_INVARIANT(violation, "ARENA-3",
                   xseg_counts_current(counts, XSEG_COUNT_ALLOCATION) == tally.live &&
                       xseg_counts_current(counts, XSEG_COUNT_ALLOCATED_BYTES) ==
                           tally.live_bytes &&
                       xseg_counts_current(counts, XSEG_COUNT_ACTIVE) == tally.active &&
                       xseg_counts_current(counts, XSEG_COUNT_ACTIVE_BYTES) == tally.active_bytes,
                   "counted %" PRIu64 " live, there are %" PRIu64,
                   xseg_counts_current(counts, XSEG_COUNT_ALLOCATION), tally.live);
    XSEG_INVARIANT(
        violation, "ARENA-4",
        xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES) + arena->evicted == tally.mapped,
        "counted %" PRIu64 " reserved and %" PRIu64 " evicted, mapped are %" PRIu64,
        xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES), arena->evicted, tally.mapped);
    XSEG_INVARIANT(
        violation, "ARENA-6",
        arena->origins == tally.origins &&
            ((atomic_load(&arena->notes) & XSEG_ARENA_ORIGINS) != 0) == (tally.origins != 0),
        "counted %" PRIu64 " origins, there are %" PRIu64, arena->origins, tally.origins);
    return audit_aliases(arena, violation) && audit_fallback(arena, &tally, violation);
}
