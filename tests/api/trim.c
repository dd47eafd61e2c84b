/* SPDX-License-Identifier: MIT */
/* Trims: released and kept pages, and driver calls.  Prewarming.  The page cache. */
#include <string.h>

#include "tests/support/env.h"

/* A byte of contents that other pools must not observe. */
#define SECRET 0x5e

/* A growth sets the access of all pages in one call, and a trim unmaps a run of pages in one call. */
TEST_ON(runs_are_batched, env_open("expandable_segments:True"))
{
    env_free(allocator, env_alloc(allocator, 512, NULL));
    uint64_t creates = xseg_sim_calls("cuMemCreate"), accesses = xseg_sim_calls("cuMemSetAccess");
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    /* 8 GiB / 20 MiB, rounded up, are 410 pages. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, 410);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess") - accesses, 1);
    uint64_t unmaps = xseg_sim_calls("cuMemUnmap"), releases = xseg_sim_calls("cuMemRelease");
    env_empty_cache(allocator);
    /* The run of 410 large pages, and the small page. */
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 2);
    assert_int_equal(xseg_sim_calls("cuMemRelease") - releases, 410 + 1);
}

TEST_ON(pages_are_unmapped_singly_if_the_driver_rejects_batches,
        env_open_sim("expandable_segments:True", .single_mapping_calls = true))
{
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 100 / 20);
    assert_int_equal(env_reserved(allocator), 0);
}

/* A trim waits for busy streams only with the option `wait`. */
TEST_ON(busy_streams_keep_their_memory, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 50 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    /* 50 MiB are on three pages of 20 MiB, and 30 MiB on two. */
    struct xseg_trim_result result = env_trim(allocator);
    assert_int_equal(result.kept_busy, 60 * MIB);
    assert_int_equal(result.released, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    result = env_trim_with(allocator, NULL, .wait = true);
    assert_int_equal(result.released, 60 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
}

TEST_ON(trim_of_one_stream_keeps_other_streams, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 50 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    struct xseg_trim_result result = {sizeof(result)};
    assert_ok(xseg_trim(allocator, env_scope(.device = 0, .one_stream = true, .stream = stream),
                        NULL, &result));
    assert_int_equal(result.released, 60 * MIB);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
}

/* A trim of a retained pool releases its memory, unless a graph may use it. */
TEST_ON(trim_of_one_pool_keeps_other_pools, env_open(NULL))
{
    struct xseg_pool *pool = env_pool(allocator), *graph_pool = env_pool(allocator);
    struct xseg_trim_result result = {sizeof(result)};
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    void *block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    env_free(allocator, block);
    env_capture_begin(graph_pool, stream);
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    struct CUgraph_st *graph = env_capture_end_graph(graph_pool, stream);
    assert_int_equal(env_reserved(allocator), (40 + 60 + 20) * MIB);
    struct xseg_scope scope = {sizeof(scope), .device = -1, .pool = graph_pool};
    assert_ok(xseg_trim(allocator, &scope, NULL, &result));
    assert_int_equal(result.kept_pool, 20 * MIB);
    /* No memory of the other pool is old enough for idle_ms. */
    scope.pool = pool;
    struct xseg_trim_options old_only = {sizeof(old_only), .idle_ms = 1000000};
    assert_ok(xseg_trim(allocator, &scope, &old_only, &result));
    assert_int_equal(result.kept_by_options, 60 * MIB);
    assert_ok(xseg_trim(allocator, &scope, NULL, &result));
    assert_int_equal(result.released, 60 * MIB);
    assert_int_equal(result.remaining, 0);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    /* The pool still serves requests. */
    block = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    env_free(allocator, block);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(graph_pool));
    env_graph_destroy(graph);
}

/* A request of prewarmed memory is a hit, and prewarmed memory does not count as allocated. */
TEST(prewarmed_memory_serves_as_a_hit)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    assert_error(xseg_prewarm(allocator, &scope, MIB), ARGUMENT, "device -1 does not exist");
    scope.device = 0;
    assert_ok(xseg_prewarm(allocator, &scope, 0));
    assert_ok(xseg_prewarm(allocator, &scope, 70 * MIB));
    assert_ok(xseg_prewarm(allocator, &scope, 100));
    struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, (4 * 20 + 2) * MIB);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_ALL].peak, 0);
    /* Nothing is mapped for 80 MiB, which are cached. */
    uint64_t calls = xseg_sim_calls(NULL);
    assert_ok(xseg_prewarm(allocator, &scope, 80 * MIB));
    void *ptr = env_alloc(allocator, 75 * MIB, NULL);
    env_free(allocator, env_alloc(allocator, 900 * KIB, NULL));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_error(xseg_prewarm(allocator, &scope, 90 * GIB), NO_MEMORY, "out of memory on device 0");
    env_free(allocator, ptr);
    env_close(allocator);

    allocator = env_open("expandable_segments:False");
    /* A classic segment of 10 MiB or more is rounded up to a multiple of 2 MiB. */
    assert_ok(xseg_prewarm(allocator, &scope, 15 * MIB));
    assert_int_equal(env_stats(allocator).segment[XSEG_STAT_ALL].current, 1);
    assert_int_equal(env_reserved(allocator), 16 * MIB);
    env_close(allocator);
}

