/* SPDX-License-Identifier: MIT */
/* When memory runs short: rung by rung, and what each takes. */
#include "tests/support/env.h"

#include <stdio.h>
#include <string.h>

/* The example E10: all that is free belongs to another stream.  Its pages move; nothing is flushed. */
TEST(idle_pages_of_another_stream_move)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, stream);

    env_free(allocator, ptr);
    const uint64_t created = xseg_sim_calls("cuMemCreate"),
                   released = xseg_sim_calls("cuMemRelease");
    ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), created);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), released);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 0);
    /* Three full pages moved, the other seven are where they were. */
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    env_free(allocator, ptr);
    env_close(allocator, stream);
}

/* A stream that works is waited for only if the idle ones do not have enough. */
TEST(idle_streams_give_first)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream busy = env_stream(), idle = env_stream();
    void *of_busy = env_alloc(allocator, 100 * MIB, busy);
    void *of_idle = env_alloc(allocator, 100 * MIB, idle), *first, *second;

    env_free(allocator, of_busy, of_idle);
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)of_busy, 100 * MIB));
    first = env_alloc(allocator, 80 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    second = env_alloc(allocator, 80 * MIB, NULL);
    assert_true(xseg_sim_calls("cuStreamSynchronize") > 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, first, second);
    env_close(allocator, busy, idle);
}

/* The last pages are small: exactly what is missing, and both pools can use them. */
TEST(the_last_pages_are_small)
{
    struct xseg_allocator *allocator = env_open_mib(48, "expandable_segments:True");
    void *large = env_alloc(allocator, 39 * MIB, NULL), *more, *small[2];

    assert_int_equal(env_reserved(allocator), 40 * MIB);
    more = env_alloc(allocator, 5 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 44 * MIB);
    small[0] = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_reserved(allocator), 46 * MIB);
    env_free(allocator, more);
    /* The small pool grows by the pages that the large one does not need. */
    small[1] = env_alloc(allocator, 1 * MIB, NULL);
    void *others[4];
    for (unsigned i = 0; i < COUNT_OF(others); i++)
        others[i] = env_alloc(allocator, 1 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    for (unsigned i = 0; i < COUNT_OF(others); i++)
        env_free(allocator, others[i]);
    env_free(allocator, small[0], small[1], large);
    env_close(allocator);
}

/* If all that is idle would not do, nothing moves. */
TEST(too_little_is_not_taken)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *live = env_alloc(allocator, 100 * MIB, NULL), *idle, *ptr = NULL;

    idle = env_alloc(allocator, 60 * MIB, stream);
    env_free(allocator, idle);
    const uint64_t unmapped = xseg_sim_calls("cuMemUnmap");
    env_expect_error(xseg_alloc(allocator, 0, 150 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "out of memory on device 0");
    /* Only the last rung, which gives everything back, has unmapped. */
    assert_true(xseg_sim_calls("cuMemUnmap") - unmapped <= 1);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_free(allocator, live);
    env_close(allocator, stream);
}

/* What a flush gave back does not do for the lowest hole, but for the place that lacks the least. */
TEST(after_a_flush_the_cheapest_place_is_tried)
{
    struct xseg_allocator *allocator = env_open_mib(60, "expandable_segments:True");
    struct xseg_trim_result done = {sizeof(done)};
    void *live[2], *hole, *ptr;

    live[0] = env_alloc(allocator, 20 * MIB, NULL);
    hole = env_alloc(allocator, 20 * MIB, NULL);
    live[1] = env_alloc(allocator, 15 * MIB, NULL);
    env_free(allocator, hole);
    /* The page stays with the driver until the flush, which then gets half of it. */
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.kept_failed, 20 * MIB);
    assert_ok(xseg_sim_set_external_memory(0, 10 * MIB));
    /* Behind the second block 5 MiB are cached. */
    ptr = env_alloc(allocator, 12 * MIB, NULL);
    assert_ptr_equal(ptr, (char *)live[1] + 15 * MIB);
    assert_int_equal(env_reserved(allocator), 48 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    env_free(allocator, ptr, live[0], live[1]);
    assert_ok(xseg_sim_set_external_memory(0, 0));
    env_close(allocator);
}

