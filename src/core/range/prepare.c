/* SPDX-License-Identifier: MIT */
#include "src/core/range/prepare.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/trim.h"

/* Make one page for a range, unless it has enough.  The device memory lock is held.  done: set where there is none to make */
static xseg_status make_one(struct xseg_range_state *body, uint64_t bytes, bool *done)
{
    struct xseg_device *device = body->range->device;
    struct xseg_elastic *elastic = &body->elastic;
    const struct xseg_segment *segment = &body->extent->segment;
    const uint64_t page = segment->page_bytes;
    const struct xseg_page_kind kind = {page, segment->properties, body};
    const uint64_t has = xseg_pages_of_kind(&device->pages, kind);

    *done = has >= bytes;
    if (*done)
        return XSEG_OK;
    /* What the range is promised it may have. */
    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming + has + page, &device->promised);
    xseg_status status = xseg_growth_check(body->pool, page, 0);
    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming - has - page, &device->promised);
    if (status == XSEG_OK)
        status = xseg_pages_create(&device->pages, kind);
    return status;
}

xseg_status xseg_prepare(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run none;
    bool done = false;
    xseg_status status = XSEG_OK;

    while (status == XSEG_OK && !done) {
        xseg_mutex_lock(&device->growth_lock);
        status = xseg_range_find(range, 0, 0, &none);
        if (status == XSEG_OK && xseg_context_is_lost(&device->context))
            status = xseg_driver_fail_lost(&device->context);
        if (status == XSEG_OK && bytes > none.extent->segment.bytes)
            status = xseg_fail(XSEG_ERR_ARGUMENT,
                               "size exceeds the range, %" PRIu64 " bytes; the range has %" PRIu64
                               " bytes",
                               bytes, none.extent->segment.bytes);
        if (status == XSEG_OK)
            status = make_one(none.body, bytes, &done);
        xseg_mutex_unlock(&device->growth_lock);
    }
    return status;
}

/* --- Quota. --- */

/* Whether what is in use and promised on a device leaves room. */
static bool has_room(const struct xseg_device *device)
{
    const uint64_t limit = xseg_min(xseg_device_allowance(device), device->context.total_bytes);

    return xseg_device_physical(device) + device->promised <= limit;
}

static xseg_status set_quota(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_elastic *elastic = &range->body->elastic;
    const uint64_t before = elastic->quota;
    xseg_status status = XSEG_OK;

    elastic->quota = bytes;
    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming, &device->promised);
    if (bytes <= before || has_room(device))
        return XSEG_OK;
    if (!xseg_pending_captures(device->pending))
        status = xseg_trim_all(device, false);
    /* Observers may have been told meanwhile, and have ended the range. */
    if (range->body == NULL)
        return xseg_range_check_handle(range);
    if (status != XSEG_ERR_DEVICE_LOST && has_room(device))
        return XSEG_OK;
    elastic->quota = before;
    xseg_elastic_set_bytes(elastic, elastic->own, elastic->coming, &device->promised);
    if (status == XSEG_ERR_DEVICE_LOST)
        return status;
    const uint64_t limit = xseg_min(xseg_device_allowance(device), device->context.total_bytes);
    return xseg_fail(
        limit < device->context.total_bytes ? XSEG_ERR_LIMIT : XSEG_ERR_NO_MEMORY,
        "quota exceeds the available memory of device %d, %" PRIu64 " bytes; %" PRIu64
        " of %" PRIu64 " bytes used by this allocator, %" PRIu64 " bytes reserved by quotas",
        device->context.ordinal, bytes, xseg_device_physical(device), limit, device->promised);
}

xseg_status xseg_prepare_quota(struct xseg_range *range, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run none;

    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = xseg_range_find(range, 0, 0, &none);
    if (status == XSEG_OK) {
        const uint64_t max = xseg_min(none.extent->segment.bytes, none.body->limit);

        status = bytes > max
                     ? xseg_fail(XSEG_ERR_ARGUMENT,
                                 "quota exceeds the size or limit_bytes of the range, %" PRIu64
                                 " bytes; use at most %" PRIu64 " bytes",
                                 bytes, max)
                     : set_quota(range, bytes);
    }
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}
