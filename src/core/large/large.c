/* SPDX-License-Identifier: MIT */
#include "src/core/large/large.h"

#include "src/core/block/page_map.h"

/* --- Allocation. --- */

/* Hand out a cached block, of which the last `rest` bytes stay cached; returns its address. */
static inline __attribute__((always_inline)) uint64_t hand_out(struct xseg_arena *arena,
                                                               struct xseg_block *block,
                                                               uint64_t rest, uint64_t requested,
                                                               bool oversize)
{
    struct xseg_extent *extent = block->extent;
    const uint64_t base = block->base, bytes = block->bytes - rest;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && !arena->has_cells);
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && block->record.owner == arena);
    XSEG_ASSERT(rest < block->bytes && requested > 0 && requested <= bytes);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_split_any(&arena->counts, xseg_block_is_split(block), bytes, rest);
    (void)xseg_cached_unindex(arena, block);
    if (rest != 0)
        xseg_cached_add_last_remainder(
            arena, xseg_block_split(&arena->blocks, block, bytes, rest, XSEG_BLOCK_CACHED, true));
    block->state = XSEG_BLOCK_ALLOCATED;
    block->mapped = true;
    block->flags = oversize ? XSEG_BLOCK_OVERSIZE : 0;
    block->spare = 0;
    block->requested = requested;
    xseg_slot_add(xseg_page_map_slot(arena->page_map, base), block);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return base;
}

uint64_t xseg_large_hit(struct xseg_arena *arena, const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_cached_choose(arena, params);

    XSEG_ASSERT(params->bytes == params->span && params->requested <= params->bytes);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    const uint64_t rest = xseg_cached_rest(block, params);
    const bool oversize = block->bytes - rest >= params->config->max_split_bytes;
    if (oversize)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    return hand_out(arena, block, rest, params->requested, oversize);
}

uint64_t xseg_large_hit_plain(struct xseg_arena *arena, uint64_t requested, bool expandable)
{
    const uint64_t bytes = (requested + XSEG_SIZE_UNIT - 1) & ~(XSEG_SIZE_UNIT - 1);
    struct xseg_block *block = xseg_cached_find(arena, bytes);

    XSEG_ASSERT(requested > 0 && bytes - requested < XSEG_SIZE_UNIT);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    if (expandable && xseg_block_can_grow(block))
        block = xseg_cached_prefer_enclosed(arena, block);
    if (!expandable && xseg_extent_is_expandable(block->extent))
        return 0;
    const uint64_t rest = block->bytes - bytes;
    return hand_out(arena, block, expandable || rest > XSEG_SIZE_SMALL_MAX ? rest : 0, requested,
                    false);
}

/* --- Free. --- */

bool xseg_large_claim_free_recording(struct xseg_arena *arena, xseg_slot *slot,
                                     struct xseg_block *block, uint64_t address)
{
    XSEG_ASSERT(xseg_arena_has_flags(arena));
    if ((atomic_load(&arena->notes) & XSEG_ARENA_SLOW_PATH) != 0 ||
        !xseg_large_is_plain(block, address))
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (block->flags != 0)
        xseg_flags_end_oversize(&arena->counts, block);
    xseg_arena_record_free(arena, block->extent, address, block->bytes);
    xseg_slot_remove(slot);
    return true;
}
