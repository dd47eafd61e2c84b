/* SPDX-License-Identifier: MIT */
/*
 * Best fit: the cached blocks of an arena in the order of size, then position (block.h).
 *
 * Most cached blocks are in the free index (free_index.h). Two kinds are not:
 *
 *   - The *last remainder* is the remainder of the block that was split last. Often the next
 *     request is split off the last remainder as well, and freed parts coalesce with it; in the
 *     free index, each of these would change its place. A freed block that fills its segment also
 *     becomes the last remainder. In a small arena a remainder below 128 KiB goes to
 *     the free index instead, because requests of many sizes use it next.
 *   - *Unindexed blocks* of a large arena have at most 1 MiB, which is too small for every request.
 *     Best fit creates many of them: 4100 of 4600 cached blocks in the large churn at 10^4
 *     allocated blocks. They only wait to coalesce.
 *
 * A search compares the last remainder with the first match of the free index. If an arena has no
 * last remainder, `last_remainder` is the sentinel, whose size is 0, so the comparison needs no
 * test for NULL.
 *
 * Locking: the caller holds the lock of the arena.
 */
#ifndef XSEG_CORE_BEST_FIT_H
#define XSEG_CORE_BEST_FIT_H

#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"
#include "src/core/config/config.h"

/* PyTorch's choice among blocks that can grow. The effective size of a block includes the unmapped
 * block after it. Starting at `block`, the function returns the first block that cannot grow, or
 * whose successor has no smaller effective size. */
struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block);

/* The block that PyTorch's rules select for a request whose best fit is `block`, or NULL. */
struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_block *block);

/* Set the start or slot of a block that becomes allocated. */
static inline void xseg_cached_set_start(const struct xseg_arena *arena, struct xseg_block *block)
{
    if (arena->has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, block->base),
                       xseg_block_handle(arena->records, block));
    else
        xseg_slot_add(xseg_page_map_slot(arena->page_map, block->base), block);
}

/* Clear the start or slot of a block that becomes cached. */
static inline void xseg_cached_clear_start(const struct xseg_arena *arena,
                                           const struct xseg_block *block)
{
    if (arena->has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, block->base), 0);
    else
        xseg_slot_remove(xseg_page_map_slot(arena->page_map, block->base));
}

/* Record when a block became cached, for garbage collection by age. */
static inline void xseg_cached_record_gc_count(const struct xseg_arena *arena,
                                               struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && block != &arena->sentinel);
    block->gc_count_base = atomic_load_explicit(arena->searches, memory_order_relaxed);
}

static inline bool xseg_cached_has_last_remainder(const struct xseg_arena *arena)
{
    return arena->last_remainder != &arena->sentinel;
}

/* Insert a cached block into the free index. The block must not be an unindexed one, and must have
 * its final size. */
static inline void xseg_cached_index(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->bytes > arena->unindexed_max);
    XSEG_ASSERT(block != arena->last_remainder);
    xseg_cached_record_gc_count(arena, block);
    xseg_free_index_insert(&arena->free_index, block);
}

/* Make a cached block the last remainder: the remainder of a split, the block with which the last
 * remainder has coalesced, or a whole segment. The previous last remainder is inserted into the
 * free index. */
static inline void xseg_cached_set_last_remainder(struct xseg_arena *arena,
                                                  struct xseg_block *block)
{
    XSEG_ASSERT(block->bytes > arena->unindexed_max);
    XSEG_ASSERT(block != arena->last_remainder);
    xseg_cached_record_gc_count(arena, block);
    if (xseg_cached_has_last_remainder(arena))
        xseg_free_index_insert(&arena->free_index, arena->last_remainder);
    arena->last_remainder = block;
}

/* Remove a cached block, whose size must not have changed, from the free index, or from the place
 * of the last remainder. Returns whether the block was the last remainder. */
static inline bool xseg_cached_unindex(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && block->bytes > arena->unindexed_max);
    if (block == arena->last_remainder) {
        arena->last_remainder = &arena->sentinel;
        return true;
    }
    xseg_free_index_remove(&arena->free_index, block);
    return false;
}

/* xseg_cached_index(), xseg_cached_set_last_remainder() and xseg_cached_unindex(); unindexed blocks
 * are skipped. */
static inline void xseg_cached_add(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block->bytes > arena->unindexed_max)
        xseg_cached_index(arena, block);
}

static inline void xseg_cached_add_last_remainder(struct xseg_arena *arena,
                                                  struct xseg_block *block)
{
    if (block->bytes > arena->unindexed_max)
        xseg_cached_set_last_remainder(arena, block);
}

static inline void xseg_cached_remove(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block->bytes > arena->unindexed_max)
        (void)xseg_cached_unindex(arena, block);
}

