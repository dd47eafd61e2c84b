/* SPDX-License-Identifier: MIT */
/* Giving memory back: which pages go, which stay, and with how many driver calls. */
#include "tests/support/env.h"

static struct xseg_trim_result trim(struct xseg_allocator *allocator, bool wait)
{
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options how = {sizeof(how), .wait = wait};

    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    return done;
}

/* A growth of many pages takes one set-access, and a run of many pages goes with one unmap. */
TEST(runs_are_batched)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    uint64_t creates, accesses, unmaps, releases;

    env_free(allocator, env_alloc(allocator, 512, NULL));
    creates = xseg_sim_calls("cuMemCreate");
    accesses = xseg_sim_calls("cuMemSetAccess");
    env_free(allocator, env_alloc(allocator, 8 * GIB, NULL));
    assert_int_equal(xseg_sim_calls("cuMemCreate") - creates, 410);
    assert_int_equal(xseg_sim_calls("cuMemSetAccess") - accesses, 1);
    unmaps = xseg_sim_calls("cuMemUnmap");
    releases = xseg_sim_calls("cuMemRelease");
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 2);
    assert_int_equal(xseg_sim_calls("cuMemRelease") - releases, 411);
    env_close(allocator);
}

/* Where the driver wants its calls one by one, it gets them, and nothing else changes. */
TEST(one_by_one_where_the_driver_refuses)
{
    struct xseg_sim_settings settings = {sizeof(settings), .single_mapping_calls = true};
    struct xseg_allocator *allocator;
    uint64_t unmaps;

    allocator = env_open_on(&settings, "expandable_segments:True");
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    unmaps = xseg_sim_calls("cuMemUnmap");
    env_empty_cache(allocator);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 5);
    assert_int_equal(env_reserved(allocator), 0);
    env_close(allocator);
}

/* Trim never waits unless told to: memory of a stream that still works stays. */
TEST(busy_streams_keep_their_memory)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream();
    struct xseg_trim_result done;

    env_free(allocator, env_alloc(allocator, 50 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    done = trim(allocator, false);
    assert_int_equal(done.kept_busy, 60 * MIB);
    assert_int_equal(done.released, 40 * MIB);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    done = trim(allocator, true);
    assert_int_equal(done.released, 60 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
    env_close(allocator, stream);
}

TEST(one_stream_alone)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream();
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_result done = {sizeof(done)};

    env_free(allocator, env_alloc(allocator, 50 * MIB, stream));
    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    where.device = 0;
    where.one_stream = true;
    where.stream = stream;
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.released, 60 * MIB);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    env_close(allocator, stream);
}

/* A pool that is held goes on request, unless a graph may use what is cached there. */
TEST(one_pool_alone)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = env_pool(allocator), *graphs = env_pool(allocator);
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options by_age = {sizeof(by_age)};
    const xseg_stream stream = env_stream();
    void *ptr = NULL;

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    env_free(allocator, ptr);
    env_capture_begin(graphs, stream);
    env_free(allocator, env_alloc(allocator, 20 * MIB, stream));
    struct CUgraph_st *graph = env_capture_end_graph(graphs, stream);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    where.pool = graphs;
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.kept_pool, 20 * MIB);
    where.pool = pool;
    by_age.idle_ms = 1000000;
    assert_ok(xseg_trim(allocator, &where, &by_age, &done));
    assert_int_equal(done.kept_by_options, 60 * MIB);
    assert_ok(xseg_trim(allocator, &where, NULL, &done));
    assert_int_equal(done.released, 60 * MIB);
    assert_int_equal(done.remaining, 0);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    /* The pool goes on serving. */
    ptr = env_alloc_in(allocator, pool, 50 * MIB, NULL);
    env_free(allocator, ptr);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(graphs));
    env_graph_destroy(graph);
    env_close(allocator, stream);
}