/* A wait fails, and the one of the flush does not: then there is a block that no page can be taken of. */
TEST(what_a_flush_waited_for_is_searched)
{
    struct xseg_allocator *allocator = env_open_mib(20, "expandable_segments:True");
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    const xseg_stream side = env_stream();
    void *pending = env_alloc(allocator, 15 * MIB, NULL),
         *live = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, pending, side));
    env_launch(allocator, side, pending);
    env_free(allocator, pending);
    /* An event that cannot be waited for is recorded again once. */
    fault.call = "cuEventSynchronize";
    fault.error = 999;
    for (unsigned i = 0; i < 2; i++) {
        fault.nth = i + 1;
        assert_ok(xseg_sim_fault_set(i, &fault));
    }
    assert_ptr_equal(env_alloc(allocator, 14 * MIB, NULL), pending);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    env_free(allocator, pending, live);
    env_close(allocator, side);
}

/* A held pool's memory stays, whatever is short: a graph may use it. */
TEST(held_pools_are_left_alone)
{
    struct xseg_allocator *allocator = env_open_mib(100, "expandable_segments:True");
    struct xseg_pool *pool = NULL;
    void *inside = NULL, *ptr = NULL;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    inside = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    env_free(allocator, inside);
    env_expect_error(xseg_alloc(allocator, 0, 40 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "out of memory on device 0");
    assert_int_equal(env_block(allocator, inside).state, XSEG_BLOCK_CACHED);
    assert_ok(xseg_pool_release(pool));
    ptr = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* A full page that nobody has room for goes back, and small ones are made of its memory. */
TEST(a_full_page_becomes_small_ones)
{
    struct xseg_allocator *allocator = env_open_mib(40, "expandable_segments:True");
    const xseg_stream stream = env_stream();
    void *small[3];

    env_free(allocator, env_alloc(allocator, 40 * MIB, stream));
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        small[i] = env_alloc(allocator, 1 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemRelease") - 2, 1); /* two were the trial's */
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        env_free(allocator, small[i]);
    env_close(allocator, stream);
}

/* PyTorch #123548: a small block at the fence, blocks above max_split_size_mb, many cycles. */
TEST(large_blocks_are_used_again_and_again)
{
    struct xseg_allocator *allocator = env_open_mib(
        6000, "expandable_segments:True,max_split_size_mb:128,per_process_memory_fraction:0.1");

    assert_int_equal(env_stats(allocator).limit_bytes, 600 * MIB);
    for (unsigned cycle = 0; cycle < 100; cycle++) {
        void *large = env_alloc(allocator, (200 + cycle) * MIB, NULL);
        void *fence = env_alloc(allocator, 2 * MIB, NULL);

        env_free(allocator, large);
        large = env_alloc(allocator, (210 + cycle) * MIB, NULL);
        env_free(allocator, large, fence);
    }
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_true(env_reserved(allocator) <= 600 * MIB);
    env_close(allocator);
}

/* Old blocks go when more than a part of the limit is taken, young ones stay. */
TEST(garbage_goes_by_age)
{
    struct xseg_allocator *allocator =
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.5");
    void *old = env_alloc(allocator, 60 * MIB, NULL), *young = env_alloc(allocator, 70 * MIB, NULL);
    void *ptr;

    env_free(allocator, old);
    for (unsigned i = 0; i < 10; i++) {
        ptr = env_alloc(allocator, 75 * MIB, NULL);
        env_free(allocator, ptr);
    }
    env_free(allocator, young);
    ptr = env_alloc(allocator, 80 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_device_free, 0);
    void *more = env_alloc(allocator, 90 * MIB, NULL);
    /* 60 + 70 + 76 + 80 MiB were above 250: the old one went, the young ones did not. */
    assert_int_equal(env_stats(allocator).num_device_free, 1);
    env_expect_error(xseg_free(allocator, old), XSEG_ERR_NOT_ALLOCATED, "");
    assert_int_equal(env_block(allocator, young).state, XSEG_BLOCK_CACHED);
    env_free(allocator, ptr, more);
    env_close(allocator);
}

/* A request is one tick of the clock that garbage ages by, also when it has to grow. */
TEST(garbage_ages_by_requests)
{
    struct xseg_allocator *allocator =
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.8");
    void *ptr[4], *live[3];

    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, (60 + 2 * i) * MIB, NULL);
    env_free(allocator, ptr[3], ptr[0]);
    live[0] = env_alloc(allocator, 80 * MIB, NULL);
    live[1] = env_alloc(allocator, 90 * MIB, NULL);
    env_free(allocator, ptr[1]);
    assert_ptr_equal(env_alloc(allocator, 66 * MIB, NULL), ptr[3]);
    env_free(allocator, ptr[3], ptr[2]);
    /* Ages 4, 2, 1, 1: the first two are no younger than the average. */
    live[2] = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), (64 + 66 + 80 + 90 + 100) * MIB);
    for (unsigned i = 0; i < COUNT_OF(live); i++)
        env_free(allocator, live[i]);
    env_close(allocator);
}

