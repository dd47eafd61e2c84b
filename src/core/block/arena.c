/* SPDX-License-Identifier: MIT */
#include "src/core/block/arena.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/host_memory.h"
#include "src/core/block/best_fit.h"
#include "src/core/block/block.h"
#include "src/core/block/page_map.h"
#include "src/core/block/recorder.h"
#include "src/core/config/config.h"

struct xseg_arena *xseg_arena_create(const struct xseg_arena_params *params)
{
    _Static_assert(sizeof(struct xseg_arena) >= XSEG_DEMAND_ZERO_LARGE,
                   "demand-zero memory of this size begins at a cache line");
    /* Most of an arena consists of bins of the free index that are never accessed. */
    struct xseg_arena *arena = xseg_demand_zero_alloc(sizeof(*arena));

    if (arena == NULL)
        return NULL;
    XSEG_ASSERT((uintptr_t)arena % _Alignof(struct xseg_arena) == 0);
    xseg_slab_init(&arena->blocks, sizeof(struct xseg_block));
    xseg_slab_init(&arena->uses, sizeof(struct xseg_stream_use));
    arena->device = params->device;
    arena->page_map = params->page_map;
    arena->searches = params->searches;
    arena->history = params->history;
    arena->pool_id = params->pool_id;
    atomic_init(&arena->pool, params->pool);
    atomic_init(&arena->stream, params->stream);
    arena->is_small = params->is_small;
    arena->is_private = params->is_private;
    arena->is_guarded = params->is_guarded;
    atomic_init(&arena->free_actions, params->is_guarded ? XSEG_ARENA_SLOW_PATH : 0);
    arena->has_starts = params->is_small && !params->is_guarded;
    arena->unindexed_max = params->is_small ? 0 : XSEG_SIZE_SMALL_MAX;
    arena->last_remainder_min = params->is_small ? 128 << 10 : XSEG_SIZE_SMALL_MAX + 1;
    arena->records = params->page_map->records.base;
    xseg_biased_lock_init(&arena->lock, XSEG_RANK_ARENA);
    xseg_free_index_init(&arena->free_index, arena->records);
    arena->sentinel.state = XSEG_BLOCK_CLAIMED;
    arena->last_remainder = &arena->sentinel;
    xseg_list_init(&arena->extents);
    return arena;
}

void xseg_arena_destroy(struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
    xseg_slab_fini(&arena->blocks);
    xseg_slab_fini(&arena->uses);
    xseg_biased_lock_fini(&arena->lock);
    xseg_demand_zero_free(arena, sizeof(*arena));
}

bool xseg_arena_allocate_records(struct xseg_arena *arena, struct xseg_slab *slab, uint32_t count)
{
    XSEG_ASSERT(slab == &arena->blocks || slab == &arena->uses);
    XSEG_ASSERT(count > 0 && xseg_biased_lock_is_held(&arena->lock));
    while (slab->free_count < count) {
        const uint32_t records = xseg_slab_next_records(slab);

        xseg_biased_lock_unlock(&arena->lock);
        struct xseg_slab_batch *batch =
            slab == &arena->blocks ? xseg_page_map_allocate_records(arena->page_map, records)
                                   : xseg_slab_create_batch(slab->record_bytes, records);
        xseg_biased_lock_lock(&arena->lock);
        if (batch == NULL || !xseg_slab_refill(slab, batch))
            return false;
    }
    XSEG_ASSERT(slab->free_count >= count);
    return true;
}

xseg_status xseg_arena_fail_host_memory(void)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, block record");
}

/* Stamp the granules that an address range overlaps as idle since the last decay pass. */
static void stamp_granules(const struct xseg_arena *arena, struct xseg_extent *extent,
                           uint64_t base, uint64_t bytes)
{
    struct xseg_segment *segment = &extent->segment;
    const uint64_t time = xseg_arena_decay_time(arena);

    if (!xseg_segment_is_expandable(segment)) {
        segment->idle_since[0] = time;
        return;
    }
    XSEG_ASSERT(bytes > 0 && base >= segment->base &&
                base + bytes <= segment->base + segment->bytes);
    const uint64_t last = (base + bytes - 1 - segment->base) / segment->granule_bytes;
    for (uint64_t granule = (base - segment->base) / segment->granule_bytes; granule <= last;
         granule++)
        segment->idle_since[granule] = time;
}

