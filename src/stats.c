/* SPDX-License-Identifier: MIT */
#include "xseg/stats.h"

#include <string.h>

#include "src/core/device/counters.h"
#include "src/core/front/allocator_open.h"
#include "src/core/front/device_audit.h"
#include "src/core/pools/share.h"
#include "src/core/registration/registrations.h"
#include "src/entry.h"
#include "src/scope.h"

/* Find the device that `scope` selects, and its private pool or NULL. */
static xseg_status find(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                        struct xseg_device **out, struct xseg_pool **pool)
{
    struct xseg_scope chosen = XSEG_SCOPE_ALL;

    XSEG_ENTRY_REQUIRE(scope != NULL, "scope is NULL");
    const xseg_status status = xseg_scope_check(allocator, scope, &chosen);
    if (status != XSEG_OK)
        return status;
    if (chosen.one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "scope selects a stream; statistics are of a device or a private pool");
    *pool = chosen.pool;
    if (chosen.pool != NULL) {
        *out = chosen.pool->device;
        return XSEG_OK;
    }
    return xseg_allocator_device(allocator, chosen.device, out);
}

/* Add what upper modules count.  The kernel is queried for host bytes, so only if the caller's structure has them. */
static void add_other(struct xseg_device *device, bool has_host_bytes,
                      struct xseg_statistics *stats)
{
    struct xseg_registrations *registrations = device->allocator->registrations;

    if (has_host_bytes)
        stats->host_bytes = xseg_device_host_bytes(device);
    stats->imported_bytes = xseg_sharing_imported(device->sharing);
    stats->registered_bytes = xseg_registrations_bytes(registrations, device->context.ordinal);
}

xseg_status xseg_stats_get(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                           struct xseg_statistics *out)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;
    struct xseg_statistics stats;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_OUT(out);
    xseg_status status = find(allocator, scope, &device, &pool);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (pool == NULL) {
        xseg_counters_read_device(device, &stats);
        add_other(device, out->struct_size > offsetof(struct xseg_statistics, host_bytes), &stats);
    } else {
        xseg_counters_read_pool(pool, &stats);
        stats.registered_bytes =
            xseg_registrations_pool_bytes(allocator->registrations, device->context.ordinal, pool);
    }
    XSEG_ENTRY_FILL(out, &stats);
    return XSEG_OK;
}

xseg_status xseg_stats_reset(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             unsigned what)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(
        what != 0 && (what & ~(unsigned)(XSEG_RESET_PEAK | XSEG_RESET_ACCUMULATED)) == 0,
        "unknown statistics, %#x; use XSEG_RESET_PEAK and XSEG_RESET_ACCUMULATED", what);
    const xseg_status status = find(allocator, scope, &device, &pool);
    if (status != XSEG_OK)
        return status;
    if (pool != NULL)
        xseg_counters_reset_pool(pool, what);
    else
        xseg_counters_reset_device(device, what);
    return XSEG_OK;
}

xseg_status xseg_driver_calls(struct xseg_allocator *allocator, struct xseg_driver_call *calls,
                              size_t capacity, size_t *count)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(calls != NULL || capacity == 0, "calls is NULL, capacity %zu", capacity);
    const size_t there = xseg_driver_call_counts(allocator->driver, calls, capacity);
    if (count != NULL)
        *count = there;
    return XSEG_OK;
}

/* Free memory: memory of others as of the last query of the driver, memory of this allocator as of now. */
static void read_free(const struct xseg_device *device, uint64_t now,
                      struct xseg_device_stats *figures)
{
    uint64_t others = 0, age = 0;

    figures->free_bytes = figures->free_age_ms = UINT64_MAX;
    if (!xseg_dated_read(&device->used_elsewhere, now, &others, &age))
        return;
    figures->free_bytes =
        figures->total_bytes - xseg_min(figures->total_bytes, others + figures->physical_bytes);
    figures->free_age_ms = age / UINT64_C(1000000);
}

static void read_figures(struct xseg_allocator *allocator, int ordinal, uint64_t now,
                         struct xseg_device_stats *figures)
{
    struct xseg_device *device = xseg_allocator_open_device(allocator, ordinal);

    memset(figures, 0, sizeof(*figures));
    figures->device = ordinal;
    if (device == NULL)
        return;
    const struct xseg_counters counters = xseg_counters_of_device(device);
    const uint64_t page_cache = xseg_pages_bytes(&device->pages);
    figures->is_open = true;
    figures->is_lost = xseg_context_is_lost(&device->context);
    figures->total_bytes = device->context.total_bytes;
    figures->limit_bytes = xseg_device_limit(device);
    figures->physical_bytes =
        counters.reserved + page_cache + xseg_leftovers_bytes(&device->leftovers);
    figures->reserved_bytes = counters.reserved;
    figures->allocated_bytes = counters.allocated;
    figures->pending_bytes = counters.pending;
    figures->idle_bytes = counters.cached + page_cache;
    read_free(device, now, figures);
}

xseg_status xseg_device_stats_get(struct xseg_allocator *allocator,
                                  struct xseg_device_stats *devices, size_t entry_bytes,
                                  size_t capacity, size_t *count)
{
    struct xseg_device_stats figures;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(devices != NULL || capacity == 0, "devices is NULL, capacity %zu", capacity);
    XSEG_ENTRY_REQUIRE(entry_bytes >= sizeof(size_t) && entry_bytes <= XSEG_ENTRY_STRUCT_MOST &&
                           entry_bytes % sizeof(size_t) == 0,
                       "entry_bytes is unknown, %zu; set it to sizeof(struct xseg_device_stats)",
                       entry_bytes);
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    const size_t there = (size_t)allocator->device_count;
    for (size_t i = 0; i < xseg_min(there, capacity); i++) {
        read_figures(allocator, (int)i, now, &figures);
        figures.struct_size = xseg_min(entry_bytes, sizeof(figures));
        memcpy((char *)devices + entry_bytes * i, &figures, figures.struct_size);
    }
    if (count != NULL)
        *count = there;
    return XSEG_OK;
}
