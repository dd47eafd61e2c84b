/* SPDX-License-Identifier: MIT */
/* Options of pools: changes at run time, IDs, the destroy callback, statistics, and single pages. */

#include "tests/support/history_list.h"

/* Entry points of the driver, by their plain C types. */
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);

/* A request that is smaller than a cached block. */
static const struct {
    size_t cached, requested;
    const char *config;
} cases[] = {
    {40 * MIB, 4 * MIB, "expandable_segments:True"},
    {40 * MIB, 4 * MIB, "expandable_segments:False"},
    {64 * KIB, 4 * KIB, "expandable_segments:True"},
};

TEST_TIMES(no_split_can_be_changed, COUNT_OF(cases), env_open(cases[i].config))
{
    struct xseg_pool *pool = env_pool(allocator);

    for (unsigned round = 0; round < 3; round++) {
        /* The neighbor prevents coalescing of the cached block. */
        void *block = env_alloc_in(allocator, pool, cases[i].cached, NULL);
        void *neighbor = env_alloc_in(allocator, pool, cases[i].cached, NULL);
        const uint64_t whole = env_block(allocator, block).bytes;

        env_free(allocator, block);
        assert_ok(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, round == 1)); /* in the second round */
        block = env_alloc_in(allocator, pool, cases[i].requested, NULL);
        assert_int_equal(env_block(allocator, block).bytes,
                         round == 1 ? whole : cases[i].requested);
        assert_int_equal(env_block(allocator, block).requested, cases[i].requested);
        assert_ok(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, false));
        env_free(allocator, block, neighbor);
    }
}

TEST_IN_POOL(use_on_oom_can_be_changed, env_open_mib(256, "expandable_segments:True"))
{
    env_free(allocator, env_alloc_in(allocator, pool, 200 * MIB, NULL));
    for (unsigned round = 0; round < 2; round++) {
        assert_error(env_try_alloc(allocator, 180 * MIB, NULL), NO_MEMORY, "180");
        assert_ok(xseg_pool_set(pool, XSEG_POOL_USE_ON_OOM, true));
        void *fallback = env_alloc(allocator, 180 * MIB, NULL);
        assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
        /* The allocated fallback block stays valid. */
        assert_ok(xseg_pool_set(pool, XSEG_POOL_USE_ON_OOM, false));
        assert_ptr_equal(env_block(allocator, fallback).fallback_pool, pool);
        env_free(allocator, fallback);
    }
}

TEST_ON(invalid_settings_are_rejected, env_open(NULL))
{
    struct xseg_pool *pool = env_pool(allocator);

    assert_error(xseg_pool_set(NULL, XSEG_POOL_NO_SPLIT, true), ARGUMENT, "NULL");
    assert_error(xseg_pool_set(pool, (enum xseg_pool_setting)7, true), ARGUMENT,
                 "xseg_pool_setting, 7");
    assert_ok(xseg_pool_release(pool));
    pool = env_observed_pool(allocator);
    void *ptr = env_alloc_in(allocator, pool, 512, NULL);
    assert_ok(xseg_pool_release(pool));
    assert_error(xseg_pool_set(pool, XSEG_POOL_NO_SPLIT, true), ARGUMENT, "pool has been released");
    env_free(allocator, ptr);
}

/* The events of a destroyed pool have its ID as well. */
TEST_ON(history_reports_the_user_id_of_a_pool, env_open("history:all"))
{
    unsigned without_id = 0, with_id = 0, of_default_pool = 0;

    for (unsigned i = 0; i < 40; i++) {
        struct xseg_pool_options options = {sizeof(options)};

        /* Every third pool has no ID. */
        options.id[0] = i % 3 == 0 ? 0 : 7;
        options.id[1] = i % 3 == 0 ? 0 : 1000 + i;
        struct xseg_pool *pool = env_pool_with(allocator, &options);
        env_free(allocator, env_alloc_in(allocator, pool, 512, NULL));
        assert_ok(xseg_pool_release(pool));
        env_empty_cache(allocator);
    }
    env_free(allocator, env_alloc(allocator, 512, NULL));
    HISTORY_LIST recorded = history_read(allocator, 0);
    for (size_t i = 0; i < recorded.count; i++) {
        const struct xseg_history_entry *entry = &recorded.entry[i];
        const bool has_id = entry->pool != 0 && (entry->pool - 1) % 3 != 0;

        assert_int_equal(entry->pool_id[0], has_id ? 7 : 0);
        assert_int_equal(entry->pool_id[1], has_id ? 1000 + (entry->pool - 1) : 0);
        of_default_pool += entry->pool == 0;
        with_id += has_id;
        without_id += entry->pool != 0 && !has_id;
    }
    assert_true(without_id > 20 && with_id > 20 && of_default_pool > 0);
}

