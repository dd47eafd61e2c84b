/* SPDX-License-Identifier: MIT */
#include "xseg/trim.h"

#include "src/core/front/allocator_config.h"
#include "src/core/front/allocator_open.h"
#include "src/core/front/device_alloc.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/trim.h"
#include "src/entry.h"

/* Trim one open device. */
static xseg_status trim_device(struct xseg_device *device, const struct xseg_scope *where,
                               const struct xseg_trim_options *how, struct xseg_trim_result *done)
{
    struct xseg_trim_plan plan = {
        .pool = where->pool,
        .wait = how->wait,
        .leave = how->target_bytes,
        .idle_ms = how->idle_ms,
    };
    struct xseg_known_stream *stream = NULL;
    xseg_status status = XSEG_OK;

    if (where->one_stream)
        status = xseg_streams_get(&device->streams, where->stream, &stream);
    if (status != XSEG_OK)
        return status;
    plan.stream = stream;
    xseg_lock_take(&device->growth_lock);
    status = xseg_trim_device(device, &plan, done);
    xseg_lock_give(&device->growth_lock);
    xseg_pools_notify(device);
    return status;
}

static xseg_status trim_all(struct xseg_allocator *allocator, const struct xseg_scope *where,
                            const struct xseg_trim_options *how, struct xseg_trim_result *done)
{
    /* A trim may destroy the pool, so the pool is not read after the first one. */
    const struct xseg_device *pool_device = where->pool != NULL ? where->pool->device : NULL;
    xseg_status first = XSEG_OK;

    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device == NULL || (where->device != -1 && where->device != i) ||
            (pool_device != NULL && pool_device != device))
            continue;
        const xseg_status status = trim_device(device, where, how, done);
        first = first == XSEG_OK ? status : first;
    }
    return first;
}

xseg_status xseg_trim(struct xseg_allocator *allocator, const struct xseg_scope *where,
                      const struct xseg_trim_options *options, struct xseg_trim_result *out)
{
    struct xseg_scope chosen = XSEG_SCOPE_ALL;
    struct xseg_trim_options how = XSEG_TRIM_OPTIONS_INIT;
    struct xseg_trim_result done = XSEG_TRIM_RESULT_INIT;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(where == NULL || XSEG_ENTRY_UNDERSTANDS(where, struct xseg_scope, pool),
                       "where->struct_size is %zu: start from XSEG_SCOPE_ALL", where->struct_size);
    XSEG_ENTRY_REQUIRE(
        options == NULL || XSEG_ENTRY_UNDERSTANDS(options, struct xseg_trim_options, wait),
        "options->struct_size is %zu: start from XSEG_TRIM_OPTIONS_INIT", options->struct_size);
    XSEG_ENTRY_REQUIRE(out == NULL || XSEG_ENTRY_FILLS(out),
                       "out->struct_size is %zu: start from XSEG_TRIM_RESULT_INIT",
                       out->struct_size);
    if (where != NULL)
        XSEG_ENTRY_TAKE(&chosen, where);
    if (options != NULL)
        XSEG_ENTRY_TAKE(&how, options);
    XSEG_ENTRY_REQUIRE(chosen.device >= -1 && chosen.device < allocator->device_count,
                       "device %d: the driver shows devices 0 to %d, and -1 is all", chosen.device,
                       allocator->device_count - 1);
    XSEG_ENTRY_REQUIRE(chosen.pool == NULL || xseg_allocator_owns(allocator, chosen.pool),
                       "pool %s belongs to another allocator", xseg_pool_label(chosen.pool));
    const xseg_status status = trim_all(allocator, &chosen, &how, &done);
    xseg_housekeeping_end_call(allocator);
    if (status == XSEG_OK && out != NULL)
        XSEG_ENTRY_FILL(out, &done);
    return status;
}

/* Read and set the limits of a pool: it has a hard limit only. */
static xseg_status limit_pool(struct xseg_pool *pool, const struct xseg_limit_values *set,
                              struct xseg_limit_values *was)
{
    const char *const foreign = set == NULL                     ? NULL
                                : set->keep_bytes != 0          ? "keep_bytes"
                                : set->soft_bytes != UINT64_MAX ? "soft_bytes"
                                : set->has_fraction             ? "fraction"
                                : set->has_rejection_fraction   ? "rejection_fraction"
                                                                : NULL;
    if (foreign != NULL)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool %s has no %s: a pool keeps its memory while it is "
                         "held; set hard_bytes, or name a device",
                         xseg_pool_label(pool), foreign);
    *was = (struct xseg_limit_values)XSEG_LIMIT_VALUES_INIT;
    was->hard_bytes = atomic_load_explicit(&pool->limit, memory_order_relaxed);
    if (set != NULL)
        atomic_store_explicit(&pool->limit, set->hard_bytes, memory_order_relaxed);
    return XSEG_OK;
}