TEST_ON(full_device_releases_its_cached_segments, env_open_mib(200, "expandable_segments:False"))
{
    env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
    void *ptr = env_alloc(allocator, 150 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_error(env_try_alloc(allocator, 100 * MIB, NULL), NO_MEMORY,
                 "50.00 MiB of 200.00 MiB free");
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    env_free(allocator, ptr);
}

TEST_ON(failed_releases_are_retried, env_open("expandable_segments:True"))
{
    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    struct xseg_trim_result result = env_trim_with(allocator, NULL, .wait = true);
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_failed, 20 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(env_stats(allocator).unreleased_bytes, 20 * MIB);
    assert_int_equal(env_stats(allocator).physical_bytes, xseg_sim_used(0));
    result = env_trim_with(allocator, NULL, .wait = true);
    assert_int_equal(result.kept_failed, 0);
    assert_int_equal(env_stats(allocator).physical_bytes, 0);
}

TEST_ON(age_of_a_page_is_that_of_its_last_free,
        env_open_with_clock(NULL, "expandable_segments:True"))
{
    void *early = env_alloc(allocator, 8 * MIB, NULL), *late = env_alloc(allocator, 12 * MIB, NULL);
    struct xseg_trim_result result = {sizeof(result)};
    struct xseg_trim_options options = {sizeof(options), .idle_ms = 1000};

    assert_ok(xseg_trim(allocator, NULL, &options, &result));
    env_free(allocator, early);
    xseg_sim_advance(2000 * UINT64_C(1000000));
    assert_ok(xseg_trim(allocator, NULL, &options, &result));
    env_free(allocator, late);
    assert_ok(xseg_trim(allocator, NULL, &options, &result));
    assert_int_equal(result.released, 0);
    assert_int_equal(result.kept_by_options, 20 * MIB);
    xseg_sim_advance(2000 * UINT64_C(1000000));
    assert_ok(xseg_trim(allocator, NULL, &options, &result));
    assert_int_equal(result.released, 20 * MIB);
}

/* If a wait for one stream fails, the trim returns an error and releases the memory of other streams. */
TEST_ON(failed_wait_keeps_the_memory_of_one_stream, env_open("expandable_segments:True"))
{
    const struct xseg_trim_options options = {.struct_size = sizeof(options), .wait = true};
    struct xseg_trim_result result = {sizeof(result)};
    const xseg_stream side = env_stream();
    void *pending = env_alloc(allocator, 30 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 50 * MIB, side));
    assert_ok(xseg_sim_launch(side, 1000000));
    assert_ok(xseg_record_stream(allocator, pending, side));
    env_free(allocator, pending);
    env_fail_every("cuEventSynchronize", 999);
    assert_int_equal(xseg_trim(allocator, NULL, &options, &result), XSEG_ERR_DRIVER);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    assert_int_equal(env_block(allocator, pending).state, XSEG_BLOCK_PENDING_FREE);
}

/* --- The page cache, and the contents of its pages. --- */

