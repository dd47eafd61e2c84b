/* SPDX-License-Identifier: MIT */
#include "src/core/block/arena_blocks.h"

#include "src/base/host_memory.h"
#include "src/core/block/best_fit.h"
#include "src/core/block/extent_blocks.h"
#include "src/core/block/flags.h"
#include "src/core/block/page_map.h"
#include "src/core/block/recorder.h"
#include "src/core/config/size.h"

/* --- Blocks. --- */

struct xseg_block *xseg_arena_split_block(struct xseg_arena *arena, struct xseg_block *block,
                                          uint64_t bytes)
{
    XSEG_ASSERT(bytes > 0 && bytes < block->bytes && bytes % XSEG_SIZE_UNIT == 0);
    XSEG_ASSERT(block->extent->arena == arena && xseg_biased_lock_is_held(&arena->lock));
    return xseg_block_split(&arena->blocks, block, bytes, block->bytes - bytes, block->state,
                            block->mapped);
}

/* Join a block with the one behind it, whose record is put back. */
static void join(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *next = block->next;

    XSEG_ASSERT(next->state == block->state && next->base == xseg_block_end(block));
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next != NULL)
        block->next->prev = block;
    xseg_slab_free(&arena->blocks, next);
}

/* Put a cached block or a hole where searches find it. */
static void insert(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block->state == XSEG_BLOCK_UNMAPPED)
        xseg_arena_insert_unmapped(arena, block);
    else
        xseg_cached_add(arena, block);
}

/* Let searches find a cached block or a hole no longer. */
static void erase(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_UNMAPPED || block->state == XSEG_BLOCK_CACHED);
    if (block->state == XSEG_BLOCK_UNMAPPED)
        xseg_arena_remove_unmapped(arena, block);
    else
        xseg_cached_remove(arena, block);
}

/* Merge a block that is in no tree with neighbours in its state, and put the result in its tree.  The result keeps the
 * `requested` of the block. */
static struct xseg_block *merge(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *prev = block->prev, *next = block->next;

    XSEG_ASSERT(block->state == XSEG_BLOCK_UNMAPPED || block->state == XSEG_BLOCK_CACHED);
    XSEG_ASSERT(block->flags == 0);
    if (next != NULL && next->state == block->state) {
        erase(arena, next);
        join(arena, block);
    }
    if (prev != NULL && prev->state == block->state) {
        erase(arena, prev);
        prev->requested = block->requested;
        join(arena, prev);
        block = prev;
    }
    XSEG_ASSERT(block->next == NULL || block->next->state != block->state);
    XSEG_ASSERT(block->prev == NULL || block->prev->state != block->state);
    insert(arena, block);
    return block;
}

/* --- Handing out. --- */

/* Split a cached block at an address; the first part stays cached.  Returns the remainder.  PyTorch allocates and frees the
 * first part, so its requested size is its size. */
static struct xseg_block *cut_head(struct xseg_arena *arena, struct xseg_block *block,
                                   uint64_t base)
{
    const uint64_t head = base - block->base;
    const bool was_split = xseg_block_is_split(block);

    if (__builtin_expect(head == 0, 1))
        return block;
    struct xseg_block *rest = xseg_arena_split_block(arena, block, head);
    block->requested = head;
    xseg_cached_add(arena, block);
    if (!xseg_extent_is_expandable(block->extent))
        xseg_fragments_split_head(&arena->counts, was_split, head + rest->bytes);
    return rest;
}

static struct xseg_alloc_result hand_out(struct xseg_arena *arena, struct xseg_block *block,
                                         uint64_t base, const struct xseg_alloc_params *params)
{
    struct xseg_counts *counts = &arena->counts;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(base >= block->base && base + params->bytes <= xseg_block_end(block));
    XSEG_ASSERT(base % params->alignment == 0 && params->requested <= params->bytes);
    xseg_cached_remove(arena, block);
    block = cut_head(arena, block, base);
    const bool was_split = xseg_block_is_split(block);
    const uint64_t rest = xseg_cached_rest(block, params);
    if (rest != 0)
        xseg_cached_add_last_remainder(arena, xseg_arena_split_block(arena, block, params->bytes));
    if (!xseg_extent_is_expandable(block->extent))
        xseg_fragments_split_any(counts, was_split, block->bytes, rest);
    block->state = XSEG_BLOCK_ALLOCATED;
    block->requested = params->requested;
    xseg_cached_set_start(arena, block);
    xseg_counts_alloc(counts, block->bytes, params->requested);
    block->flags = block->bytes >= params->config->max_split_bytes ? XSEG_BLOCK_OVERSIZE : 0;
    if (block->flags != 0)
        xseg_counts_increase(counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    return (struct xseg_alloc_result){arena, block->base, block->bytes, block->requested, false};
}

/* Note a grant, if anything is noted.  Returns the grant. */
static inline struct xseg_alloc_result recorded(struct xseg_alloc_result result,
                                                const struct xseg_alloc_params *params)
{
    if (xseg_recorder_is_enabled(result.arena))
        xseg_recorder_alloc(result.arena,
                            &(struct xseg_recorded_block){result.base, result.bytes,
                                                          result.requested, params->is_fallback});
    return result;
}

struct xseg_alloc_result xseg_arena_allocate_block(struct xseg_arena *arena,
                                                   struct xseg_block *block,
                                                   const struct xseg_alloc_params *params)
{
    const uint64_t base = xseg_round_up(block->base, params->alignment);

    if (params->keep)
        return (struct xseg_alloc_result){
            .arena = arena, .base = block->base, .bytes = block->bytes};
    return recorded(hand_out(arena, block, base, params), params);
}

struct xseg_alloc_result xseg_arena_allocate_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_extent_block_over(extent, base);
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    return recorded(hand_out(arena, block, base, params), params);
}