static xseg_status limit(struct xseg_allocator *allocator, const struct xseg_scope *where,
                         const struct xseg_limit_values *set, struct xseg_limit_values *was)
{
    struct xseg_device *device = NULL;

    if (where->one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "limits are set by device and by pool: name no stream");
    if (where->pool != NULL)
        return limit_pool(where->pool, set, was);
    const xseg_status status = xseg_allocator_device(allocator, where->device, &device);
    return status == XSEG_OK ? xseg_allocator_limits(allocator, device, set, was) : status;
}

xseg_status xseg_limits(struct xseg_allocator *allocator, const struct xseg_scope *where,
                        const struct xseg_limit_values *set, struct xseg_limit_values *was)
{
    struct xseg_scope chosen = XSEG_SCOPE_ALL;
    struct xseg_limit_values before = XSEG_LIMIT_VALUES_INIT, wanted = XSEG_LIMIT_VALUES_INIT;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(where != NULL && XSEG_ENTRY_UNDERSTANDS(where, struct xseg_scope, pool),
                       "where is NULL or of unknown size: start from XSEG_SCOPE_ALL "
                       "and name a device or a pool");
    XSEG_ENTRY_REQUIRE(
        set == NULL || XSEG_ENTRY_UNDERSTANDS(set, struct xseg_limit_values, keep_bytes),
        "set->struct_size is %zu: start from XSEG_LIMIT_VALUES_INIT", set->struct_size);
    XSEG_ENTRY_REQUIRE(was == NULL || XSEG_ENTRY_FILLS(was),
                       "was->struct_size is %zu: start from XSEG_LIMIT_VALUES_INIT",
                       was->struct_size);
    XSEG_ENTRY_TAKE(&chosen, where);
    XSEG_ENTRY_REQUIRE(chosen.pool == NULL || xseg_allocator_owns(allocator, chosen.pool),
                       "pool %s belongs to another allocator", xseg_pool_label(chosen.pool));
    if (set != NULL)
        XSEG_ENTRY_TAKE(&wanted, set);
    const xseg_status status = limit(allocator, &chosen, set != NULL ? &wanted : NULL, &before);
    if (status == XSEG_OK && was != NULL)
        XSEG_ENTRY_FILL(was, &before);
    return status;
}

xseg_status xseg_tick(struct xseg_allocator *allocator, uint64_t budget_us)
{
    xseg_status first = XSEG_OK;

    XSEG_ENTRY(allocator);
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t budget = xseg_min(budget_us, UINT64_MAX / 1000) * 1000;
    for (int i = 0; config->decays && i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);
        const xseg_status status =
            device != NULL ? xseg_decay_tick(device, config, budget) : XSEG_OK;

        first = first == XSEG_OK ? status : first;
    }
    xseg_housekeeping_end_call(allocator);
    return first;
}

xseg_status xseg_prewarm(struct xseg_allocator *allocator, const struct xseg_scope *where,
                         size_t bytes)
{
    struct xseg_scope chosen = XSEG_SCOPE_ALL;
    struct xseg_device *device = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(where != NULL && XSEG_ENTRY_UNDERSTANDS(where, struct xseg_scope, pool),
                       "where is NULL or of unknown size: start from XSEG_SCOPE_ALL "
                       "and name a device");
    XSEG_ENTRY_TAKE(&chosen, where);
    XSEG_ENTRY_REQUIRE(chosen.pool == NULL || xseg_allocator_owns(allocator, chosen.pool),
                       "pool %s belongs to another allocator", xseg_pool_label(chosen.pool));
    XSEG_ENTRY_REQUIRE(chosen.pool == NULL || !xseg_pool_is_retired(chosen.pool),
                       "nobody holds the pool any more");
    const xseg_status status =
        chosen.pool != NULL ? XSEG_OK : xseg_allocator_device(allocator, chosen.device, &device);
    if (status != XSEG_OK || bytes == 0)
        return status;
    struct xseg_pool *pool = chosen.pool != NULL ? chosen.pool : &device->pool;
    const struct xseg_device_request wanted = {
        .pool = pool,
        .config = xseg_allocator_config(allocator),
        .bytes = bytes,
        .stream = chosen.one_stream ? chosen.stream : NULL,
    };
    return xseg_device_prewarm(pool->device, &wanted);
}
