/* SPDX-License-Identifier: MIT */
/*
 * Best fit: the cached blocks of an arena in the order of size, then position (block.h).
 *
 * Most cached blocks are in the free index (free_index.h). Two kinds are not:
 *
 *   - The *last remainder* is the remainder of the block that was split last. Often the next
 *     request is split off the last remainder as well, and freed parts coalesce with it; in the
 *     free index, each of these operations would change its position. A freed block that fills its
 *     segment also becomes the last remainder. In a small arena a remainder below 128 KiB is
 *     inserted into the free index, because requests of many sizes use it next.
 *   - *Unindexed blocks* of a large arena have at most 1 MiB, which is too small for every request.
 *     Best fit creates many of them: 4100 of 4600 cached blocks in the large churn at 10^4
 *     allocated blocks. An unindexed block is reused only after it has coalesced.
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

/* Remove a cached block, whose size must not have changed, from the free index, or clear the last
 * remainder if the block is the last remainder. Returns whether it was. */
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

/* Call xseg_cached_index(), xseg_cached_set_last_remainder() or xseg_cached_unindex(), except for
 * an unindexed block. */
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

/* The cached block that serves a request by all rules, or NULL. */
static inline struct xseg_block *xseg_cached_choose(const struct xseg_arena *arena,
                                                    const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_cached_find(arena, params->span);

    if (block == NULL)
        return NULL;
    /* The rules of xseg_cached_filter() rarely apply. */
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

/* Get the number of bytes at the end of the selected block that stay cached. */
static inline uint64_t xseg_cached_remainder(const struct xseg_block *block,
                                             const struct xseg_alloc_params *params)
{
    const uint64_t remainder = block->bytes - params->bytes;

    XSEG_ASSERT(params->bytes > 0 && block->bytes >= params->bytes);
    if (params->no_split)
        return 0;
    if (params->is_small || params->expandable)
        return remainder;
    return params->bytes < params->config->max_split_bytes && remainder > XSEG_SIZE_SMALL_MAX
               ? remainder
               : 0;
}

#endif
