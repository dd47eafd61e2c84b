/* SPDX-License-Identifier: MIT */
/* Options of pools that change, that outlive the pool, or that tell of its end. */
#include <string.h>

#include "tests/support/env.h"
#include "tests/support/history_list.h"

/* The driver's own functions, as a program declares them. */
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);

/* --- Settings. --- */

TEST(no_split_can_be_turned_on_and_off)
{
    static const struct {
        size_t cached, wanted;
        const char *config;
    } cases[] = {
        {40 * MIB, 4 * MIB, "expandable_segments:True"},
        {40 * MIB, 4 * MIB, "expandable_segments:False"},
        {64 * KIB, 4 * KIB, "expandable_segments:True"},
    };

    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct xseg_allocator *allocator = env_open(cases[i].config);
        struct xseg_pool *pool = env_pool_with(allocator, NULL);

        for (unsigned turn = 0; turn < 3; turn++) {
            /* A neighbour keeps the cached block from being longer. */
            void *block = env_alloc_in(allocator, pool, cases[i].cached, NULL);
            void *after = env_alloc_in(allocator, pool, cases[i].cached, NULL);
            const uint64_t whole = env_block(allocator, block).bytes;

            env_free(allocator, block);
            assert_ok(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, turn == 1));
            block = env_alloc_in(allocator, pool, cases[i].wanted, NULL);
            assert_int_equal(env_block(allocator, block).bytes,
                             turn == 1 ? whole : cases[i].wanted);
            assert_int_equal(env_block(allocator, block).requested, cases[i].wanted);
            assert_ok(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, false));
            env_free(allocator, block, after);
        }
        env_close(allocator);
    }
}

TEST(use_on_oom_can_be_turned_on_and_off)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 256 * MIB};
    struct xseg_allocator *allocator;
    void *lent = NULL;

    allocator = env_open_on(&settings, "expandable_segments:True");
    struct xseg_pool *pool = env_pool_with(allocator, NULL);
    env_free(allocator, env_alloc_in(allocator, pool, 200 * MIB, NULL));
    for (unsigned turn = 0; turn < 2; turn++) {
        env_expect_error(xseg_alloc(allocator, 0, 180 * MIB, NULL, &lent), XSEG_ERR_NO_MEMORY,
                         "180");
        assert_ok(xseg_pool_set(pool, XSEG_POOL_USE_ON_OOM, true));
        lent = env_alloc(allocator, 180 * MIB, NULL);
        assert_ptr_equal(env_block(allocator, lent).fallback_pool, pool);
        assert_ok(xseg_pool_set(pool, XSEG_POOL_USE_ON_OOM, false));
        assert_ptr_equal(env_block(allocator, lent).fallback_pool, pool);
        env_free(allocator, lent);
        lent = NULL;
    }
    env_close(allocator);
}

TEST(settings_are_refused_in_words)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = env_pool_with(allocator, NULL);

    env_expect_error(xseg_pool_set(NULL, XSEG_POOL_NO_SPLIT, true), XSEG_ERR_ARGUMENT, "NULL");
    env_expect_error(xseg_pool_set(pool, (enum xseg_pool_setting)7, true), XSEG_ERR_ARGUMENT,
                     "xseg_pool_setting, 7");
    assert_ok(xseg_pool_release(pool));
    pool = env_observed_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 512, NULL);
    assert_ok(xseg_pool_release(pool));
    env_expect_error(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, true), XSEG_ERR_ARGUMENT,
                     "pool has been released");
    env_free(allocator, ptr);
    env_close(allocator);
}

/* --- Names of the user's. --- */

/* The events of a pool that is over still say what the user called it. */
TEST(history_gives_the_users_name_back)
{
    struct xseg_allocator *allocator = env_open("history:all");
    unsigned seen[3] = {0};

    for (unsigned i = 0; i < 40; i++) {
        struct xseg_pool_options options = {sizeof(options)};

        /* Every third has no name. */
        options.id[0] = i % 3 == 0 ? 0 : 7;
        options.id[1] = i % 3 == 0 ? 0 : 1000 + i;
        struct xseg_pool *pool = env_pool_with(allocator, &options);
        env_free(allocator, env_alloc_in(allocator, pool, 512, NULL));
        assert_ok(xseg_pool_release(pool));
        env_empty_cache(allocator);
    }
    env_free(allocator, env_alloc(allocator, 512, NULL));
    struct history_list recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++) {
        const struct xseg_history_entry *entry = &recorded.entry[i];
        const bool is_named = entry->pool != 0 && (entry->pool - 1) % 3 != 0;

        assert_int_equal(entry->pool_id[0], is_named ? 7 : 0);
        assert_int_equal(entry->pool_id[1], is_named ? 999 + entry->pool : 0);
        seen[entry->pool == 0 ? 2 : is_named]++;
    }
    free(recorded.entry);
    assert_true(seen[0] > 20 && seen[1] > 20 && seen[2] > 0);
    env_close(allocator);
}