/* A caller with an older header passes a structure without `id`. */
TEST_ON(older_callers_have_no_pool_id, env_open(NULL))
{
    struct xseg_pool_options options = {sizeof(options)};

    options.struct_size = offsetof(struct xseg_pool_options, id);
    options.id[0] = 5;
    struct xseg_pool *pool = env_pool_with(allocator, &options);
    options.struct_size += 1;
    assert_error(xseg_pool_create(allocator, 0, &options, &pool), ARGUMENT, "struct_size");
}

/* The calls of the destroy callback, and of the free function of the pool. */
struct destroy_record {
    unsigned calls, frees, frees_before_call;
    struct xseg_statistics last;
};

static void record_destroy(void *context, const struct xseg_statistics *last)
{
    struct destroy_record *record = context;

    record->calls++;
    record->last = *last;
    record->frees_before_call = record->frees;
}

static void *custom_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    unsigned long long address = 0;

    (void)context, (void)device, (void)stream;
    return cuMemAlloc_v2(&address, bytes) == 0
               ? (void *)(uintptr_t)address /* NOLINT(performance-no-int-to-ptr) */
               : NULL;
}

static void custom_free(void *context, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    struct destroy_record *record = context;

    (void)bytes, (void)device, (void)stream;
    /* PyTorch destroys the pool's allocator in the callback. */
    assert_int_equal(record->calls, 0);
    record->frees++;
    assert_int_equal(cuMemFree_v2((uintptr_t)ptr), 0);
}

/* The record of the only pool of a test with a destroy callback. */
static struct destroy_record destroyed;

static struct xseg_pool *observed_pool(struct xseg_allocator *allocator)
{
    destroyed = (struct destroy_record){.calls = 0};
    return env_pool_of(allocator, .on_destroy = record_destroy, .on_destroy_context = &destroyed);
}

/* As observed_pool(), with memory functions that call the driver. */
static struct xseg_pool *custom_pool(struct xseg_allocator *allocator)
{
    destroyed = (struct destroy_record){.calls = 0};
    return env_pool_of(allocator, .memory = {custom_alloc, custom_free, &destroyed},
                       .on_destroy = record_destroy, .on_destroy_context = &destroyed);
}

TEST(empty_pool_is_destroyed_at_its_release)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = observed_pool(allocator);

    assert_ok(xseg_pool_retain(pool));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(destroyed.calls, 0);
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(destroyed.calls, 1);
    assert_int_equal(destroyed.last.struct_size, sizeof(destroyed.last));
    assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_ALL].peak, 0);
    env_close(allocator);
    assert_int_equal(destroyed.calls, 1);
}

/* PyTorch releases a pool, and then empties it. */
TEST_EACH(a_released_pool_is_trimmed_by_name, env_open(config), ENV_KINDS)
{
    struct xseg_pool *pool = observed_pool(allocator);

    void *allocated = env_alloc_in(allocator, pool, 512, NULL);
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_trim_pool(allocator, pool).released, 40 * MIB);
    assert_int_equal(destroyed.calls, 0);
    env_free(allocator, allocated);
    assert_int_equal(destroyed.calls, 0);
    const struct xseg_trim_result result = env_trim_pool(allocator, pool);
    assert_int_equal(result.released, 2 * MIB);
    assert_int_equal(result.remaining, 0);
    assert_int_equal(destroyed.calls, 1);
    assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_ALL].peak, 42 * MIB);
    assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_SMALL].freed, 2 * MIB);
    assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_LARGE].freed, 40 * MIB);
    assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(destroyed.last.allocation[XSEG_STAT_ALL].allocated, 2);
    /* The memory of the default pool is not released. */
    assert_int_equal(env_reserved(allocator), 20 * MIB);
}

