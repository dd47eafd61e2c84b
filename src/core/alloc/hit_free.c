/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/hit_free.h"

#include "src/base/error.h"
#include "src/core/alloc/allocator_free.h"
#include "src/core/alloc/hit_step.h"
#include "src/core/block/arena.h"
#include "src/core/block/fast_path.h"

/* Take the general path (allocator_free.h). */
XSEG_HIT_STEP leave(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_OPERATION("xseg_free");
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK || ptr == NULL)
        return status;
    return xseg_allocator_free(allocator, ptr);
}

/* Give the lock back, and take the general path: no block begins at the address that this path can free. */
XSEG_HIT_STEP leave_arena(struct xseg_arena *arena, void *ptr) XSEG_RELEASES(arena->lock)
{
    xseg_biased_lock_unlock_owner(&arena->lock);
    return leave(arena->device->allocator, ptr);
}

/* --- Blocks. --- */

/* Merge a block that was taken back with its neighbours. */
XSEG_HIT_STEP block_merging(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_RELEASES(arena->lock)
{
    xseg_fast_free_coalesce(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Cache a block that was taken back. */
static inline __attribute__((always_inline)) xseg_status cache_block(struct xseg_arena *arena,
                                                                     struct xseg_block *block)
    XSEG_RELEASES(arena->lock)
{
    if (xseg_block_is_split(block))
        return block_merging(arena, block);
    xseg_fast_free_cache_whole(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Free the block that a start leads to.
 * handle: the start before the arena was locked */
XSEG_HIT_STEP by_start(struct xseg_arena *arena, xseg_start *start, void *ptr, uint32_t handle)
    XSEG_RELEASES(arena->lock)
{
    struct xseg_block *block = xseg_block_at(arena->records, handle);

    if (__builtin_expect(!xseg_start_is_still(start, handle, block, arena) ||
                             !xseg_fast_free_claim(arena, block, (uint64_t)(uintptr_t)ptr),
                         0))
        return leave_arena(arena, ptr);
    xseg_start_set(start, 0);
    return cache_block(arena, block);
}

/* Free the block that a slot leads to.
 * what: the slot before the arena was locked */
XSEG_HIT_STEP by_slot_block(struct xseg_arena *arena, xseg_slot *slot, void *ptr, uintptr_t what)
    XSEG_RELEASES(arena->lock)
{
    struct xseg_block *block = xseg_slot_block(what);

    if (__builtin_expect(!xseg_slot_is_still(slot, what, arena) ||
                             !xseg_fast_free_claim(arena, block, (uint64_t)(uintptr_t)ptr),
                         0))
        return leave_arena(arena, ptr);
    xseg_slot_remove(slot);
    return cache_block(arena, block);
}

/* --- The beginning. --- */

/* At a slot of a large block, or none. */
XSEG_HIT_STEP by_slot(struct xseg_allocator *allocator, void *ptr, xseg_slot *slot)
{
    const uintptr_t what = xseg_slot_read(slot);

    if (__builtin_expect(what == 0, 0))
        return leave(allocator, ptr);
    struct xseg_arena *arena = xseg_slot_arena(what);
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return leave(allocator, ptr);
    return by_slot_block(arena, slot, ptr, what);
}

xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr)
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;

    if (__builtin_expect(!atomic_load_explicit(allocator->fast_frees_enabled, memory_order_acquire),
                         0))
        return leave(allocator, ptr);
    struct xseg_page_map_leaf *leaf =
        xseg_page_map_leaf_of(xseg_page_map_at(&allocator->page_map, address));
    if (__builtin_expect(leaf == NULL, 0))
        return leave(allocator, ptr);
    xseg_start *start = xseg_page_map_start_in(leaf, address);
    const uint32_t handle = start == NULL ? 0 : xseg_start_read(start);
    if (handle == 0)
        return by_slot(allocator, ptr, xseg_page_map_slot_in(leaf, address));
    struct xseg_arena *arena =
        xseg_slot_arena_of(xseg_block_at(allocator->page_map.records.base, handle));
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return leave(allocator, ptr);
    return by_start(arena, start, ptr, handle);
}
