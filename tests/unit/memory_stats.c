/* SPDX-License-Identifier: MIT */
/* Metrics and the shared statistics region have equal values, whose sums are the statistics, and are read without the locks of
 * allocations. */
#include "tests/support/env.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/core/device/device.h"
#include "src/core/report/memory_stats.h"

/* More pools than either format has rows: the metrics have rows for 128 private pools, the sample of one device for 128 - 4,
 * because up to 4 rows do not belong to one private pool. */
#define POOLS 140u

static struct xseg_published_sample sample;
static char metrics[128 << 10];

static void read_both(struct xseg_allocator *allocator)
{
    memset(&sample, 0, sizeof(sample));
    xseg_publisher_sample(allocator, &sample);
    assert_ok(xseg_metrics(allocator, metrics, sizeof(metrics), NULL));
    assert_true(metrics[0] == '#');
}

/* The metric of a pool; UINT64_MAX if it is absent. */
static uint64_t metric_of(const char *family, const char *pool, const char *name)
{
    char line[160];

    (void)snprintf(line, sizeof(line), "\n%s{device=\"0\",pool=\"%s\",name=\"%s\"} ", family, pool,
                   name);
    const char *sample_line = strstr(metrics, line);
    return sample_line == NULL ? UINT64_MAX : strtoull(sample_line + strlen(line), NULL, 10);
}

static void expect_metrics(const struct xseg_published_pool *row, const char *pool,
                           const char *name)
{
    assert_int_equal(row->allocated, metric_of("xseg_allocated_bytes", pool, name));
    assert_int_equal(row->pending, metric_of("xseg_pending_bytes", pool, name));
    assert_int_equal(row->cached, metric_of("xseg_cached_bytes", pool, name));
    assert_int_equal(row->reserved, metric_of("xseg_reserved_bytes", pool, name));
    assert_int_equal(row->limit, metric_of("xseg_pool_limit_bytes", pool, name));
}

static void expect_private(const struct xseg_published_pool *row)
{
    char pool[16], name[XSEG_PUBLISHED_LABEL] = "";

    (void)snprintf(pool, sizeof(pool), "%u", row->id);
    if (row->label[0] == '"')
        memcpy(name, row->label + 1, strlen(row->label) - 2);
    else
        assert_string_equal(row->label, pool);
    expect_metrics(row, pool, name);
    assert_int_equal(row->reserved_peak, metric_of("xseg_reserved_peak_bytes", pool, name));
}

static void add_pool_metrics(struct xseg_published_pool *sum, const char *pool)
{
    sum->allocated += metric_of("xseg_allocated_bytes", pool, "");
    sum->pending += metric_of("xseg_pending_bytes", pool, "");
    sum->cached += metric_of("xseg_cached_bytes", pool, "");
    sum->reserved += metric_of("xseg_reserved_bytes", pool, "");
}

/* The private pools between the maximum of the sample and that of the metrics are part of the row `others` of the sample. */
static void expect_others(const struct xseg_published_pool *row, uint32_t newest)
{
    struct xseg_published_pool sum = {.allocated = 0};
    unsigned separate_rows = 0;
    char pool[16];

    for (uint32_t number = newest + 1; number <= POOLS; number++) {
        (void)snprintf(pool, sizeof(pool), "%u", number);
        if (metric_of("xseg_allocated_bytes", pool, "") != UINT64_MAX) {
            add_pool_metrics(&sum, pool);
            separate_rows++;
        }
    }
    add_pool_metrics(&sum, "other");
    assert_int_equal(separate_rows, 4); /* 128 - 124 */
    assert_int_equal(row->allocated, sum.allocated);
    assert_int_equal(row->pending, sum.pending);
    assert_int_equal(row->cached, sum.cached);
    assert_int_equal(row->reserved, sum.reserved);
    assert_int_equal(row->limit, UINT64_MAX);
    assert_int_equal(row->count, POOLS - (XSEG_PUBLISHED_POOLS - 4));
}

