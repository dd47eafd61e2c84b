/* SPDX-License-Identifier: MIT */
#include "src/core/range/aliases.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/reclaim/notify.h"
#include "vmm/alias.h"

/* --- Use. --- */

uint64_t xseg_aliases_end_use(const struct xseg_range_run *run)
{
    const struct xseg_segment *segment = &run->extent->segment;
    uint64_t pages = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t at = run->first; at < run->first + run->count; at++) {
        struct xseg_physical_page *page = xseg_alias_page(segment, at);

        pages += page == NULL || --page->count.live == 0;
    }
    return pages * segment->granule_bytes;
}

void xseg_aliases_use_again(const struct xseg_range_run *run)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t at = run->first; at < run->first + run->count; at++) {
        struct xseg_physical_page *page = xseg_alias_page(&run->extent->segment, at);

        XSEG_ASSERT(page == NULL || (page->count.live == 0 && page->count.mappings == 1));
        if (page != NULL)
            page->count.live = 1;
    }
}

uint32_t xseg_aliases_next_pending(const struct xseg_range_run *run, uint32_t from)
{
    const uint32_t *batch = run->extent->elastic->batch, end = run->first + run->count;

    while (from < end && (batch[from] == 0 || !xseg_alias_is_any(&run->extent->segment, from)))
        from++;
    return from;
}

/* --- Mapping. --- */

/* Check that the granules of one run can map the pages of another one. */
static xseg_status check_pair(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    const struct xseg_segment *target = &to->extent->segment, *source = &from->extent->segment;
    uint32_t at = 0;

    if (target->page_bytes != source->page_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "ranges have different page sizes, %" PRIu64 " and %" PRIu64
                         " bytes; reserve both with one page size",
                         target->page_bytes, source->page_bytes);
    if (to->body->pool != from->body->pool)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "ranges belong to different pools, %s and %s; "
                         "reserve both with one pool",
                         xseg_pool_label(to->body->pool), xseg_pool_label(from->body->pool));
    if (!xseg_range_is_all(from, XSEG_ELASTIC_ALLOCATED, &at))
        return xseg_range_fail_use(from, at, "only committed granules can be aliased");
    return xseg_range_is_all(to, XSEG_ELASTIC_EMPTY, &at)
               ? XSEG_OK
               : xseg_range_fail_use(to, at, "only unmapped granules can map aliased pages");
}

/* Map the pages of one run at another.  The device memory lock is held. */
static xseg_status map(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    struct xseg_arena *arena = to->extent->arena;
    struct xseg_segment *segment = &to->extent->segment;
    /* A stuck granule may be mapped still. */
    xseg_status status = xseg_segment_retry_unknown_run(segment, to->first, to->count);

    if (status == XSEG_OK)
        status = xseg_alias_map(segment, to->first, to->count, &from->extent->segment, from->first);
    if (status != XSEG_OK)
        return status;
    /* Observers run while the granules are claimed, so that no other call reaches them. */
    xseg_arena_lock(arena);
    memset(&to->extent->elastic->use[to->first], XSEG_ELASTIC_CLAIMED, to->count);
    to->extent->elastic->live += to->count;
    xseg_arena_unlock(arena);
    xseg_notify_map(to->extent, xseg_range_base(to), xseg_range_bytes(to));
    xseg_range_set_use(to, XSEG_ELASTIC_ALLOCATED);
    return XSEG_OK;
}

xseg_status xseg_aliases_map(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                             struct xseg_range *from, uint64_t from_offset)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run to, source;

    if (from->device != device)
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "ranges belong to different devices or allocators, device %d and device %d; "
            "reserve both with one pool",
            device->context.ordinal, from->device->context.ordinal);
    xseg_mutex_lock(&device->growth_lock);
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
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}
