/* SPDX-License-Identifier: MIT */
/*
 * The cached blocks of an arena, in the order of best fit: by size, then by position (extent.h).
 *
 * Most are in the free index.  Two kinds are not:
 *
 *   - the *victim*, or last remainder: the rest of the block that was split last. Often the next
 *     request is split off the victim as well, and freed parts coalesce with it again, each of
 *     which would change its place in the free index. Or the block that was freed last, if that is
 *     all of its segment (large.h). In a small arena a remainder below 128 KiB is no victim: it is
 *     put in the free index, since requests of many sizes use it next.
 *   - *scraps* of a large arena: blocks of up to 1 MiB, too small for any request.  Best fit leaves many; they
 *     wait for a neighbour to merge with.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_BEST_FIT_H
#define XSEG_CORE_BEST_FIT_H

#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"
#include "src/core/config/size.h"

/* PyTorch's choice among blocks that can grow, from `block` on by size: the first that cannot grow, or that with the
 * hole behind it is not larger than the next one with its hole. */
struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block);

/* The block that PyTorch's rules give a request whose best fit is `block`; or NULL. */
struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_block *block);

/* Whether a block is too small for every request of its arena. */
static inline bool xseg_cached_is_unindexed(const struct xseg_arena *arena,
                                            const struct xseg_block *block)
{
    return block->bytes <= arena->unindexed_max;
}

/* Let the address of a block that is handed out lead to it. */
static inline void xseg_cached_set_start(const struct xseg_arena *arena, struct xseg_block *block)
{
    if (arena->has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, block->base),
                       xseg_block_handle(arena->records, block));
    else
        xseg_slot_add(xseg_page_map_slot(arena->page_map, block->base), block);
}

/* Let the address of a block that becomes cached lead to it no longer. */
static inline void xseg_cached_clear_start(const struct xseg_arena *arena,
                                           const struct xseg_block *block)
{
    if (arena->has_starts)
        xseg_start_set(xseg_page_map_start(arena->page_map, block->base), 0);
    else
        xseg_slot_remove(xseg_page_map_slot(arena->page_map, block->base));
}

/* Note when a block became cached, for garbage collection by age. */
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

/* Let searches find a cached block, which is no scrap and has its final size. */
static inline void xseg_cached_index(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(!xseg_cached_is_unindexed(arena, block));
    XSEG_ASSERT(block != arena->last_remainder);
    xseg_cached_record_gc_count(arena, block);
    xseg_free_index_insert(&arena->free_index, block);
}

/* Make a cached block the victim: the rest of a block that was cut, the block that the victim has merged into, or
 * a whole segment that is free again. */
static inline void xseg_cached_set_last_remainder(struct xseg_arena *arena,
                                                  struct xseg_block *block)
{
    XSEG_ASSERT(!xseg_cached_is_unindexed(arena, block));
    XSEG_ASSERT(block != arena->last_remainder);
    xseg_cached_record_gc_count(arena, block);
    if (xseg_cached_has_last_remainder(arena))
        xseg_free_index_insert(&arena->free_index, arena->last_remainder);
    arena->last_remainder = block;
}

/* Let searches find a cached block no longer; its size must not have changed.  Returns whether it was the victim. */
static inline bool xseg_cached_unindex(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && !xseg_cached_is_unindexed(arena, block));
    if (block == arena->last_remainder) {
        arena->last_remainder = &arena->sentinel;
        return true;
    }
    xseg_free_index_remove(&arena->free_index, block);
    return false;
}

/* xseg_cached_index(), xseg_cached_set_last_remainder() and xseg_cached_unindex() for blocks that may be scraps. */
static inline void xseg_cached_add(struct xseg_arena *arena, struct xseg_block *block)
{
    if (!xseg_cached_is_unindexed(arena, block))
        xseg_cached_index(arena, block);
}

static inline void xseg_cached_add_last_remainder(struct xseg_arena *arena,
                                                  struct xseg_block *block)
{
    if (!xseg_cached_is_unindexed(arena, block))
        xseg_cached_set_last_remainder(arena, block);
}

static inline void xseg_cached_remove(struct xseg_arena *arena, struct xseg_block *block)
{
    if (!xseg_cached_is_unindexed(arena, block))
        (void)xseg_cached_unindex(arena, block);
}

/* The victim if it is not below (bytes, position) and comes before a block, which may be NULL; else the block. */
static inline struct xseg_block *xseg_cached_or_last_remainder(const struct xseg_arena *arena,
                                                               struct xseg_block *block,
                                                               uint64_t bytes, uint64_t position)
{
    struct xseg_block *last_remainder = arena->last_remainder;

    XSEG_ASSERT(bytes > 0 && last_remainder != block);
    if (xseg_free_index_is_below(last_remainder, bytes, position))
        return block;
    if (block == NULL || last_remainder->bytes < block->bytes ||
        (__builtin_expect(last_remainder->bytes == block->bytes, 0) &&
         xseg_block_position(last_remainder) < xseg_block_position(block)))
        return last_remainder;
    return block;
}

/* The first cached block that is not below (bytes, position), or NULL; never a scrap.  bytes: not 0 */
static inline struct xseg_block *xseg_cached_from(const struct xseg_arena *arena, uint64_t bytes,
                                                  uint64_t position)
{
    struct xseg_block *block = arena->free_index.used.top == 0
                                   ? NULL
                                   : xseg_free_index_from(&arena->free_index, bytes, position);

    return xseg_cached_or_last_remainder(arena, block, bytes, position);
}

/* The best fit for `bytes`, which is more than a scrap has; or NULL. */
static inline struct xseg_block *xseg_cached_find(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *block =
        arena->free_index.used.top == 0 ? NULL : xseg_free_index_find(&arena->free_index, bytes);

    XSEG_ASSERT(bytes > arena->unindexed_max);
    return xseg_cached_or_last_remainder(arena, block, bytes, 0);
}

/* The block that comes after another, which a search can find; or NULL. */
static inline struct xseg_block *xseg_cached_next(const struct xseg_arena *arena,
                                                  const struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    /* Then the block is the victim, and no other is cached. */
    if (arena->free_index.used.top == 0)
        return NULL;
    return xseg_cached_from(arena, block->bytes, xseg_block_position(block) + 1);
}

/* The block that serves a request by all rules, or NULL. */
static inline struct xseg_block *xseg_cached_choose(const struct xseg_arena *arena,
                                                    const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_cached_find(arena, params->span);

    if (block == NULL)
        return NULL;
    /* Mostly the best fit is what the rules choose. */
    const bool is_odd = params->expandable ? xseg_block_can_grow(block)
                                           : xseg_extent_is_expandable(xseg_block_extent(block));
    if (__builtin_expect(!is_odd && block->bytes < params->config->max_split_bytes, 1))
        return block;
    return xseg_cached_filter(arena, params, block);
}

/* The best fit for a request of a single page: one that is cached whole, aligned, and longer than the request by less than
 * max_non_split_rounding_mb; or NULL. */
struct xseg_block *xseg_cached_find_single(const struct xseg_arena *arena,
                                           const struct xseg_alloc_params *params);

/* How much of the block that serves a request stays cached. */
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

#endif