static void expect_statistics(struct xseg_allocator *allocator)
{
    const struct xseg_statistics stats = env_stats(allocator);
    struct xseg_published_pool sum = {.allocated = 0};

    for (uint32_t i = 0; i < sample.pool_count; i++) {
        const struct xseg_published_pool *row = &sample.pools[i];

        sum.allocated += row->allocated;
        sum.pending += row->pending;
        sum.cached += row->cached;
        sum.reserved += row->reserved;
    }
    assert_int_equal(sum.allocated, stats.allocated_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum.allocated + sum.pending, stats.active_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum.reserved, stats.reserved_bytes[XSEG_STAT_ALL].current);
    assert_int_equal(sum.cached + sum.allocated + sum.pending, sum.reserved + stats.paused_bytes);
    assert_int_equal(sample.devices[0].cached, sum.cached);
}

/* All rows agree, in the order that published.h documents.  Returns the number of rows of private pools. */
static uint32_t expect_agreement(struct xseg_allocator *allocator)
{
    static const unsigned order[] = {
        [XSEG_PUBLISHED_DEFAULT] = 0, [XSEG_PUBLISHED_GUARDED] = 1, [XSEG_PUBLISHED_PRIVATE] = 2,
        [XSEG_PUBLISHED_OTHERS] = 3,  [XSEG_PUBLISHED_RETIRED] = 4,
    };
    uint32_t newest = 0, private_rows = 0;

    read_both(allocator);
    for (uint32_t i = 0; i < sample.pool_count; i++) {
        const struct xseg_published_pool *row = &sample.pools[i];

        assert_true(i == 0 || order[row->kind] >= order[row[-1].kind]);
        if (row->kind == XSEG_PUBLISHED_PRIVATE) {
            assert_true(row->id > newest);
            newest = row->id;
            private_rows++;
            expect_private(row);
        } else if (row->kind == XSEG_PUBLISHED_OTHERS) {
            assert_string_equal(row->label, "others");
            expect_others(row, newest);
        } else {
            expect_metrics(row, row->label, "");
        }
    }
    expect_statistics(allocator);
    return private_rows;
}

static const struct xseg_published_pool *find_kind(enum xseg_published_kind kind)
{
    for (uint32_t i = 0; i < sample.pool_count; i++)
        if (sample.pools[i].kind == kind)
            return &sample.pools[i];
    return NULL;
}

/* The first three pools have names, and the first one has a limit. */
static struct xseg_pool *make_pool(struct xseg_allocator *allocator, unsigned index)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.name = index == 0 ? "kv cache" : index < 3 ? "twin" : NULL;
    options.limit_bytes = index == 0 ? 200 * MIB : 0;
    options.use_on_oom = index == 1;
    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    return pool;
}

/* --- Tests. --- */

TEST(device_without_private_pools_has_shared_rows_only)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "expandable_segments:True");

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_int_equal(expect_agreement(allocator), 0);
    assert_int_equal(sample.pool_count, 1);
    /* A retired pool has a row only if it has memory. */
    struct xseg_pool *pool = env_pool(allocator);
    assert_int_equal(expect_agreement(allocator), 1);
    env_free(allocator, env_alloc_in(allocator, pool, 30 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(expect_agreement(allocator), 0);
    assert_int_equal(find_kind(XSEG_PUBLISHED_RETIRED)->cached, 40 * MIB); /* two pages of 20 MiB */
    env_empty_cache(allocator);
    assert_int_equal(expect_agreement(allocator), 0);
    assert_int_equal(sample.pool_count, 1);
    env_close(allocator);
}

TEST(fallback_and_paused_memory_is_equal_in_both)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 100 * MIB};

    struct xseg_allocator *allocator = env_open_with_clock(&settings, NULL);
    struct xseg_pool *pool[] = {make_pool(allocator, 0), make_pool(allocator, 1)};
    void *const paused = env_alloc_in(allocator, pool[0], 20 * MIB, NULL);
    void *const allocated = env_alloc_in(allocator, pool[1], 40 * MIB, NULL);
    env_free(allocator, env_alloc_in(allocator, pool[1], 40 * MIB, NULL));
    void *const fallback = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(expect_agreement(allocator), 2);
    /* The pool has two blocks of 40 MiB, of which the freed one serves the fallback allocation of 30 MiB. */
    assert_int_equal(sample.pools[2].allocated, 70 * MIB);
    assert_int_equal(sample.pools[2].cached, 10 * MIB);
    assert_int_equal(sample.pools[0].reserved, 0);
    assert_ok(xseg_pool_pause(pool[0], XSEG_KEEP_NOTHING, NULL));
    assert_int_equal(expect_agreement(allocator), 2);
    assert_int_equal(sample.pools[1].allocated, 20 * MIB);
    assert_int_equal(sample.pools[1].reserved, 0);
    assert_ok(xseg_pool_resume(pool[0]));
    env_free(allocator, fallback, allocated, paused);
    assert_int_equal(expect_agreement(allocator), 2);
    for (unsigned i = 0; i < COUNT_OF(pool); i++)
        assert_ok(xseg_pool_release(pool[i]));
    env_close(allocator);
}

