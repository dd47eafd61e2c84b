/* SPDX-License-Identifier: MIT */
#include "src/core/block/best_fit.h"

#include "src/core/block/page_map.h"

/* The size to which an expandable block can grow: its own size and that of an unmapped block after
 * it. */
static uint64_t effective_bytes(const struct xseg_block *block)
{
    return block->bytes + (xseg_block_can_grow(block) ? block->next->bytes : 0);
}

struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block)
{
    XSEG_ASSERT(block != NULL && block->state == XSEG_BLOCK_CACHED);
    /* The effective size of a block that cannot grow is at most that of any successor. */
    while (xseg_block_can_grow(block) && xseg_extent_is_expandable(block->extent)) {
        struct xseg_block *next = xseg_cached_next(arena, block);

        if (next == NULL || effective_bytes(next) >= effective_bytes(block))
            break;
        XSEG_ASSERT(next->bytes >= block->bytes && next != block);
        block = next;
    }
    return block;
}

/* Whether a cached block is one whole physical page, or is in a classic segment, which is one
 * allocation of the driver. */
static bool is_single_page(const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;

    return !xseg_segment_is_expandable(segment) ||
           (xseg_block_is_whole(block) && segment->page_bytes == segment->bytes);
}

struct xseg_block *xseg_cached_find_single_page(const struct xseg_arena *arena,
                                                const struct xseg_alloc_params *params)
{
    /* A page is rounded up to the mapping granularity, so it may exceed the request by this much in
     * any case. */
    const uint64_t slack =
        xseg_max(params->config->max_non_split_rounding_bytes, XSEG_SIZE_SMALL_SEGMENT);
    struct xseg_block *block = xseg_cached_find(arena, params->bytes);

    XSEG_ASSERT(params->is_single && params->no_split);
    while (block != NULL && block->bytes - params->bytes < slack) {
        if (is_single_page(block) && block->base % params->alignment == 0)
            return block;
        block = xseg_cached_next(arena, block);
    }
    return NULL;
}

struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_block *block)
{
    const struct xseg_config *config = params->config;

    XSEG_ASSERT(block != NULL && block->bytes >= params->span);
    if (params->expandable) {
        block = xseg_cached_prefer_enclosed(arena, block);
    } else {
        while (block != NULL && xseg_extent_is_expandable(block->extent))
            block = xseg_cached_next(arena, block);
        if (block == NULL)
            return NULL;
    }
    /* Oversize blocks are reserved for oversize requests of a similar size. */
    if (params->bytes < config->max_split_bytes && block->bytes >= config->max_split_bytes)
        return NULL;
    if (params->bytes >= config->max_split_bytes &&
        block->bytes >= xseg_add_saturate(params->bytes, config->max_non_split_rounding_bytes))
        return NULL;
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    return block;
}

/* --- Hits. --- */

/* --- Allocation. --- */

/* Split the first `bytes` off a cached block; returns the new block, which the caller makes
 * allocated. The new block gets a new record. The remainder keeps the old record, so a split of the
 * last remainder does not change the free index. */
static inline __attribute__((always_inline)) struct xseg_block *
split_off_head(struct xseg_arena *arena, struct xseg_block *block, struct xseg_extent *extent,
               uint64_t bytes)
{
    struct xseg_block *head = xseg_slab_alloc_uninitialized(&arena->blocks), *prev = block->prev;
    const uint64_t base = block->base, rest = block->bytes - bytes;

    XSEG_ASSERT(head != block && bytes < block->bytes);
    if (block == arena->last_remainder) {
        block->base = base + bytes;
        block->bytes = rest;
        xseg_cached_record_gc_count(arena, block);
        if (rest < arena->last_remainder_min) {
            arena->last_remainder = &arena->sentinel;
            xseg_cached_add(arena, block);
        }
    } else {
        xseg_free_index_remove(&arena->free_index, block);
        block->base = base + bytes;
        block->bytes = rest;
        if (rest >= arena->last_remainder_min)
            xseg_cached_set_last_remainder(arena, block);
        else
            xseg_cached_add(arena, block);
    }
    head->base = base;
    head->bytes = bytes;
    atomic_store_explicit(&head->extent, extent, memory_order_relaxed);
    head->prev = prev;
    head->next = block;
    head->gc_count_base = 0;
    block->prev = head;
    if (prev != NULL)
        prev->next = head;
    else
        extent->first = head;
    return head;
}

