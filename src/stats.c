/* SPDX-License-Identifier: MIT */
#include "xseg/stats.h"

#include <stddef.h>
#include <string.h>

#include "src/core/front/allocator_open.h"
#include "src/core/front/device_audit.h"
#include "src/core/pending/poison.h"
#include "src/core/pools/share.h"
#include "src/entry.h"

/* Find the device that `where` selects, and its private pool or NULL. */
static xseg_status find(struct xseg_allocator *allocator, const struct xseg_where *where,
                        struct xseg_device **out, struct xseg_pool **pool)
{
    struct xseg_where chosen = XSEG_WHERE_ANY;

    XSEG_ENTRY_REQUIRE(
        where != NULL && XSEG_ENTRY_PUBLISHED(where, struct xseg_where),
        "statistics: where is NULL or of unknown size: start from XSEG_WHERE_ANY and "
        "name a device");
    memcpy(&chosen, where, where->struct_bytes);
    if (chosen.one_stream)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "statistics are kept by device and by pool: name no stream");
    *pool = chosen.pool;
    if (chosen.pool != NULL) {
        XSEG_ENTRY_REQUIRE(xseg_allocator_owns(allocator, chosen.pool),
                           "statistics: pool %s belongs to another allocator",
                           xseg_pool_label(chosen.pool));
        *out = chosen.pool->body->device;
        return XSEG_OK;
    }
    XSEG_ENTRY_REQUIRE(chosen.device >= 0, "statistics are kept by device: name one, %d is none",
                       chosen.device);
    return xseg_allocator_device(allocator, chosen.device, out);
}

/* The offset of each count in the public structure. */
static const size_t group_offset[] = {
    [XSEG_COUNT_ALLOCATION] = offsetof(struct xseg_statistics, allocation),
    [XSEG_COUNT_SEGMENT] = offsetof(struct xseg_statistics, segment),
    [XSEG_COUNT_ACTIVE] = offsetof(struct xseg_statistics, active),
    [XSEG_COUNT_INACTIVE_SPLIT] = offsetof(struct xseg_statistics, inactive_split),
    [XSEG_COUNT_ALLOCATED_BYTES] = offsetof(struct xseg_statistics, allocated_bytes),
    [XSEG_COUNT_RESERVED_BYTES] = offsetof(struct xseg_statistics, reserved_bytes),
    [XSEG_COUNT_ACTIVE_BYTES] = offsetof(struct xseg_statistics, active_bytes),
    [XSEG_COUNT_INACTIVE_SPLIT_BYTES] = offsetof(struct xseg_statistics, inactive_split_bytes),
    [XSEG_COUNT_REQUESTED_BYTES] = offsetof(struct xseg_statistics, requested_bytes),
    [XSEG_COUNT_OVERSIZE_ALLOCATION] = offsetof(struct xseg_statistics, oversize_allocations),
    [XSEG_COUNT_OVERSIZE_SEGMENT] = offsetof(struct xseg_statistics, oversize_segments),
};

/* Whether a count is kept by group, small and large; counts of oversize blocks are not. */
static bool has_groups(enum xseg_count what)
{
    return what != XSEG_COUNT_OVERSIZE_ALLOCATION && what != XSEG_COUNT_OVERSIZE_SEGMENT;
}

static struct xseg_stat *stat_of(struct xseg_statistics *stats, enum xseg_count what)
{
    return (struct xseg_stat *)(void *)((char *)stats + group_offset[what]);
}