/* All kinds of rows: default, guarded, private with blocks in all states, others, retired. */
TEST(pools_without_their_own_row_share_a_row)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "unmap_on_free:True");
    struct xseg_pool *pool[POOLS], *retired;
    xseg_stream stream = env_stream();
    void *allocated[POOLS];

    void *const guarded = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_config_set(allocator, "unmap_on_free:False,expandable_segments:True"));
    for (unsigned i = 0; i < POOLS; i++) {
        pool[i] = make_pool(allocator, i);
        allocated[i] = env_alloc_in(allocator, pool[i], (i + 1) * 1024, NULL);
        void *const freed = env_alloc_in(allocator, pool[i], (i + 2) * MIB / 4, NULL);
        if (i % 3 != 0) {
            env_launch(allocator, stream, freed);
            assert_ok(xseg_record_stream(allocator, freed, stream));
        }
        env_free(allocator, freed);
    }
    retired = env_pool(allocator);
    env_free(allocator, env_alloc_in(allocator, retired, 7 * MIB, NULL));
    assert_ok(xseg_pool_release(retired));
    env_free(allocator, env_alloc(allocator, 5 * MIB, NULL));
    assert_int_equal(expect_agreement(allocator), XSEG_PUBLISHED_POOLS - 4);
    assert_int_equal(sample.pool_count, XSEG_PUBLISHED_POOLS);
    assert_int_equal(find_kind(XSEG_PUBLISHED_GUARDED)->allocated, 3 * MIB);
    assert_int_equal(find_kind(XSEG_PUBLISHED_RETIRED)->cached, 20 * MIB);
    assert_true(find_kind(XSEG_PUBLISHED_OTHERS)->pending > 0);
    assert_true(find_kind(XSEG_PUBLISHED_OTHERS)->cached > 0);
    assert_true(sample.pools[3].pending > 0);
    /* Without the oldest pool, the other pools move up by one row. */
    env_free(allocator, allocated[0]);
    assert_ok(xseg_pool_release(pool[0]));
    read_both(allocator);
    assert_int_equal(find_kind(XSEG_PUBLISHED_PRIVATE)->id, 2);
    assert_int_equal(find_kind(XSEG_PUBLISHED_OTHERS)->count,
                     POOLS - 1 - (XSEG_PUBLISHED_POOLS - 4));
    expect_statistics(allocator);
    env_free(allocator, guarded);
    for (unsigned i = 1; i < POOLS; i++) {
        env_free(allocator, allocated[i]);
        assert_ok(xseg_pool_release(pool[i]));
    }
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}

