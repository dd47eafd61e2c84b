/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/trim_steps.h"

#include "src/base/error.h"
#include "src/core/arena/recorder.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/release.h"

_Static_assert(XSEG_ARENA_RECORDS >= 4, "a claim takes two records, and each of two cuts one");

/* --- Claim. --- */

/* Settle the rest of a block after a split.  As in PyTorch, the part that is released keeps the requested size. */
static void settle_rest(struct xseg_arena *arena, struct xseg_block *rest)
{
    rest->requested = 0;
    (void)xseg_arena_settle(arena, rest);
}

struct xseg_block *xseg_trim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                         uint32_t first, uint32_t count)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const uint64_t begin = segment->base + first * segment->granule_bytes;
    const uint64_t end = begin + count * segment->granule_bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA) && count > 0);
    XSEG_ASSERT(begin >= block->base && end <= xseg_block_end(block));
    block = xseg_arena_claim(arena, block);
    if (begin > block->base) {
        struct xseg_block *inner = xseg_arena_split_block(arena, block, begin - block->base);

        settle_rest(arena, block);
        block = inner;
    }
    if (end < xseg_block_end(block))
        settle_rest(arena, xseg_arena_split_block(arena, block, end - block->base));
    XSEG_ASSERT(block->base == begin && xseg_block_end(block) == end);
    return block;
}

/* --- Streams. --- */

xseg_status xseg_trim_is_idle(struct xseg_device *device, struct xseg_known_stream *stream,
                              bool wait, bool *idle)
{
    struct xseg_context *context = &device->context;
    bool can_name = true;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *idle = false;
    if (!xseg_stream_is_known(stream))
        return xseg_stream_retirement_is_over(device, stream, wait, idle);
    status = xseg_streams_can_name(context, stream, &can_name);
    if (status != XSEG_OK)
        return status;
    if (!wait)
        return can_name ? xseg_driver_stream_query(context, stream->handle, idle) : XSEG_OK;
    /* The per-thread default stream of another thread has no name here, and a stream that cannot be waited for may
     * have been destroyed: in both cases wait for the whole context. */
    status =
        can_name ? xseg_driver_stream_synchronize(context, stream->handle) : XSEG_ERR_UNSUPPORTED;
    if (status != XSEG_OK && !xseg_context_is_lost(context))
        status = xseg_driver_context_synchronize(context);
    *idle = status == XSEG_OK;
    return status;
}

/* --- Release and settle. --- */

/* Remove an extent of one claimed block from its arena and the page map. */
static void remove_extent(struct xseg_arena *arena, struct xseg_extent *extent)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_page_map *page_map = arena->device->page_map;

    xseg_arena_remove_extent(arena, extent);
    xseg_mutex_lock(&page_map->lock);
    xseg_page_map_remove(page_map, extent);
    xseg_mutex_unlock(&page_map->lock);
    xseg_extent_fini(extent);
}

/* Record the release of a claimed block in the history: its cause, unless that is the action itself, then the action. */
static void record(const struct xseg_block *block, enum xseg_history_action cause,
                   enum xseg_history_action action, uint64_t bytes)
{
    if (!xseg_recorder_is_enabled(block->extent->arena))
        return;
    if (cause != XSEG_HISTORY_SEGMENT_UNMAP)
        xseg_recorder_unmapped(block->extent, cause, action, block->base, bytes);
    else
        xseg_recorder_segment(block->extent, action, block->base, bytes);
}

/* Free the classic segment of a claimed block; returns its bytes. */
static uint64_t give_segment(struct xseg_arena *arena, struct xseg_block *block,
                             enum xseg_history_action cause)
{
    struct xseg_device *device = arena->device;
    struct xseg_extent *extent = block->extent;
    const uint64_t bytes = block->bytes;

    XSEG_ASSERT(xseg_block_is_whole(block) && !xseg_segment_has_retained(&extent->segment));
    xseg_arena_lock(arena);
    record(block, cause, XSEG_HISTORY_SEGMENT_FREE, bytes);
    xseg_counts_decrease(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    remove_extent(arena, extent);
    xseg_arena_unlock(arena);
    (void)xseg_segment_destroy(&extent->segment); /* a leftover if the driver fails */
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_pool_record_shrink(arena, bytes);
    xseg_release_reference(arena->pool);
    return bytes;
}

/* Take a block record for the split after a partial unmap, before the driver is called; NULL on host allocation failure. */
static void *take_spare(struct xseg_arena *arena)
{
    void *spare = NULL;

    xseg_arena_lock(arena);
    if (xseg_arena_reserve_records(arena, &arena->blocks, 1))
        spare = xseg_slab_alloc(&arena->blocks);
    xseg_arena_unlock(arena);
    return spare;
}

/* Unmap the pages of a claimed block; pages that the driver does not unmap are cached again.  Returns the released bytes. */
static uint64_t give_pages(struct xseg_arena *arena, struct xseg_block *block, bool keep,
                           enum xseg_history_action cause)
{
    struct xseg_segment *segment = &block->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const uint64_t mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    void *spare = take_spare(arena);
    uint32_t done = 0;

