/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include "src/base/check.h"
#include "src/core/device/allocator.h"

void xseg_device_visit_arenas(struct xseg_device *device,
                              void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    XSEG_ASSERT(visit != NULL);
    xseg_pool_visit_arenas(&device->pool, visit, self);
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        xseg_pool_visit_arenas(pool, visit, self);
}

struct walk {
    xseg_walk_visitor *visit;
    void *self;
};

static void walk_arena(void *self, struct xseg_arena *arena)
{
    const struct walk *walk = self;

    xseg_arena_lock(arena);
    xseg_walk_arena(arena, walk->visit, walk->self);
    xseg_arena_unlock(arena);
}

void xseg_device_walk(struct xseg_device *device, xseg_walk_visitor *visit, void *self)
{
    struct walk walk = {visit, self};

    xseg_device_visit_arenas(device, walk_arena, &walk);
}

static void hold_arena(void *self, struct xseg_arena *arena) XSEG_UNCHECKED
{
    struct xseg_arena **first = self;

    xseg_biased_lock_lock_nested(&arena->lock);
    arena->held_next = *first;
    *first = arena;
}

struct xseg_arena *xseg_device_retain_arenas(struct xseg_device *device)
{
    struct xseg_arena *first = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_device_visit_arenas(device, hold_arena, &first);
    return first;
}

void xseg_device_release_arenas(struct xseg_arena *first) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_arena *arena = first; arena != NULL; arena = arena->held_next)
        xseg_arena_unlock(arena);
}

uint64_t xseg_device_limit(const struct xseg_device *device)
{
    const uint64_t hard = xseg_device_limits_hard(&device->limits);
    const double fraction = xseg_device_limits_fraction(&device->limits);

    XSEG_ASSERT(fraction >= 0);
    if (fraction >= 1.0)
        return hard;
    return xseg_min(hard, (uint64_t)(fraction * (double)device->context.total_bytes));
}

uint64_t xseg_device_allowance(const struct xseg_device *device)
{
    return xseg_min(xseg_device_limit(device),
                    atomic_load_explicit(&device->allowance, memory_order_relaxed));
}

uint64_t xseg_device_physical(const struct xseg_device *device)
{
    return atomic_load_explicit(&device->reserved, memory_order_relaxed) +
           xseg_page_cache_bytes(&device->page_cache) + xseg_unreleased_bytes(&device->unreleased);
}

xseg_status xseg_device_memory(struct xseg_device *device, uint64_t *free, uint64_t *total)
{
    const xseg_status status = xseg_driver_memory_info(&device->context, free, total);

    if (status != XSEG_OK)
        return status;
    const uint64_t used = *total - xseg_min(*total, *free), taken = xseg_device_physical(device);
    xseg_timestamped_set(&device->used_elsewhere, xseg_clock_coarse(&device->allocator->clock),
                         used - xseg_min(used, taken));
    return XSEG_OK;
}

xseg_status xseg_device_make_copier(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return device->copier == NULL ? xseg_driver_stream_create(&device->context, &device->copier)
                                  : XSEG_OK;
}
