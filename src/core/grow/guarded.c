/* SPDX-License-Identifier: MIT */
#include "src/core/grow/growth.h"

#include "src/core/block/arena.h"
#include "src/core/block/recorder.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/reclaim.h"

_Static_assert(XSEG_GUARDED_QUARANTINE >= 2, "half of a quarantine has a segment");

/* Get the pool of guarded blocks of a device, which is created on first use. */
static xseg_status get_guarded_pool(struct xseg_device *device, struct xseg_pool **out)
{
    struct xseg_pool_options plain = {sizeof(plain)};
    xseg_status status = XSEG_OK;

    /* A guarded block replaces a block of the default pool, so its pages have the same properties. */
    plain.exportable = device->pool.options.exportable;
    plain.rdma = device->pool.options.rdma;
    xseg_mutex_lock(&device->memory_lock);
    struct xseg_pool *pool = atomic_load_explicit(&device->guarded_pool, memory_order_relaxed);
    /* Another thread may have created the pool concurrently. */
    if (pool == NULL) {
        status = xseg_pools_create(device, &plain, true, &pool);
        if (status == XSEG_OK)
            atomic_store_explicit(&device->guarded_pool, pool, memory_order_release);
    }
    XSEG_ASSERT(status != XSEG_OK || pool->is_guarded);
    if (status == XSEG_OK)
        *out = pool;
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_guarded_choose(struct xseg_alloc_params *params)
{
    const struct xseg_arena *arena = params->arena;
    struct xseg_device *device = arena->device;
    struct xseg_pool *pool = atomic_load_explicit(&device->guarded_pool, memory_order_acquire);

    XSEG_ASSERT(!params->is_guarded && params->is_small == arena->is_small);
    if (!params->expandable || !xseg_device_makes_pages(device) || arena->pool->is_private ||
        !xseg_streams_accepts_work(&device->context, xseg_arena_stream(arena)))
        return XSEG_OK;
    xseg_status status = pool != NULL ? XSEG_OK : get_guarded_pool(device, &pool);
    if (status == XSEG_OK)
        status = xseg_pool_arena(pool, xseg_arena_stream(arena), params->is_small, &params->arena);
    XSEG_ASSERT(status != XSEG_OK || params->arena->is_guarded);
    if (status == XSEG_OK) {
        params->is_guarded = true;
        params->at_end = params->config->guard_page;
    }
    return status;
}

static bool synchronize_stream(const struct xseg_arena *arena,
                               const struct xseg_known_stream *stream)
{
    struct xseg_context *context = &arena->device->context;

    return xseg_streams_accepts_work(context, stream) &&
           xseg_driver_stream_synchronize(context, stream->handle) == XSEG_OK;
}

/* Synchronize all streams that use a claimed block; false if this thread cannot synchronize one of them. */
static bool synchronize_streams_of(const struct xseg_block *block)
{
    const struct xseg_arena *arena = block->extent->arena;
    bool is_idle = !xseg_context_is_lost(&arena->device->context) &&
                   synchronize_stream(arena, xseg_arena_stream(arena));

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    for (const struct xseg_stream_use *use = block->uses; use != NULL && is_idle; use = use->next)
        is_idle = synchronize_stream(arena, use->stream);
    return is_idle;
}

/* Make a claimed block cached, or pending; it is claimed again if the segment has no other block. */
static xseg_status cache_block(struct xseg_block *block, bool is_idle, struct xseg_block **claimed)
{
    struct xseg_extent *extent = block->extent;
    struct xseg_arena *arena = extent->arena;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED);
    if (block->uses != NULL) {
        const xseg_status status = xseg_pending_free(arena->device->pending, block, false);

        if (status != XSEG_OK)
            return status;
        xseg_pending_poll(arena->device->pending);
        xseg_biased_lock_lock(&arena->lock);
    } else {
        xseg_biased_lock_lock(&arena->lock);
        xseg_recorder_free_if_enabled(arena, block);
        xseg_arena_free(arena, block);
    }
    block = extent->first;
    if (is_idle && block->state == XSEG_BLOCK_CACHED && block->next == NULL &&
        !xseg_segment_has_retained(&extent->segment)) {
        xseg_arena_claim(arena, block);
        *claimed = block;
    }
    XSEG_ASSERT(*claimed == NULL || xseg_block_is_whole(*claimed));
    /* The list of extents is in the order in which their blocks were freed. */
    xseg_list_remove(&extent->link);
    xseg_list_insert(&arena->extents, &extent->link);
    xseg_biased_lock_unlock(&arena->lock);
    return XSEG_OK;
}

xseg_status xseg_guarded_free(struct xseg_block *block)
{
    struct xseg_arena *arena = block->extent->arena;
    const uint64_t cache = xseg_allocator_config(arena->device->allocator)->page_cache_bytes;
    struct xseg_block *claimed = NULL;

    XSEG_ASSERT(arena->is_guarded && block->state == XSEG_BLOCK_CLAIMED);
    xseg_mutex_lock(&arena->device->memory_lock);
    const bool is_idle = synchronize_streams_of(block);
    const xseg_status status = cache_block(block, is_idle, &claimed);
    if (claimed != NULL && !xseg_notify_unmap(arena->device, claimed))
        xseg_reclaim_settle(claimed);
    else if (claimed != NULL)
        (void)xseg_reclaim_release_block(claimed, cache != 0, XSEG_HISTORY_SEGMENT_UNMAP);
    xseg_page_cache_shrink_unprepared(&arena->device->page_cache, cache);
    if (status == XSEG_OK && ++arena->quarantined > XSEG_GUARDED_QUARANTINE) {
        xseg_reclaim_destroy_some_unmapped(arena, XSEG_GUARDED_QUARANTINE / 2);
        arena->quarantined -= XSEG_GUARDED_QUARANTINE / 2;
    }
    XSEG_ASSERT(arena->quarantined <= XSEG_GUARDED_QUARANTINE);
    xseg_mutex_unlock(&arena->device->memory_lock);
    return status;
}
