/* SPDX-License-Identifier: MIT */
/*
 * The cached blocks of an arena without cells, in the order of best fit: by size, then by address.
 *
 * Most are in the free index.  Two kinds are not:
 *
 *   - the *victim*: what is left of the block that was cut last.  Often the next request is cut from
 *     it as well, and what was cut comes back to it, which would change its place in the free index each time.
 *     Or the block that came back last, if that is all of its segment (large.h).
 *   - *scraps* of a large arena: up to 1 MiB, which no request fits in.  Best fit leaves many; they
 *     wait for a neighbour to merge with.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_CACHED_H
#define XSEG_CORE_CACHED_H

#include "src/core/cache/arena.h"
#include "src/core/config/size.h"

/* The first block from `block` on, by size, that cannot grow, or than which the next one could not grow less. */
struct xseg_block *xseg_cached_prefer_enclosed(const struct xseg_arena *arena,
                                               struct xseg_block *block);

/* What a request may have by PyTorch's rules, whose best fit is `block`; or NULL. */
struct xseg_block *xseg_cached_filter(const struct xseg_arena *arena, const struct xseg_need *need,
                                      struct xseg_block *block);

static inline bool xseg_cached_is_scrap(const struct xseg_arena *arena,
                                        const struct xseg_block *block)
{
    return block->bytes <= XSEG_SIZE_SMALL_MAX && !arena->is_small;
}

static inline void xseg_cached_note_born(const struct xseg_arena *arena, struct xseg_block *block)
{
    block->born = atomic_load_explicit(arena->searches, memory_order_relaxed);
}

static inline bool xseg_cached_has_victim(const struct xseg_arena *arena)
{
    return arena->victim != &arena->edge;
}

/* A cached block that is no scrap has come to its size, and can be found from now on. */
static inline void xseg_cached_show(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_cached_note_born(arena, block);
    xseg_free_index_insert(&arena->free_index, block);
}

/* The same for what becomes the victim: the rest of a block that was cut, what the victim has merged
 * into, or a whole segment that is free again. */
static inline void xseg_cached_show_victim(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_cached_note_born(arena, block);
    if (xseg_cached_has_victim(arena))
        xseg_free_index_insert(&arena->free_index, arena->victim);
    arena->victim = block;
}

/* It is found no longer; it still has its size.  Whether it was the victim. */
static inline bool xseg_cached_hide(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block == arena->victim) {
        arena->victim = &arena->edge;
        return true;
    }
    xseg_free_index_remove(&arena->free_index, block);
    return false;
}

/* The same for what may be a scrap. */
static inline void xseg_cached_add(struct xseg_arena *arena, struct xseg_block *block)
{
    if (!xseg_cached_is_scrap(arena, block))
        xseg_cached_show(arena, block);
}

static inline void xseg_cached_add_victim(struct xseg_arena *arena, struct xseg_block *block)
{
    if (!xseg_cached_is_scrap(arena, block))
        xseg_cached_show_victim(arena, block);
}

static inline void xseg_cached_remove(struct xseg_arena *arena, struct xseg_block *block)
{
    if (!xseg_cached_is_scrap(arena, block))
        (void)xseg_cached_hide(arena, block);
}

/* The victim instead of a block, or of none, if it is not below (bytes, base) and comes first. */
static inline struct xseg_block *xseg_cached_or_victim(const struct xseg_arena *arena,
                                                       struct xseg_block *block, uint64_t bytes,
                                                       uint64_t base)
{
    struct xseg_block *victim = arena->victim;

    if (victim->bytes < bytes || (victim->bytes == bytes && victim->base < base))
        return block;
    if (block == NULL || victim->bytes < block->bytes ||
        (victim->bytes == block->bytes && victim->base < block->base))
        return victim;
    return block;
}

/* The first one that is not below (bytes, base), or NULL; never a scrap.  bytes: not 0 */
static inline struct xseg_block *xseg_cached_from(const struct xseg_arena *arena, uint64_t bytes,
                                                  uint64_t base)
{
    struct xseg_block *block = arena->free_index.used.top == 0
                                   ? NULL
                                   : xseg_free_index_from(&arena->free_index, bytes, base);

    return xseg_cached_or_victim(arena, block, bytes, base);
}

/* The best fit for `bytes`, which are more than a scrap has; or NULL. */
static inline struct xseg_block *xseg_cached_find(const struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_block *block =
        arena->free_index.used.top == 0 ? NULL : xseg_free_index_find(&arena->free_index, bytes);

    XSEG_ASSERT(arena->is_small || bytes > XSEG_SIZE_SMALL_MAX);
    return xseg_cached_or_victim(arena, block, bytes, 0);
}

/* The one that comes after a block, which is cached and no scrap; or NULL. */
static inline struct xseg_block *xseg_cached_next(const struct xseg_arena *arena,
                                                  const struct xseg_block *block)
{
    return xseg_cached_from(arena, block->bytes, block->base + 1);
}

/* What a request is served with by all rules, or NULL. */
static inline struct xseg_block *xseg_cached_choose(const struct xseg_arena *arena,
                                                    const struct xseg_need *need)
{
    struct xseg_block *block = xseg_cached_find(arena, need->span);

    if (block == NULL)
        return NULL;
    /* What the rules end at, mostly. */
    const bool is_odd =
        need->expandable ? xseg_block_can_grow(block) : xseg_extent_is_expandable(block->extent);
    if (__builtin_expect(!is_odd && block->bytes < need->config->max_split_bytes, 1))
        return block;
    return xseg_cached_filter(arena, need, block);
}

/* How much of the block that serves a request stays cached. */
static inline uint64_t xseg_cached_rest(const struct xseg_block *block,
                                        const struct xseg_need *need)
{
    const uint64_t rest = block->bytes - need->bytes;

    if (need->no_split)
        return 0;
    if (need->is_small || need->expandable)
        return rest;
    return need->bytes < need->config->max_split_bytes && rest > XSEG_SIZE_SMALL_MAX ? rest : 0;
}

#endif