/* The pool is destroyed before the trim continues with the other devices. */
TEST_ON(a_trim_that_destroys_its_pool_names_all_devices, env_open_sim(NULL, .devices = 2))
{
    struct xseg_pool *pool = observed_pool(allocator);

    env_free(allocator, env_alloc_on(allocator, 1, 40 * MIB));
    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_trim_pool(allocator, pool).released, 40 * MIB);
    assert_int_equal(destroyed.calls, 1);
}

TEST(custom_memory_is_freed_before_the_pool_is_destroyed)
{
    enum { TRIM, MEMORY_PRESSURE, CLOSE, CLOSE_OF_RETAINED, CAUSES };

    for (unsigned cause = 0; cause < CAUSES; cause++) {
        struct xseg_allocator *allocator = env_open_mib(128, NULL);

        env_context_push(0); /* the functions call the driver */
        struct xseg_pool *pool = custom_pool(allocator);

        env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
        if (cause != CLOSE_OF_RETAINED)
            assert_ok(xseg_pool_release(pool));
        assert_int_equal(destroyed.calls + destroyed.frees, 0);
        if (cause == TRIM)
            env_empty_cache(allocator);
        if (cause == MEMORY_PRESSURE)
            env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
        if (cause == TRIM || cause == MEMORY_PRESSURE)
            assert_int_equal(destroyed.calls, 1);
        assert_ok(xseg_close(allocator));
        env_context_pop(0);
        assert_int_equal(destroyed.calls, 1);
        assert_int_equal(destroyed.frees_before_call, 1);
        assert_int_equal(destroyed.last.reserved_bytes[XSEG_STAT_ALL].freed, 60 * MIB);
    }
}

static void fail_call_of_another_allocator(void *context, const struct xseg_statistics *last)
{
    struct xseg_allocator *second_allocator = *(struct xseg_allocator **)context;

    (void)last;
    assert_int_equal(xseg_free(second_allocator, &second_allocator), XSEG_ERR_NOT_ALLOCATED);
}

/* A request reclaims the memory of the pool and fails.  A call in the callback fails as well; the message of the request is
 * kept. */
TEST_ON(error_message_survives_the_destroy_callback, env_open_mib(128, NULL))
{
    struct xseg_allocator *second_allocator = NULL;

    assert_ok(env_try_open(NULL, &second_allocator));
    struct xseg_pool *pool = env_pool_of(allocator, .on_destroy = fail_call_of_another_allocator,
                                         .on_destroy_context = &second_allocator);
    env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    assert_error(env_try_alloc(allocator, 200 * MIB, NULL), NO_MEMORY, "200.00 MiB");
    assert_ok(xseg_close(second_allocator));
}

/* In a capture, custom memory functions may make calls that the capture forbids to its thread. */
TEST(custom_functions_serve_a_capture)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream_on(0);

    env_context_push(0);
    struct xseg_pool *pool = custom_pool(allocator);

    env_capture_begin(pool, stream);
    void *ptr = env_alloc(allocator, 60 * MIB, stream);
    assert_ptr_equal(env_block(allocator, ptr).pool, pool);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(destroyed.frees, 1);
    env_context_pop(0);
    assert_ok(xseg_close(allocator));
    env_stream_destroy_on(0, stream);
}

