/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/trim_bounds.h"

#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/trim.h"

void xseg_trim_bounds(struct xseg_device *device)
{
    const uint64_t limit = xseg_device_limit(device);
    struct xseg_trimmed done = XSEG_TRIMMED_INIT;
    const uint64_t cache = xseg_allocator_config(device->allocator)->page_cache_bytes;

    xseg_lock_take(&device->growth_lock);
    if (!xseg_pending_captures(device->pending))
        xseg_pages_fit(&device->pages, cache);
    const uint64_t left = xseg_leftovers_bytes(&device->leftovers);
    /* A `leave` of 0 trims everything, which is right where leftovers alone reach the limit.  A lost device is
     * reported to the next call of the user. */
    const struct xseg_trim_plan plan = {.leave = limit - xseg_min(limit, left)};
    if (xseg_device_physical(device) > limit)
        (void)xseg_trim_device(device, &plan, &done);
    xseg_lock_give(&device->growth_lock);
}
