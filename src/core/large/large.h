/* SPDX-License-Identifier: MIT */
/*
 * The shortest paths of an allocation and a free in an arena whose blocks have records.
 *
 * The plain free of a large block has three parts.  The block is taken back from its user.  Then it merges with its
 * neighbours, or, if it is all of its segment, it is put back whole.  The parts are inline, and do not call each other,
 * for the reason that plain.h gives: hit_free.c makes a step of each, and a step saves only the registers that it
 * needs itself.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_LARGE_H
#define XSEG_CORE_LARGE_H

#include "src/base/align.h"
#include "src/core/block/slot.h"
#include "src/core/large/cached.h"

/* --- Allocation. --- */

/* xseg_arena_alloc() for a plain request of a large arena: the address, or 0 for a miss and where the general path has to
 * be taken. */
uint64_t xseg_large_hit(struct xseg_arena *arena, const struct xseg_alloc_params *params);

/* xseg_large_hit() for a configuration without max_split_size_mb, with expandable segments or without. */
uint64_t xseg_large_hit_plain(struct xseg_arena *arena, uint64_t requested, bool expandable);

/* --- Free. --- */

/* Whether a block begins at an address, is live, and is used by its own stream only. */
static inline bool xseg_large_is_plain(const struct xseg_block *block, uint64_t address)
{
    return block->base == address && block->state == XSEG_BLOCK_ALLOCATED && block->uses == NULL;
}

/* xseg_large_claim_free() in an arena that has notes. */
bool xseg_large_claim_free_recording(struct xseg_arena *arena, xseg_slot *slot,
                                     struct xseg_block *block, uint64_t address);

/* Take back the block that begins at an address, if it is live and there is nothing else to note; else false, and
 * nothing has changed.
 * slot: leads to the block */
static inline bool xseg_large_claim_free(struct xseg_arena *arena, xseg_slot *slot,
                                         struct xseg_block *block, uint64_t address)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(xseg_slot_read(slot) == (uintptr_t)block);
    if (__builtin_expect(xseg_arena_has_flags(arena), 0))
        return xseg_large_claim_free_recording(arena, slot, block, address);
    if (!xseg_large_is_plain(block, address))
        return false;
    XSEG_ASSERT(block->record.owner == arena && block->requested <= block->bytes);
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_flags_end_oversize(&arena->counts, block);
    xseg_slot_remove(slot);
    return true;
}

/* What a neighbour adds to a block that is freed. */
struct xseg_large_neighbor {
    bool joins;
    uint64_t bytes; /* 0 if the two do not merge */
};

/* Take a neighbour that merges out of the free index.
 * was_victim: set if the neighbour was the victim, else left alone */
static inline struct xseg_large_neighbor xseg_large_detach_neighbor(struct xseg_arena *arena,
                                                                    struct xseg_block *neighbour,
                                                                    bool *was_last_remainder)
{
    const bool joins = neighbour->state == XSEG_BLOCK_CACHED;
    const struct xseg_large_neighbor joining = {joins, neighbour->bytes & -(uint64_t)joins};

    XSEG_ASSERT(!joins || neighbour->bytes > 0);
    if (joining.bytes > XSEG_SIZE_SMALL_MAX)
        *was_last_remainder |= xseg_cached_unindex(arena, neighbour);
    return joining;
}

/*
 * Make a block that was live cached, and merge it with its neighbours.  Whether a neighbour is cached cannot be
 * predicted, so the only branches on that are those of a change to the free index.
 */
static inline void xseg_large_coalesce(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *const prev = block->prev == NULL ? &arena->sentinel : block->prev;
    struct xseg_block *const next = block->next == NULL ? &arena->sentinel : block->next;
    const uint64_t bytes = block->bytes;
    bool was_last_remainder = false;
    const struct xseg_large_neighbor left =
        xseg_large_detach_neighbor(arena, prev, &was_last_remainder);
    const struct xseg_large_neighbor right =
        xseg_large_detach_neighbor(arena, next, &was_last_remainder);
    struct xseg_block *beyond = next->next;
    struct xseg_block *whole = xseg_select(left.joins, prev, block);
    struct xseg_block *after = xseg_select(right.joins, beyond, block->next);

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && block->flags == 0);
    /* Four bytes that are written at once; two of them do not change. */
    whole->state = XSEG_BLOCK_CACHED;
    whole->mapped = true;
    whole->flags = 0;
    whole->spare = 0;
    whole->bytes = left.bytes + bytes + right.bytes;
    whole->requested = block->requested;
    whole->next = after;
    if (after != NULL)
        after->prev = whole;
    XSEG_ASSERT(after == NULL || after->base == xseg_block_end(whole));
    XSEG_ASSERT(whole->prev == NULL || xseg_block_end(whole->prev) == whole->base);
    xseg_slab_free_both_if(&arena->blocks, next, right.joins, block, left.joins);
    if (was_last_remainder)
        xseg_cached_set_last_remainder(arena, whole);
    else
        xseg_cached_index(arena, whole);
    if (!xseg_extent_is_expandable(whole->extent))
        xseg_fragments_coalesce(&arena->counts, xseg_block_is_split(whole),
                                (unsigned)left.joins + right.joins, bytes,
                                left.bytes + right.bytes);
}

/*
 * Make a block cached that is all of its segment, and so has no neighbours and is no fragment.  With classic
 * segments, 2 % (`gpt2_train`) to 83 % (`resnet_multiscale`) of freed large blocks are; this shorter function
 * saves 4 to 12 %.
 *
 * The block becomes the victim, since the next request is often of its size.  Then the free index does not change,
 * which saves 5 to 7 % in traces where that is usual.
 */
static inline void xseg_large_cache_whole(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_split(block));
    block->state = XSEG_BLOCK_CACHED;
    xseg_cached_set_last_remainder(arena, block);
}

#endif
