/* SPDX-License-Identifier: MIT */
#include "xseg/capture.h"

#include "src/core/front/allocator_open.h"
#include "src/core/front/device_route.h"
#include "src/entry.h"

xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_device_begin_capture(pool, stream);
}

xseg_status xseg_capture_end(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_device_end_capture(pool);
}

xseg_status xseg_capture_mark(struct xseg_allocator *allocator, int device)
{
    struct xseg_device *found = NULL;

    XSEG_ENTRY(allocator);
    const xseg_status status = xseg_allocator_device(allocator, device, &found);
    return status == XSEG_OK ? xseg_device_mark(found) : status;
}

xseg_status xseg_capture_unmark(struct xseg_allocator *allocator, int device)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(device >= 0 && device < allocator->device_count,
                       "device %d does not exist; the driver has devices 0 to %d", device,
                       allocator->device_count - 1);
    struct xseg_device *found = xseg_allocator_open_device(allocator, device);
    XSEG_ENTRY_REQUIRE(
        found != NULL && xseg_device_unmark(found),
        "no capture is marked on device %d; match each call to one xseg_capture_mark()", device);
    return XSEG_OK;
}
