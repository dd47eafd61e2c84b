/* SPDX-License-Identifier: MIT */
/* The shortest ways of an arena without cells. */
#include "src/base/either.h"
#include "src/core/cached.h"
#include "src/core/lookup.h"

/* Hand out a cached block, of which `rest` bytes stay cached; its address. */
static inline __attribute__((always_inline)) uint64_t hand_out(struct xseg_arena *arena,
                                                               struct xseg_block *block,
                                                               uint64_t rest, uint64_t requested,
                                                               bool oversize)
{
    struct xseg_extent *extent = block->extent;
    const uint64_t base = block->base, bytes = block->bytes - rest;

    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_cut_any(&arena->counts, xseg_block_is_split(block), bytes, rest);
    (void)xseg_cached_hide(arena, block);
    if (rest != 0)
        xseg_cached_add_frontier(
            arena, xseg_block_cut(&arena->blocks, block, bytes, XSEG_BLOCK_CACHED, true, false));
    block->state = XSEG_BLOCK_LIVE;
    block->mapped = true;
    block->oversize = oversize;
    block->filled = false;
    block->requested = requested;
    xseg_start_add(xseg_lookup_start(arena->lookup, base), block);
    xseg_counts_alloc(&arena->counts, bytes, requested);
    return base;
}

/* Of a segment of any kind. */
static __attribute__((noinline)) uint64_t hand_out_any(struct xseg_arena *arena,
                                                       struct xseg_block *block, uint64_t rest,
                                                       uint64_t requested, bool oversize)
{
    return hand_out(arena, block, rest, requested, oversize);
}

uint64_t xseg_arena_hit(struct xseg_arena *arena, const struct xseg_need *need)
{
    struct xseg_block *block = xseg_cached_choose(arena, need);

    if (block == NULL || arena->blocks.free_count == 0 || block->filled)
        return 0;
    const uint64_t rest = xseg_cached_rest(block, need);
    const bool oversize = block->bytes - rest >= need->config->max_split_bytes;
    if (oversize)
        xseg_counts_up(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    return hand_out_any(arena, block, rest, need->requested, oversize);
}

uint64_t xseg_arena_hit_expandable(struct xseg_arena *arena, uint64_t requested)
{
    const uint64_t bytes = (requested + XSEG_SIZE_QUANTUM - 1) & ~(XSEG_SIZE_QUANTUM - 1);
    struct xseg_block *block = xseg_cached_find(arena, bytes);

    if (block == NULL || arena->blocks.free_count == 0)
        return 0;
    if (xseg_block_can_grow(block))
        block = xseg_arena_prefer_enclosed(arena, block);
    if (block->filled)
        return 0;
    if (__builtin_expect(!xseg_extent_is_expandable(block->extent), 0))
        return hand_out_any(arena, block, block->bytes - bytes, requested, false);
    return hand_out(arena, block, block->bytes - bytes, requested, false);
}

uint64_t xseg_arena_hit_classic(struct xseg_arena *arena, uint64_t requested)
{
    const uint64_t bytes = (requested + XSEG_SIZE_QUANTUM - 1) & ~(XSEG_SIZE_QUANTUM - 1);
    struct xseg_block *block = xseg_cached_find(arena, bytes);

    if (block == NULL || arena->blocks.free_count == 0 || block->filled ||
        xseg_extent_is_expandable(block->extent))
        return 0;
    const uint64_t rest = block->bytes - bytes;
    return hand_out(arena, block, rest > XSEG_SIZE_SMALL_MAX ? rest : 0, requested, false);
}

/* A neighbour of a block that is freed, if the two merge. */
struct joining {
    bool joins;
    uint64_t bytes; /* 0 if not */
};

/* It is found no longer. */
static inline struct joining start_joining(struct xseg_arena *arena, struct xseg_block *neighbour,
                                           bool *was_frontier)
{
    const bool joins = neighbour->state == XSEG_BLOCK_CACHED;
    const struct joining joining = {joins, neighbour->bytes & -(uint64_t)joins};

    if (joining.bytes > XSEG_SIZE_SMALL_MAX)
        *was_frontier |= xseg_cached_hide(arena, neighbour);
    return joining;
}

/*
 * A block that was live becomes cached, and merges with its neighbours; of each nobody can foresee whether it
 * is cached, so there is no branch for it but where the shelf is to be changed.
 */
static inline void merge(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *const prev = block->prev == NULL ? &arena->edge : block->prev;
    struct xseg_block *const next = block->next == NULL ? &arena->edge : block->next;
    const uint64_t bytes = block->bytes;
    bool was_frontier = false;
    const struct joining left = start_joining(arena, prev, &was_frontier);
    const struct joining right = start_joining(arena, next, &was_frontier);
    struct xseg_block *beyond = next->next;
    struct xseg_block *whole = xseg_either(left.joins, prev, block);
    struct xseg_block *after = xseg_either(right.joins, beyond, block->next);

    whole->state = XSEG_BLOCK_CACHED;
    whole->filled = false;
    whole->bytes = left.bytes + bytes + right.bytes;
    whole->requested = 0;
    whole->next = after;
    if (after != NULL)
        after->prev = whole;
    xseg_slab_put_both_if(&arena->blocks, next, right.joins, block, left.joins);
    if (was_frontier)
        xseg_cached_show_frontier(arena, whole);
    else
        xseg_cached_show(arena, whole);
    if (!xseg_extent_is_expandable(whole->extent))
        xseg_fragments_merge(&arena->counts, xseg_block_is_split(whole),
                             (unsigned)left.joins + right.joins, bytes, left.bytes + right.bytes);
}

bool xseg_arena_hit_free(struct xseg_arena *arena, xseg_start *start, struct xseg_block *block,
                         uint64_t address)
{
    if (block->base != address || block->state != XSEG_BLOCK_LIVE || block->uses != NULL ||
        arena->is_alone)
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    xseg_arena_note_oversize(arena, block);
    xseg_arena_stamp(arena, block->extent, address, block->bytes);
    xseg_start_remove(start);
    merge(arena, block);
    return true;
}
