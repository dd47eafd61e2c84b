/* SPDX-License-Identifier: MIT */
#include "src/core/ranges/shares.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/places.h"
#include "vmm/guest.h"

/* What two ranges must have in common. */
static xseg_status check_pair(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    const struct xseg_segment *target = &to->extent->segment, *source = &from->extent->segment;
    uint32_t at = 0;

    if (target->page_bytes != source->page_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "a range with pages of %" PRIu64
                         " bytes cannot share with one of %" PRIu64,
                         target->page_bytes, source->page_bytes);
    if (to->body->pool != from->body->pool)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "xseg_range_share: the ranges belong to different pools, %s and %s; "
                         "reserve both with one pool",
                         xseg_pool_label(to->body->pool), xseg_pool_label(from->body->pool));
    if (!xseg_range_is_all(from, XSEG_ELASTIC_LIVE, &at))
        return xseg_range_fail_use(from, at, "share what is committed");
    return xseg_range_is_all(to, XSEG_ELASTIC_EMPTY, &at)
               ? XSEG_OK
               : xseg_range_fail_use(to, at, "share onto granules without memory");
}

/* Map the pages of one run at another.  GROWTH is held. */
static xseg_status map(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    struct xseg_arena *arena = to->extent->arena;
    struct xseg_segment *segment = &to->extent->segment;
    xseg_status status = XSEG_OK;

    if (!xseg_places_prepare(to->extent) || !xseg_places_prepare(from->extent))
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the places of pages");
    /* Granules that are stuck are mapped, and in the way. */
    if (segment->stuck != 0 || segment->role != NULL)
        status = xseg_segment_unstick_run(segment, to->first, to->count);
    if (status == XSEG_OK)
        status = xseg_guest_map(segment, to->first, to->count, &from->extent->segment, from->first);
    if (status != XSEG_OK)
        return status;
    for (uint32_t i = 0; i < to->count; i++)
        xseg_places_add(to->extent, to->first + i, from->extent, from->first + i);
    /* Observers run while the granules are claimed, so that no other call reaches them. */
    xseg_arena_lock(arena);
    memset(&to->extent->elastic->use[to->first], XSEG_ELASTIC_CLAIMED, to->count);
    to->extent->elastic->live += to->count;
    xseg_arena_unlock(arena);
    xseg_notice_come(to->extent, xseg_range_base(to), xseg_range_bytes(to));
    xseg_range_set_use(to, XSEG_ELASTIC_LIVE);
    return XSEG_OK;
}

xseg_status xseg_shares_map(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                            struct xseg_range *from, uint64_t from_offset)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run to, source;

    if (from->device != device)
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "ranges of device %d and device %d, or of two allocators, cannot share a page",
            device->context.ordinal, from->device->context.ordinal);
    xseg_lock_take(&device->growth_lock);
    xseg_status status = xseg_range_find(range, offset, bytes, &to);
    if (status == XSEG_OK)
        status = xseg_range_find(from, from_offset, bytes, &source);
    if (status == XSEG_OK && xseg_context_is_lost(&device->context))
        status = xseg_driver_fail_lost(&device->context);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(to.body->pool);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(source.body->pool);
    if (status == XSEG_OK && bytes != 0)
        status = check_pair(&to, &source);
    if (status == XSEG_OK && bytes != 0)
        status = map(&to, &source);
    xseg_lock_give(&device->growth_lock);
    return status;
}