TEST(destruction_is_notified_once)
{
    enum { POOLS = 200 };
    static struct destroy_record records[POOLS];
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pools[POOLS];

    for (unsigned i = 0; i < POOLS; i++) {
        pools[i] =
            env_pool_of(allocator, .on_destroy = record_destroy, .on_destroy_context = &records[i]);
        env_free(allocator, env_alloc_in(allocator, pools[i], 512, NULL));
    }
    for (unsigned i = 0; i < POOLS; i += 2)
        assert_ok(xseg_pool_release(pools[i]));
    env_empty_cache(allocator);
    for (unsigned i = 0; i < POOLS; i++)
        assert_int_equal(records[i].calls, 1 - i % 2);
    env_close(allocator);
    for (unsigned i = 0; i < POOLS; i++) {
        assert_int_equal(records[i].calls, 1);
        assert_int_equal(records[i].last.reserved_bytes[XSEG_STAT_SMALL].peak, 2 * MIB);
    }
}

static void reset(struct xseg_allocator *allocator, struct xseg_pool *pool, unsigned counters)
{
    assert_ok(xseg_stats_reset(allocator, env_scope(.device = -1, .pool = pool), counters));
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

/* The values equal PyTorch's reserved_bytes_by_private_pools after the same calls. */
TEST_EACH(pool_statistics_equal_those_of_pytorch, env_open(config), ENV_KINDS)
{
    /* 30 MiB are on two pages of 20 MiB, or in one classic segment. */
    const uint64_t large = i == 0 ? 40 * MIB : 30 * MIB, small = 2 * MIB, all = large + small;
    struct xseg_pool *pool = observed_pool(allocator);
    void *large_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    void *small_block = env_alloc_in(allocator, pool, 512, NULL);
    struct xseg_statistics stats = env_pool_stats(allocator, pool);

    expect_reserved(&stats, XSEG_STAT_ALL, all, all, all, 0);
    expect_reserved(&stats, XSEG_STAT_SMALL, small, small, small, 0);
    expect_reserved(&stats, XSEG_STAT_LARGE, large, large, large, 0);
    env_free(allocator, large_block);
    reset(allocator, pool, XSEG_RESET_PEAK);
    reset(allocator, pool, XSEG_RESET_ACCUMULATED);
    /* The statistics of the device are not reset. */
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].allocated, all);
    stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, all, all, 0, 0);
    expect_reserved(&stats, XSEG_STAT_SMALL, small, small, 0, 0);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 0);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, small, all, 0, large);
    expect_reserved(&stats, XSEG_STAT_LARGE, 0, large, 0, large);
    expect_reserved(&stats, XSEG_STAT_SMALL, small, small, 0, 0);
    env_free(allocator, small_block);
    env_empty_cache(allocator);
    assert_int_equal(destroyed.calls, 1);
    expect_reserved(&destroyed.last, XSEG_STAT_ALL, 0, all, 0, all);
    expect_reserved(&destroyed.last, XSEG_STAT_LARGE, 0, large, 0, large);
    expect_reserved(&destroyed.last, XSEG_STAT_SMALL, 0, small, 0, small);
}

TEST_IN_POOL(peak_reset_sets_the_reserved_bytes, env_open(NULL))
{
    void *allocated = env_alloc_in(allocator, pool, 512, NULL);
    env_free(allocator, env_alloc_in(allocator, pool, 60 * MIB, NULL));
    (void)env_trim_pool(allocator, pool);
    struct xseg_statistics stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 2 * MIB, 62 * MIB, 62 * MIB, 60 * MIB);
    reset(allocator, pool, XSEG_RESET_PEAK);
    stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 2 * MIB, 2 * MIB, 62 * MIB, 60 * MIB);
    expect_reserved(&stats, XSEG_STAT_LARGE, 0, 0, 60 * MIB, 60 * MIB);
    /* The peaks of small and large blocks are at different times, so the total peak is less than their sum. */
    env_free(allocator, env_alloc_in(allocator, pool, 20 * MIB, NULL));
    stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 22 * MIB, 22 * MIB, 82 * MIB, 60 * MIB);
    env_free(allocator, allocated);
}

