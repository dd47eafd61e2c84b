/* SPDX-License-Identifier: MIT */
/* The door by which blocks come back, of xseg/allocator.h. */
#include "src/core/hit.h"
#include "src/core/large.h"
#include "src/door.h"
#include "xseg/allocator.h"

/* A hit ends in one of these, the earlier the shorter. */

XSEG_DOOR_NEXT free_slowly(struct xseg_allocator *allocator, void *ptr)
{
    XSEG_DOOR_OF(allocator, "xseg_free");
    if (xseg_hit_free(allocator, ptr))
        return XSEG_OK;
    return ptr == NULL ? XSEG_OK : xseg_allocator_free(allocator, ptr);
}

/* In an extent of a locked arena. */
XSEG_DOOR_NEXT free_held(struct xseg_arena *arena, struct xseg_extent *extent,
                         void *ptr) XSEG_UNCHECKED
{
    const bool freed = xseg_hit_free_at(arena, extent, (uint64_t)(uintptr_t)ptr);

    xseg_latch_give_own(&arena->lock);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(arena->device->allocator, ptr);
}

/* A quantum at which no lone cell begins (xseg_plain_lone): most merge, if any begins there at all. */
XSEG_DOOR_NEXT free_merging(struct xseg_arena *arena, struct xseg_extent *extent,
                            uint32_t quantum) XSEG_UNCHECKED
{
    if (__builtin_expect(!xseg_small_free(arena, extent, quantum), 0))
        /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
        return free_held(arena, extent, (void *)xseg_cell_address_of(extent, quantum));
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* A cell that merges with nothing. */
XSEG_DOOR_NEXT free_lone(struct xseg_arena *arena, struct xseg_sheet *sheet, uint64_t index,
                         uint64_t quanta) XSEG_UNCHECKED
{
    xseg_plain_free_lone(arena, sheet, index, quanta);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* The same of a classic segment: it has become a fragment. */
XSEG_DOOR_NEXT free_fragment(struct xseg_arena *arena, struct xseg_sheet *sheet, uint64_t index,
                             uint64_t quanta) XSEG_UNCHECKED
{
    xseg_fragments_add(&arena->counts, quanta << XSEG_CELLS_SHIFT);
    xseg_plain_free_lone(arena, sheet, index, quanta);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* Of a small extent. */
XSEG_DOOR_NEXT free_cell(struct xseg_arena *arena, struct xseg_extent *extent,
                         void *ptr) XSEG_UNCHECKED
{
    const uint64_t offset = (uint64_t)(uintptr_t)ptr - extent->segment.base;

    if (__builtin_expect(extent->arena != arena || extent->first == NULL ||
                             offset >= extent->segment.bytes || offset % XSEG_SIZE_QUANTUM != 0,
                         0))
        return free_held(arena, extent, ptr);
    const uint64_t quantum = offset >> XSEG_CELLS_SHIFT, index = quantum % XSEG_CELLS_SHEET;
    struct xseg_sheet *sheet = extent->cells.sheet[quantum / XSEG_CELLS_SHEET];
    if (__builtin_expect(sheet == NULL, 0))
        return free_held(arena, extent, ptr);
    const uint64_t quanta = xseg_plain_lone(sheet, index);
    if (quanta == 0 || xseg_arena_has_notes(arena))
        return free_merging(arena, extent, (uint32_t)quantum);
    return xseg_extent_is_expandable(extent) ? free_lone(arena, sheet, index, quanta)
                                             : free_fragment(arena, sheet, index, quanta);
}

/* The same, a little before the frontier. */
XSEG_DOOR_NEXT free_at_frontier(struct xseg_arena *arena, struct xseg_extent *extent,
                                void *ptr) XSEG_UNCHECKED
{
    if (!xseg_plain_join_frontier(arena, extent, (uint64_t)(uintptr_t)ptr))
        return free_cell(arena, extent, ptr);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* In an arena that several threads use. */
XSEG_DOOR_NEXT free_shared(struct xseg_allocator *allocator, void *ptr, struct xseg_extent *extent,
                           struct xseg_arena *arena) XSEG_UNCHECKED
{
    xseg_arena_lock(arena);
    const bool freed = xseg_hit_free_at(arena, extent, (uint64_t)(uintptr_t)ptr);
    xseg_arena_unlock(arena);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(allocator, ptr);
}

/* Free what a slot leads to, in a locked arena; false if there is more to do, or it has changed. */
static inline bool frees_started(void *ptr, xseg_start *start, uintptr_t what,
                                 struct xseg_arena *arena)
{
    if (!xseg_start_is_still(start, what))
        return false;
    return xseg_start_is_extent(what)
               ? xseg_hit_free_at(arena, xseg_start_extent(what), (uint64_t)(uintptr_t)ptr)
               : xseg_arena_hit_free(arena, start, xseg_start_block(what),
                                     (uint64_t)(uintptr_t)ptr);
}

/* In an arena that several threads use. */
XSEG_DOOR_NEXT free_started_shared(struct xseg_allocator *allocator, void *ptr, xseg_start *start,
                                   uintptr_t what) XSEG_UNCHECKED
{
    struct xseg_arena *arena = xseg_start_arena(what);

    xseg_arena_lock(arena);
    const bool freed = frees_started(ptr, start, what, arena);
    xseg_arena_unlock(arena);
    return __builtin_expect(freed, 1) ? XSEG_OK : free_slowly(allocator, ptr);
}

/* What was taken back merges. */
XSEG_DOOR_NEXT free_split(struct xseg_arena *arena, struct xseg_block *block) XSEG_UNCHECKED
{
    xseg_large_merge(arena, block);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* A large block, to which its slot led before the arena was locked. */
XSEG_DOOR_NEXT free_block(struct xseg_arena *arena, xseg_start *start, void *ptr,
                          uintptr_t what) XSEG_UNCHECKED
{
    struct xseg_block *block = xseg_start_block(what);

    if (__builtin_expect(!xseg_start_is_still(start, what) ||
                             !xseg_large_take_back(arena, start, block, (uint64_t)(uintptr_t)ptr),
                         0)) {
        xseg_latch_give_own(&arena->lock);
        return free_slowly(arena->device->allocator, ptr);
    }
    if (xseg_block_is_split(block))
        return free_split(arena, block);
    xseg_large_put_whole(arena, block);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* At a slot that leads to a large block, or to a classic extent with cells. */
XSEG_DOOR_NEXT free_started(struct xseg_allocator *allocator, void *ptr,
                            xseg_start *start) XSEG_UNCHECKED
{
    const uintptr_t what = xseg_start_read(start);

    if (__builtin_expect(what == 0, 0))
        return free_slowly(allocator, ptr);
    struct xseg_arena *arena = xseg_start_arena(what);
    if (!xseg_latch_try_own(&arena->lock))
        return free_started_shared(allocator, ptr, start, what);
    return xseg_start_is_extent(what) ? free_cell(arena, xseg_start_extent(what), ptr)
                                      : free_block(arena, start, ptr, what);
}

/* By what the look-up has of its address. */
static inline __attribute__((always_inline)) xseg_status
free_looked_up(struct xseg_allocator *allocator, void *ptr) XSEG_UNCHECKED
{
    const uint64_t address = (uint64_t)(uintptr_t)ptr;
    const uintptr_t entry = xseg_lookup_at(&allocator->lookup, address);
    struct xseg_lookup_leaf *leaf = xseg_lookup_leaf_of(entry);
    if (leaf != NULL)
        return free_started(allocator, ptr, xseg_lookup_start_in(leaf, address));
    struct xseg_extent *extent =
        (struct xseg_extent *)entry; /* NOLINT(performance-no-int-to-ptr) */
    if (__builtin_expect(extent == NULL, 0))
        return free_slowly(allocator, ptr);
    struct xseg_arena *arena = extent->arena;
    if (!xseg_latch_try_own(&arena->lock))
        return free_shared(allocator, ptr, extent, arena);
    if (xseg_plain_is_near_frontier(arena, extent, address))
        return free_at_frontier(arena, extent, ptr);
    return __builtin_expect(extent->has_cells, 1) ? free_cell(arena, extent, ptr)
                                                  : free_held(arena, extent, ptr);
}

XSEG_DOOR_NEXT free_plainly(struct xseg_allocator *allocator, void *ptr) XSEG_UNCHECKED
{
    return free_looked_up(allocator, ptr);
}

/* Not in the extent that may have a latest cell, of an arena that is locked. */
XSEG_DOOR_NEXT free_elsewhere(struct xseg_arena *arena, void *ptr) XSEG_UNCHECKED
{
    if (arena->small.latest.sheet != NULL)
        xseg_latest_settle(arena);
    xseg_latch_give_own(&arena->lock);
    return free_plainly(arena->device->allocator, ptr);
}

/* One of a vast arena that is no lone cell, or whose time of coming is to be noted, while something is due. */
XSEG_DOOR_NEXT free_settling(struct xseg_arena *arena, struct xseg_extent *extent,
                             uint32_t quantum) XSEG_UNCHECKED
{
    xseg_counts_settle(&arena->counts);
    return free_merging(arena, extent, quantum);
}

/* A cell of a vast arena, which has no latest one now. */
XSEG_DOOR_NEXT free_latest(struct xseg_arena *arena, struct xseg_sheet *sheet,
                           uint64_t quantum) XSEG_UNCHECKED
{
    const uint64_t index = quantum % XSEG_CELLS_SHEET;
    const uint64_t quanta = xseg_plain_lone(sheet, index);

    if (quanta == 0 || xseg_arena_has_notes(arena))
        return xseg_counts_has_due(&arena->counts)
                   ? free_settling(arena, sheet->extent, (uint32_t)quantum)
                   : free_merging(arena, sheet->extent, (uint32_t)quantum);
    xseg_counts_free_due(&arena->counts, &sheet->slack[index], quanta << XSEG_CELLS_SHIFT);
    xseg_latest_put(&arena->small.latest, sheet, index, quanta);
    xseg_latch_give_own(&arena->lock);
    return XSEG_OK;
}

/* Frees are not plain, or begin with a vast arena: there, what does not wait for the address comes first. */
XSEG_DOOR_NEXT free_vast(struct xseg_allocator *allocator, void *ptr, uintptr_t how) XSEG_UNCHECKED
{
    struct xseg_arena *arena = (struct xseg_arena *)how; /* NOLINT(performance-no-int-to-ptr) */

    if (__builtin_expect(how == XSEG_FREES_GENERALLY, 0))
        return free_slowly(allocator, ptr);
    if (!xseg_latch_try_own(&arena->lock))
        return free_plainly(allocator, ptr);
    struct xseg_latest *latest = &arena->small.latest;
    const uint64_t quantum = xseg_latest_quantum(latest, (uint64_t)(uintptr_t)ptr);
    if (quantum >= latest->all_quanta)
        return free_elsewhere(arena, ptr);
    struct xseg_sheet *sheet = latest->sheets[quantum / XSEG_CELLS_SHEET];
    if (__builtin_expect(sheet == NULL, 0))
        return free_elsewhere(arena, ptr);
    xseg_latest_cache(latest, &arena->small.rack);
    return free_latest(arena, sheet, quantum);
}

xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr) XSEG_UNCHECKED
{
    if (__builtin_expect(allocator == NULL, 0))
        return free_slowly(allocator, ptr);
    const uintptr_t how = atomic_load_explicit(allocator->frees, memory_order_acquire);
    return how == XSEG_FREES_PLAINLY ? free_looked_up(allocator, ptr)
                                     : free_vast(allocator, ptr, how);
}
