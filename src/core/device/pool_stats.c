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

void xseg_pool_stats_read_body(struct xseg_pool_body *body, struct xseg_statistics *out)
{
    begin(body->device, out);
    xseg_pool_visit_arenas(body, add_arena, out);
    /* Memory may come or go between the two looks. */
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        out->reserved_bytes[group].peak =
            xseg_max(out->reserved_bytes[group].current,
                     atomic_load_explicit(&body->reserved_peak[group], memory_order_relaxed));
    out->physical_bytes = atomic_load_explicit(&body->reserved, memory_order_relaxed);
    out->limit_bytes = atomic_load_explicit(&body->limit, memory_order_relaxed);
}

/* --- Memory that a pool has left to the orphans. --- */

struct remains {
    const struct xseg_pool *pool;
    struct xseg_statistics *stats;
    bool
        is_over; /* else only some of the memory has been left, and the totals are the pool's still */
};

static void add_stat(const struct remains *remains, struct xseg_stat *stat, uint64_t amount)
{
    stat->current += amount;
    if (!remains->is_over)
        return;
    stat->peak += amount;
    stat->allocated += amount;
}

static void add_orphans(void *self, struct xseg_arena *arena)
{
    const struct remains *remains = self;
    struct xseg_statistics *stats = remains->stats;
    const unsigned own = arena->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;

    xseg_arena_lock(arena);
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_segment *segment =
            &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;
        const uint64_t bytes = atomic_load_explicit(&segment->mapped, memory_order_relaxed);

        if (segment->owner != remains->pool)
            continue;
        add_stat(remains, &stats->reserved_bytes[XSEG_STAT_ALL], bytes);
        add_stat(remains, &stats->reserved_bytes[own], bytes);
        if (!xseg_segment_is_expandable(segment)) {
            add_stat(remains, &stats->segment[XSEG_STAT_ALL], 1);
            add_stat(remains, &stats->segment[own], 1);
        }
        stats->address_bytes += segment->reserved_bytes;
    }
    xseg_arena_unlock(arena);
}

static void visit_orphans(struct xseg_device *device, struct remains *remains)
{
    for (unsigned i = 0; i < XSEG_COUNT_OF(device->retirement.orphans_body); i++)
        xseg_pool_visit_arenas(&device->retirement.orphans_body[i], add_orphans, remains);
}

/* Read what orphans say of a pool that has ended; false if they have none of its memory. */
static bool read_remains(const struct xseg_pool *pool, struct xseg_statistics *out)
{
    struct xseg_device *device = pool->body->device;
    struct remains remains = {pool, out, true};

    begin(device, out);
    visit_orphans(device, &remains);
    out->physical_bytes = out->reserved_bytes[XSEG_STAT_ALL].current;
    out->limit_bytes = UINT64_MAX;
    return out->physical_bytes != 0;
}

/* Add what orphans have of a pool that could not end: it had left some segments to them by then. */
static void add_left(const struct xseg_pool *pool, struct xseg_statistics *stats)
{
    struct xseg_device *device = pool->body->device;
    struct remains remains = {pool, stats, false};

    if (!xseg_pool_is_retired(pool))
        return;
    visit_orphans(device, &remains);
    stats->physical_bytes =
        xseg_max(stats->physical_bytes, stats->reserved_bytes[XSEG_STAT_ALL].current);
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        stats->reserved_bytes[group].peak =
            xseg_max(stats->reserved_bytes[group].peak, stats->reserved_bytes[group].current);
}

bool xseg_pool_stats_read(struct xseg_pool *pool, struct xseg_statistics *out)
{
    struct xseg_device *device = pool->body->device;

    xseg_retire_begin_visit(device);
    struct xseg_pool_body *body = pool->body;
    const bool is_over = body->pool != pool;
    if (!is_over) {
        xseg_pool_stats_read_body(body, out);
        add_left(pool, out);
    }
    const bool found = !is_over || read_remains(pool, out);
    xseg_retire_end_visit(device);
    return found;
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

static void reset_peaks(struct xseg_pool_body *body)
{
    uint64_t all = 0;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t part = atomic_load_explicit(&body->reserved_part[i], memory_order_relaxed);

        atomic_store_explicit(&body->reserved_peak[XSEG_STAT_SMALL + i], part,
                              memory_order_relaxed);
        all += part;
    }
    atomic_store_explicit(&body->reserved_peak[XSEG_STAT_ALL], all, memory_order_relaxed);
}

bool xseg_pool_stats_reset(struct xseg_pool *pool, unsigned what)
{
    struct xseg_device *device = pool->body->device;
    struct xseg_statistics remains;

    xseg_lock_take(&device->growth_lock);
    struct xseg_pool_body *body = pool->body;
    const bool is_over = body->pool != pool;
    if (!is_over && (what & XSEG_RESET_PEAK) != 0)
        reset_peaks(body);
    if (!is_over && (what & XSEG_RESET_ACCUMULATED) != 0)
        xseg_pool_visit_arenas(body, reset_arena, NULL);
    const bool found = !is_over || read_remains(pool, &remains);
    xseg_lock_give(&device->growth_lock);
    return found;
}