/* What is as old as the average goes; that is a fraction.  Sizes and answer are PyTorch's. */
TEST(garbage_is_older_than_a_fraction)
{
    static const struct {
        size_t bytes;
        unsigned stream;
        int frees[2]; /* afterwards; -1: none */
    } step[] = {
        {376395767, 2, {0, -1}},  {383929245, 2, {-1, -1}}, {370177667, 0, {-1, -1}},
        {328418171, 2, {-1, -1}}, {391149466, 1, {3, 2}},   {16248739, 1, {1, -1}},
        {53751803, 0, {-1, -1}},  {132038346, 1, {4, 6}},   {235385954, 0, {-1, -1}},
        {284479322, 1, {-1, -1}}, {283538157, 0, {-1, -1}},
    };
    struct xseg_allocator *allocator =
        env_open("expandable_segments:False,per_process_memory_fraction:0.1,"
                 "garbage_collection_threshold:0.3,max_split_size_mb:100");
    const xseg_stream stream[] = {NULL, env_stream(), env_stream()};
    void *ptr[COUNT_OF(step)];

    for (unsigned i = 0; i < COUNT_OF(step); i++) {
        ptr[i] = env_alloc(allocator, step[i].bytes, stream[step[i].stream]);
        for (unsigned j = 0; j < 2 && step[i].frees[j] >= 0; j++) {
            env_free(allocator, ptr[step[i].frees[j]]);
            ptr[step[i].frees[j]] = NULL;
        }
    }
    assert_int_equal(env_reserved(allocator), 1788870656);
    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        if (ptr[i] != NULL)
            env_free(allocator, ptr[i]);
    env_close(allocator, stream[1], stream[2]);
}

/* Many pools, each with a small and a large segment: their ranges get shorter, all of them work. */
TEST(six_hundred_segments_fit)
{
    enum { POOLS = 300 };
    struct xseg_allocator *allocator = env_open(NULL);
    static struct xseg_pool *pool[POOLS];
    static void *ptr[POOLS][3];

    for (unsigned i = 0; i < POOLS; i++) {
        assert_ok(xseg_pool_create(allocator, 0, NULL, &pool[i]));
        ptr[i][0] = env_alloc_in(allocator, pool[i], 1000, NULL);
        ptr[i][1] = env_alloc_in(allocator, pool[i], 5 * MIB, NULL);
    }
    assert_true(env_stats(allocator).address_bytes <= (uint64_t)33 << 40);
    /* Ten GiB in one of the last ones: a chain, or a range that is long enough. */
    ptr[0][2] = env_alloc_in(allocator, pool[POOLS - 1], 10 * GIB, NULL);
    env_free(allocator, ptr[0][2]);
    for (unsigned i = 0; i < POOLS; i++) {
        env_free(allocator, ptr[i][0], ptr[i][1]);
        assert_ok(xseg_pool_release(pool[i]));
    }
    env_close(allocator);
}

