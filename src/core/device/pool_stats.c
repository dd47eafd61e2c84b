/* SPDX-License-Identifier: MIT */
#include "src/core/device/pool_stats.h"

#include <string.h>

#include "src/core/device/allocator.h"
#include "src/core/stats/stat_fields.h"

/* The sums of an arena since it came to its pool, or since the pool's totals were reset.  A lent block counts as
 * memory of the lending pool, but not as a block of it. */
static struct xseg_counts_value read_count(const struct xseg_arena *arena, enum xseg_count what)
{
    struct xseg_counts_value value = xseg_counts_read(&arena->counts, what);

    value.up -= arena->lent.up[what];
    value.current -= arena->lent.up[what] - arena->lent.down[what];
    return value;
}

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_statistics *stats = self;
    const unsigned own = arena->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;

    xseg_arena_lock(arena);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;
        const struct xseg_counts_value value = read_count(arena, what);
        const uint64_t down = value.up - value.current;

        for (unsigned group = 0; group < xseg_stat_fields_count(what); group++) {
            struct xseg_stat *stat = &xseg_stat_fields_of(stats, what)[group];

            if (group != XSEG_STAT_ALL && group != own)
                continue;
            stat->current += value.current;
            stat->allocated += value.up - arena->up_before[what];
            stat->freed += down - arena->down_before[what];
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

static void begin(struct xseg_device *device, struct xseg_statistics *out)
{
    memset(out, 0, sizeof(*out));
    out->struct_bytes = sizeof(*out);
    out->max_split_size = xseg_allocator_config(device->allocator)->max_split_bytes;
}

void xseg_pool_stats_read(struct xseg_pool *pool, struct xseg_statistics *out)
{
    begin(pool->device, out);
    xseg_pool_visit_arenas(pool, add_arena, out);
    /* Memory may be mapped or unmapped between the two reads. */
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        out->reserved_bytes[group].peak =
            xseg_max(out->reserved_bytes[group].current,
                     atomic_load_explicit(&pool->reserved_peak[group], memory_order_relaxed));
    out->physical_bytes = atomic_load_explicit(&pool->reserved, memory_order_relaxed);
    out->limit_bytes = atomic_load_explicit(&pool->limit, memory_order_relaxed);
}

/* --- Resets. --- */

static void reset_arena(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const struct xseg_counts_value value = read_count(arena, (enum xseg_count)i);

        arena->up_before[i] = value.up;
        arena->down_before[i] = value.up - value.current;
    }
    xseg_arena_unlock(arena);
}

static void reset_peaks(struct xseg_pool *pool)
{
    uint64_t all = 0;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t part = atomic_load_explicit(&pool->reserved_part[i], memory_order_relaxed);

        atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_SMALL + i], part,
                              memory_order_relaxed);
        all += part;
    }
    atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_ALL], all, memory_order_relaxed);
}

void xseg_pool_stats_reset(struct xseg_pool *pool, unsigned what)
{
    struct xseg_device *device = pool->device;

    xseg_lock_take(&device->growth_lock);
    if ((what & XSEG_RESET_PEAK) != 0)
        reset_peaks(pool);
    if ((what & XSEG_RESET_ACCUMULATED) != 0)
        xseg_pool_visit_arenas(pool, reset_arena, NULL);
    xseg_lock_give(&device->growth_lock);
}