/* The last remainder if it is not below (bytes, position) and precedes `block`, which may be NULL;
 * else `block`. */
static inline struct xseg_block *xseg_cached_or_last_remainder(const struct xseg_arena *arena,
                                                               struct xseg_block *block,
                                                               uint64_t bytes, uint64_t position)
{
    struct xseg_block *last_remainder = arena->last_remainder;

    XSEG_ASSERT(bytes > 0 && last_remainder != block);
    if (xseg_free_index_precedes(last_remainder, bytes, position))
        return block;
    if (block == NULL || last_remainder->bytes < block->bytes ||
        (__builtin_expect(last_remainder->bytes == block->bytes, 0) &&
         xseg_block_position(last_remainder) < xseg_block_position(block)))
        return last_remainder;
    return block;
}

/* The first cached block that is not below (bytes, position), or NULL; never an unindexed block.
 * bytes: not 0 */
static inline struct xseg_block *xseg_cached_lower_bound(const struct xseg_arena *arena,
                                                         uint64_t bytes, uint64_t position)
{
    struct xseg_block *block =
        arena->free_index.used.top == 0
            ? NULL
            : xseg_free_index_lower_bound(&arena->free_index, bytes, position);

    return xseg_cached_or_last_remainder(arena, block, bytes, position);
}

/* The best fit for `bytes`, which must be larger than every unindexed block; or NULL. */
static inline struct xseg_block *xseg_cached_find(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *block =
        arena->free_index.used.top == 0 ? NULL : xseg_free_index_find(&arena->free_index, bytes);

    XSEG_ASSERT(bytes > arena->unindexed_max);
    return xseg_cached_or_last_remainder(arena, block, bytes, 0);
}

/* The successor of a block that is not unindexed, or NULL. */
static inline struct xseg_block *xseg_cached_next(const struct xseg_arena *arena,
                                                  const struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    /* If the free index is empty, the block is the last remainder, and has no successor. */
    if (arena->free_index.used.top == 0)
        return NULL;
    return xseg_cached_lower_bound(arena, block->bytes, xseg_block_position(block) + 1);
}

/* The block that all rules select for a request, or NULL. */
static inline struct xseg_block *xseg_cached_choose(const struct xseg_arena *arena,
                                                    const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_cached_find(arena, params->span);

    if (block == NULL)
        return NULL;
    /* The other rules rarely change the result of best fit. */
    const bool needs_filter = params->expandable
                                  ? xseg_block_can_grow(block)
                                  : xseg_extent_is_expandable(xseg_block_extent(block));
    if (__builtin_expect(!needs_filter && block->bytes < params->config->max_split_bytes, 1))
        return block;
    return xseg_cached_filter(arena, params, block);
}

/* The best fit for a request of a single physical page, or NULL: a cached block that is one whole
 * page, is aligned, and is larger than the request by less than max_non_split_rounding_mb. */
struct xseg_block *xseg_cached_find_single_page(const struct xseg_arena *arena,
                                                const struct xseg_alloc_params *params);

/* Bytes at the end of the selected block that stay cached. */
static inline uint64_t xseg_cached_rest(const struct xseg_block *block,
                                        const struct xseg_alloc_params *params)
{
    const uint64_t rest = block->bytes - params->bytes;

    XSEG_ASSERT(params->bytes > 0 && block->bytes >= params->bytes);
    if (params->no_split)
        return 0;
    if (params->is_small || params->expandable)
        return rest;
    return params->bytes < params->config->max_split_bytes && rest > XSEG_SIZE_SMALL_MAX ? rest : 0;
}

/* --- Hits. --- */

/*
 * Operations of a hit on the blocks of an arena: allocation from the cache, and free.
 *
 * An allocation takes the head of the best fit. The head gets a new record, and the remainder keeps
 * the old record. So the split of the last remainder does not change the free index. In the same
 * way, a freed block is merged into the record of a cached neighbor. This lowered an allocation and
 * its free from 431 to 367 instructions.
 *
 * A free has two parts. xseg_fast_free_begin() checks the block and subtracts it from the counts.
 * Then xseg_fast_free_coalesce() merges the block with its neighbors, or
 * xseg_fast_free_cache_whole() caches a block that fills its segment. The parts are inline, because
 * hit.c makes each of them a separate tail-called function.
 *
 * The allocation functions and xseg_fast_free_begin() fail, without a change, if no block fits or if
 * the request or block needs more work. The caller then takes the slow path.
 *
 * Locking: the caller holds the lock of the arena.
 */

/* --- Allocation. --- */

/* Allocate by the rules of a configuration, without alignment and without a driver call; returns
 * the address, or 0 if the slow path must serve the request. */
uint64_t xseg_fast_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params);