/* Ranges are as long as asked for, and longer for a request that would not fit; others follow. */
TEST(ranges_may_be_shorter)
{
    static const char *const config[] = {"expandable_segments_reserve:2G",
                                         "expandable_segments_reserve:0.025"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open(config[i]);
        void *ptr[3];

        ptr[0] = env_alloc(allocator, 1500 * MIB, NULL);
        assert_int_equal(env_block(allocator, ptr[0]).segment_bytes / MIB, 2060);
        ptr[1] = env_alloc(allocator, 1500 * MIB, NULL);
        assert_ptr_not_equal(env_block(allocator, ptr[1]).segment_base,
                             env_block(allocator, ptr[0]).segment_base);
        ptr[2] = env_alloc(allocator, 5 * GIB, NULL);
        assert_int_equal(env_block(allocator, ptr[2]).segment_bytes / MIB, 5120);
        for (unsigned j = 0; j < COUNT_OF(ptr); j++)
            env_free(allocator, ptr[j]);
        env_close(allocator);
    }
}

/* A driver that has few addresses gets by with short ranges. */
TEST(few_addresses_are_enough)
{
    struct xseg_sim_settings settings = {sizeof(settings), .address_bytes = 6 * GIB};
    void *small, *large, *ptr = NULL;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    small = env_alloc(allocator, 1000, NULL);
    large = env_alloc(allocator, 2 * GIB, NULL);
    assert_true(env_stats(allocator).address_bytes <= 6 * GIB);
    env_expect_error(xseg_alloc(allocator, 0, 5 * GIB, NULL, &ptr), XSEG_ERR_NO_ADDRESSES,
                     "cuMemAddressReserve");
    env_free(allocator, small, large);
    env_close(allocator);
}

/* Once memory has been short an event is asked about where its block can serve, and on every miss. */
TEST(events_are_asked_about_where_it_helps)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    const xseg_stream side = env_stream(), own = env_stream();
    void *pending = env_alloc(allocator, 30 * MIB, side), *ptr = NULL;
    uint64_t asked;

    env_free(allocator, env_alloc(allocator, 50 * MIB, own));
    assert_ok(xseg_record_stream(allocator, pending, own));
    assert_ok(xseg_sim_launch(own, UINT64_MAX));
    env_free(allocator, pending);
    asked = xseg_sim_calls("cuEventQuery");
    env_free(allocator, env_alloc(allocator, 5 * MIB, own));
    assert_int_equal(xseg_sim_calls("cuEventQuery") - asked, 1);
    ptr = env_alloc(allocator, 150 * MIB, own);
    env_free(allocator, ptr);
    assert_ok(xseg_record_stream(allocator, pending = env_alloc(allocator, 30 * MIB, side), own));
    assert_ok(xseg_sim_launch(own, UINT64_MAX));
    env_free(allocator, pending);
    asked = xseg_sim_calls("cuEventQuery");
    for (unsigned i = 0; i < 10; i++)
        env_free(allocator, env_alloc(allocator, 5 * MIB, own));
    assert_int_equal(xseg_sim_calls("cuEventQuery"), asked);
    /* An allocation on the block's own stream asks. */
    ptr = env_alloc(allocator, 2 * MIB, side);
    env_free(allocator, ptr);
    assert_int_equal(env_block(allocator, pending).state, XSEG_BLOCK_PENDING_FREE);
    assert_true(xseg_sim_calls("cuEventQuery") > asked);
    assert_ok(xseg_sim_finish(own));
    ptr = env_alloc(allocator, 2 * MIB, side);
    assert_int_not_equal(env_block(allocator, pending).state, XSEG_BLOCK_PENDING_FREE);
    env_free(allocator, ptr);
    env_close(allocator, side, own);
}

static void keep_line(void *context, enum xseg_log_level level, const char *line)
{
    char *kept = context;

    if (level == XSEG_LOG_WARNING)
        (void)snprintf(kept + strlen(kept), 1024 - strlen(kept), "%s\n", line);
}