/* Cached memory of a released pool belongs to the pool until it is reclaimed. */
TEST_EACH(statistics_of_a_released_pool_can_be_read, env_open(config), ENV_KINDS)
{
    struct xseg_pool *pool = observed_pool(allocator), *second_pool = env_pool(allocator);

    env_free(allocator, env_alloc_in(allocator, pool, 40 * MIB, NULL));
    env_free(allocator, env_alloc_in(allocator, pool, 512, NULL));
    env_free(allocator, env_alloc_in(allocator, second_pool, 20 * MIB, NULL));
    assert_ok(xseg_pool_release(second_pool));
    assert_ok(xseg_pool_release(pool));
    struct xseg_statistics stats = env_pool_stats(allocator, pool);
    expect_reserved(&stats, XSEG_STAT_ALL, 42 * MIB, 42 * MIB, 42 * MIB, 0);
    expect_reserved(&stats, XSEG_STAT_LARGE, 40 * MIB, 40 * MIB, 40 * MIB, 0);
    expect_reserved(&stats, XSEG_STAT_SMALL, 2 * MIB, 2 * MIB, 2 * MIB, 0);
    assert_int_equal(stats.segment[XSEG_STAT_ALL].current, i == 0 ? 0 : 2);
    assert_int_equal(stats.physical_bytes, 42 * MIB);
    reset(allocator, pool, XSEG_RESET_PEAK);
    assert_int_equal(destroyed.calls, 0);
    (void)env_trim_pool(allocator, pool);
    assert_int_equal(destroyed.calls, 1);
    assert_int_equal(env_reserved(allocator), 20 * MIB);
}

/* --- Pools with one page for each block (single_page). --- */

/* Entry points of the driver, by their plain C types. */
int cuMemGetAddressRange_v2(unsigned long long *base, size_t *bytes, unsigned long long ptr);
int cuMemRetainAllocationHandle(unsigned long long *handle, void *ptr);
int cuMemRelease(unsigned long long handle);

/* Query the allocation of the driver at an address. */
static void query_driver(const void *address, unsigned long long *base, size_t *bytes)
{
    env_context_push(0);
    assert_int_equal(cuMemGetAddressRange_v2(base, bytes, (uintptr_t)address), 0);
    env_context_pop(0);
}

static struct xseg_pool *single_page_pool(struct xseg_allocator *allocator, uint64_t limit)
{
    return env_pool_of(allocator, .single_page = true, .limit_bytes = limit);
}

/* A test with an allocator and a pool of single pages. */
#define TEST_OF_SINGLE_PAGES(name, open)                                             \
    static void name##_in(struct xseg_allocator *allocator, struct xseg_pool *pool); \
    TEST_ON(name, open)                                                              \
    {                                                                                \
        name##_in(allocator, single_page_pool(allocator, 0));                        \
    }                                                                                \
    static void name##_in(struct xseg_allocator *allocator, struct xseg_pool *pool)

static uint64_t round_up_to_pages(uint64_t bytes)
{
    return (bytes + 2 * MIB - 1) / (2 * MIB) * (2 * MIB);
}

/* Expect that the block is exactly one allocation of the driver. */
static void expect_single(const char *block, uint64_t bytes)
{
    unsigned long long base = 0, first = 0, last = 0;
    size_t size = 0;

    query_driver(block + bytes - 1, &base, &size);
    assert_int_equal(base, (uintptr_t)block);
    assert_int_equal(size, round_up_to_pages(bytes));
    assert_int_equal(cuMemRetainAllocationHandle(&first, (void *)(uintptr_t)block), 0);
    assert_int_equal(cuMemRetainAllocationHandle(&last, (void *)((uintptr_t)block + bytes - 1)), 0);
    assert_int_equal(first, last);
    assert_int_equal(cuMemRelease(first), 0);
    assert_int_equal(cuMemRelease(last), 0);
}

static bool add_padding(void *context, const struct xseg_reason *reason)
{
    uint64_t *padding = context;

    *padding += reason->is_single_page && reason->block != NULL
                    ? reason->block_bytes - reason->block_requested
                    : 0;
    return true;
}

static bool add_single(void *context, const struct xseg_mapping *mapping)
{
    uint64_t *bytes = context;

    if (mapping->is_single_page) {
        assert_int_equal(mapping->page_bytes, mapping->bytes);
        *bytes += mapping->bytes;
    }
    return true;
}

