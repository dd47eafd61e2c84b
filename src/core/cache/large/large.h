/* SPDX-License-Identifier: MIT */
/*
 * The plain free of a large block, in its three parts: it is taken back from its user, then it merges, or it
 * is all of its segment.  They are inline, and do not call each other, for what plain.h says: the entry points
 * contain them, and the part with few registers does not save those of the other.
 *
 * Locking: ARENA.
 */
#ifndef XSEG_CORE_LARGE_H
#define XSEG_CORE_LARGE_H

#include "src/base/either.h"
#include "src/core/cache/large/arena_hit.h"
#include "src/core/cache/large/cached.h"
#include "src/core/cache/slot.h"

/* Whether the block that begins at an address is live, and nothing but its own stream uses it. */
static inline bool xseg_large_is_plain(const struct xseg_block *block, uint64_t address)
{
    return block->base == address && block->state == XSEG_BLOCK_LIVE && block->uses == NULL;
}

/* Take the block back that begins at an address, to which its slot leads, if it is live and that is all there
 * is to do; else false, and nothing has changed. */
static inline bool xseg_large_take_back(struct xseg_arena *arena, xseg_slot *start,
                                        struct xseg_block *block, uint64_t address)
{
    if (__builtin_expect(xseg_arena_has_notes(arena), 0))
        return xseg_arena_take_back_noting(arena, start, block, address);
    if (!xseg_large_is_plain(block, address))
        return false;
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        xseg_flags_end_oversize(&arena->counts, block);
    xseg_slot_remove(start);
    return true;
}

/* A neighbour of a block that is freed, if the two merge. */
struct xseg_large_joining {
    bool joins;
    uint64_t bytes; /* 0 if not */
};

/* It is found no longer. */
static inline struct xseg_large_joining
xseg_large_start_joining(struct xseg_arena *arena, struct xseg_block *neighbour, bool *was_victim)
{
    const bool joins = neighbour->state == XSEG_BLOCK_CACHED;
    const struct xseg_large_joining joining = {joins, neighbour->bytes & -(uint64_t)joins};

    if (joining.bytes > XSEG_SIZE_SMALL_MAX)
        *was_victim |= xseg_cached_hide(arena, neighbour);
    return joining;
}

/*
 * A block that was live becomes cached, and merges with its neighbours; of each nobody can foresee whether it
 * is cached, so there is no branch for it but where the free index is to be changed.
 */
static inline void xseg_large_merge(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *const prev = block->prev == NULL ? &arena->edge : block->prev;
    struct xseg_block *const next = block->next == NULL ? &arena->edge : block->next;
    const uint64_t bytes = block->bytes;
    bool was_victim = false;
    const struct xseg_large_joining left = xseg_large_start_joining(arena, prev, &was_victim);
    const struct xseg_large_joining right = xseg_large_start_joining(arena, next, &was_victim);
    struct xseg_block *beyond = next->next;
    struct xseg_block *whole = xseg_either(left.joins, prev, block);
    struct xseg_block *after = xseg_either(right.joins, beyond, block->next);

    whole->state = XSEG_BLOCK_CACHED;
    whole->poisoned = false;
    whole->bytes = left.bytes + bytes + right.bytes;
    whole->requested = 0;
    whole->next = after;
    if (after != NULL)
        after->prev = whole;
    xseg_slab_put_both_if(&arena->blocks, next, right.joins, block, left.joins);
    if (was_victim)
        xseg_cached_show_victim(arena, whole);
    else
        xseg_cached_show(arena, whole);
    if (!xseg_extent_is_expandable(whole->extent))
        xseg_fragments_merge(&arena->counts, xseg_block_is_split(whole),
                             (unsigned)left.joins + right.joins, bytes, left.bytes + right.bytes);
}

/*
 * The same for one that is all of its segment, as 2 % (`gpt2_train`) to 83 % (`resnet_multiscale`) of freed
 * large blocks are with classic segments: it has nothing to merge with, and is no fragment.  That saves 4
 * to 12 %.
 *
 * It becomes the victim, since the next request is often of its size: then the free index does not change at
 * all, which saves 5 to 7 % in traces where that is usual.
 */
static inline void xseg_large_put_whole(struct xseg_arena *arena, struct xseg_block *block)
{
    block->state = XSEG_BLOCK_CACHED;
    block->requested = 0;
    xseg_cached_show_victim(arena, block);
}

#endif