/* Allocate a cached block except its last `rest` bytes, which stay cached; returns the address. */
static inline __attribute__((always_inline)) uint64_t
allocate_cached_block(struct xseg_arena *arena, struct xseg_block *block, uint64_t rest,
                      uint64_t requested, bool oversize, bool has_starts)
{
    struct xseg_extent *extent = xseg_block_extent(block);
    const uint64_t base = block->base, bytes = block->bytes - rest;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && arena->has_starts == has_starts);
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && extent->arena == arena);
    XSEG_ASSERT(rest < block->bytes && requested > 0 && requested <= bytes);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_split_any(&arena->counts, xseg_block_is_split(block), bytes, rest);
    if (rest != 0)
        block = split_off_head(arena, block, extent, bytes);
    else
        (void)xseg_cached_unindex(arena, block);
    block->uses = NULL;
    block->state = XSEG_BLOCK_ALLOCATED;
    block->mapped = true;
    block->flags = oversize ? XSEG_BLOCK_OVERSIZE : 0;
    block->spare = 0;
    block->requested = requested;
    if (has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, base),
                       xseg_block_handle(arena->records, block));
    else
        xseg_slot_add(xseg_page_map_slot(arena->page_map, base), block);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return base;
}

uint64_t xseg_fast_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_cached_choose(arena, params);

    XSEG_ASSERT(params->bytes == params->span && params->requested <= params->bytes);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    const uint64_t rest = xseg_cached_rest(block, params);
    const bool oversize = block->bytes - rest >= params->config->max_split_bytes;
    if (oversize)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    return arena->has_starts
               ? allocate_cached_block(arena, block, rest, params->requested, oversize, true)
               : allocate_cached_block(arena, block, rest, params->requested, oversize, false);
}

/* xseg_fast_alloc_small() or xseg_fast_alloc_large(). */
static inline __attribute__((always_inline)) uint64_t
allocate_best_fit(struct xseg_arena *arena, uint64_t requested, bool expandable, bool is_small)
{
    const uint64_t bytes = (requested + XSEG_SIZE_UNIT - 1) & ~(XSEG_SIZE_UNIT - 1);
    struct xseg_block *block = xseg_cached_find(arena, bytes);

    XSEG_ASSERT(requested > 0 && bytes - requested < XSEG_SIZE_UNIT);
    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    /* If the free index is empty, the block is the last remainder, and there is no alternative. */
    if (expandable && arena->free_index.used.top != 0 && xseg_block_can_grow(block))
        block = xseg_cached_prefer_enclosed(arena, block);
    if (!expandable && xseg_extent_is_expandable(xseg_block_extent(block)))
        return 0;
    const uint64_t rest = block->bytes - bytes;
    return allocate_cached_block(arena, block,
                                 is_small || expandable || rest > XSEG_SIZE_SMALL_MAX ? rest : 0,
                                 requested, false, is_small);
}

uint64_t xseg_fast_alloc_large(struct xseg_arena *arena, uint64_t requested, bool expandable)
{
    return allocate_best_fit(arena, requested, expandable, false);
}

uint64_t xseg_fast_alloc_small(struct xseg_arena *arena, uint64_t requested, bool expandable)
{
    return allocate_best_fit(arena, requested, expandable, true);
}

/* --- Free. --- */

bool xseg_fast_free_begin_recording(struct xseg_arena *arena, struct xseg_block *block,
                                    uint64_t address)
{
    XSEG_ASSERT(!xseg_single_writer_equals_relaxed(&arena->free_actions, 0));
    if ((atomic_load(&arena->free_actions) & XSEG_ARENA_SLOW_PATH) != 0 ||
        !xseg_fast_free_allowed(block, address))
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (block->flags != 0)
        xseg_block_clear_oversize(&arena->counts, block);
    xseg_arena_run_free_actions_slow(arena, block->extent, address, block->bytes);
    return true;
}
