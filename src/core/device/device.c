/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include "src/base/check.h"
#include "src/core/device/allocator.h"

void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    XSEG_ASSERT(visit != NULL);
    xseg_retire_begin_visit(device);
    xseg_pool_visit_arenas(&device->pool_body, visit, self);
    for (struct xseg_pool_body *body = atomic_load(&device->private_pools); body != NULL;
         body = atomic_load(&body->next))
        xseg_pool_visit_arenas(body, visit, self);
    xseg_retire_end_visit(device);
}

uint64_t xseg_device_limit(const struct xseg_device *device)
{
    const uint64_t hard = xseg_bounds_hard(&device->bounds);
    const double fraction = xseg_bounds_fraction(&device->bounds);

    XSEG_ASSERT(fraction >= 0);
    if (fraction >= 1.0)
        return hard;
    return xseg_min(hard, (uint64_t)(fraction * (double)device->context.total_bytes));
}

uint64_t xseg_device_physical(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->reserved, memory_order_relaxed) +
           xseg_pages_bytes(&device->pages) + xseg_leftovers_bytes(&device->leftovers);
}

xseg_status xseg_device_memory(struct xseg_device *device, uint64_t *free, uint64_t *total)
{
    const xseg_status status = xseg_driver_memory(&device->context, free, total);

    if (status != XSEG_OK)
        return status;
    const uint64_t used = *total - xseg_min(*total, *free), taken = xseg_device_physical(device);
    xseg_dated_note(&device->used_elsewhere, xseg_clock_coarse(&device->allocator->clock),
                    used - xseg_min(used, taken));
    return XSEG_OK;
}
