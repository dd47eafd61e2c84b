/* SPDX-License-Identifier: MIT */
#include "xseg/stats.h"

#include <string.h>

#include "src/door.h"

/* The device that `where` selects. */
static xseg_status find_device(struct xseg_allocator *allocator, const struct xseg_where *where,
                               struct xseg_device **out)
{
    struct xseg_where chosen = XSEG_WHERE_ANY;

    XSEG_DOOR_REQUIRE(where != NULL && XSEG_DOOR_PUBLISHED(where, struct xseg_where),
                      "statistics: where is NULL or of unknown size: start from XSEG_WHERE_ANY and "
                      "name a device");
    memcpy(&chosen, where, where->struct_bytes);
    if (chosen.one_stream || chosen.pool != NULL)
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "statistics are kept by device: name no stream and "
                                               "no pool");
    XSEG_DOOR_REQUIRE(chosen.device >= 0, "statistics are kept by device: name one, %d is none",
                      chosen.device);
    return xseg_allocator_device(allocator, chosen.device, out);
}

static void read_groups(struct xseg_device *device, struct xseg_stats *stats)
{
    for (unsigned i = 0; i < XSEG_STAT_GROUPS; i++) {
        const enum xseg_stat_group group = (enum xseg_stat_group)i;
        struct xseg_totals *totals = &device->totals;

        stats->allocation[i] = xseg_totals_read(totals, group, XSEG_COUNT_ALLOCATION);
        stats->segment[i] = xseg_totals_read(totals, group, XSEG_COUNT_SEGMENT);
        stats->active[i] = xseg_totals_read(totals, group, XSEG_COUNT_ACTIVE);
        stats->inactive_split[i] = xseg_totals_read(totals, group, XSEG_COUNT_INACTIVE_SPLIT);
        stats->allocated_bytes[i] = xseg_totals_read(totals, group, XSEG_COUNT_ALLOCATED_BYTES);
        stats->reserved_bytes[i] = xseg_totals_read(totals, group, XSEG_COUNT_RESERVED_BYTES);
        stats->active_bytes[i] = xseg_totals_read(totals, group, XSEG_COUNT_ACTIVE_BYTES);
        stats->inactive_split_bytes[i] =
            xseg_totals_read(totals, group, XSEG_COUNT_INACTIVE_SPLIT_BYTES);
        stats->requested_bytes[i] = xseg_totals_read(totals, group, XSEG_COUNT_REQUESTED_BYTES);
    }
    stats->oversize_allocations =
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_OVERSIZE_ALLOCATION);
    stats->oversize_segments =
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_OVERSIZE_SEGMENT);
}

xseg_status xseg_stats(struct xseg_allocator *allocator, const struct xseg_where *where,
                       struct xseg_stats *out)
{
    struct xseg_device *device = NULL;
    struct xseg_stats stats;

    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(out != NULL && XSEG_DOOR_KNOWS(out, struct xseg_stats),
                      "xseg_stats: out is NULL or of unknown size: set out->struct_bytes");
    const xseg_status status = find_device(allocator, where, &device);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    const struct xseg_config *config = xseg_allocator_config(allocator);
    memset(&stats, 0, sizeof(stats));
    stats.struct_bytes = out->struct_bytes;
    read_groups(device, &stats);
    stats.num_alloc_retries = atomic_load_explicit(&device->retries, memory_order_relaxed);
    stats.num_ooms = atomic_load_explicit(&device->ooms, memory_order_relaxed);
    stats.num_sync_all_streams = atomic_load_explicit(&device->syncs, memory_order_relaxed);
    stats.num_device_alloc = atomic_load_explicit(&device->grown, memory_order_relaxed);
    stats.num_device_free = atomic_load_explicit(&device->shrunk, memory_order_relaxed);
    stats.max_split_size = config->max_split_bytes;
    stats.device_bytes = device->context.total_bytes;
    stats.limit_bytes = xseg_device_limit(device, config);
    stats.physical_bytes = xseg_device_physical(device);
    stats.stuck_bytes = xseg_leftovers_bytes(&device->leftovers);
    stats.address_bytes = atomic_load_explicit(&device->addresses, memory_order_relaxed);
    stats.host_bytes = xseg_device_host_bytes(device);
    stats.overwrites = atomic_load_explicit(&device->fill.overwrites, memory_order_relaxed);
    memcpy(out, &stats, out->struct_bytes);
    return XSEG_OK;
}

xseg_status xseg_stats_reset(struct xseg_allocator *allocator, const struct xseg_where *where,
                             unsigned what)
{
    struct xseg_device *device = NULL;

    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(what != 0 &&
                          (what & ~(unsigned)(XSEG_RESET_PEAK | XSEG_RESET_ACCUMULATED)) == 0,
                      "xseg_stats_reset: %#x is no set of XSEG_RESET_ values", what);
    const xseg_status status = find_device(allocator, where, &device);
    if (status != XSEG_OK)
        return status;
    if ((what & XSEG_RESET_PEAK) != 0)
        xseg_totals_reset_peaks(&device->totals);
    if ((what & XSEG_RESET_ACCUMULATED) != 0) {
        xseg_totals_reset_accumulated(&device->totals);
        atomic_store_explicit(&device->retries, 0, memory_order_relaxed);
        atomic_store_explicit(&device->ooms, 0, memory_order_relaxed);
        atomic_store_explicit(&device->syncs, 0, memory_order_relaxed);
        atomic_store_explicit(&device->grown, 0, memory_order_relaxed);
        atomic_store_explicit(&device->shrunk, 0, memory_order_relaxed);
        atomic_store_explicit(&device->fill.overwrites, 0, memory_order_relaxed);
    }
    return XSEG_OK;
}

xseg_status xseg_driver_calls(struct xseg_allocator *allocator, struct xseg_driver_call *calls,
                              size_t capacity, size_t *count)
{
    XSEG_DOOR(allocator);
    XSEG_DOOR_REQUIRE(calls != NULL || capacity == 0, "xseg_driver_calls: calls is NULL");
    const size_t there = xseg_driver_call_counts(allocator->driver, calls, capacity);
    if (count != NULL)
        *count = there;
    return XSEG_OK;
}
