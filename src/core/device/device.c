/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include <inttypes.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/config_table.h"
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
    xseg_block_visitor *visit;
    void *self;
};

static void walk_arena_locked(void *self, struct xseg_arena *arena)
{
    const struct walk *walk = self;

    xseg_arena_lock(arena);
    xseg_arena_for_each_block(arena, walk->visit, walk->self);
    xseg_arena_unlock(arena);
}

void xseg_device_walk(struct xseg_device *device, xseg_block_visitor *visit, void *self)
{
    struct walk walk = {visit, self};

    xseg_device_visit_arenas(device, walk_arena_locked, &walk);
}

static void lock_arena_nested(void *self, struct xseg_arena *arena) XSEG_UNCHECKED
{
    struct xseg_arena **first = self;

    xseg_biased_lock_lock_nested(&arena->lock);
    arena->locked_next = *first;
    *first = arena;
}

struct xseg_arena *xseg_device_lock_arenas(struct xseg_device *device)
{
    struct xseg_arena *first = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_device_visit_arenas(device, lock_arena_nested, &first);
    return first;
}

void xseg_device_unlock_arenas(struct xseg_arena *first) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_arena *arena = first; arena != NULL; arena = arena->locked_next)
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

xseg_status xseg_device_query_memory(struct xseg_device *device, uint64_t *free, uint64_t *total)
{
    const xseg_status status = xseg_driver_memory_info(&device->context, free, total);

    if (status != XSEG_OK)
        return status;
    const uint64_t used = *total - xseg_min(*total, *free), taken = xseg_device_physical(device);
    xseg_timestamped_set(&device->used_elsewhere, xseg_clock_coarse(&device->allocator->clock),
                         used - xseg_min(used, taken));
    return XSEG_OK;
}

xseg_status xseg_device_create_copy_stream(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return device->copy_stream == NULL
               ? xseg_driver_stream_create(&device->context, &device->copy_stream)
               : XSEG_OK;
}

/* The first contradiction between limits, as text; NULL if there is none. */
static const char *find_contradiction(const struct xseg_limits *set)
{
    if (set->soft_bytes != UINT64_MAX && set->soft_bytes > set->hard_bytes)
        return "soft_bytes exceeds hard_bytes";
    if (set->keep_bytes > set->soft_bytes)
        return "keep_bytes exceeds soft_bytes";
    return set->keep_bytes > set->hard_bytes ? "keep_bytes exceeds hard_bytes" : NULL;
}

static void store_limits(struct xseg_device_limits *limits, const struct xseg_limits *set)
{
    XSEG_ASSERT(find_contradiction(set) == NULL && !(set->fraction < 0) && set->fraction <= 1);
    atomic_store_explicit(&limits->hard, set->hard_bytes, memory_order_relaxed);
    atomic_store_explicit(&limits->soft, set->soft_bytes, memory_order_relaxed);
    atomic_store_explicit(&limits->keep, set->keep_bytes, memory_order_relaxed);
    if (set->has_fraction)
        atomic_store_explicit(&limits->fraction, set->fraction, memory_order_relaxed);
    if (set->has_rejection_fraction)
        atomic_store_explicit(&limits->rejection, set->rejection_fraction, memory_order_relaxed);
}

void xseg_device_limits_init(struct xseg_device_limits *limits, const struct xseg_config *config)
{
    const struct xseg_limits set = {
        .struct_size = sizeof(set),
        .hard_bytes = config->hard_limit_bytes,
        .soft_bytes = config->soft_limit_bytes,
        .keep_bytes = config->keep_bytes,
        .fraction = config->memory_fraction,
        .has_fraction = true,
        .rejection_fraction = config->memory_fraction,
        .has_rejection_fraction = true,
    };

    store_limits(limits, &set);
}

void xseg_device_limits_read(const struct xseg_device_limits *limits, struct xseg_limits *out)
{
    *out = (struct xseg_limits){
        .struct_size = sizeof(*out),
        .hard_bytes = xseg_device_limits_hard(limits),
        .soft_bytes = xseg_device_limits_soft(limits),
        .keep_bytes = xseg_device_limits_keep(limits),
        .fraction = xseg_device_limits_fraction(limits),
        .has_fraction = true,
        .rejection_fraction = xseg_device_limits_rejection(limits),
        .has_rejection_fraction = true,
    };
}

xseg_status xseg_device_limits_set(struct xseg_device_limits *limits, const struct xseg_limits *set)
{
    const char *wrong = find_contradiction(set);

    if (wrong != NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "%s, keep_bytes is %" PRIu64 ", soft_bytes %" PRIu64
                         ", hard_bytes %" PRIu64 "; use keep_bytes <= soft_bytes <= hard_bytes",
                         wrong, set->keep_bytes, set->soft_bytes, set->hard_bytes);
    /* A fraction that is NaN fails both comparisons. */
    if (set->has_fraction && !(set->fraction >= 0 && set->fraction <= 1))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "fraction is out of range, %g; use a number from 0 to 1", set->fraction);
    if (set->has_rejection_fraction &&
        !(set->rejection_fraction >= 0 && set->rejection_fraction <= 1))
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "rejection_fraction is out of range, %g; use a number from 0 to 1",
                         set->rejection_fraction);
    store_limits(limits, set);
    return XSEG_OK;
}

xseg_status xseg_device_limits_follow(struct xseg_device *device, const struct xseg_config *config,
                                      uint64_t named, bool store)
{
    struct xseg_limits set;

    XSEG_ASSERT((named >> (XSEG_CONFIG_KEYS + XSEG_CONFIG_IGNORED)) == 0);
    xseg_device_limits_read(&device->limits, &set);
    if ((named >> XSEG_CONFIG_HARD_LIMIT & 1) != 0)
        set.hard_bytes = config->hard_limit_bytes;
    if ((named >> XSEG_CONFIG_SOFT_LIMIT & 1) != 0)
        set.soft_bytes = config->soft_limit_bytes;
    if ((named >> XSEG_CONFIG_KEEP & 1) != 0)
        set.keep_bytes = config->keep_bytes;
    set.has_fraction = (named >> XSEG_CONFIG_MEMORY_FRACTION & 1) != 0;
    set.has_rejection_fraction = set.has_fraction;
    if (set.has_fraction)
        set.fraction = set.rejection_fraction = config->memory_fraction;
    const char *wrong = find_contradiction(&set);
    if (wrong != NULL)
        return xseg_fail(
            XSEG_ERR_CONFIG,
            "values contradict the limits that xseg_limits_set() has set for device %d, "
            "%s; set hard_limit_mb, soft_limit_mb and keep_mb together",
            device->context.ordinal, wrong);
    if (store)
        store_limits(&device->limits, &set);
    return XSEG_OK;
}

xseg_status xseg_allocator_fail_forked(void)
{
    return xseg_fail(XSEG_ERR_FORKED,
                     "allocator belongs to the parent process, and CUDA does not work in a forked "
                     "child; fork before the first xseg_open(), or start the child by exec (in "
                     "Python, use the start method \"spawn\")");
}

xseg_status xseg_allocator_fail_foreign(uint64_t address)
{
    return xseg_fail(XSEG_ERR_NOT_ALLOCATED,
                     "address is not in memory of this allocator, %#" PRIx64, address);
}

xseg_status xseg_allocator_check(const struct xseg_allocator *allocator)
{
    if (__builtin_expect(allocator == NULL, 0))
        return xseg_fail(XSEG_ERR_ARGUMENT, "allocator is NULL");
    return xseg_fork_guard_is_child(&allocator->fork) ? xseg_allocator_fail_forked() : XSEG_OK;
}