/* Serve a request of a locked arena.  Returns false on host allocation failure. */
static inline bool alloc_locked(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                                struct xseg_alloc_result *out) XSEG_REQUIRES(arena->lock)
{
    struct xseg_block *block = NULL;
    const bool stocked = xseg_arena_reserve_records(arena, &arena->blocks, 2);
    if (__builtin_expect(params->counts_search, 0) && !arena->is_small && !arena->is_private)
        atomic_fetch_add_explicit(arena->searches, 1, memory_order_relaxed);
    if (stocked && __builtin_expect(params->is_single, 0))
        block = xseg_cached_find_single(arena, params);
    else if (stocked)
        block = xseg_cached_choose(arena, params);
    if (block != NULL)
        *out = xseg_arena_allocate_block(arena, block, params);
    return stocked;
}

xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             struct xseg_alloc_result *out)
{
    xseg_arena_lock(arena);
    if (__builtin_expect(arena->is_paused, 0)) {
        xseg_arena_unlock(arena);
        return XSEG_OK;
    }
    const bool stocked = alloc_locked(arena, params, out);
    xseg_arena_unlock(arena);
    if (!stocked)
        return xseg_arena_fail_host_memory();
    return XSEG_OK;
}

xseg_status xseg_arena_alloc_fallback(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out)
{
    bool stocked = true;

    xseg_arena_lock(arena);
    if (!arena->is_paused)
        stocked = alloc_locked(arena, params, out);
    if (out->base != 0) {
        xseg_flags_mark_fallback(
            arena, xseg_extent_block_at(xseg_page_map_find(arena->page_map, out->base), out->base));
        out->fallback = true;
    }
    xseg_arena_unlock(arena);
    if (!stocked)
        return xseg_arena_fail_host_memory();
    return XSEG_OK;
}

static bool is_cached(const struct xseg_block *neighbour)
{
    return neighbour != NULL && neighbour->state == XSEG_BLOCK_CACHED;
}

void xseg_arena_set_requested(struct xseg_extent *extent, uint64_t address, uint64_t requested)
{
    struct xseg_block *block = xseg_extent_block_over(extent, address);

    if (block->state == XSEG_BLOCK_CACHED)
        block->requested = requested;
}

/* Make a block that is no longer in use cached, and merge it. */
static void put_back(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_extent *extent = block->extent;
    const uint64_t bytes = block->bytes;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && extent->arena == arena);
    XSEG_ASSERT(block->mapped && block->flags == 0);
    xseg_arena_record_free_if_enabled(arena, extent, block->base, block->bytes);
    xseg_cached_clear_start(arena, block);
    const unsigned neighbours = (unsigned)is_cached(block->prev) + is_cached(block->next);
    block->state = XSEG_BLOCK_CACHED;
    block = merge(arena, block);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_coalesce(&arena->counts, xseg_block_is_split(block), neighbours, bytes,
                                block->bytes - bytes);
}

void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_flags_free(arena, block);
    put_back(arena, block);
}

void xseg_arena_mark_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_mark_pending(&arena->counts, 1, block->bytes);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_flags_mark_pending(arena, block);
}

void xseg_arena_free_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_end_pending(&arena->counts, 1, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_flags_free_pending(arena, block);
    put_back(arena, block);
}

/* --- Claims, for growth and trims. --- */

struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent)
{
    struct xseg_block *block = xseg_slab_alloc_uninitialized(&arena->blocks);

    XSEG_ASSERT(extent->arena == arena && extent->has_starts == arena->has_starts);
    XSEG_ASSERT(extent->first == NULL && xseg_biased_lock_is_held(&arena->lock));
    block->state = XSEG_BLOCK_CLAIMED;
    block->mapped = !xseg_extent_is_expandable(extent);
    block->flags = 0;
    block->spare = 0;
    block->gc_count_base = 0;
    block->base = extent->segment.base;
    block->bytes = extent->segment.bytes;
    block->requested = 0;
    xseg_block_set_extent(block, extent);
    block->prev = block->next = NULL;
    block->uses = NULL;
    extent->first = block;
    xseg_list_insert(&arena->extents, &extent->link);
    return block;
}

void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->first->state == XSEG_BLOCK_CLAIMED && extent->first->next == NULL);
    XSEG_ASSERT(extent->arena == arena && xseg_biased_lock_is_held(&arena->lock));
    xseg_slab_free(&arena->blocks, extent->first);
    extent->first = NULL;
    xseg_list_remove(&extent->link);
}

struct xseg_block *xseg_arena_cached_from(struct xseg_arena *arena, uint64_t bytes,
                                          uint64_t position)
{
    return xseg_cached_from(arena, bytes, position);
}

struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    erase(arena, block);
    block->state = XSEG_BLOCK_CLAIMED;
    return block;
}

struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->uses == NULL);
    xseg_single_writer_add(&arena->settles, 1);
    block->state = block->mapped ? XSEG_BLOCK_CACHED : XSEG_BLOCK_UNMAPPED;
    return merge(arena, block);
}

/* --- Memory. --- */

uint64_t xseg_arena_host_bytes(const struct xseg_arena *arena)
{
    return xseg_demand_zero_resident(arena, sizeof(*arena)) + arena->blocks.host_bytes +
           arena->uses.host_bytes;
}