void xseg_arena_run_free_actions_slow(struct xseg_arena *arena, struct xseg_extent *extent,
                                      uint64_t base, uint64_t bytes)
{
    XSEG_ASSERT(bytes > 0 && base >= extent->segment.base);
    xseg_counts_resume(&arena->counts);
    if ((atomic_load_explicit(&arena->free_actions, memory_order_relaxed) & XSEG_ARENA_ORIGINS) !=
            0 &&
        xseg_origins_clear(extent, base) && --arena->origins == 0)
        (void)atomic_fetch_and(&arena->free_actions, ~XSEG_ARENA_ORIGINS);
    if (xseg_arena_decay_time(arena) != 0)
        stamp_granules(arena, extent, base, bytes);
}

/* --- Blocks. --- */

/* Create a block in an extent, without neighbors and without a requested size.  Members are
 * assigned
 * one by one: for an assignment of the whole record, compilers choose an instruction that takes as
 * long as all other instructions of a hit. */
static inline struct xseg_block *create_block(struct xseg_arena *arena, struct xseg_extent *extent,
                                              uint64_t base, uint64_t bytes,
                                              enum xseg_block_state state, bool mapped)
{
    struct xseg_block *block = xseg_slab_alloc_uninitialized(&arena->blocks);

    XSEG_ASSERT(extent->arena == arena && xseg_biased_lock_is_held(&arena->lock));
    block->state = (uint8_t)state;
    block->mapped = mapped;
    block->flags = 0;
    block->spare = 0;
    block->gc_count_base = 0;
    block->base = base;
    block->bytes = bytes;
    block->requested = 0;
    atomic_store_explicit(&block->extent, extent, memory_order_relaxed);
    block->prev = block->next = NULL;
    block->uses = NULL;
    return block;
}

struct xseg_block *xseg_arena_split_block(struct xseg_arena *arena, struct xseg_block *block,
                                          uint64_t bytes)
{
    struct xseg_block *remainder =
        create_block(arena, xseg_block_extent(block), block->base + bytes, block->bytes - bytes,
                     block->state, block->mapped);

    XSEG_ASSERT(bytes > 0 && bytes < block->bytes && bytes % XSEG_SIZE_UNIT == 0);
    remainder->requested = block->requested;
    remainder->prev = block;
    remainder->next = block->next;
    if (remainder->next != NULL)
        remainder->next->prev = remainder;
    block->next = remainder;
    block->bytes = bytes;
    XSEG_ASSERT(remainder->next == NULL || remainder->next->base == xseg_block_end(remainder));
    return remainder;
}

/* Coalesce a block with the next block, and free the record of the next block. */
static void join_next_block(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *next = block->next;

    XSEG_ASSERT(next->state == block->state && next->base == xseg_block_end(block));
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next != NULL)
        block->next->prev = block;
    xseg_slab_free(&arena->blocks, next);
}

/* Insert a cached or unmapped block into the structure that searches use. */
static void index_block(struct xseg_arena *arena, struct xseg_block *block)
{
    if (block->state == XSEG_BLOCK_UNMAPPED) {
        const struct xseg_tree_key key = xseg_tree_key_of(block, false);

        xseg_tree_insert(arena->records, &arena->unmapped_blocks, block, &key);
    } else {
        xseg_cached_add(arena, block);
    }
}

static void unindex_block(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_UNMAPPED || block->state == XSEG_BLOCK_CACHED);
    if (block->state == XSEG_BLOCK_UNMAPPED) {
        const struct xseg_tree_key key = xseg_tree_key_of(block, false);

        xseg_tree_remove(arena->records, &arena->unmapped_blocks, block, &key);
    } else {
        xseg_cached_remove(arena, block);
    }
}

/* Coalesce a block that is not indexed with neighbors in the same state, and index the result,
 * which keeps the `requested` of the block. */