/* Without addresses for a segment, classic ones take just what they need; that is said once. */
TEST(without_addresses_segments_are_classic)
{
    struct xseg_sim_settings settings = {sizeof(settings), .address_bytes = 2 * GIB};
    struct xseg_options options = {sizeof(options)};
    struct xseg_allocator *allocator = NULL;
    char lines[1024] = "";
    void *large, *small, *ptr, *other, *none = NULL;

    assert_ok(xseg_sim_reset(&settings));
    options.driver = env_driver();
    options.log = keep_line;
    options.log_context = lines;
    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    large = env_alloc(allocator, 5 * MIB, NULL);
    assert_true(env_block(allocator, large).is_expandable);
    assert_string_equal(lines, "");
    xseg_sim_set_external_addresses(GIB - 100 * MIB);
    small = env_alloc(allocator, 1000, NULL);
    assert_false(env_block(allocator, small).is_expandable);
    assert_non_null(strstr(lines, "out of virtual addresses for expandable segments"));
    const size_t said = strlen(lines);
    ptr = env_alloc(allocator, 1 * MIB, NULL);
    other = env_alloc(allocator, 2 * MIB, NULL);
    assert_true(env_block(allocator, other).is_expandable);
    assert_int_equal(strlen(lines), said);
    /* What no segment has room for fails, and memory has not been short. */
    env_expect_error(xseg_alloc(allocator, 0, 2 * GIB, NULL, &none), XSEG_ERR_NO_ADDRESSES, "");
    env_free(allocator, ptr, other, small, large);
    env_close(allocator);
}

/* A growth that fails maps nothing.  Addresses that were reserved for it serve the next one. */
TEST(a_refused_growth_leaves_its_addresses)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    void *ptr = NULL;

    (void)env_stats(allocator);
    assert_ok(xseg_sim_set_external_memory(0, 200 * MIB));
    env_expect_error(xseg_alloc(allocator, 0, 50 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY, "");
    assert_null(ptr);
    const uint64_t addresses = env_stats(allocator).address_bytes;
    assert_int_not_equal(addresses, 0);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_sim_set_external_memory(0, 0));
    const uint64_t reserves = xseg_sim_calls("cuMemAddressReserve");
    ptr = env_alloc(allocator, 50 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), reserves);
    assert_int_equal(env_stats(allocator).address_bytes, addresses);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* page_size:small has no page of 20 MiB, so a request takes what it needs, to 2 MiB, at any time. */
TEST(all_pages_may_be_small)
{
    struct xseg_allocator *allocator = env_open_mib(200, "page_size:small");
    void *ptr = env_alloc(allocator, 5 * MIB, NULL), *more;

    assert_int_equal(env_reserved(allocator), 6 * MIB);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - 2, 3); /* two were the trial's */
    more = env_alloc(allocator, 41 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 46 * MIB);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(env_reserved(allocator), 42 * MIB);
    env_free(allocator, more);
    env_close(allocator);
}

/* With the key a growth past the device is refused at once; what is cached is served. */
TEST(a_growth_past_the_device_is_rejected)
{
    struct xseg_allocator *allocator =
        env_open_mib(100, "expandable_segments:True,throw_on_cudamalloc_oom:True");
    void *idle = env_alloc(allocator, 60 * MIB, NULL), *ptr = NULL;

    env_free(allocator, idle);
    const uint64_t calls = xseg_sim_calls("cuMemUnmap");
    env_expect_error(xseg_alloc(allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                     "out of memory on device 0");
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), calls);
    assert_int_equal(env_stats(allocator).num_oom_rejections, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_ptr_equal(env_alloc(allocator, 60 * MIB, NULL), idle);
    env_free(allocator, idle);
    env_close(allocator);
}

