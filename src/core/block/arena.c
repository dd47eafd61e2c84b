/* SPDX-License-Identifier: MIT */
#include "src/core/block/arena.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "src/core/block/origins.h"
#include "src/core/config/size.h"

struct xseg_arena *xseg_arena_create(const struct xseg_arena_params *params)
{
    _Static_assert(sizeof(struct xseg_arena) >= XSEG_DEMAND_ZERO_LARGE,
                   "demand-zero memory of this size begins at a cache line");
    /* Most of an arena consists of bins of the free index that are never accessed. */
    struct xseg_arena *arena = xseg_demand_zero_alloc(sizeof(*arena));

    if (arena == NULL)
        return NULL;
    XSEG_ASSERT((uintptr_t)arena % _Alignof(struct xseg_arena) == 0);
    xseg_slab_init(&arena->blocks, sizeof(struct xseg_block));
    xseg_slab_init(&arena->uses, sizeof(struct xseg_stream_use));
    arena->device = params->device;
    arena->page_map = params->page_map;
    arena->searches = params->searches;
    arena->history = params->history;
    arena->pool_id = params->pool_id;
    atomic_init(&arena->pool, params->pool);
    atomic_init(&arena->stream, params->stream);
    arena->is_small = params->is_small;
    arena->is_private = params->is_private;
    arena->is_guarded = params->is_guarded;
    atomic_init(&arena->free_actions, params->is_guarded ? XSEG_ARENA_SLOW_PATH : 0);
    arena->has_starts = params->is_small && !params->is_guarded;
    arena->unindexed_max = params->is_small ? 0 : XSEG_SIZE_SMALL_MAX;
    arena->last_remainder_min = params->is_small ? 128 << 10 : XSEG_SIZE_SMALL_MAX + 1;
    arena->records = params->page_map->records.base;
    xseg_biased_lock_init(&arena->lock, XSEG_RANK_ARENA);
    xseg_free_index_init(&arena->free_index, arena->records);
    arena->sentinel.state = XSEG_BLOCK_CLAIMED;
    arena->last_remainder = &arena->sentinel;
    xseg_list_init(&arena->extents);
    return arena;
}

void xseg_arena_destroy(struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
    xseg_slab_fini(&arena->blocks);
    xseg_slab_fini(&arena->uses);
    xseg_biased_lock_fini(&arena->lock);
    xseg_demand_zero_free(arena, sizeof(*arena));
}

bool xseg_arena_allocate_records(struct xseg_arena *arena, struct xseg_slab *slab, uint32_t count)
{
    XSEG_ASSERT(slab == &arena->blocks || slab == &arena->uses);
    XSEG_ASSERT(count > 0 && xseg_biased_lock_is_held(&arena->lock));
    while (slab->free_count < count) {
        const uint32_t records = xseg_slab_next_records(slab);

        xseg_arena_unlock(arena);
        struct xseg_slab_batch *batch =
            slab == &arena->blocks ? xseg_page_map_allocate_records(arena->page_map, records)
                                   : xseg_slab_make_batch(slab->record_bytes, records);
        xseg_arena_lock(arena);
        if (batch == NULL || !xseg_slab_refill(slab, batch))
            return false;
    }
    XSEG_ASSERT(slab->free_count >= count);
    return true;
}

xseg_status xseg_arena_fail_host_memory(void)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, block record");
}

/* Record the time at which the granules of some bytes became idle. */
static void stamp_granules(const struct xseg_arena *arena, struct xseg_extent *extent,
                           uint64_t base, uint64_t bytes)
{
    struct xseg_segment *segment = &extent->segment;
    const uint64_t now = xseg_arena_now(arena);

    if (!xseg_segment_is_expandable(segment)) {
        segment->idle_since[0] = now;
        return;
    }
    XSEG_ASSERT(bytes > 0 && base >= segment->base &&
                base + bytes <= segment->base + segment->bytes);
    const uint64_t last = (base + bytes - 1 - segment->base) / segment->granule_bytes;
    for (uint64_t at = (base - segment->base) / segment->granule_bytes; at <= last; at++)
        segment->idle_since[at] = now;
}

void xseg_arena_run_free_actions_slow(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint64_t base, uint64_t bytes)
{
    XSEG_ASSERT(bytes > 0 && base >= extent->segment.base);
    xseg_counts_resume(&arena->counts);
    if ((atomic_load_explicit(&arena->free_actions, memory_order_relaxed) & XSEG_ARENA_ORIGINS) !=
            0 &&
        xseg_origins_clear(extent, base) && --arena->origins == 0)
        (void)atomic_fetch_and(&arena->free_actions, ~XSEG_ARENA_ORIGINS);
    if (xseg_arena_now(arena) != 0)
        stamp_granules(arena, extent, base, bytes);
}