static struct xseg_allocator *open_with_clock(size_t mib, const char *config)
{
    return env_open_sim_with_clock(config, .memory_bytes = mib * MIB);
}

/* Expect the reserved memory and the page cache of device 0, in MiB, and no other physical memory. */
static void expect_mib(struct xseg_allocator *allocator, uint64_t reserved_mib, uint64_t idle_mib)
{
    const struct xseg_statistics stats = env_stats(allocator);

    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, reserved_mib * MIB);
    assert_int_equal(stats.idle_page_bytes, idle_mib * MIB);
    assert_int_equal(stats.physical_bytes, (reserved_mib + idle_mib) * MIB);
    assert_int_equal(stats.physical_bytes, xseg_sim_used(0));
}

/* Free memory and let it decay. */
static void free_and_decay(struct xseg_allocator *allocator, size_t bytes, xseg_stream stream)
{
    env_free(allocator, env_alloc(allocator, bytes, stream));
    env_advance_and_trim(allocator, 30, 10);
}

TEST_ON(page_cache_is_off_by_default, open_with_clock(4096, "idle_ms:100"))
{
    free_and_decay(allocator, 200 * MIB, NULL);
    expect_mib(allocator, 0, 0);
}

TEST_ON(page_cache_is_bounded_and_used_first,
        open_with_clock(4096, "idle_ms:100,page_cache_mb:100"))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool(allocator);

    free_and_decay(allocator, 200 * MIB, NULL);
    expect_mib(allocator, 0, 100);
    const uint64_t creates = xseg_sim_calls("cuMemCreate"),
                   releases = xseg_sim_calls("cuMemRelease");
    /* The page cache serves another stream and another pool. */
    void *stream_block = env_alloc(allocator, 60 * MIB, stream);
    void *pool_block = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    expect_mib(allocator, 100, 0);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), releases);
    env_free(allocator, stream_block, pool_block);
    env_advance_and_trim(allocator, 30, 10);
    /* The pool is retained, so it keeps its memory. */
    expect_mib(allocator, 40, 60);
    assert_ok(xseg_pool_release(pool));
    env_advance_and_trim(allocator, 30, 10);
    expect_mib(allocator, 0, 100);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), releases);
}

TEST_ON(trims_release_the_page_cache, open_with_clock(4096, "idle_ms:100,page_cache_mb:100"))
{
    struct xseg_trim_result result = {sizeof(result)};
    const xseg_stream stream = env_stream();

    free_and_decay(allocator, 100 * MIB, NULL);
    /* A trim of one stream does not release the page cache. */
    assert_ok(xseg_trim(allocator, env_scope(.device = 0, .one_stream = true, .stream = stream),
                        NULL, &result));
    expect_mib(allocator, 0, 100);
    /* A trim to a target releases the page cache first. */
    env_free(allocator, env_alloc(allocator, 60 * MIB, stream));
    free_and_decay(allocator, 10 * MIB, NULL);
    expect_mib(allocator, 0, 100);
    env_free(allocator, env_alloc(allocator, 60 * MIB, stream));
    result = env_trim_with(allocator, NULL, .target_bytes = 80 * MIB);
    assert_int_equal(result.released, 20 * MIB);
    assert_int_equal(result.kept_by_options, 80 * MIB);
    assert_int_equal(result.remaining, 80 * MIB);
    expect_mib(allocator, 60, 20);
    assert_ok(xseg_trim(allocator, NULL, NULL, &result));
    assert_int_equal(result.released, 80 * MIB);
    expect_mib(allocator, 0, 0);
}

TEST_ON(trim_by_age_releases_old_cached_pages, open_with_clock(4096, "idle_ms:0,page_cache_mb:400"))
{
    void *ptr[2] = {env_alloc(allocator, 100 * MIB, NULL), env_alloc(allocator, 60 * MIB, NULL)};

    for (unsigned i = 0; i < COUNT_OF(ptr); i++) {
        env_free(allocator, ptr[i]);
        env_advance_and_trim(allocator, 100, 10);
    }
    expect_mib(allocator, 0, 160);
    const struct xseg_trim_result result = env_trim_with(allocator, NULL, .idle_ms = 1500);
    assert_int_equal(result.released, 100 * MIB);
    assert_int_equal(result.kept_by_options, 60 * MIB);
    expect_mib(allocator, 0, 60);
}