/* What was made ready is a hit, and was no allocation. */
TEST(prewarmed_memory_is_ready)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats;
    void *ptr;
    uint64_t calls;

    env_expect_error(xseg_prewarm(allocator, &where, MIB), XSEG_ERR_ARGUMENT,
                     "device -1 does not exist");
    where.device = 0;
    assert_ok(xseg_prewarm(allocator, &where, 0));
    assert_ok(xseg_prewarm(allocator, &where, 70 * MIB));
    assert_ok(xseg_prewarm(allocator, &where, 100));
    stats = env_stats(allocator);
    assert_int_equal(stats.reserved_bytes[XSEG_STAT_ALL].current, 82 * MIB);
    assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_ALL].peak, 0);
    calls = xseg_sim_calls(NULL);
    assert_ok(xseg_prewarm(allocator, &where, 80 * MIB));
    ptr = env_alloc(allocator, 75 * MIB, NULL);
    env_free(allocator, env_alloc(allocator, 900 * KIB, NULL));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    env_expect_error(xseg_prewarm(allocator, &where, 90 * GIB), XSEG_ERR_NO_MEMORY,
                     "out of memory on device 0");
    env_free(allocator, ptr);
    env_close(allocator);

    allocator = env_open("expandable_segments:False");
    assert_ok(xseg_prewarm(allocator, &where, 15 * MIB));
    assert_int_equal(env_stats(allocator).segment[XSEG_STAT_ALL].current, 1);
    assert_int_equal(env_reserved(allocator), 16 * MIB);
    env_close(allocator);
}

/* On a full device the cache is given back, and the request is served. */
TEST(a_full_device_gives_back_its_cache)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 200 * MIB};
    struct xseg_allocator *allocator;
    void *ptr = NULL;

    allocator = env_open_on(&settings, "expandable_segments:False");
    env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
    ptr = env_alloc(allocator, 150 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    env_expect_error(xseg_alloc(allocator, 0, 100 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "50.00 MiB of 200.00 MiB free");
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* The limit counts the pages that would really be mapped, not the request. */
TEST(the_limit_counts_pages)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1200 * MIB};
    struct xseg_allocator *allocator;
    void *a, *b, *c = NULL;

    allocator = env_open_on(&settings, "expandable_segments:True,per_process_memory_fraction:0.1");
    assert_int_equal(env_stats(allocator).limit_bytes, 120 * MIB);
    a = env_alloc(allocator, 85 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    /* 100 mapped, 15 of them free at the end: 30 more need one page more, which just fits. */
    b = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    env_expect_error(xseg_alloc(allocator, 0, 6 * MIB, NULL, &c), XSEG_ERR_LIMIT,
                     "per_process_memory_fraction");
    env_free(allocator, a, b);
    env_close(allocator);
}

/* What the driver refuses to take back stays counted, and goes with the next trim. */
TEST(refused_pages_are_not_lost)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_trim_result done;

    env_free(allocator, env_alloc(allocator, 20 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    done = trim(allocator, true);
    assert_int_equal(done.released, 0);
    assert_int_equal(done.kept_failed, 20 * MIB);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(env_stats(allocator).unreleased_bytes, 20 * MIB);
    assert_int_equal(env_stats(allocator).physical_bytes, xseg_sim_used(0));
    done = trim(allocator, true);
    assert_int_equal(done.kept_failed, 0);
    assert_int_equal(env_stats(allocator).physical_bytes, 0);
    env_close(allocator);
}

/* A page that two blocks lay on has been idle since the second of them went. */
TEST(a_page_is_idle_since_its_last_block_went)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "expandable_segments:True");
    void *early = env_alloc(allocator, 8 * MIB, NULL), *late = env_alloc(allocator, 12 * MIB, NULL);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_trim_options how = {sizeof(how), .idle_ms = 1000};

    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    env_free(allocator, early);
    xseg_sim_advance(2000 * UINT64_C(1000000));
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    env_free(allocator, late);
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    assert_int_equal(done.released, 0);
    assert_int_equal(done.kept_by_options, 20 * MIB);
    xseg_sim_advance(2000 * UINT64_C(1000000));
    assert_ok(xseg_trim(allocator, NULL, &how, &done));
    assert_int_equal(done.released, 20 * MIB);
    env_close(allocator);
}

/* A trim that cannot wait for one stream says so, and gives back what belongs to the others. */
TEST(a_wait_that_fails_keeps_one_stream_only)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    const struct xseg_trim_options options = {.struct_size = sizeof(options), .wait = true};
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    const xseg_stream side = env_stream();
    void *used = env_alloc(allocator, 30 * MIB, NULL);

    env_free(allocator, env_alloc(allocator, 50 * MIB, side));
    assert_ok(xseg_sim_launch(side, 1000000));
    assert_ok(xseg_record_stream(allocator, used, side));
    env_free(allocator, used);
    fault.call = "cuEventSynchronize";
    fault.every = 1;
    fault.error = 999;
    assert_ok(xseg_sim_fault_set(0, &fault));
    assert_int_equal(xseg_trim(allocator, NULL, &options, &done), XSEG_ERR_DRIVER);
    assert_ok(xseg_sim_fault_set(0, NULL));
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_int_equal(env_block(allocator, used).state, XSEG_BLOCK_PENDING_FREE);
    env_close(allocator, side);
}
