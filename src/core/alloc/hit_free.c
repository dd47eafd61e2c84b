/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/hit_free.h"

#include "src/base/error.h"
#include "src/core/alloc/allocator_free.h"
#include "src/core/alloc/hit_step.h"
#include "src/core/arena/live.h"
#include "src/core/large/large.h"
#include "src/core/small/plain.h"
#include "src/core/small/small_free.h"

/* Take the general path (allocator_free.h). */
XSEG_HIT_STEP leave(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_OPERATION("xseg_free");
    const xseg_status status = xseg_allocator_check(allocator);

    if (status != XSEG_OK || ptr == NULL)
        return status;
    return xseg_allocator_free(allocator, ptr);
}

/* --- Cells. --- */

/* Give the lock back, and take the general path: no block begins at the address that this path can free. */
XSEG_HIT_STEP leave_arena(struct xseg_arena *arena, void *ptr) XSEG_RELEASES(arena->lock)
{
    xseg_biased_lock_unlock_owner(&arena->lock);
    return leave(arena->device->allocator, ptr);
}

/* Free a cell of any length, if a live one begins at the quantum. */
XSEG_HIT_STEP cell_generally(struct xseg_arena *arena, struct xseg_extent *extent, uint32_t quantum)
    XSEG_RELEASES(arena->lock)
{
    if (__builtin_expect(!xseg_small_free(arena, extent, quantum), 0))
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        return leave_arena(arena, (void *)xseg_cell_address_of(extent, quantum));
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Merge a cell that is counted as free with its cached neighbours. */
XSEG_HIT_STEP cell_merging(struct xseg_arena *arena, struct xseg_chunk_map *chunk, uint32_t quantum,
                           uint32_t quanta) XSEG_RELEASES(arena->lock)
{
    xseg_small_merge(arena, chunk, quantum, quanta);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Free the cell at an address of an extent, if a live one begins there. */
XSEG_HIT_STEP cell(struct xseg_arena *arena, struct xseg_extent *extent, void *ptr)
    XSEG_RELEASES(arena->lock)
{
    /* An extent may have ended, or changed hands, before the lock was taken.  Its segment is another thread's then. */
    if (__builtin_expect(extent->arena != arena || extent->first == NULL, 0))
        return leave_arena(arena, ptr);
    const uint64_t offset = (uint64_t)(uintptr_t)ptr - extent->segment.base;
    if (__builtin_expect(offset >= extent->segment.bytes || offset % XSEG_SIZE_UNIT != 0, 0))
        return leave_arena(arena, ptr);
    XSEG_ASSERT(extent->has_cells);
    const uint64_t quantum = offset >> XSEG_CELLS_SHIFT, index = quantum % XSEG_CELLS_CHUNK;
    struct xseg_chunk_map *chunk = extent->cells.chunk[quantum / XSEG_CELLS_CHUNK];
    if (__builtin_expect(chunk == NULL, 0))
        return leave_arena(arena, ptr);
    bool is_lone = false;
    const uint64_t quanta = xseg_plain_live(chunk, index, &is_lone);
    if (quanta == 0 || xseg_arena_has_flags(arena))
        return cell_generally(arena, extent, (uint32_t)quantum);
    xseg_plain_count_free(arena, chunk, index, quanta);
    if (!is_lone)
        return cell_merging(arena, chunk, (uint32_t)quantum, (uint32_t)quanta);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_add(&arena->counts, quanta << XSEG_CELLS_SHIFT);
    xseg_bins_put_lone(&arena->small.bins, chunk, index, quanta);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Free the cell at an address near the victim. */
XSEG_HIT_STEP at_victim(struct xseg_arena *arena, struct xseg_extent *extent, void *ptr)
    XSEG_RELEASES(arena->lock)
{
    if (!xseg_plain_join_victim(arena, extent, (uint64_t)(uintptr_t)ptr))
        return cell(arena, extent, ptr);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* --- Large blocks. --- */

/* Merge a block that was taken back with its neighbours. */
XSEG_HIT_STEP block_merging(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_RELEASES(arena->lock)
{
    xseg_large_coalesce(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* Free the large block that a slot leads to.
 * what: the slot before the arena was locked */
XSEG_HIT_STEP block(struct xseg_arena *arena, xseg_slot *slot, void *ptr, uintptr_t what)
    XSEG_RELEASES(arena->lock)
{
    struct xseg_block *block = xseg_slot_block(what);

    if (__builtin_expect(!xseg_slot_is_still(slot, what) ||
                             !xseg_large_claim_free(arena, slot, block, (uint64_t)(uintptr_t)ptr),
                         0))
        return leave_arena(arena, ptr);
    if (xseg_block_is_split(block))
        return block_merging(arena, block);
    xseg_large_cache_whole(arena, block);
    xseg_biased_lock_unlock_owner(&arena->lock);
    return XSEG_OK;
}

/* --- The beginning. --- */

/* At a slot that leads to a large block, or to a classic extent with cells. */
XSEG_HIT_STEP by_slot(struct xseg_allocator *allocator, void *ptr, xseg_slot *slot)
{
    const uintptr_t what = xseg_slot_read(slot);

    if (__builtin_expect(what == 0, 0))
        return leave(allocator, ptr);
    struct xseg_arena *arena = xseg_slot_arena(what);
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return leave(allocator, ptr);
    return xseg_slot_is_extent(what) ? cell(arena, xseg_slot_extent(what), ptr)
                                     : block(arena, slot, ptr, what);
}

xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr)
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;

    if (__builtin_expect(!atomic_load_explicit(allocator->fast_frees_enabled, memory_order_acquire),
                         0))
        return leave(allocator, ptr);
    const uintptr_t entry = xseg_page_map_at(&allocator->page_map, address);
    struct xseg_page_map_leaf *leaf = xseg_page_map_leaf_of(entry);
    if (leaf != NULL)
        return by_slot(allocator, ptr, xseg_page_map_slot_in(leaf, address));
    struct xseg_extent *extent =
        (struct xseg_extent *)entry; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(extent == NULL, 0))
        return leave(allocator, ptr);
    struct xseg_arena *arena = extent->arena;
    if (!xseg_biased_lock_trylock_owner(&arena->lock))
        return leave(allocator, ptr);
    if (xseg_plain_is_near_victim(arena, extent, address))
        return at_victim(arena, extent, ptr);
    return __builtin_expect(extent->has_cells, 1) ? cell(arena, extent, ptr)
                                                  : leave_arena(arena, ptr);
}