/* Only the allocated large block of the pool has padding: 5 MiB + 100 bytes are one page of 6 MiB. */
TEST_OF_SINGLE_PAGES(explain_reports_the_cost_of_single_pages, env_open("expandable_segments:True"))
{
    struct xseg_explain_result sums = {sizeof(sums)};
    uint64_t padding = 0, single_page_bytes = 0;

    char *const default_block = env_alloc(allocator, 3 * MIB, NULL);
    char *const small = env_alloc_in(allocator, pool, 1000, NULL);
    char *const block = env_alloc_in(allocator, pool, 5 * MIB + 100, NULL);
    env_free(allocator, env_alloc_in(allocator, pool, 31 * MIB, NULL));
    assert_ok(xseg_explain(allocator, NULL, add_padding, &padding, &sums));
    assert_int_equal(sums.single_page_padding, MIB - 100);
    assert_int_equal(padding, MIB - 100);
    assert_ok(xseg_for_each_mapping(allocator, NULL, add_single, &single_page_bytes));
    assert_int_equal(single_page_bytes, (6 + 32) * MIB); /* the allocated and the cached block */
    env_free(allocator, default_block, small, block);
}

TEST_ON(large_block_is_one_page, env_open("expandable_segments:True"))
{
    static const size_t sizes[] = {MIB + 1, 2 * MIB, 21 * MIB, 140 * MIB, 1000 * MIB + 512};
    struct xseg_pool *pool = single_page_pool(allocator, 0);
    char *block[COUNT_OF(sizes)];

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const uint64_t creates = xseg_sim_calls("cuMemCreate");

        block[i] = env_alloc_in(allocator, pool, sizes[i], NULL);
        assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, 1);
        assert_int_equal(env_block(allocator, block[i]).bytes, round_up_to_pages(sizes[i]));
        assert_int_equal(env_block(allocator, block[i]).requested, sizes[i]);
    }
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_single(block[i], sizes[i]);
        env_free(allocator, block[i]);
    }
}

TEST_IN_POOL(single_page_can_be_set_before_the_first_block, env_open("expandable_segments:True"))
{
    assert_ok(xseg_pool_set(pool, XSEG_POOL_SINGLE_PAGE, true));
    char *const block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect_single(block, 30 * MIB);
    env_free(allocator, block);
    env_empty_cache(allocator);
    assert_error(xseg_pool_set(pool, XSEG_POOL_SINGLE_PAGE, false), BUSY, "has served a request");
    char *const second = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect_single(second, 30 * MIB);
    env_free(allocator, second);
}

TEST_OF_SINGLE_PAGES(small_blocks_share_pages, env_open("expandable_segments:True"))
{
    char *first = env_alloc_in(allocator, pool, 1000, NULL);
    char *second = env_alloc_in(allocator, pool, 1000, NULL);

    assert_ptr_equal(second, first + 1024);
    env_free(allocator, first, second);
}

TEST_OF_SINGLE_PAGES(alignment_is_that_of_the_page, env_open("expandable_segments:True"))
{
    void *first = env_alloc_in(allocator, pool, 30 * MIB, NULL), *block = NULL;

    env_free(allocator, first);
    block = env_alloc_with(allocator, .pool = pool, .bytes = 30 * MIB, .alignment = GIB);
    assert_int_equal((uintptr_t)block % GIB, 0);
    assert_int_equal(env_block(allocator, block).bytes, 30 * MIB);
    expect_single(block, 30 * MIB);
    env_free(allocator, block);
}

TEST_OF_SINGLE_PAGES(cached_page_is_not_split_for_a_similar_size,
                     env_open("expandable_segments:True"))
{
    char *first = env_alloc_in(allocator, pool, 100 * MIB, NULL);

    env_free(allocator, first);
    /* A cached page serves a request that is shorter by less than 20 MiB (max_non_split_rounding_mb). */
    assert_ptr_equal(env_alloc_in(allocator, pool, 81 * MIB, NULL), first);
    assert_int_equal(env_block(allocator, first).bytes, 100 * MIB);
    env_free(allocator, first);
    char *smaller = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    assert_ptr_not_equal(smaller, first);
    expect_single(smaller, 80 * MIB);
    env_free(allocator, smaller);
}