static struct xseg_block *coalesce_block(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_block *prev = block->prev, *next = block->next;

    XSEG_ASSERT(block->state == XSEG_BLOCK_UNMAPPED || block->state == XSEG_BLOCK_CACHED);
    XSEG_ASSERT(block->flags == 0);
    if (next != NULL && next->state == block->state) {
        unindex_block(arena, next);
        join_next_block(arena, block);
    }
    if (prev != NULL && prev->state == block->state) {
        unindex_block(arena, prev);
        prev->requested = block->requested;
        join_next_block(arena, prev);
        block = prev;
    }
    XSEG_ASSERT(block->next == NULL || block->next->state != block->state);
    XSEG_ASSERT(block->prev == NULL || block->prev->state != block->state);
    index_block(arena, block);
    return block;
}

/* --- Block flags. --- */

/* Mark an allocated block as allocated for the default pool. */
static void mark_block_fallback(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *up = arena->fallback.up;

    XSEG_ASSERT(block->state == XSEG_BLOCK_ALLOCATED && !xseg_block_is_fallback(block));
    XSEG_ASSERT(arena->is_private && xseg_biased_lock_is_held(&arena->lock));
    up[XSEG_COUNT_ALLOCATION]++;
    up[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
    up[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
    up[XSEG_COUNT_ACTIVE]++;
    up[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
    up[XSEG_COUNT_OVERSIZE_ALLOCATION] += (block->flags & XSEG_BLOCK_OVERSIZE) != 0;
    block->flags |= XSEG_BLOCK_FALLBACK;
    xseg_arena_set_slow_path(arena, true);
}

/* Update the counts for the free of a block with flags, which may become pending. */
static void end_flagged_allocation(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->fallback.down;
    const bool oversize = (block->flags & XSEG_BLOCK_OVERSIZE) != 0;

    XSEG_ASSERT(block->flags != 0 && xseg_biased_lock_is_held(&arena->lock));
    if (oversize)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    if (xseg_block_is_fallback(block)) {
        XSEG_ASSERT(down[XSEG_COUNT_ALLOCATION] < arena->fallback.up[XSEG_COUNT_ALLOCATION]);
        down[XSEG_COUNT_ALLOCATION]++;
        down[XSEG_COUNT_ALLOCATED_BYTES] += block->bytes;
        down[XSEG_COUNT_OVERSIZE_ALLOCATION] += oversize;
    }
    block->flags &= (uint8_t)~XSEG_BLOCK_OVERSIZE;
}

/* Update the counts of a block with flags that no stream uses any more, and clear the flags. */
static void end_flagged_activity(struct xseg_arena *arena, struct xseg_block *block)
{
    atomic_uint_fast64_t *down = arena->fallback.down;

    if (xseg_block_is_fallback(block)) {
        down[XSEG_COUNT_REQUESTED_BYTES] += block->requested;
        XSEG_ASSERT(down[XSEG_COUNT_ACTIVE] < arena->fallback.up[XSEG_COUNT_ACTIVE]);
        down[XSEG_COUNT_ACTIVE]++;
        down[XSEG_COUNT_ACTIVE_BYTES] += block->bytes;
        xseg_arena_set_slow_path(arena,
                                 arena->is_guarded || arena->fallback.up[XSEG_COUNT_ACTIVE] !=
                                                          down[XSEG_COUNT_ACTIVE]);
    }
    block->flags = 0;
}

static __attribute__((noinline)) void end_flagged_block(struct xseg_arena *arena,
                                                        struct xseg_block *block)
{
    end_flagged_allocation(arena, block);
    end_flagged_activity(arena, block);
}

/* --- Allocation. --- */

/* Split a cached block at an aligned address; the head stays cached.  Returns the remainder.
 * PyTorch allocates and frees the head, so its requested size is its size. */
static struct xseg_block *split_unaligned_head(struct xseg_arena *arena, struct xseg_block *block,
                                               uint64_t base)
{
    const uint64_t head_bytes = base - block->base;
    const bool was_split = xseg_block_is_split(block);

    if (__builtin_expect(head_bytes == 0, 1))
        return block;
    struct xseg_block *remainder = xseg_arena_split_block(arena, block, head_bytes);
    block->requested = head_bytes;
    xseg_cached_add(arena, block);
    if (!xseg_extent_is_expandable(block->extent))
        xseg_fragments_split_head(&arena->counts, was_split, head_bytes + remainder->bytes);
    return remainder;
}

static struct xseg_alloc_result allocate_cached_block(struct xseg_arena *arena,
                                                      struct xseg_block *block, uint64_t base,
                                                      const struct xseg_alloc_params *params)
{
    struct xseg_counts *counts = &arena->counts;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(base >= block->base && base + params->bytes <= xseg_block_end(block));
    XSEG_ASSERT(base % params->alignment == 0 && params->requested <= params->bytes);
    xseg_cached_remove(arena, block);
    block = split_unaligned_head(arena, block, base);
    const bool was_split = xseg_block_is_split(block);
    const uint64_t remainder = xseg_cached_remainder(block, params);
    if (remainder != 0)
        xseg_cached_add_last_remainder(arena, xseg_arena_split_block(arena, block, params->bytes));
    if (!xseg_extent_is_expandable(block->extent))
        xseg_fragments_split(counts, was_split, block->bytes, remainder);
    block->state = XSEG_BLOCK_ALLOCATED;
    block->requested = params->requested;
    xseg_cached_set_start(arena, block);
    xseg_counts_alloc(counts, block->bytes, params->requested);
    block->flags = block->bytes >= params->config->max_split_bytes ? XSEG_BLOCK_OVERSIZE : 0;
    if (block->flags != 0)
        xseg_counts_increase(counts, XSEG_COUNT_OVERSIZE_ALLOCATION, 1);
    if (__builtin_expect(params->is_fallback, 0))
        mark_block_fallback(arena, block);
    return (struct xseg_alloc_result){arena, block->base, block->bytes, block->requested};
}

/* Record an allocation in the history if it is enabled. */
static inline struct xseg_alloc_result record_result(struct xseg_alloc_result result,
                                                     const struct xseg_alloc_params *params)
{
    if (xseg_recorder_is_enabled(result.arena))
        xseg_recorder_alloc(result.arena,
                            &(struct xseg_recorded_block){result.base, result.bytes,
                                                          result.requested, params->is_fallback});
    return result;
}

struct xseg_alloc_result xseg_arena_allocate_block(struct xseg_arena *arena,
                                                   struct xseg_block *block,
                                                   const struct xseg_alloc_params *params)
{
    const uint64_t base = xseg_round_up(block->base, params->alignment);

    if (params->is_prewarm)
        return (struct xseg_alloc_result){
            .arena = arena, .base = block->base, .bytes = block->bytes};
    return record_result(allocate_cached_block(arena, block, base, params), params);
}

struct xseg_alloc_result xseg_arena_allocate_at(struct xseg_arena *arena,
                                                struct xseg_extent *extent, uint64_t base,
                                                const struct xseg_alloc_params *params)
{
    struct xseg_block *block = xseg_extent_block_over(extent, base);
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    return record_result(allocate_cached_block(arena, block, base, params), params);
}

xseg_status xseg_arena_alloc(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                             struct xseg_alloc_result *out)
{
    struct xseg_block *block = NULL;

    xseg_biased_lock_lock(&arena->lock);
    if (__builtin_expect(arena->is_paused, 0)) {
        xseg_biased_lock_unlock(&arena->lock);
        return XSEG_OK;
    }
    const bool has_records = xseg_arena_reserve_records(arena, &arena->blocks, 2);
    if (__builtin_expect(params->counts_search, 0) && !arena->is_small && !arena->is_private)
        atomic_fetch_add_explicit(arena->searches, 1, memory_order_relaxed);
    if (has_records)
        block = __builtin_expect(params->is_single, 0) ? xseg_cached_find_single_page(arena, params)
                                                       : xseg_cached_choose(arena, params);
    if (block != NULL)
        *out = xseg_arena_allocate_block(arena, block, params);
    xseg_biased_lock_unlock(&arena->lock);
    return has_records ? XSEG_OK : xseg_arena_fail_host_memory();
}

static bool is_cached_block(const struct xseg_block *neighbor)
{
    return neighbor != NULL && neighbor->state == XSEG_BLOCK_CACHED;
}

void xseg_arena_set_requested(struct xseg_extent *extent, uint64_t address, uint64_t requested)
{
    struct xseg_block *block = xseg_extent_block_over(extent, address);

    if (block->state == XSEG_BLOCK_CACHED)
        block->requested = requested;
}

/* Cache a block that no stream uses any more, and coalesce it. */
static void cache_freed_block(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_extent *extent = block->extent;
    const uint64_t bytes = block->bytes;

    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock) && extent->arena == arena);
    XSEG_ASSERT(block->mapped && block->flags == 0);
    xseg_arena_run_free_actions(arena, extent, block->base, block->bytes);
    xseg_cached_clear_start(arena, block);
    const unsigned neighbors =
        (unsigned)is_cached_block(block->prev) + is_cached_block(block->next);
    block->state = XSEG_BLOCK_CACHED;
    block = coalesce_block(arena, block);
    if (!xseg_extent_is_expandable(extent))
        xseg_fragments_coalesce(&arena->counts, xseg_block_is_split(block), neighbors, bytes,
                                block->bytes - bytes);
}

void xseg_arena_free(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_free(&arena->counts, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        end_flagged_block(arena, block);
    cache_freed_block(arena, block);
}

void xseg_arena_mark_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_mark_pending(&arena->counts, 1, block->bytes);
    if (__builtin_expect(block->flags != 0, 0))
        end_flagged_allocation(arena, block);
}

void xseg_arena_free_pending(struct xseg_arena *arena, struct xseg_block *block)
{
    xseg_counts_end_pending(&arena->counts, 1, block->bytes, block->requested);
    if (__builtin_expect(block->flags != 0, 0))
        end_flagged_activity(arena, block);
    cache_freed_block(arena, block);
}

/* --- Claims, for growth and trim. --- */

struct xseg_block *xseg_arena_add_extent(struct xseg_arena *arena, struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->first == NULL && extent->has_starts == arena->has_starts);
    extent->first = create_block(arena, extent, extent->segment.base, extent->segment.bytes,
                                 XSEG_BLOCK_CLAIMED, !xseg_extent_is_expandable(extent));
    xseg_list_insert(&arena->extents, &extent->link);
    return extent->first;
}

