/* SPDX-License-Identifier: MIT */
#include "src/core/grow/extents.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/cache/extent_blocks.h"
#include "src/core/small/tract.h"

struct xseg_extent *xseg_extents_take(struct xseg_arena *arena)
{
    struct xseg_list *spare = &arena->device->spare_extents;
    struct xseg_extent *extent;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_list_is_empty(spare)) {
        extent = aligned_alloc(_Alignof(struct xseg_extent), sizeof(*extent));
        if (extent == NULL) {
            (void)xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment record");
            return NULL;
        }
        memset(extent, 0, sizeof(*extent));
    } else {
        extent = XSEG_LIST_FIRST(spare, struct xseg_extent, link);
        xseg_list_remove(&extent->link);
    }
    xseg_list_init(&extent->link);
    extent->arena = arena;
    extent->oversize = false;
    extent->registered = 0;
    extent->elastic = NULL;
    return extent;
}

void xseg_extents_put(struct xseg_extent *extent)
{
    XSEG_ASSERT(xseg_list_is_empty(&extent->link));
    xseg_list_insert(&extent->arena->device->spare_extents, &extent->link);
}

/* Give an extent the next positions of its device. */
static void take_positions(struct xseg_extent *extent)
{
    struct xseg_device *device = xseg_device_of(extent);

    extent->position = device->next_position;
    device->next_position += extent->segment.bytes >> XSEG_CELLS_SHIFT;
}

void xseg_extents_register_again(struct xseg_extent *extent)
{
    const struct xseg_device *device = xseg_device_of(extent);
    const uint64_t end = extent->segment.base + extent->segment.bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(!extent->first->mapped && xseg_block_is_whole(extent->first));
    if (xseg_extent_position(extent, end) == device->next_position)
        return;
    take_positions(extent);
    if (extent->has_cells)
        xseg_tract_reorder(extent);
}

xseg_status xseg_extents_announce(struct xseg_extent *extent, bool cover)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_device *device = arena->device;
    bool known = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) && extent->segment.bytes > 0);
    if (!xseg_extent_init(extent))
        goto end_segment;
    take_positions(extent);
    if (cover && !xseg_extent_cover(extent, 0, extent->segment.bytes))
        goto end_tables;
    extent->segment.owner = xseg_pool_owner(arena->pool);
    extent->segment.properties = xseg_pool_properties(arena->pool);
    atomic_store_explicit(&extent->base, extent->segment.base, memory_order_relaxed);
    xseg_arena_lock(arena);
    if (xseg_arena_reserve_records(arena, &arena->blocks, 2)) {
        xseg_mutex_lock(&device->page_map->lock);
        known = xseg_page_map_insert(device->page_map, extent);
        xseg_mutex_unlock(&device->page_map->lock);
    }
    if (known)
        (void)xseg_arena_add_extent(arena, extent);
    xseg_arena_unlock(arena);
    if (known)
        xseg_pool_add_reference(arena->pool);
    XSEG_ASSERT(!known || extent->first->state == XSEG_BLOCK_CLAIMED);
    if (known)
        return XSEG_OK;

end_tables:
    xseg_arena_lock(arena);
    xseg_extent_fini(extent);
    xseg_arena_unlock(arena);
end_segment:
    (void)xseg_segment_destroy(&extent->segment);
    xseg_extents_put(extent);
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, segment tables");
}

xseg_status xseg_extents_announce_reserved(struct xseg_extent *extent, xseg_status status)
{
    struct xseg_device *device = extent->arena->device;
    struct xseg_pool *pool = extent->arena->pool;
    const uint64_t bytes = extent->segment.reserved_bytes;

    XSEG_ASSERT(status != XSEG_OK || bytes >= extent->segment.bytes);
    if (status == XSEG_OK)
        status = xseg_extents_announce(extent, false);
    else
        xseg_extents_put(extent);
    if (status != XSEG_OK)
        return status;
    atomic_fetch_add_explicit(&device->addresses, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->addresses, bytes, memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_extents_reserve_elastic(struct xseg_arena *arena,
                                         const struct xseg_segment_reservation *wanted,
                                         struct xseg_elastic *elastic, struct xseg_extent **out)
{
    struct xseg_device *device = arena->device;
    struct xseg_extent *extent = xseg_extents_take(arena);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (extent == NULL)
        return XSEG_ERR_HOST_MEMORY;
    extent->elastic = elastic;
    const xseg_status status = xseg_extents_announce_reserved(
        extent, xseg_segment_reserve_range(&extent->segment, &device->context, &device->page_cache,
                                           wanted));
    if (status == XSEG_OK)
        *out = extent;
    return status;
}
