/* SPDX-License-Identifier: MIT */
#include "src/core/alloc/request.h"

#include "src/base/error.h"
#include "src/core/alloc/device_alloc.h"
#include "src/core/config/size.h"
#include "src/core/instance/allocator_open.h"

/* The largest alignment of an address that a request may ask for. */
#define ALIGNMENT_MAX XSEG_GIB

_Static_assert(ALIGNMENT_MAX >= XSEG_SIZE_UNIT && (ALIGNMENT_MAX & (ALIGNMENT_MAX - 1)) == 0,
               "the largest alignment is one itself");

/* The device of a request: that of its pool, or the one of its ordinal. */
static xseg_status find_device(struct xseg_allocator *allocator, const struct xseg_request *request,
                               struct xseg_device **out)
{
    if (request->pool == NULL)
        return xseg_allocator_device(allocator, request->device, out);
    if (!xseg_allocator_owns(allocator, request->pool))
        return xseg_fail(XSEG_ERR_ARGUMENT, "pool is of another allocator, %s",
                         xseg_pool_label(request->pool));
    if (xseg_pool_is_retired(request->pool))
        return xseg_pool_fail_released(request->pool);
    *out = request->pool->device;
    return XSEG_OK;
}

xseg_status xseg_request_serve(struct xseg_allocator *allocator, const struct xseg_request *request,
                               bool has_asked, void **out)
{
    struct xseg_device *device = NULL;

    XSEG_ASSERT(request != NULL && out != NULL);
    if (request->alignment != 0 &&
        (!xseg_is_power_of_two(request->alignment) || request->alignment > ALIGNMENT_MAX))
        return xseg_fail(XSEG_ERR_ARGUMENT, "alignment is not a power of two up to 1 GiB, %zu",
                         request->alignment);
    const xseg_status status = find_device(allocator, request, &device);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device->allocator == allocator);
    if (request->bytes == 0) {
        *out = NULL;
        return XSEG_OK;
    }
    const struct xseg_device_request wanted = {
        .pool = request->pool,
        .config = xseg_allocator_config(allocator),
        .bytes = request->bytes,
        .alignment = request->alignment,
        .stream = request->stream,
        .zeroed = request->zeroed,
        .has_asked = has_asked,
    };
    return xseg_device_alloc(device, &wanted, out);
}