    if (spare != NULL)
        (void)xseg_segment_unmap(segment, (uint32_t)((block->base - segment->base) / granule),
                                 (uint32_t)(block->bytes / granule), keep, &done);
    const uint64_t gone = done * granule;
    XSEG_ASSERT(gone <= block->bytes);
    /* Evicted memory was not counted as reserved. */
    const uint64_t reserved = mapped - atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    XSEG_ASSERT(reserved <= gone);
    /* Other calls may map and unmap memory of the segment while observers run. */
    if (gone < block->bytes)
        xseg_notify_map(block->extent, block->base + gone, block->bytes - gone);
    xseg_arena_lock(arena);
    if (spare != NULL)
        xseg_slab_free(&arena->blocks, spare);
    if (gone > 0) {
        if (gone < block->bytes)
            settle_rest(arena, xseg_arena_split_block(arena, block, gone));
        block->mapped = false;
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, reserved);
        XSEG_ASSERT(arena->evicted >= gone - reserved);
        arena->evicted -= gone - reserved;
        atomic_fetch_sub_explicit(&arena->device->evicted, gone - reserved, memory_order_relaxed);
        if (reserved > 0)
            xseg_pool_record_shrink(arena, reserved);
        if (reserved > 0)
            record(block, cause, XSEG_HISTORY_SEGMENT_UNMAP, gone);
        else if (xseg_recorder_is_enabled(arena))
            xseg_recorder_discarded(block->extent, block->base, gone);
    }
    (void)xseg_arena_settle(arena, block);
    xseg_arena_unlock(arena);
    return gone;
}

uint64_t xseg_trim_release_pages(struct xseg_block *block, bool keep,
                                 enum xseg_history_action cause)
{
    struct xseg_extent *extent = block->extent;
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED &&
                xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!xseg_extent_is_expandable(extent))
        return give_segment(arena, block, cause);
    const uint64_t given = give_pages(arena, block, keep, cause);
    /* A segment of a retired pool ends with its last page, and a pool with its last segment. */
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_trim_finish_unmapped(extent);
    return given;
}

void xseg_trim_settle(struct xseg_block *claimed)
{
    struct xseg_block *next;

    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        struct xseg_arena *arena = block->extent->arena;

        XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
        next = block->right;
        block->right = NULL;
        xseg_arena_lock(arena);
        (void)xseg_arena_settle(arena, block);
        xseg_arena_unlock(arena);
    }
}

/* --- Segments without memory. --- */

/* Release the virtual address range of a removed extent.  Its pool may be destroyed. */
static void end_addresses(struct xseg_extent *extent)
{
    struct xseg_device *device = xseg_device_of(extent);
    struct xseg_pool *pool = extent->arena->pool;

    XSEG_ASSERT(atomic_load(&extent->segment.mapped) == 0);
    XSEG_ASSERT(atomic_load(&device->addresses) >= extent->segment.reserved_bytes);
    XSEG_ASSERT(atomic_load(&pool->addresses) >= extent->segment.reserved_bytes);
    atomic_fetch_sub_explicit(&device->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    (void)xseg_segment_destroy(&extent->segment); /* a leftover if the driver fails */
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_release_reference(pool);
}

void xseg_trim_finish_elastic(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(extent->elastic != NULL && extent->registered == 0 && extent->segment.unknown == 0);
    xseg_arena_lock(arena);
    remove_extent(arena, extent);
    xseg_arena_unlock(arena);
    end_addresses(extent);
}

bool xseg_trim_finish_unmapped(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (arena->pool->state != XSEG_POOL_RUNNING || extent->registered != 0)
        return false;
    xseg_arena_lock(arena);
    const bool is_unmapped = extent->first->state == XSEG_BLOCK_UNMAPPED &&
                             extent->first->next == NULL && extent->segment.unknown == 0;
    if (is_unmapped) {
        (void)xseg_arena_claim(arena, extent->first);
        remove_extent(arena, extent);
    }
    xseg_arena_unlock(arena);
    if (is_unmapped)
        end_addresses(extent);
    return is_unmapped;
}

bool xseg_trim_finish_unmapped_all(struct xseg_arena *arena)
{
    bool all = true;

    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        all = xseg_trim_finish_unmapped(XSEG_CONTAINER(node, struct xseg_extent, link)) && all;
    }
    return all;
}

void xseg_trim_finish_unmapped_of(void *self, struct xseg_arena *arena)
{
    (void)self;
    (void)xseg_trim_finish_unmapped_all(arena);
}

void xseg_trim_finish_unmapped_some(struct xseg_arena *arena, uint32_t max)
{
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        if (max == 0)
            return;
        max -= xseg_trim_finish_unmapped(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
}
