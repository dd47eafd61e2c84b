/* SPDX-License-Identifier: MIT */
#include "xseg/reclaim.h"

#include <stdlib.h>

#include "src/core/alloc/alloc.h"
#include "src/core/instance/instance.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/reclaim.h"
#include "src/entry.h"

/* --- Scopes. --- */

xseg_status xseg_scope_check(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             struct xseg_scope *out)
{
    *out = (struct xseg_scope)XSEG_SCOPE_ALL;
    if (scope == NULL)
        return XSEG_OK;
    XSEG_ENTRY_IN(scope, struct xseg_scope, pool);
    XSEG_ENTRY_COPY_IN(out, scope);
    XSEG_ENTRY_REQUIRE(out->device >= -1 && out->device < allocator->device_count,
                       "device %d does not exist; use 0 to %d, or -1 for all devices", out->device,
                       allocator->device_count - 1);
    XSEG_ENTRY_REQUIRE(out->pool == NULL || xseg_allocator_owns(allocator, out->pool),
                       "pool is of another allocator, %s", xseg_pool_label(out->pool));
    return XSEG_OK;
}

struct xseg_device *xseg_scope_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, int ordinal)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);

    if ((scope->device >= 0 && scope->device != ordinal) || device == NULL ||
        (scope->pool != NULL && scope->pool->device != device))
        return NULL;
    return device;
}

xseg_status xseg_scope_select(struct xseg_device *device, const struct xseg_scope *scope,
                              struct xseg_selection *out)
{
    struct xseg_known_stream *stream = NULL;
    xseg_status status = XSEG_OK;

    if (scope->one_stream)
        status = xseg_streams_find_or_add(&device->streams, scope->stream, &stream);
    *out = (struct xseg_selection){scope->pool, stream};
    return status;
}

/* --- Trim. --- */

static xseg_status trim_devices(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                const struct xseg_trim_options *trim_options,
                                struct xseg_trim_result *result)
{
    /* A trim may destroy the pool, so the pool is not read after the first trim. */
    const struct xseg_device *pool_device = scope->pool != NULL ? scope->pool->device : NULL;
    xseg_status first_error = XSEG_OK;

    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);
        struct xseg_known_stream *stream = NULL;
        xseg_status status = XSEG_OK;

        if (device == NULL || (scope->device != -1 && scope->device != i) ||
            (pool_device != NULL && pool_device != device))
            continue;
        if (scope->one_stream)
            status = xseg_streams_find_or_add(&device->streams, scope->stream, &stream);
        const struct xseg_trim_plan plan = {
            .stream = stream,
            .pool = scope->pool,
            .wait = trim_options->wait,
            .target_bytes = trim_options->target_bytes,
            .idle_ms = trim_options->idle_ms,
        };
        if (status == XSEG_OK) {
            xseg_mutex_lock(&device->memory_lock);
            status = xseg_trim_device(device, &plan, result);
            xseg_mutex_unlock(&device->memory_lock);
            xseg_pools_notify(device);
        }
        first_error = first_error == XSEG_OK ? status : first_error;
    }
    return first_error;
}

/* Release the memory that is due on the open devices of a scope. */
static xseg_status trim_due_memory(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                                   uint64_t max_us, struct xseg_trim_result *result)
{
    const struct xseg_config *config = xseg_allocator_config(allocator);
    const uint64_t max_ns = max_us == 0 || max_us > UINT64_MAX / 1000 ? UINT64_MAX : max_us * 1000;
    xseg_status first_error = XSEG_OK;

    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_scope_device(allocator, scope, i);

        if (device == NULL)
            continue;
        if (config->decays) {
            const xseg_status status =
                xseg_decay_release_due(device, config, max_ns, &result->released);
            first_error = first_error == XSEG_OK ? status : first_error;
        }
        result->remaining += xseg_device_physical(device);
    }
    return first_error;
}

xseg_status xseg_trim(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                      const struct xseg_trim_options *options, struct xseg_trim_result *out)
{
    struct xseg_trim_options trim_options = {.struct_size = sizeof(trim_options)};
    struct xseg_trim_result result = {.struct_size = sizeof(result)};
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_IN(options, struct xseg_trim_options, wait);
    if (out != NULL)
        XSEG_ENTRY_OUT(out);
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    if (options != NULL)
        XSEG_ENTRY_COPY_IN(&trim_options, options);
    XSEG_ENTRY_REQUIRE(trim_options.due_only || trim_options.max_us == 0,
                       "max_us is set without due_only");
    if (trim_options.due_only) {
        XSEG_ENTRY_REQUIRE(!trim_options.wait && trim_options.target_bytes == 0 &&
                               trim_options.idle_ms == 0,
                           "due_only with wait, target_bytes or idle_ms; set max_us only");
        if (chosen.pool != NULL || chosen.one_stream)
            return xseg_fail(XSEG_ERR_UNSUPPORTED,
                             "due_only with a pool or a stream; select a device or all devices");
    }
    status = trim_options.due_only
                 ? trim_due_memory(allocator, &chosen, trim_options.max_us, &result)
                 : trim_devices(allocator, &chosen, &trim_options, &result);
    xseg_housekeeping_end_call(allocator);
    if (status == XSEG_OK && out != NULL)
        XSEG_ENTRY_COPY_OUT(out, &result);
    return status;
}

