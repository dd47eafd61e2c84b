/* SPDX-License-Identifier: MIT */
#include "xseg/stats.h"

#include <string.h>

#include "src/core/device/pool_stats.h"
#include "src/core/front/allocator_open.h"
#include "src/core/front/device_audit.h"
#include "src/core/inspect/device_figures.h"
#include "src/core/pending/poison.h"
#include "src/core/pools/share.h"
#include "src/core/registration/registrations.h"
#include "src/core/stats/stat_fields.h"
#include "src/entry.h"

/* Find the device that `where` selects, and its private pool or NULL. */
static xseg_status find(struct xseg_allocator *allocator, const struct xseg_where *where,
                        struct xseg_device **out, struct xseg_pool **pool)
{
    struct xseg_where chosen = XSEG_WHERE_ANY;

    XSEG_ENTRY_REQUIRE(
        where != NULL && XSEG_ENTRY_UNDERSTANDS(where, struct xseg_where, pool),
        "statistics: where is NULL or of unknown size: start from XSEG_WHERE_ANY and "
        "name a device");
    XSEG_ENTRY_TAKE(&chosen, where);
    if (chosen.one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "statistics are kept by device and by pool: name no stream");
    *pool = chosen.pool;
    if (chosen.pool != NULL) {
        XSEG_ENTRY_REQUIRE(xseg_allocator_owns(allocator, chosen.pool),
                           "statistics: pool %s belongs to another allocator",
                           xseg_pool_label(chosen.pool));
        *out = chosen.pool->device;
        return XSEG_OK;
    }
    XSEG_ENTRY_REQUIRE(chosen.device >= 0, "statistics are kept by device: name one, %d is none",
                       chosen.device);
    return xseg_allocator_device(allocator, chosen.device, out);
}

/* Whether the host bytes are wanted, which the kernel is asked for. */
static void read_device(struct xseg_device *device, bool with_host_bytes,
                        struct xseg_statistics *stats)
{
    const struct xseg_config *config = xseg_allocator_config(device->allocator);

    memset(stats, 0, sizeof(*stats));
    stats->limit_bytes = xseg_device_limit(device);
    stats->max_split_size = config->max_split_bytes;
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;

        for (unsigned group = 0; group < xseg_stat_fields_count(what); group++)
            xseg_stat_fields_of(stats, what)[group] =
                xseg_totals_read(&device->totals, (enum xseg_stat_group)group, what);
    }
#define READ(name, member) \
    stats->member = atomic_load_explicit(&device->name, memory_order_relaxed);
    XSEG_DEVICE_COUNTERS(READ)
#undef READ
    stats->device_bytes = device->context.total_bytes;
    stats->physical_bytes = xseg_device_physical(device);
    stats->stuck_bytes = xseg_leftovers_bytes(&device->leftovers);
    stats->address_bytes = atomic_load_explicit(&device->addresses, memory_order_relaxed);
    if (with_host_bytes)
        stats->host_bytes = xseg_device_host_bytes(device);
    stats->idle_page_bytes = xseg_pages_bytes(&device->pages);
    stats->paused_bytes = atomic_load_explicit(&device->evicted, memory_order_relaxed);
    stats->imported_bytes = xseg_sharing_imported(device->sharing);
    stats->overwrites = atomic_load_explicit(&device->poison->overwrites, memory_order_relaxed);
}

xseg_status xseg_stats(struct xseg_allocator *allocator, const struct xseg_where *where,
                       struct xseg_statistics *out)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;
    struct xseg_statistics stats;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(out != NULL && XSEG_ENTRY_FILLS(out),
                       "xseg_stats: out is NULL or of unknown size: set out->struct_bytes");
    xseg_status status = find(allocator, where, &device, &pool);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    if (pool == NULL)
        read_device(device, out->struct_bytes > offsetof(struct xseg_statistics, host_bytes),
                    &stats);
    else
        xseg_pool_stats_read(pool, &stats);
    stats.registered_bytes =
        pool == NULL ? xseg_registrations_bytes(allocator->registrations, device->context.ordinal)
                     : xseg_registrations_pool_bytes(allocator->registrations,
                                                     device->context.ordinal, pool);
    XSEG_ENTRY_FILL(out, &stats);
    return XSEG_OK;
}

xseg_status xseg_stats_reset(struct xseg_allocator *allocator, const struct xseg_where *where,
                             unsigned what)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(what != 0 &&
                           (what & ~(unsigned)(XSEG_RESET_PEAK | XSEG_RESET_ACCUMULATED)) == 0,
                       "xseg_stats_reset: %#x is no set of XSEG_RESET_ values", what);
    const xseg_status status = find(allocator, where, &device, &pool);
    if (status != XSEG_OK)
        return status;
    if (pool != NULL) {
        xseg_pool_stats_reset(pool, what);
        return XSEG_OK;
    }
    if ((what & XSEG_RESET_PEAK) != 0)
        xseg_totals_reset_peaks(&device->totals);
    if ((what & XSEG_RESET_ACCUMULATED) != 0) {
        xseg_totals_reset_accumulated(&device->totals);
#define RESET(name, member) atomic_store_explicit(&device->name, 0, memory_order_relaxed);
        XSEG_DEVICE_COUNTERS(RESET)
#undef RESET
        atomic_store_explicit(&device->poison->overwrites, 0, memory_order_relaxed);
    }
    return XSEG_OK;
}

xseg_status xseg_driver_calls(struct xseg_allocator *allocator, struct xseg_driver_call *calls,
                              size_t capacity, size_t *count)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(calls != NULL || capacity == 0, "xseg_driver_calls: calls is NULL");
    const size_t there = xseg_driver_call_counts(allocator->driver, calls, capacity);
    if (count != NULL)
        *count = there;
    return XSEG_OK;
}

xseg_status xseg_devices(struct xseg_allocator *allocator, struct xseg_device_figures *devices,
                         size_t entry_bytes, size_t capacity, size_t *count)
{
    struct xseg_device_figures figures;

    XSEG_ENTRY_CHECK(allocator);
    XSEG_ENTRY_REQUIRE(devices != NULL || capacity == 0, "xseg_devices: devices is NULL");
    XSEG_ENTRY_REQUIRE(entry_bytes >= sizeof(size_t) && entry_bytes <= XSEG_ENTRY_STRUCT_MOST &&
                           entry_bytes % sizeof(size_t) == 0,
                       "xseg_devices: entries are of unknown size: give "
                       "sizeof(struct xseg_device_figures) as entry_bytes");
    const uint64_t now = xseg_clock_coarse(&allocator->clock);
    const size_t there = (size_t)allocator->device_count;
    for (size_t i = 0; i < xseg_min(there, capacity); i++) {
        xseg_device_figures_read(allocator, (int)i, now, &figures);
        figures.struct_bytes = xseg_min(entry_bytes, sizeof(figures));
        memcpy((char *)devices + entry_bytes * i, &figures, figures.struct_bytes);
    }
    if (count != NULL)
        *count = there;
    return XSEG_OK;
}