/* Callers that were compiled before there were ids give a shorter structure. */
TEST(older_callers_have_no_name)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    options.struct_size = offsetof(struct xseg_pool_options, id);
    options.id[0] = 5;
    assert_ok(xseg_pool_create(allocator, 0, &options, &pool));
    options.struct_size += 1;
    env_expect_error(xseg_pool_create(allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
                     "struct_size");
    env_close(allocator);
}

/* --- The end. --- */

/* What a pool told of its end. */
struct told {
    unsigned times, frees, frees_before;
    struct xseg_statistics last;
};

static void hear(void *context, const struct xseg_statistics *last)
{
    struct told *told = context;

    told->times++;
    told->last = *last;
    told->frees_before = told->frees;
}

static void *own_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    unsigned long long address = 0;

    (void)context;
    (void)device;
    (void)stream;
    return cuMemAlloc_v2(&address, bytes) == 0
               ? (void *)(uintptr_t)address /* NOLINT(performance-no-int-to-ptr) */
               : NULL;
}

static void own_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct told *told = context;

    (void)bytes;
    (void)device;
    (void)stream;
    /* PyTorch destroys the pool's allocator when it is gone. */
    assert_int_equal(told->times, 0);
    told->frees++;
    assert_int_equal(cuMemFree_v2((uintptr_t)ptr), 0);
}

static struct xseg_pool_options telling(struct told *told)
{
    struct xseg_pool_options options = {sizeof(options)};

    *told = (struct told){.times = 0};
    options.on_destroy = hear;
    options.on_destroy_context = told;
    return options;
}

static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

TEST(a_pool_without_memory_is_gone_with_its_release)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct told told;
    const struct xseg_pool_options options = telling(&told);
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    assert_ok(xseg_pool_retain(pool));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(told.times, 0);
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(told.times, 1);
    assert_int_equal(told.last.struct_size, sizeof(told.last));
    assert_int_equal(told.last.reserved_bytes[XSEG_STAT_ALL].peak, 0);
    env_close(allocator);
    assert_int_equal(told.times, 1);
}

/* PyTorch releases a pool, and then empties it. */
TEST(a_released_pool_is_trimmed_by_name)
{
    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_trim_result done = {sizeof(done)};
        struct told told;
        const struct xseg_pool_options options = telling(&told);
        struct xseg_pool *pool = where.pool = env_pool_with(allocator, &options);

        void *kept = env_alloc_in(allocator, pool, 512, NULL);
        env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
        env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
        assert_ok(xseg_pool_release(pool));
        assert_ok(xseg_trim(allocator, &where, NULL, &done));
        assert_int_equal(done.released, 40 * MIB);
        assert_int_equal(told.times, 0);
        env_free(allocator, kept);
        assert_int_equal(told.times, 0);
        assert_ok(xseg_trim(allocator, &where, NULL, &done));
        assert_int_equal(done.released, 2 * MIB);
        assert_int_equal(done.remaining, 0);
        assert_int_equal(told.times, 1);
        assert_int_equal(told.last.reserved_bytes[XSEG_STAT_ALL].peak, 42 * MIB);
        assert_int_equal(told.last.reserved_bytes[XSEG_STAT_SMALL].freed, 2 * MIB);
        assert_int_equal(told.last.reserved_bytes[XSEG_STAT_LARGE].freed, 40 * MIB);
        assert_int_equal(told.last.reserved_bytes[XSEG_STAT_ALL].current, 0);
        assert_int_equal(told.last.allocation[XSEG_STAT_ALL].allocated, 2);
        /* The default pool's memory is still there. */
        assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
        env_close(allocator);
    }
}

/* The pool is freed while the trim goes on with the other devices. */
TEST(a_trim_that_destroys_its_pool_names_all_devices)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_result done = {sizeof(done)};
    struct told told;
    const struct xseg_pool_options options = telling(&told);
    void *other = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    struct xseg_pool *pool = where.pool = env_pool_with(allocator, &options);
    assert_ok(xseg_alloc(allocator, 1, 40 * MIB, NULL, &other));
    env_free(allocator, other);
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.released, 40 * MIB);
    assert_int_equal(told.times, 1);
    env_close(allocator);
}