/* --- Limits. --- */

/* Check the scope of limits, and copy it: one device or one private pool. */
static xseg_status check_limit_scope(struct xseg_allocator *allocator,
                                     const struct xseg_scope *scope, struct xseg_scope *out)
{
    XSEG_ENTRY_REQUIRE(scope != NULL, "scope is NULL");
    const xseg_status status = xseg_scope_check(allocator, scope, out);
    if (status != XSEG_OK)
        return status;
    if (out->one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "scope selects a stream; limits are of a device or a private pool");
    return XSEG_OK;
}

xseg_status xseg_limits_get(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                            struct xseg_limits *out)
{
    struct xseg_limits limits = XSEG_LIMITS_INIT;
    struct xseg_device *device = NULL;
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_OUT(out);
    xseg_status status = check_limit_scope(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    if (chosen.pool != NULL) {
        limits.hard_bytes = atomic_load_explicit(&chosen.pool->limit, memory_order_relaxed);
    } else {
        status = xseg_allocator_device(allocator, chosen.device, &device);
        if (status != XSEG_OK)
            return status;
        xseg_allocator_limits_get(allocator, device, &limits);
    }
    XSEG_ENTRY_COPY_OUT(out, &limits);
    return XSEG_OK;
}

/* A pool has a hard limit only. */
static xseg_status set_pool_limit(struct xseg_pool *pool, const struct xseg_limits *limits)
{
    const char *const unsupported = limits->keep_bytes != 0            ? "keep_bytes"
                                    : limits->soft_bytes != UINT64_MAX ? "soft_bytes"
                                    : limits->has_fraction             ? "fraction"
                                    : limits->has_rejection_fraction   ? "rejection_fraction"
                                                                       : NULL;
    if (unsupported != NULL)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool %s has no %s; set hard_bytes, or select a device",
                         xseg_pool_label(pool), unsupported);
    atomic_store_explicit(&pool->limit, limits->hard_bytes, memory_order_relaxed);
    return XSEG_OK;
}

xseg_status xseg_limits_set(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                            const struct xseg_limits *limits)
{
    struct xseg_limits new_limits = XSEG_LIMITS_INIT;
    struct xseg_device *device = NULL;
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(limits != NULL, "limits is NULL");
    XSEG_ENTRY_IN(limits, struct xseg_limits, keep_bytes);
    xseg_status status = check_limit_scope(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_COPY_IN(&new_limits, limits);
    if (chosen.pool != NULL)
        return set_pool_limit(chosen.pool, &new_limits);
    status = xseg_allocator_device(allocator, chosen.device, &device);
    return status == XSEG_OK ? xseg_allocator_limits_set(allocator, device, &new_limits) : status;
}

xseg_status xseg_prewarm(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                         size_t bytes)
{
    struct xseg_device *device = NULL;
    struct xseg_scope chosen;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(scope != NULL, "scope is NULL");
    xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    XSEG_ENTRY_REQUIRE(chosen.pool == NULL || !xseg_pool_is_retired(chosen.pool),
                       "pool has been released");
    if (chosen.pool == NULL)
        status = xseg_allocator_device(allocator, chosen.device, &device);
    if (status != XSEG_OK || bytes == 0)
        return status;
    struct xseg_pool *pool = chosen.pool != NULL ? chosen.pool : &device->pool;
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(allocator),
        .pool = pool,
        .stream = chosen.one_stream ? chosen.stream : NULL,
        .requested = bytes,
    };
    return xseg_slow_path_prewarm(pool->device, &params);
}

/* --- Pins. --- */

xseg_status xseg_pin(struct xseg_allocator *allocator, const void *ptr, size_t bytes)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_MEMORY(ptr, bytes);
    return xseg_mapping_pin(allocator, (uintptr_t)ptr, bytes);
}

xseg_status xseg_unpin(struct xseg_allocator *allocator, const void *ptr, size_t bytes)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_MEMORY(ptr, bytes);
    return xseg_mapping_unpin(allocator, (uintptr_t)ptr, bytes);
}