/* xseg_fast_alloc() from a small or a large arena, for a configuration without max_split_size_mb.
 * expandable: whether the configuration has expandable segments */
uint64_t xseg_fast_alloc_small(struct xseg_arena *arena, uint64_t requested, bool expandable);
uint64_t xseg_fast_alloc_large(struct xseg_arena *arena, uint64_t requested, bool expandable);

/* --- Free. --- */

/* Whether a block begins at an address, is allocated, and is used by its own stream only. */
static inline bool xseg_fast_free_allowed(const struct xseg_block *block, uint64_t address)
{
    return block->base == address && block->state == XSEG_BLOCK_ALLOCATED && block->uses == NULL;
}

/* xseg_fast_free_begin() in an arena with free actions: records the free, or fails if frees must use
 * the slow path. */
bool xseg_fast_free_begin_recording(struct xseg_arena *arena, struct xseg_block *block,
                                    uint64_t address);

/* Begin the free of the block at an address: subtract it from the counts. Returns false, without a
 * change, if the block is not allocated or needs the slow path. On success the caller clears the
 * start or slot that led to the block. */
static inline bool xseg_fast_free_begin(struct xseg_arena *arena, struct xseg_block *block,
                                        uint64_t address)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && block->extent->arena == arena);
    if (__builtin_expect(!xseg_single_writer_equals_relaxed(&arena->free_actions, 0), 0))
        return xseg_fast_free_begin_recording(arena, block, address);
    if (!xseg_fast_free_allowed(block, address))
        return false;
    XSEG_ASSERT(block->requested <= block->bytes);
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_block_clear_oversize(&arena->counts, block);
    return true;
}

/* Remove the next block, which is cached and in no index, from the chain, and free its record. */
static inline void xseg_fast_free_unlink_next(struct xseg_arena *arena, struct xseg_block *block,
                                              struct xseg_block *next)
{
    struct xseg_block *after = next->next;

    block->next = after;
    if (after != NULL)
        after->prev = block;
    xseg_slab_free(&arena->blocks, next);
}

/* Cache an allocated block, and coalesce it with its cached neighbors. The record of a neighbor is
 * kept, so a block next to the last remainder joins it without a change to the free index. */
static inline void xseg_fast_free_coalesce(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *const prev = block->prev == NULL ? &arena->sentinel : block->prev;
    struct xseg_block *const next = block->next == NULL ? &arena->sentinel : block->next;
    const bool left = prev->state == XSEG_BLOCK_CACHED, right = next->state == XSEG_BLOCK_CACHED;
    struct xseg_extent *extent = xseg_block_extent(block);
    const uint64_t bytes = block->bytes;
    struct xseg_block *whole = block;
    bool was_last_remainder = false;
    uint64_t merged = 0;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && block->flags == 0);
    if (left) {
        whole = prev;
        merged = prev->bytes;
        if (merged > arena->unindexed_max)
            was_last_remainder = xseg_cached_unindex(arena, prev);
        if (right) {
            if (next->bytes > arena->unindexed_max)
                was_last_remainder |= xseg_cached_unindex(arena, next);
            merged += next->bytes;
            xseg_fast_free_unlink_next(arena, block, next);
        }
        prev->bytes = merged + bytes;
        prev->requested = block->requested;
        prev->next = block->next;
        if (block->next != NULL)
            block->next->prev = prev;
        xseg_slab_free(&arena->blocks, block);
    } else if (right) {
        whole = next;
        merged = next->bytes;
        if (merged > arena->unindexed_max)
            was_last_remainder = xseg_cached_unindex(arena, next);
        next->base = block->base;
        next->bytes = merged + bytes;
        next->requested = block->requested;
        next->prev = block->prev;
        if (block->prev != NULL)
            block->prev->next = next;
        else
            extent->first = next;
        xseg_slab_free(&arena->blocks, block);
    } else {
        block->state = XSEG_BLOCK_CACHED;
    }
    if (was_last_remainder)
        xseg_cached_set_last_remainder(arena, whole);
    else
        xseg_cached_index(arena, whole);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_coalesce(&arena->counts, xseg_block_is_split(whole), (unsigned)left + right,
                                bytes, merged);
}

/*
 * Cache an allocated block that fills its segment, so it has no neighbors and is not a fragment.
 * With classic segments, 2 % (`gpt2_train`) to 83 % (`resnet_multiscale`) of freed large blocks do;
 * this shorter function saves 4 to 12 % of the time.
 *
 * The block becomes the last remainder, because the next request often has its size. Then the free
 * index does not change, which saves 5 to 7 % in traces with many such blocks.
 */
static inline void xseg_fast_free_cache_whole(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_split(block));
    block->state = XSEG_BLOCK_CACHED;
    xseg_cached_set_last_remainder(arena, block);
}

#endif
