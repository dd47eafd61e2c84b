/* SPDX-License-Identifier: MIT */
/*
 * The shortest paths of an allocation and a free.
 *
 * A request takes the head of the block that fits best. The head gets a new record, and the
 * remainder keeps its own: so a request that is served from the last remainder changes no index. In
 * the same way, a freed block joins the record of a cached neighbor.
 *
 * A free has two parts. The block is taken back from its user. Then it coalesces with its
 * neighbors, or, if it is all of its segment, it is put back whole. The parts are inline and do not
 * call each other: hit_free.c makes a step of each, and a step saves only the registers that it
 * needs itself.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_FAST_PATH_H
#define XSEG_CORE_FAST_PATH_H

#include "src/core/block/best_fit.h"
#include "src/core/block/slot.h"

/* --- Allocation. --- */

/* xseg_arena_alloc() for a plain request of a large arena: the address, or 0 for a miss and where the general path has to
 * be taken. */
uint64_t xseg_fast_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params);

/* xseg_fast_alloc() for a configuration without max_split_size_mb, with expandable segments or without. */
uint64_t xseg_fast_alloc_plain(struct xseg_arena *arena, uint64_t requested, bool expandable);

/* xseg_fast_alloc_plain() for a small arena. */
uint64_t xseg_small_hit_plain(struct xseg_arena *arena, uint64_t requested, bool expandable);

/* --- Free. --- */

/* Whether a block begins at an address, is live, and is used by its own stream only. */
static inline bool xseg_fast_free_allowed(const struct xseg_block *block, uint64_t address)
{
    return block->base == address && block->state == XSEG_BLOCK_ALLOCATED && block->uses == NULL;
}

/* xseg_fast_free_claim() in an arena that has notes. */
bool xseg_fast_free_claim_recording(struct xseg_arena *arena, struct xseg_block *block,
                                    uint64_t address);

/* Take back the block that begins at an address, if it is live and there is nothing else to note; else false, and
 * nothing has changed.  The caller clears the start or slot that led to the block. */
static inline bool xseg_fast_free_claim(struct xseg_arena *arena, struct xseg_block *block,
                                        uint64_t address)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && block->extent->arena == arena);
    if (__builtin_expect(xseg_arena_has_free_actions(arena), 0))
        return xseg_fast_free_claim_recording(arena, block, address);
    if (!xseg_fast_free_allowed(block, address))
        return false;
    XSEG_ASSERT(block->requested <= block->bytes);
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_block_clear_oversize(&arena->counts, block);
    return true;
}

/* Let a cached block end where one of its neighbours does that was cached as well. Searches do not
 * find that. */
static inline void xseg_fast_free_absorb_next(struct xseg_arena *arena, struct xseg_block *block,
                                              struct xseg_block *next)
{
    struct xseg_block *after = next->next;

    block->next = after;
    if (after != NULL)
        after->prev = block;
    xseg_slab_free(&arena->blocks, next);
}

/*
 * Make a block that was live cached, and coalesce it with its neighbours. The record of a cached
 * neighbour survives, so a block beside the victim joins it without a change to the free index.
 */
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
            xseg_fast_free_absorb_next(arena, block, next);
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
 * Make a block cached that is all of its segment, and so has no neighbours and is no fragment.  With classic
 * segments, 2 % (`gpt2_train`) to 83 % (`resnet_multiscale`) of freed large blocks are; this shorter function
 * saves 4 to 12 %.
 *
 * The block becomes the victim, since the next request is often of its size.  Then the free index does not change,
 * which saves 5 to 7 % in traces where that is usual.
 */
static inline void xseg_fast_free_cache_whole(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_split(block));
    block->state = XSEG_BLOCK_CACHED;
    xseg_cached_set_last_remainder(arena, block);
}

#endif