static void read_device(struct xseg_device *device, struct xseg_statistics *stats)
{
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;

        for (unsigned group = 0; group < (has_groups(what) ? XSEG_STAT_GROUPS : 1u); group++)
            stat_of(stats, what)[group] =
                xseg_totals_read(&device->totals, (enum xseg_stat_group)group, what);
    }
    stats->num_alloc_retries = atomic_load_explicit(&device->retries, memory_order_relaxed);
    stats->num_ooms = atomic_load_explicit(&device->ooms, memory_order_relaxed);
    stats->num_sync_all_streams = atomic_load_explicit(&device->syncs, memory_order_relaxed);
    stats->num_device_alloc = atomic_load_explicit(&device->grown, memory_order_relaxed);
    stats->num_device_free = atomic_load_explicit(&device->shrunk, memory_order_relaxed);
    stats->device_bytes = device->context.total_bytes;
    stats->physical_bytes = xseg_device_physical(device);
    stats->stuck_bytes = xseg_leftovers_bytes(&device->leftovers);
    stats->address_bytes = atomic_load_explicit(&device->addresses, memory_order_relaxed);
    stats->host_bytes = xseg_device_host_bytes(device);
    stats->idle_page_bytes = xseg_pages_bytes(&device->pages);
    stats->scrubbed_bytes = atomic_load_explicit(&device->scrubbed, memory_order_relaxed);
    stats->paused_bytes = atomic_load_explicit(&device->evicted, memory_order_relaxed);
    stats->imported_bytes = xseg_sharing_imported(device->sharing);
    stats->num_oom_rejections = atomic_load_explicit(&device->rejections, memory_order_relaxed);
    stats->overwrites = atomic_load_explicit(&device->poison->overwrites, memory_order_relaxed);
}

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_statistics *stats = self;
    const unsigned own = arena->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;

    xseg_arena_lock(arena);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;
        const struct xseg_counts_value value = xseg_counts_read(&arena->counts, what);
        /* A lent block counts as memory of the lending pool, but not as a block of it. */
        const uint64_t up = value.up - arena->up_before[what] - arena->lent.up[what];
        const uint64_t current = value.current - (arena->lent.up[what] - arena->lent.down[what]);

        for (unsigned group = 0; group < (has_groups(what) ? XSEG_STAT_GROUPS : 1u); group++) {
            struct xseg_stat *stat = &stat_of(stats, what)[group];

            if (group != XSEG_STAT_ALL && group != own)
                continue;
            stat->current += current;
            stat->allocated += up;
            stat->freed += up - current;
        }
    }
    stats->paused_bytes += arena->evicted;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        stats->address_bytes +=
            XSEG_CONTAINER(node, struct xseg_extent, link)->segment.reserved_bytes;
    }
    xseg_arena_unlock(arena);
}

static xseg_status read_pool(struct xseg_pool *pool, struct xseg_statistics *stats)
{
    struct xseg_device *device = pool->body->device;

    xseg_retire_begin_visit(device);
    struct xseg_pool_body *body = pool->body;
    const bool is_over = body->pool != pool;
    xseg_pool_visit_arenas(body, add_arena, stats);
    stats->reserved_bytes[XSEG_STAT_ALL].peak =
        atomic_load_explicit(&body->reserved_peak, memory_order_relaxed);
    stats->physical_bytes = atomic_load_explicit(&body->reserved, memory_order_relaxed);
    stats->limit_bytes = atomic_load_explicit(&body->limit, memory_order_relaxed);
    xseg_retire_end_visit(device);
    return is_over ? xseg_entry_over("xseg_stats") : XSEG_OK;
}

xseg_status xseg_stats(struct xseg_allocator *allocator, const struct xseg_where *where,
                       struct xseg_statistics *out)
{
    struct xseg_device *device = NULL;
    struct xseg_pool *pool = NULL;
    struct xseg_statistics stats;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(out != NULL && XSEG_ENTRY_KNOWS(out, struct xseg_statistics),
                       "xseg_stats: out is NULL or of unknown size: set out->struct_bytes");
    xseg_status status = find(allocator, where, &device, &pool);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(device != NULL);
    const struct xseg_config *config = xseg_allocator_config(allocator);
    memset(&stats, 0, sizeof(stats));
    stats.struct_bytes = out->struct_bytes;
    stats.limit_bytes = xseg_device_limit(device, config);
    if (pool == NULL)
        read_device(device, &stats);
    else
        status = read_pool(pool, &stats);
    if (status != XSEG_OK)
        return status;
    stats.max_split_size = config->max_split_bytes;
    memcpy(out, &stats, out->struct_bytes);
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
    if (pool != NULL)
        return xseg_fail(XSEG_ERR_UNSUPPORTED, "statistics are reset by device: name no pool");
    if ((what & XSEG_RESET_PEAK) != 0)
        xseg_totals_reset_peaks(&device->totals);
    if ((what & XSEG_RESET_ACCUMULATED) != 0) {
        xseg_totals_reset_accumulated(&device->totals);
        atomic_store_explicit(&device->retries, 0, memory_order_relaxed);
        atomic_store_explicit(&device->ooms, 0, memory_order_relaxed);
        atomic_store_explicit(&device->syncs, 0, memory_order_relaxed);
        atomic_store_explicit(&device->grown, 0, memory_order_relaxed);
        atomic_store_explicit(&device->shrunk, 0, memory_order_relaxed);
        atomic_store_explicit(&device->rejections, 0, memory_order_relaxed);
        atomic_store_explicit(&device->scrubbed, 0, memory_order_relaxed);
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