/* A limit reclaims from the page cache first. */
TEST_ON(limits_include_the_page_cache, open_with_clock(4096, "idle_ms:100,page_cache_mb:200"))
{
    void *growth = NULL;

    void *allocated = env_alloc(allocator, 100 * MIB, NULL);
    free_and_decay(allocator, 200 * MIB, NULL);
    expect_mib(allocator, 100, 200);
    assert_ok(xseg_config_set(allocator, "soft_limit_mb:180"));
    env_advance_and_trim(allocator, 1, 10);
    expect_mib(allocator, 100, 80);
    /* A growth from the page cache needs no device memory. */
    assert_ok(xseg_config_set(allocator, "hard_limit_mb:180"));
    growth = env_alloc(allocator, 80 * MIB, NULL);
    expect_mib(allocator, 180, 0);
    env_free(allocator, growth, allocated);
    env_advance_and_trim(allocator, 30, 10);
    expect_mib(allocator, 0, 180);
    assert_ok(xseg_config_set(allocator, "page_cache_mb:40"));
    expect_mib(allocator, 0, 40);
}

/* Pages of 20 MiB in the page cache are released for pages of 2 MiB, and these for a classic segment. */
TEST_EACH(page_cache_does_not_fail_requests, open_with_clock(i == 0 ? 4096 : 200, config),
          "idle_ms:100,page_cache_mb:200,hard_limit_mb:200", "idle_ms:100,page_cache_mb:200")
{
    void *small[180];

    free_and_decay(allocator, 200 * MIB, NULL);
    expect_mib(allocator, 0, 200);
    for (unsigned j = 0; j < COUNT_OF(small); j++)
        small[j] = env_alloc(allocator, MIB, NULL);
    assert_int_equal(env_reserved(allocator), 180 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_true(xseg_sim_peak(0) <= 200 * MIB);
    for (unsigned j = 0; j < COUNT_OF(small); j++)
        env_free(allocator, small[j]);
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    env_free(allocator, env_alloc(allocator, 150 * MIB, NULL));
}

/* With unmap_on_free a block of 3 MiB has two pages of 2 MiB, which move to the page cache. */
TEST_ON(unmapped_blocks_are_recycled, open_with_clock(4096, "unmap_on_free:True,page_cache_mb:10"))
{
    env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    expect_mib(allocator, 0, 4);
    const uint64_t creates = xseg_sim_calls("cuMemCreate");
    for (unsigned i = 0; i < 10; i++)
        env_free(allocator, env_alloc(allocator, 3 * MIB, NULL));
    assert_int_equal(xseg_sim_calls("cuMemCreate"), creates);
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    expect_mib(allocator, 0, 10);
}

static struct xseg_allocator *open_with_bytes(const char *config)
{
    return env_open_sim_with_clock(config, .memory_bytes = 256 * MIB, .real_bytes = true);
}

/* Write secrets into a block of a pool, and release the pool, so that the pages of the block move to the page cache. */
static void write_secrets(struct xseg_allocator *allocator, struct xseg_pool *pool, size_t bytes)
{
    void *ptr = env_alloc_in(allocator, pool, bytes, NULL);

    memset(ptr, SECRET, bytes);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    env_advance_and_trim(allocator, 30, 10);
}

static size_t count_secrets(const void *ptr, size_t bytes)
{
    const unsigned char *byte = ptr;
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += byte[i] == SECRET;
    return count;
}

TEST_IN_POOL(resumed_pool_has_no_contents_of_other_pools,
             open_with_bytes("idle_ms:100,page_cache_mb:100"))
{
    void *block = env_alloc_in(allocator, pool, 40 * MIB, NULL);

    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    write_secrets(allocator, env_pool(allocator), 40 * MIB);
    assert_int_equal(env_stats(allocator).idle_page_bytes, 40 * MIB);
    assert_ok(xseg_pool_resume(pool));
    assert_int_equal(count_secrets(block, 40 * MIB), 0);
    expect_mib(allocator, 40, 40);
    env_free(allocator, block);
}