/* The fraction of rejections is that of the configuration, or of xseg_limits_set(); a limit below it refuses first. */
TEST(a_growth_past_the_fraction_of_rejections_is_rejected)
{
    static const char *const kind[] = {"expandable_segments:True", "expandable_segments:False"};

    for (unsigned i = 0; i < COUNT_OF(kind); i++) {
        char config[128];

        (void)snprintf(config, sizeof(config),
                       "%s,throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5", kind[i]);
        struct xseg_allocator *allocator = env_open_mib(200, config);
        struct xseg_scope where = XSEG_SCOPE_ALL;
        struct xseg_limits limits = XSEG_LIMITS_INIT;
        void *ptr = NULL;

        where.device = 0;
        env_expect_error(xseg_alloc(allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_LIMIT,
                         "per_process_memory_fraction");
        assert_int_equal(env_stats(allocator).num_ooms, 1);
        assert_int_equal(env_stats(allocator).num_oom_rejections, 0);
        /* Without the limit the fraction of rejections is still that of the configuration. */
        assert_ok(xseg_limits_get(allocator, &where, &limits));
        assert_true(limits.has_rejection_fraction && limits.rejection_fraction == 0.5);
        limits.fraction = 1;
        assert_ok(xseg_limits_set(allocator, &where, &limits));
        env_expect_error(xseg_alloc(allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_LIMIT,
                         "throw_on_cudamalloc_oom rejects the request on device 0, 120.00 MiB "
                         "requested, limit 0.5 of the device");
        assert_int_equal(env_stats(allocator).num_ooms, 1);
        assert_int_equal(env_stats(allocator).num_oom_rejections, 1);
        assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
        limits.rejection_fraction = 0.8;
        assert_ok(xseg_limits_set(allocator, &where, &limits));
        env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
        /* What is cached serves, and without the key nothing is rejected. */
        limits.rejection_fraction = 0;
        assert_ok(xseg_limits_set(allocator, &where, &limits));
        env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
        env_empty_cache(allocator);
        env_expect_error(xseg_alloc(allocator, 0, 120 * MIB, NULL, &ptr), XSEG_ERR_LIMIT,
                         "throw_on_cudamalloc_oom rejects the request on device 0, 120.00 MiB "
                         "requested, limit 0 of the device");
        assert_ok(xseg_config_set(allocator, "throw_on_cudamalloc_oom:False"));
        env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
        limits.rejection_fraction = 1.5;
        env_expect_error(xseg_limits_set(allocator, &where, &limits), XSEG_ERR_ARGUMENT,
                         "rejection_fraction is out of range, 1.5; ");
        env_close(allocator);
    }
}

/* The sentence says where the memory is, and what would have helped. */
TEST(the_error_says_where_the_memory_is)
{
    struct xseg_allocator *allocator = env_open_mib(200, "expandable_segments:True");
    struct xseg_pool *pool = NULL;
    void *live = env_alloc(allocator, 50 * MIB, NULL), *inside = NULL, *ptr = NULL;
    const char *const word[] = {"100.00 MiB requested", "50.00 MiB allocated",
                                "120.00 MiB cached by private pools", "10.00 MiB fragmented",
                                "release unused private pools"};

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    inside = env_alloc_in(allocator, pool, 120 * MIB, NULL);
    env_free(allocator, inside);
    for (unsigned i = 0; i < COUNT_OF(word); i++)
        env_expect_error(xseg_alloc(allocator, 0, 100 * MIB, NULL, &ptr), XSEG_ERR_NO_MEMORY,
                         word[i]);
    env_free(allocator, live);
    env_close(allocator);
}

/* Two pages of 20 MiB, each with 11 MiB cached beside a live block: on small pages 20 of the 22 can move. */
TEST(the_error_says_when_small_pages_would_do)
{
    static const char *const config[] = {"page_size:fixed", "page_size:small"};

    for (unsigned i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open_mib(40, config[i]);
        void *block[4], *ptr = NULL;

        for (unsigned j = 0; j < COUNT_OF(block); j++)
            block[j] = env_alloc(allocator, (j % 2 == 0 ? 11 : 9) * MIB, NULL);
        env_free(allocator, block[0], block[2]);
        const xseg_status status = xseg_alloc(allocator, 0, 20 * MIB, NULL, &ptr);
        if (i == 0)
            env_expect_error(status, XSEG_ERR_NO_MEMORY, "page_size:small");
        else
            assert_ok(status);
        if (ptr != NULL)
            env_free(allocator, ptr);
        env_free(allocator, block[1], block[3]);
        env_close(allocator);
    }
}