/* Own functions are not called once the pool is gone: at a trim, where memory was short, or at the close. */
TEST(own_functions_end_before_the_pool_is_gone)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 128 * MIB};

    for (unsigned how = 0; how < 4; how++) {
        struct xseg_allocator *allocator = env_open_on(&settings, NULL);
        struct told told;

        env_context_push(0); /* the functions call the driver */
        struct xseg_pool_options options = telling(&told);
        options.memory = (struct xseg_pool_memory){own_alloc, own_free, &told};
        struct xseg_pool *pool = env_pool_with(allocator, &options);

        env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
        if (how != 3)
            assert_ok(xseg_pool_release(pool));
        assert_int_equal(told.times + told.frees, 0);
        if (how == 0)
            env_empty_cache(allocator);
        if (how == 1)
            env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
        if (how < 2)
            assert_int_equal(told.times, 1);
        assert_ok(xseg_close(allocator));
        env_context_pop(0);
        assert_int_equal(told.times, 1);
        assert_int_equal(told.frees_before, 1);
        assert_int_equal(told.last.reserved_bytes[XSEG_STAT_ALL].freed, 60 * MIB);
    }
}

static void fail_elsewhere(void *context, const struct xseg_statistics *last)
{
    struct xseg_allocator *other = *(struct xseg_allocator **)context;

    (void)last;
    assert_int_equal(xseg_free(other, &other), XSEG_ERR_NOT_ALLOCATED);
}

/* Who is told uses another allocator; the request that took the pool's memory has failed, and says why. */
TEST(a_failure_keeps_its_text)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 128 * MIB};
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_allocator *other = NULL;
    void *block = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    assert_ok(env_try_open(NULL, &other));
    options.on_destroy = fail_elsewhere;
    options.on_destroy_context = &other;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    env_expect_error(xseg_alloc(allocator, 0, 200 * MIB, NULL, &block), XSEG_ERR_NO_MEMORY,
                     "200.00 MiB");
    assert_ok(xseg_close(other));
    env_close(allocator);
}

/* What a program's own capture forbids its threads, own functions may do. */
TEST(own_functions_serve_a_capture)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream_on(0);
    struct told told;
    struct xseg_pool_options options = telling(&told);

    env_context_push(0);
    options.memory = (struct xseg_pool_memory){own_alloc, own_free, &told};
    struct xseg_pool *pool = env_pool_with(allocator, &options);

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 60 * MIB, stream);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(told.frees, 1);
    env_context_pop(0);
    assert_ok(xseg_close(allocator));
    env_stream_destroy_on(0, stream);
}

TEST(every_pool_is_told_of_once)
{
    enum { POOLS = 200 };
    static struct told told[POOLS];
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pools[POOLS];

    for (unsigned i = 0; i < POOLS; i++) {
        const struct xseg_pool_options options = telling(&told[i]);

        pools[i] = env_pool_with(allocator, &options);
        env_free(allocator, env_alloc_in(allocator, pools[i], 512, NULL));
    }
    for (unsigned i = 0; i < POOLS; i += 2)
        assert_ok(xseg_pool_release(pools[i]));
    env_empty_cache(allocator);
    for (unsigned i = 0; i < POOLS; i++)
        assert_int_equal(told[i].times, 1 - i % 2);
    env_close(allocator);
    for (unsigned i = 0; i < POOLS; i++) {
        assert_int_equal(told[i].times, 1);
        assert_int_equal(told[i].last.reserved_bytes[XSEG_STAT_SMALL].peak, 2 * MIB);
    }
}

/* --- Statistics. --- */

static struct xseg_statistics stats_of(struct xseg_allocator *allocator, struct xseg_pool *pool)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    where.pool = pool;
    assert_ok(xseg_stats_get(allocator, &where, &stats));
    return stats;
}

static void reset(struct xseg_allocator *allocator, struct xseg_pool *pool, unsigned what)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.pool = pool;
    assert_ok(xseg_stats_reset(allocator, &where, what));
}

static void expect_reserved(const struct xseg_statistics *stats, enum xseg_stat_group group,
                            uint64_t current, uint64_t peak, uint64_t allocated, uint64_t freed)
{
    const struct xseg_stat *stat = &stats->reserved_bytes[group];

    assert_int_equal(stat->current, current);
    assert_int_equal(stat->peak, peak);
    assert_int_equal(stat->allocated, allocated);
    assert_int_equal(stat->freed, freed);
}

/* The figures are what PyTorch gives as reserved_bytes_by_private_pools after the same calls: 30 MiB and 512 bytes,
 * the former freed, the pool deleted, the latter freed. */
