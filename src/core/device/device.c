/* SPDX-License-Identifier: MIT */
#include "src/core/device/device.h"

#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/config/config_table.h"
#include "vmm/free_memory.h"

/* The default of device_free_min_mb on an integrated device: a sixteenth of the memory, at least
 * 512 MiB. */
#define INTEGRATED_FREE_DIVISOR 16u
#define INTEGRATED_FREE_MIN     (512 * XSEG_MIB)

void xseg_device_walk(struct xseg_device *device, xseg_block_visitor *visit, void *self)
{
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        xseg_biased_lock_lock(&arena->lock);
        xseg_arena_for_each_block(arena, visit, self);
        xseg_biased_lock_unlock(&arena->lock);
    }
}

struct xseg_arena *xseg_device_lock_arenas(struct xseg_device *device) XSEG_UNCHECKED
{
    struct xseg_arena *first = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        xseg_biased_lock_lock_nested(&arena->lock);
        arena->locked_next = first;
        first = arena;
    }
    return first;
}

void xseg_device_unlock_arenas(struct xseg_arena *first) XSEG_UNCHECKED
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_arena *arena = first; arena != NULL; arena = arena->locked_next)
        xseg_biased_lock_unlock(&arena->lock);
}

uint64_t xseg_device_limit(const struct xseg_device *device)
{
    const uint64_t hard = atomic_load_explicit(&device->limits.hard, memory_order_relaxed);
    const double fraction = atomic_load_explicit(&device->limits.fraction, memory_order_relaxed);

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
    const xseg_status status = xseg_free_memory_query(&device->context, free, total);

    if (status != XSEG_OK)
        return status;
    const uint64_t used = *total - xseg_min(*total, *free), physical = xseg_device_physical(device);
    xseg_timestamped_set(&device->used_elsewhere, xseg_clock_coarse(&device->allocator->clock),
                         used - xseg_min(used, physical));
    return XSEG_OK;
}

uint64_t xseg_device_free_min(const struct xseg_device *device, const struct xseg_config *config)
{
    const struct xseg_context *context = &device->context;

    if (config->device_free_min_bytes != UINT64_MAX)
        return config->device_free_min_bytes;
    return context->is_integrated
               ? xseg_max(context->total_bytes / INTEGRATED_FREE_DIVISOR, INTEGRATED_FREE_MIN)
               : 0;
}

xseg_status xseg_device_query_free_limit(struct xseg_device *device)
{
    const uint64_t min = xseg_device_free_min(device, xseg_allocator_config(device->allocator));
    uint64_t total = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    device->free_limit = UINT64_MAX;
    if (min == 0)
        return XSEG_OK;
    const xseg_status status = xseg_device_query_memory(device, &device->free_bytes, &total);
    if (status != XSEG_OK)
        return status;
    const uint64_t max = xseg_device_physical(device) + device->free_bytes;
    device->free_limit = max - xseg_min(max, min);
    return XSEG_OK;
}

xseg_status xseg_device_create_copy_stream(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return device->copy_stream == NULL
               ? xseg_driver_stream_create(&device->context, &device->copy_stream)
               : XSEG_OK;
}

/* The message for the first contradiction between limits; NULL if there is none. */
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
        .hard_bytes = atomic_load_explicit(&limits->hard, memory_order_relaxed),
        .soft_bytes = atomic_load_explicit(&limits->soft, memory_order_relaxed),
        .keep_bytes = atomic_load_explicit(&limits->keep, memory_order_relaxed),
        .fraction = atomic_load_explicit(&limits->fraction, memory_order_relaxed),
        .has_fraction = true,
        .rejection_fraction = atomic_load_explicit(&limits->rejection, memory_order_relaxed),
        .has_rejection_fraction = true,
    };
}

