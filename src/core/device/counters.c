/* SPDX-License-Identifier: MIT */
#include "src/core/device/counters.h"

#include <stddef.h>
#include <string.h>

#include "src/core/device/allocator.h"

static uint64_t load_counter(const atomic_uint_fast64_t *value)
{
    return atomic_load_explicit(value, memory_order_acquire);
}

static uint64_t subtract_saturating(uint64_t whole, uint64_t part)
{
    return whole - xseg_min(whole, part);
}

/* --- Memory. --- */

static void add_arena_memory(void *self, struct xseg_arena *arena)
{
    struct xseg_counters *sum = self;
    const struct xseg_counts *counts = &arena->counts;

    sum->allocated += xseg_counts_current(counts, XSEG_COUNT_ALLOCATED_BYTES);
    sum->pending += xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current;
    sum->cached += xseg_arena_cached_bytes(arena);
    sum->reserved += xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES);
}

struct xseg_counters xseg_counters_of_pool(struct xseg_pool *pool)
{
    struct xseg_counters sum = {0, 0, 0, 0};

    xseg_pool_visit_arenas(pool, add_arena_memory, &sum);
    return sum;
}

struct xseg_counters xseg_counters_of_device(struct xseg_device *device)
{
    struct xseg_counters sum = {0, 0, 0, 0};

    xseg_device_visit_arenas(device, add_arena_memory, &sum);
    return sum;
}

/* --- Members of the statistics. --- */

/* The number of groups of a quantity: 1, or XSEG_STAT_GROUPS. */
static unsigned count_groups(enum xseg_count what)
{
#define GROUPS(count, member) \
    [count] = sizeof(((struct xseg_statistics *)NULL)->member) / sizeof(struct xseg_stat),
    static const unsigned groups[] = {XSEG_COUNTS_TABLE(GROUPS)};
#undef GROUPS
    return groups[what];
}

/* The first value of a quantity. */
static struct xseg_stat *find_stat(struct xseg_statistics *stats, enum xseg_count what)
{
#define OFFSET(count, member) [count] = offsetof(struct xseg_statistics, member),
    static const size_t offset[] = {XSEG_COUNTS_TABLE(OFFSET)};
#undef OFFSET
    return (struct xseg_stat *)(void *)((char *)stats + offset[what]);
}

/* --- Statistics of a pool. --- */

/* Read a count of an arena without fallback blocks of the default pool.  Counts are monotonic, so
 * the subtrahend is read first. */
static struct xseg_counts_value read_own_count(const struct xseg_arena *arena, enum xseg_count what)
{
    const uint64_t down = load_counter(&arena->fallback.down[what]),
                   up = load_counter(&arena->fallback.up[what]);
    struct xseg_counts_value value = xseg_counts_read(&arena->counts, what);

    value.up -= up;
    value.current = subtract_saturating(value.current, up - down);
    return value;
}

static void add_arena_counts(void *self, struct xseg_arena *arena)
{
    struct xseg_statistics *stats = self;
    const unsigned own = arena->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;

    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;
        const uint64_t up_before = load_counter(&arena->up_before[i]);
        const uint64_t down_before = load_counter(&arena->down_before[i]);
        const struct xseg_counts_value value = read_own_count(arena, what);

        for (unsigned group = 0; group < count_groups(what); group++) {
            struct xseg_stat *stat = &find_stat(stats, what)[group];

            if (group != XSEG_STAT_ALL && group != own)
                continue;
            stat->current += value.current;
            stat->allocated += subtract_saturating(value.up, up_before);
            stat->freed +=
                subtract_saturating(subtract_saturating(value.up, value.current), down_before);
        }
    }
    stats->paused_bytes += load_counter(&arena->evicted);
}

static void begin_statistics(struct xseg_device *device, struct xseg_statistics *out)
{
    memset(out, 0, sizeof(*out));
    out->struct_size = sizeof(*out);
    out->max_split_size = xseg_allocator_config(device->allocator)->max_split_bytes;
}

void xseg_counters_read_pool(struct xseg_pool *pool, struct xseg_statistics *out)
{
    begin_statistics(pool->device, out);
    xseg_pool_visit_arenas(pool, add_arena_counts, out);
    /* Memory may be mapped or unmapped between the two reads. */
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        out->reserved_bytes[group].peak =
            xseg_max(out->reserved_bytes[group].current, load_counter(&pool->reserved_peak[group]));
    out->physical_bytes = load_counter(&pool->reserved);
    out->limit_bytes = load_counter(&pool->limit);
    out->address_bytes = load_counter(&pool->addresses);
}

static void reset_arena_counts(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const struct xseg_counts_value value = read_own_count(arena, (enum xseg_count)i);

        atomic_store_explicit(&arena->up_before[i], value.up, memory_order_relaxed);
        atomic_store_explicit(&arena->down_before[i], value.up - value.current,
                              memory_order_relaxed);
    }
    xseg_arena_unlock(arena);
}

static void reset_pool_peaks(struct xseg_pool *pool)
{
    uint64_t all = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t part = atomic_load_explicit(&pool->reserved_part[i], memory_order_relaxed);

        atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_SMALL + i], part,
                              memory_order_relaxed);
        all += part;
    }
    atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_ALL], all, memory_order_relaxed);
}

void xseg_counters_reset_pool(struct xseg_pool *pool, unsigned what)
{
    struct xseg_device *device = pool->device;

    xseg_mutex_lock(&device->memory_lock);
    if ((what & XSEG_RESET_PEAK) != 0)
        reset_pool_peaks(pool);
    if ((what & XSEG_RESET_ACCUMULATED) != 0)
        xseg_pool_visit_arenas(pool, reset_arena_counts, NULL);
    xseg_mutex_unlock(&device->memory_lock);
}

/* --- Statistics of a device. --- */

void xseg_counters_read_device(struct xseg_device *device, struct xseg_statistics *out)
{
    begin_statistics(device, out);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count what = (enum xseg_count)i;

        for (unsigned group = 0; group < count_groups(what); group++)
            find_stat(out, what)[group] =
                xseg_totals_read(&device->totals, (enum xseg_stat_group)group, what);
    }
#define READ(name, member) out->member = load_counter(&device->name);
    XSEG_DEVICE_COUNTERS(READ)
#undef READ
    out->device_bytes = device->context.total_bytes;
    out->limit_bytes = xseg_device_limit(device);
    out->physical_bytes = xseg_device_physical(device);
    out->unreleased_bytes = xseg_unreleased_bytes(&device->unreleased);
    out->address_bytes = load_counter(&device->addresses);
    out->idle_page_bytes = xseg_page_cache_bytes(&device->page_cache);
    out->paused_bytes = load_counter(&device->evicted);
}

void xseg_counters_reset_device(struct xseg_device *device, unsigned what)
{
    if ((what & XSEG_RESET_PEAK) != 0)
        xseg_totals_reset_peaks(&device->totals);
    if ((what & XSEG_RESET_ACCUMULATED) == 0)
        return;
    xseg_totals_reset_accumulated(&device->totals);
#define RESET(name, member) atomic_store_explicit(&device->name, 0, memory_order_relaxed);
    XSEG_DEVICE_COUNTERS(RESET)
#undef RESET
}