TEST(a_pool_counts_what_it_reserved)
{
    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        const uint64_t large = i == 0 ? 40 * MIB : 30 * MIB, small = 2 * MIB, all = large + small;
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct told told;
        const struct xseg_pool_options options = telling(&told);
        struct xseg_pool *pool = env_pool_with(allocator, &options);
        void *a = env_alloc_in(allocator, pool, 30 * MIB, NULL);
        void *b = env_alloc_in(allocator, pool, 512, NULL);
        struct xseg_statistics stats = stats_of(allocator, pool);

        expect_reserved(&stats, XSEG_STAT_ALL, all, all, all, 0);
        expect_reserved(&stats, XSEG_STAT_SMALL, small, small, small, 0);
        expect_reserved(&stats, XSEG_STAT_LARGE, large, large, large, 0);
        env_free(allocator, a);
        reset(allocator, pool, XSEG_RESET_PEAK);
        reset(allocator, pool, XSEG_RESET_ACCUMULATED);
        /* The device's are not reset with the pool's. */
        assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].allocated, all);
        stats = stats_of(allocator, pool);
        expect_reserved(&stats, XSEG_STAT_ALL, all, all, 0, 0);
        expect_reserved(&stats, XSEG_STAT_SMALL, small, small, 0, 0);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 0);
        assert_ok(xseg_pool_release(pool));
        env_empty_cache(allocator);
        stats = stats_of(allocator, pool);
        expect_reserved(&stats, XSEG_STAT_ALL, small, all, 0, large);
        expect_reserved(&stats, XSEG_STAT_LARGE, 0, large, 0, large);
        expect_reserved(&stats, XSEG_STAT_SMALL, small, small, 0, 0);
        env_free(allocator, b);
        env_empty_cache(allocator);
        assert_int_equal(told.times, 1);
        expect_reserved(&told.last, XSEG_STAT_ALL, 0, all, 0, all);
        expect_reserved(&told.last, XSEG_STAT_LARGE, 0, large, 0, large);
        expect_reserved(&told.last, XSEG_STAT_SMALL, 0, small, 0, small);
        env_close(allocator);
    }
}

TEST(a_peak_falls_to_what_is_reserved)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = env_pool_with(allocator, NULL);
    struct xseg_scope where = XSEG_SCOPE_ALL;

    where.pool = pool;
    void *kept = env_alloc_in(allocator, pool, 512, NULL);
    env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
    assert_ok(xseg_trim(allocator, &where, NULL, NULL));
    struct xseg_statistics stats = stats_of(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 2 * MIB, 62 * MIB, 62 * MIB, 60 * MIB);
    reset(allocator, pool, XSEG_RESET_PEAK);
    stats = stats_of(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 2 * MIB, 2 * MIB, 62 * MIB, 60 * MIB);
    expect_reserved(&stats, XSEG_STAT_LARGE, 0, 0, 60 * MIB, 60 * MIB);
    /* A small and a large peak at different times: that of both is no sum. */
    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, NULL));
    stats = stats_of(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 22 * MIB, 22 * MIB, 82 * MIB, 60 * MIB);
    env_free(allocator, kept);
    env_close(allocator);
}

/* Cached memory of a pool that was released is the pool's until it is reclaimed. */
TEST(memory_of_a_released_pool_can_be_read)
{
    for (unsigned i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        struct told told;
        const struct xseg_pool_options options = telling(&told);
        struct xseg_pool *pool = env_pool_with(allocator, &options),
                         *other = env_pool_with(allocator, NULL);
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_statistics stats = {sizeof(stats)};

        where.pool = pool;
        env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
        env_free(allocator, env_alloc_in(allocator, pool, 512, NULL));
        env_free(allocator, env_alloc_in(allocator, other, 20 * MIB, NULL));
        assert_ok(xseg_pool_release(other));
        assert_ok(xseg_pool_release(pool));
        stats = stats_of(allocator, pool);
        expect_reserved(&stats, XSEG_STAT_ALL, 42 * MIB, 42 * MIB, 42 * MIB, 0);
        expect_reserved(&stats, XSEG_STAT_LARGE, 40 * MIB, 40 * MIB, 40 * MIB, 0);
        expect_reserved(&stats, XSEG_STAT_SMALL, 2 * MIB, 2 * MIB, 2 * MIB, 0);
        assert_int_equal(stats.segment[XSEG_STAT_ALL].current, i == 0 ? 0 : 2);
        assert_int_equal(stats.physical_bytes, 42 * MIB);
        reset(allocator, pool, XSEG_RESET_PEAK);
        assert_int_equal(told.times, 0);
        assert_ok(xseg_trim(allocator, &where, NULL, NULL));
        assert_int_equal(told.times, 1);
        assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
        env_close(allocator);
    }
}