xseg_status xseg_device_limits_set(struct xseg_device_limits *limits, const struct xseg_limits *set)
{
    const char *contradiction = find_contradiction(set);

    if (contradiction != NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "%s, keep_bytes is %" PRIu64 ", soft_bytes %" PRIu64
                         ", hard_bytes %" PRIu64 "; use keep_bytes <= soft_bytes <= hard_bytes",
                         contradiction, set->keep_bytes, set->soft_bytes, set->hard_bytes);
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

xseg_status xseg_device_limits_apply_config(struct xseg_device *device,
                                            const struct xseg_config *config, uint64_t keys,
                                            bool store)
{
    struct xseg_limits set;

    XSEG_ASSERT((keys >> (XSEG_CONFIG_KEYS + XSEG_CONFIG_IGNORED)) == 0);
    xseg_device_limits_read(&device->limits, &set);
    if ((keys >> XSEG_CONFIG_HARD_LIMIT & 1) != 0)
        set.hard_bytes = config->hard_limit_bytes;
    if ((keys >> XSEG_CONFIG_SOFT_LIMIT & 1) != 0)
        set.soft_bytes = config->soft_limit_bytes;
    if ((keys >> XSEG_CONFIG_KEEP & 1) != 0)
        set.keep_bytes = config->keep_bytes;
    set.has_fraction = (keys >> XSEG_CONFIG_MEMORY_FRACTION & 1) != 0;
    set.has_rejection_fraction = set.has_fraction;
    if (set.has_fraction)
        set.fraction = set.rejection_fraction = config->memory_fraction;
    const char *contradiction = find_contradiction(&set);
    if (contradiction != NULL)
        return xseg_fail(
            XSEG_ERR_CONFIG,
            "values contradict the limits that xseg_limits_set() has set for device %d, "
            "%s; set hard_limit_mb, soft_limit_mb and keep_mb together",
            device->context.ordinal, contradiction);
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

/* --- Counters. --- */

static uint64_t load_counter(const atomic_uint_fast64_t *value)
{
    return atomic_load_explicit(value, memory_order_acquire);
}

static uint64_t subtract_saturating(uint64_t minuend, uint64_t subtrahend)
{
    return minuend - xseg_min(minuend, subtrahend);
}

/* --- Memory. --- */

static void add_arena_memory(struct xseg_counters *sum, struct xseg_arena *arena)
{
    const struct xseg_counts *counts = &arena->counts;

    sum->allocated += xseg_counts_read(counts, XSEG_COUNT_ALLOCATED_BYTES).current;
    sum->pending += xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current;
    sum->cached += xseg_arena_cached_bytes(arena);
    sum->reserved += xseg_counts_read(counts, XSEG_COUNT_RESERVED_BYTES).current;
}

struct xseg_counters xseg_counters_of_pool(struct xseg_pool *pool)
{
    struct xseg_counters sum = {0, 0, 0, 0};

    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        add_arena_memory(&sum, arena);
    }
    return sum;
}

struct xseg_counters xseg_counters_of_device(struct xseg_device *device)
{
    struct xseg_counters sum = {0, 0, 0, 0};

    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        add_arena_memory(&sum, arena);
    }
    return sum;
}

/* --- Members of the statistics. --- */

/* The number of groups of a quantity: 1, or XSEG_STAT_GROUPS. */
static unsigned count_groups(enum xseg_count quantity)
{
#define GROUPS(count, member) \
    [count] = sizeof(((struct xseg_statistics *)NULL)->member) / sizeof(struct xseg_stat),
    static const unsigned groups[] = {XSEG_COUNTS_TABLE(GROUPS)};
#undef GROUPS
    return groups[quantity];
}

/* The first value of a quantity. */
static struct xseg_stat *find_stat(struct xseg_statistics *stats, enum xseg_count quantity)
{
#define OFFSET(count, member) [count] = offsetof(struct xseg_statistics, member),
    static const size_t offset[] = {XSEG_COUNTS_TABLE(OFFSET)};
#undef OFFSET
    return (struct xseg_stat *)(void *)((char *)stats + offset[quantity]);
}

/* --- Statistics of a pool. --- */

/* Read a count of an arena without fallback blocks of the default pool.  Counts are monotonic, so
 * the subtrahend is read first. */
static struct xseg_counts_value read_own_count(const struct xseg_arena *arena,
                                               enum xseg_count quantity)
{
    const uint64_t down = load_counter(&arena->fallback.down[quantity]),
                   up = load_counter(&arena->fallback.up[quantity]);
    struct xseg_counts_value value = xseg_counts_read(&arena->counts, quantity);

    value.up -= up;
    value.current = subtract_saturating(value.current, up - down);
    return value;
}