void xseg_arena_remove_extent(struct xseg_arena *arena, struct xseg_extent *extent)
{
    XSEG_ASSERT(extent->first->state == XSEG_BLOCK_CLAIMED && extent->first->next == NULL);
    XSEG_ASSERT(extent->arena == arena && xseg_biased_lock_is_held(&arena->lock));
    xseg_slab_free(&arena->blocks, extent->first);
    extent->first = NULL;
    xseg_list_remove(&extent->link);
}

struct xseg_block *xseg_arena_claim(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_biased_lock_is_held(&arena->lock));
    unindex_block(arena, block);
    block->state = XSEG_BLOCK_CLAIMED;
    return block;
}

/* The remainder keeps its position in the tree, because no other unmapped block is between the two
 * parts. */
struct xseg_block *xseg_arena_claim_head(struct xseg_arena *arena, struct xseg_block *unmapped,
                                         uint64_t bytes)
{
    struct xseg_block *head = create_block(arena, xseg_block_extent(unmapped), unmapped->base,
                                           bytes, XSEG_BLOCK_CLAIMED, false);

    XSEG_ASSERT(unmapped->state == XSEG_BLOCK_UNMAPPED && bytes > 0 && bytes < unmapped->bytes);
    XSEG_ASSERT(bytes % XSEG_SIZE_UNIT == 0);
    head->requested = unmapped->requested;
    head->prev = unmapped->prev;
    head->next = unmapped;
    if (head->prev != NULL)
        head->prev->next = head;
    else
        unmapped->extent->first = head;
    unmapped->prev = head;
    unmapped->base += bytes;
    unmapped->bytes -= bytes;
    unmapped->requested = 0;
    return head;
}

struct xseg_block *xseg_arena_settle(struct xseg_arena *arena, struct xseg_block *block)
{
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && xseg_biased_lock_is_held(&arena->lock));
    XSEG_ASSERT(block->uses == NULL);
    xseg_single_writer_add(&arena->settles, 1);
    block->state = block->mapped ? XSEG_BLOCK_CACHED : XSEG_BLOCK_UNMAPPED;
    return coalesce_block(arena, block);
}

/* --- Memory. --- */

uint64_t xseg_arena_host_bytes(const struct xseg_arena *arena)
{
    return xseg_demand_zero_resident(arena, sizeof(*arena)) + arena->blocks.host_bytes +
           arena->uses.host_bytes;
}