TEST(rows_are_shared_by_devices)
{
    struct xseg_pool *pool[3];
    void *allocated[COUNT_OF(pool)], *ptr[XSEG_PUBLISHED_DEVICES];
    struct xseg_published_pool sum = {.allocated = 0};

    struct xseg_allocator *allocator = env_open_sim(NULL, .devices = XSEG_PUBLISHED_DEVICES);
    for (int i = 0; i < (int)XSEG_PUBLISHED_DEVICES; i++)
        assert_ok(xseg_alloc(allocator, i, MIB, NULL, &ptr[i]));
    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        pool[i] = env_pool(allocator);
        allocated[i] = env_alloc_in(allocator, pool[i], (i + 1) * 30 * MIB, NULL);
    }
    read_both(allocator);
    assert_int_equal(sample.pool_count, XSEG_PUBLISHED_DEVICES + 1);
    expect_metrics(&sample.pools[0], "default", "");
    for (unsigned i = 0; i < COUNT_OF(pool); i++)
        add_pool_metrics(&sum, i == 0 ? "1" : i == 1 ? "2" : "3");
    assert_int_equal(sample.pools[1].kind, XSEG_PUBLISHED_OTHERS);
    assert_int_equal(sample.pools[1].count, COUNT_OF(pool));
    assert_int_equal(sample.pools[1].allocated, sum.allocated);
    assert_int_equal(sample.pools[1].reserved, sum.reserved);
    assert_int_equal(sample.pools[2].ordinal, 1);
    for (unsigned i = 0; i < COUNT_OF(pool); i++) {
        env_free(allocator, allocated[i]);
        assert_ok(xseg_pool_release(pool[i]));
    }
    for (unsigned i = 0; i < XSEG_PUBLISHED_DEVICES; i++)
        env_free(allocator, ptr[i]);
    env_close(allocator);
}

/* Locking a held lock fails the check of ranks, or hangs.  Only TABLE and REGISTRATIONS may be locked. */
TEST(statistics_use_no_lock_of_an_allocation) XSEG_UNCHECKED
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    void *large_block = env_alloc(allocator, 3 * MIB, NULL),
         *small_block = env_alloc_in(allocator, pool, 100, NULL);
    struct xseg_device *device = xseg_allocator_open_device(allocator, 0);
    struct xseg_statistics pool_stats[2];
    size_t needed = 0;

    assert_non_null(device);
    struct xseg_arena *large = atomic_load(&device->pool.arenas);
    struct xseg_arena *small = atomic_load(&pool->arenas);
    assert_non_null(large);
    assert_non_null(small);
    const uint64_t calls = xseg_sim_calls(NULL);
    xseg_mutex_lock(&allocator->open_lock);
    xseg_mutex_lock(&device->memory_lock);
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_arena *locked = i == 0 ? large : small;

        xseg_biased_lock_lock(&locked->lock);
        assert_ok(xseg_metrics_write_text(allocator, metrics, sizeof(metrics), &needed));
        xseg_publisher_sample(allocator, &sample);
        for (unsigned k = 0; k < COUNT_OF(pool_stats); k++)
            xseg_counters_read_pool(k == 0 ? &device->pool : pool, &pool_stats[k]);
        xseg_biased_lock_unlock(&locked->lock);
        assert_int_equal(sample.device_count, 1);
        assert_int_equal(sample.pool_count, 2);
        assert_int_equal(sample.pools[0].kind, XSEG_PUBLISHED_DEFAULT);
        assert_int_equal(sample.pools[0].allocated, 3 * MIB);
        assert_int_equal(sample.pools[1].kind, XSEG_PUBLISHED_PRIVATE);
        assert_int_equal(sample.pools[1].allocated, 512);
        for (unsigned k = 0; k < COUNT_OF(pool_stats); k++)
            assert_int_equal(pool_stats[k].allocated_bytes[XSEG_STAT_ALL].current,
                             sample.pools[k].allocated);
        assert_in_range(needed, 1000, sizeof(metrics));
    }
    xseg_mutex_unlock(&device->memory_lock);
    xseg_mutex_unlock(&allocator->open_lock);
    assert_int_equal(xseg_sim_calls(NULL), calls);
    env_free(allocator, large_block, small_block);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}