static void add_arena_counts(struct xseg_statistics *stats, struct xseg_arena *arena)
{
    const unsigned size_group = arena->is_small ? XSEG_STAT_SMALL : XSEG_STAT_LARGE;

    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count quantity = (enum xseg_count)i;
        const uint64_t up_before = load_counter(&arena->up_before[i]);
        const uint64_t down_before = load_counter(&arena->down_before[i]);
        const struct xseg_counts_value value = read_own_count(arena, quantity);

        for (unsigned group = 0; group < count_groups(quantity); group++) {
            struct xseg_stat *stat = &find_stat(stats, quantity)[group];

            if (group != XSEG_STAT_ALL && group != size_group)
                continue;
            stat->current += value.current;
            stat->allocated += subtract_saturating(value.up, up_before);
            stat->freed +=
                subtract_saturating(subtract_saturating(value.up, value.current), down_before);
        }
    }
    stats->paused_bytes += load_counter(&arena->evicted);
}

static void init_statistics(struct xseg_device *device, struct xseg_statistics *out)
{
    memset(out, 0, sizeof(*out));
    out->struct_size = sizeof(*out);
    out->max_split_size = xseg_allocator_config(device->allocator)->max_split_bytes;
}

void xseg_counters_read_pool(struct xseg_pool *pool, struct xseg_statistics *out)
{
    init_statistics(pool->device, out);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        add_arena_counts(out, arena);
    }
    /* Memory may be mapped or unmapped between the two reads. */
    for (unsigned group = 0; group < XSEG_STAT_GROUPS; group++)
        out->reserved_bytes[group].peak =
            xseg_max(out->reserved_bytes[group].current, load_counter(&pool->reserved_peak[group]));
    out->physical_bytes = load_counter(&pool->reserved);
    out->limit_bytes = load_counter(&pool->limit);
    out->address_bytes = load_counter(&pool->addresses);
}

static void reset_arena_counts(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const struct xseg_counts_value value = read_own_count(arena, (enum xseg_count)i);

        atomic_store_explicit(&arena->up_before[i], value.up, memory_order_relaxed);
        atomic_store_explicit(&arena->down_before[i], value.up - value.current,
                              memory_order_relaxed);
    }
    xseg_biased_lock_unlock(&arena->lock);
}

static void reset_pool_peaks(struct xseg_pool *pool)
{
    uint64_t total = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (unsigned i = 0; i < 2; i++) {
        const uint64_t bytes =
            atomic_load_explicit(&pool->reserved_by_size[i], memory_order_relaxed);

        atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_SMALL + i], bytes,
                              memory_order_relaxed);
        total += bytes;
    }
    atomic_store_explicit(&pool->reserved_peak[XSEG_STAT_ALL], total, memory_order_relaxed);
}

void xseg_counters_reset_pool(struct xseg_pool *pool, unsigned flags)
{
    struct xseg_device *device = pool->device;

    xseg_mutex_lock(&device->memory_lock);
    if ((flags & XSEG_RESET_PEAK) != 0)
        reset_pool_peaks(pool);
    if ((flags & XSEG_RESET_ACCUMULATED) != 0)
        XSEG_POOL_FOR_ARENAS(arena, pool)
        {
            reset_arena_counts(arena);
        }
    xseg_mutex_unlock(&device->memory_lock);
}

/* --- Statistics of a device. --- */

void xseg_counters_read_device(struct xseg_device *device, struct xseg_statistics *out)
{
    init_statistics(device, out);
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const enum xseg_count quantity = (enum xseg_count)i;

        for (unsigned group = 0; group < count_groups(quantity); group++)
            find_stat(out, quantity)[group] =
                xseg_totals_read(&device->totals, (enum xseg_stat_group)group, quantity);
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

void xseg_counters_reset_device(struct xseg_device *device, unsigned flags)
{
    if ((flags & XSEG_RESET_PEAK) != 0)
        xseg_totals_reset_peaks(&device->totals);
    if ((flags & XSEG_RESET_ACCUMULATED) == 0)
        return;
    xseg_totals_reset_accumulated(&device->totals);
#define RESET(name, member) atomic_store_explicit(&device->name, 0, memory_order_relaxed);
    XSEG_DEVICE_COUNTERS(RESET)
#undef RESET
}
