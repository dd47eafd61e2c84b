/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include "src/base/check.h"

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

uint64_t xseg_device_limit(const struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t hard = xseg_bounds_hard(&device->bounds);

    XSEG_ASSERT(config->memory_fraction >= 0);
    if (config->memory_fraction >= 1.0)
        return hard;
    return xseg_min(hard,
                    (uint64_t)(config->memory_fraction * (double)device->context.total_bytes));
}

uint64_t xseg_device_physical(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->reserved, memory_order_relaxed) +
           xseg_pages_bytes(&device->pages) + xseg_leftovers_bytes(&device->leftovers);
}