TEST_OF_SINGLE_PAGES(single_page_is_allocated_at_its_address_only,
                     env_open("expandable_segments:True"))
{
    char *first = env_alloc_in(allocator, pool, 100 * MIB, NULL);
    void *block = NULL;

    env_free(allocator, first);
    assert_error(xseg_alloc_at(pool, 40 * MIB, NULL, first + 20 * MIB, &block), BUSY,
                 "not the start of a single page");
    assert_ok(xseg_alloc_at(pool, 40 * MIB, NULL, first, &block));
    assert_int_equal(env_block(allocator, block).bytes, 100 * MIB);
    env_free(allocator, block);
}

/* Idle pages of a released pool are released to the driver for other requests. */
TEST_OF_SINGLE_PAGES(pages_of_a_released_pool_serve_other_pools,
                     env_open_mib(256, "expandable_segments:True"))
{
    env_free(allocator, env_alloc_in(allocator, pool, 200 * MIB, NULL));
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, env_alloc(allocator, 240 * MIB, NULL));
}

/* Addresses are reused for pages of the same size; addresses of other sizes are freed before new ones are reserved. */
TEST_OF_SINGLE_PAGES(addresses_are_reused_or_freed, env_open("expandable_segments:True"))
{
    uint64_t max = 0;

    for (unsigned i = 0; i < 200; i++) {
        void *first = env_alloc_in(allocator, pool, (40 + 2 * i) * MIB, NULL);

        env_free(allocator, first);
        (void)env_trim_pool(allocator, pool);
        void *second = env_alloc_in(allocator, pool, (40 + 2 * i) * MIB, NULL);
        assert_ptr_equal(second, first);
        env_free(allocator, second);
        (void)env_trim_pool(allocator, pool);
        const uint64_t addresses = env_stats(allocator).address_bytes;
        max = addresses > max ? addresses : max;
    }
    /* The largest page has 438 MiB. */
    assert_true(max <= 500 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_OF_SINGLE_PAGES(resumed_pool_has_single_pages, env_open("expandable_segments:True"))
{
    char *block = env_alloc_in(allocator, pool, 140 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    assert_ok(xseg_pool_resume(pool));
    expect_single(block, 140 * MIB);
    env_free(allocator, block);
}

TEST_TIMES(idle_pages_of_other_sizes_are_released, 3, env_open_mib(256, "expandable_segments:True"))
{
    /* The idle memory is in the pool itself, in the default pool, or in the pool itself at the limit of the pool. */
    struct xseg_pool *pool = single_page_pool(allocator, i == 2 ? 210 * MIB : 0);
    void *idle = i == 1 ? env_alloc(allocator, 160 * MIB, NULL)
                        : env_alloc_in(allocator, pool, 160 * MIB, NULL);

    env_free(allocator, idle);
    char *block = env_alloc_in(allocator, pool, 200 * MIB, NULL);
    expect_single(block, 200 * MIB);
    env_free(allocator, block);
}

TEST_ON(failed_single_page_is_rolled_back, env_open_mib(256, "expandable_segments:True"))
{
    void *block = NULL;

    struct xseg_pool *pool = single_page_pool(allocator, 0);
    const uint64_t before = env_stats(allocator).address_bytes;
    assert_int_equal(env_try_alloc_in(allocator, pool, 300 * MIB, &block), XSEG_ERR_NO_MEMORY);
    assert_int_equal(env_stats(allocator).address_bytes, before);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_OF_SINGLE_PAGES(classic_segments_serve_single_page_pools,
                     env_open("expandable_segments:False"))
{
    char *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);
    unsigned long long base = 0;
    size_t size = 0;

    query_driver(block, &base, &size);
    assert_true(base <= (uintptr_t)block && base + size >= (uintptr_t)block + 40 * MIB);
    env_free(allocator, block);
}
