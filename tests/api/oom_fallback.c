/* SPDX-License-Identifier: MIT */
/* The out-of-memory fallback chain: its order, and what each step reclaims. */
#include <stdio.h>
#include <string.h>

#include "tests/support/env.h"

/* Pages that the probe of a device creates and releases. */
#define PROBE_PAGES 2

/* A request waits for a busy stream only if the memory of idle streams is insufficient. */
TEST_ON(idle_streams_are_reclaimed_first, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream busy = env_stream(), idle = env_stream();
    void *busy_block = env_alloc(allocator, 100 * MIB, busy);
    void *idle_block = env_alloc(allocator, 100 * MIB, idle);

    env_free(allocator, busy_block, idle_block);
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)busy_block, 100 * MIB));
    void *first = env_alloc(allocator, 80 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), 0);
    void *second = env_alloc(allocator, 80 * MIB, NULL);
    assert_true(xseg_sim_calls("cuStreamSynchronize") > 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free(allocator, first, second);
}

/* If no full page of 20 MiB fits, growth uses pages of 2 MiB for the missing size.  Both small and large segments use them. */
TEST_ON(growth_ends_with_small_pages, env_open_mib(48, "expandable_segments:True"))
{
    void *large = env_alloc(allocator, 39 * MIB, NULL), *small[2];

    assert_int_equal(env_reserved(allocator), 40 * MIB);
    /* 1 MiB is cached, so 5 MiB need two pages of 2 MiB. */
    void *last = env_alloc(allocator, 5 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 44 * MIB);
    small[0] = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_reserved(allocator), 46 * MIB);
    env_free(allocator, last);
    /* The small segment grows by the pages that the large segment does not need. */
    small[1] = env_alloc(allocator, 1 * MIB, NULL);
    void *more_small[4];
    for (unsigned i = 0; i < COUNT_OF(more_small); i++)
        more_small[i] = env_alloc(allocator, 1 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    env_free_all(allocator, more_small, sizeof(more_small));
    env_free(allocator, small[0], small[1], large);
}

TEST_ON(insufficient_idle_memory_is_not_remapped, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *allocated = env_alloc(allocator, 100 * MIB, NULL);

    /* 40 MiB are free, and 60 MiB idle. */
    void *idle = env_alloc(allocator, 60 * MIB, stream);
    env_free(allocator, idle);
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    assert_error(env_try_alloc(allocator, 150 * MIB, NULL), NO_MEMORY, "out of memory on device 0");
    /* Only the last step, which releases all idle memory, unmaps pages. */
    assert_true(xseg_sim_calls("cuMemUnmap") - unmaps <= 1);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_free(allocator, allocated);
}

TEST_ON(growth_after_a_flush_uses_the_cheapest_range, env_open_mib(60, "expandable_segments:True"))
{
    void *allocated[2];

    allocated[0] = env_alloc(allocator, 20 * MIB, NULL);
    void *middle = env_alloc(allocator, 20 * MIB, NULL);
    allocated[1] = env_alloc(allocator, 15 * MIB, NULL);
    env_free(allocator, middle);
    /* The release of the middle page fails, so the page is unreleased until the flush retries its release. */
    assert_ok(xseg_sim_fail("cuMemRelease", 1, 999));
    assert_int_equal(env_trim(allocator).kept_failed, 20 * MIB);
    assert_ok(xseg_sim_set_external_memory(0, 10 * MIB));
    /* Others use 10 of the 20 MiB that the flush releases.  After the last block 5 MiB are cached, so 8 MiB are missing there;
     * the unmapped range in the middle would need 12 MiB. */
    void *ptr = env_alloc(allocator, 12 * MIB, NULL);
    assert_ptr_equal(ptr, (char *)allocated[1] + 15 * MIB);
    assert_int_equal(env_reserved(allocator), 48 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    env_free(allocator, ptr, allocated[0], allocated[1]);
    assert_ok(xseg_sim_set_external_memory(0, 0));
}

/* The wait for pending blocks fails, and the wait of the flush succeeds: the completed block serves the request. */
TEST_ON(blocks_completed_by_a_flush_are_searched, env_open_mib(20, "expandable_segments:True"))
{
    const xseg_stream side = env_stream();
    void *pending = env_alloc(allocator, 15 * MIB, NULL),
         *allocated = env_alloc(allocator, 5 * MIB, NULL);

    env_free_in_use(allocator, pending, side);
    /* After a failed wait an event is recorded again once, so two waits must fail. */
    for (unsigned i = 0; i < 2; i++)
        env_fault(i, .call = "cuEventSynchronize", .nth = i + 1, .error = 999);
    assert_ptr_equal(env_alloc(allocator, 14 * MIB, NULL), pending);
    assert_int_equal(xseg_sim_fault_count(1), 1);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    env_free(allocator, pending, allocated);
}

/* A graph may use the cached memory of a retained pool. */
TEST_ON(retained_pools_keep_their_memory, env_open_mib(100, "expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);

    void *pool_block = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    env_free(allocator, pool_block);
    assert_error(env_try_alloc(allocator, 40 * MIB, NULL), NO_MEMORY, "out of memory on device 0");
    assert_int_equal(env_block(allocator, pool_block).state, XSEG_BLOCK_CACHED);
    assert_ok(xseg_pool_release(pool));
    env_free(allocator, env_alloc(allocator, 40 * MIB, NULL));
}

/* The device is full of idle full pages of another stream. */
TEST_ON(full_page_is_replaced_by_small_pages, env_open_mib(40, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *small[3];

    env_free(allocator, env_alloc(allocator, 40 * MIB, stream));
    for (unsigned i = 0; i < COUNT_OF(small); i++)
        small[i] = env_alloc(allocator, 1 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemRelease") - PROBE_PAGES, 1);
    env_free_all(allocator, small, sizeof(small));
}

/* PyTorch #123548: cycles of blocks above max_split_size_mb, with a small block in between that prevents coalescing. */
TEST_ON(large_blocks_do_not_fragment_the_device,
        env_open_mib(
            6000, "expandable_segments:True,max_split_size_mb:128,per_process_memory_fraction:0.1"))
{
    assert_int_equal(env_stats(allocator).limit_bytes, 600 * MIB);
    for (unsigned cycle = 0; cycle < 100; cycle++) {
        void *large = env_alloc(allocator, (200 + cycle) * MIB, NULL);
        void *separator = env_alloc(allocator, 2 * MIB, NULL);

        env_free(allocator, large);
        large = env_alloc(allocator, (210 + cycle) * MIB, NULL);
        env_free(allocator, large, separator);
    }
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_true(env_reserved(allocator) <= 600 * MIB);
}

TEST_ON(garbage_collection_releases_old_blocks,
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.5"))
{
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
    void *last = env_alloc(allocator, 90 * MIB, NULL);
    /* 60 + 70 + 76 + 80 MiB exceed 250 MiB, half of the limit: the old block is released, and the younger blocks are not. */
    assert_int_equal(env_stats(allocator).num_device_free, 1);
    assert_error(xseg_free(allocator, old), NOT_ALLOCATED, "");
    assert_int_equal(env_block(allocator, young).state, XSEG_BLOCK_CACHED);
    env_free(allocator, ptr, last);
}

TEST_ON(garbage_collection_releases_pages_of_old_blocks,
        env_open_mib(1000, "expandable_segments:True,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.5"))
{
    void *old = env_alloc(allocator, 60 * MIB, NULL), *first = env_alloc(allocator, 20 * MIB, NULL);
    void *young = env_alloc(allocator, 80 * MIB, NULL);
    void *second = env_alloc(allocator, 20 * MIB, NULL), *ptr = NULL;

    env_free(allocator, old);
    for (unsigned i = 0; i < 10; i++) {
        ptr = env_alloc(allocator, 100 * MIB, NULL);
        env_free(allocator, ptr);
    }
    env_free(allocator, young);
    ptr = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), (60 + 20 + 80 + 20 + 100) * MIB);
    void *last = env_alloc(allocator, 120 * MIB, NULL);
    /* 280 MiB exceed 250 MiB, half of the limit: the pages of the old block are released, and the younger block is not. */
    assert_int_equal(env_reserved(allocator), (20 + 80 + 20 + 100 + 120) * MIB);
    assert_int_equal(env_block(allocator, young).state, XSEG_BLOCK_CACHED);
    assert_error(xseg_free(allocator, old), NOT_ALLOCATED, "");
    env_free(allocator, first, second, ptr, last);
}

/* The age of a cached block is the number of requests since its free, including requests that allocate from the driver. */
TEST_ON(garbage_ages_by_requests,
        env_open_mib(1000, "expandable_segments:False,per_process_memory_fraction:0.5,"
                           "garbage_collection_threshold:0.8"))
{
    void *block[4], *allocated[3];

    for (unsigned i = 0; i < COUNT_OF(block); i++)
        block[i] = env_alloc(allocator, (60 + 2 * i) * MIB, NULL);
    env_free(allocator, block[3], block[0]);
    allocated[0] = env_alloc(allocator, 80 * MIB, NULL);
    allocated[1] = env_alloc(allocator, 90 * MIB, NULL);
    env_free(allocator, block[1]);
    assert_ptr_equal(env_alloc(allocator, 66 * MIB, NULL), block[3]);
    env_free(allocator, block[3], block[2]);
    /* The ages of the blocks of 60, 62, 66 and 64 MiB are 4, 2, 1 and 1: those of at least the average are released. */
    allocated[2] = env_alloc(allocator, 100 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), (64 + 66 + 80 + 90 + 100) * MIB);
    env_free_all(allocator, allocated, sizeof(allocated));
}

/* The average age is a fraction.  Sizes and result are those of PyTorch. */
TEST_ON(garbage_age_threshold_is_a_fraction,
        env_open("expandable_segments:False,per_process_memory_fraction:0.1,"
                 "garbage_collection_threshold:0.3,max_split_size_mb:100"))
{
    static const struct {
        size_t bytes;
        unsigned stream;
        int frees[2]; /* blocks that are freed after the request, by step; -1: none */
    } step[] = {
        {376395767, 2, {0, -1}},  {383929245, 2, {-1, -1}}, {370177667, 0, {-1, -1}},
        {328418171, 2, {-1, -1}}, {391149466, 1, {3, 2}},   {16248739, 1, {1, -1}},
        {53751803, 0, {-1, -1}},  {132038346, 1, {4, 6}},   {235385954, 0, {-1, -1}},
        {284479322, 1, {-1, -1}}, {283538157, 0, {-1, -1}},
    };
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
    env_free_all(allocator, ptr, sizeof(ptr));
}

/* Each pool has a small and a large segment.  Segments become shorter while the address budget of the device, 32 TiB, is
 * used up; segments of the minimum size, 512 MiB, may exceed it. */
TEST_ON(many_segments_share_the_address_space, env_open(NULL))
{
    enum { POOLS = 300 };
    static struct xseg_pool *pool[POOLS];
    static void *ptr[POOLS][3];

    for (unsigned i = 0; i < POOLS; i++) {
        pool[i] = env_pool(allocator);
        ptr[i][0] = env_alloc_in(allocator, pool[i], 1000, NULL);
        ptr[i][1] = env_alloc_in(allocator, pool[i], 5 * MIB, NULL);
    }
    assert_true(env_stats(allocator).address_bytes <= (uint64_t)33 << 40);
    /* A request of 10 GiB exceeds the segment of the last pool. */
    ptr[0][2] = env_alloc_in(allocator, pool[POOLS - 1], 10 * GIB, NULL);
    env_free(allocator, ptr[0][2]);
    for (unsigned i = 0; i < POOLS; i++) {
        env_free(allocator, ptr[i][0], ptr[i][1]);
        assert_ok(xseg_pool_release(pool[i]));
    }
}

/* Eight devices, each with 300 streams that have a segment, share the address budget of all devices, 64 TiB. */
TEST_ON(segments_of_many_devices_share_the_address_space, env_open_sim(NULL, .devices = 8))
{
    enum { STREAMS = 300, DEVICES = 8 };
    static xseg_stream stream[DEVICES][STREAMS];
    static void *ptr[DEVICES][STREAMS];

    for (int device = 0; device < DEVICES; device++) {
        for (unsigned i = 0; i < STREAMS; i++) {
            stream[device][i] = env_stream_on(device);
            assert_ok(xseg_alloc(allocator, device, 5 * MIB, stream[device][i], &ptr[device][i]));
        }
    }
    for (int device = 0; device < DEVICES; device++) {
        for (unsigned i = 0; i < STREAMS; i++) {
            env_free(allocator, ptr[device][i]);
            assert_ok(xseg_stream_retire(allocator, device, stream[device][i]));
            env_stream_destroy_on(device, stream[device][i]);
        }
    }
}

/* A segment reserves the configured 2 GiB (0.025 of 80 GiB), or the size of a larger request, in whole pages of 20 MiB.  When
 * it is full, another segment is reserved. */
TEST_EACH(reserved_ranges_follow_the_key, env_open(config), "expandable_segments_reserve:2G",
          "expandable_segments_reserve:0.025")
{
    void *ptr[3];

    ptr[0] = env_alloc(allocator, 1500 * MIB, NULL);
    assert_int_equal(env_block(allocator, ptr[0]).segment_bytes / MIB, 103 * 20);
    ptr[1] = env_alloc(allocator, 1500 * MIB, NULL);
    assert_ptr_not_equal(env_block(allocator, ptr[1]).segment_base,
                         env_block(allocator, ptr[0]).segment_base);
    ptr[2] = env_alloc(allocator, 5 * GIB, NULL);
    assert_int_equal(env_block(allocator, ptr[2]).segment_bytes / MIB, 5 * 1024);
    env_free_all(allocator, ptr, sizeof(ptr));
}

/* If the driver has few addresses, segments are shorter. */
TEST_ON(few_addresses_are_sufficient, env_open_sim(NULL, .address_bytes = 6 * GIB))
{
    void *small = env_alloc(allocator, 1000, NULL), *large = env_alloc(allocator, 2 * GIB, NULL);
    assert_true(env_stats(allocator).address_bytes <= 6 * GIB);
    assert_error(env_try_alloc(allocator, 5 * GIB, NULL), NO_ADDRESSES, "cuMemAddressReserve");
    env_free(allocator, small, large);
}

/* After the first memory pressure, a request that the cache serves queries the events only of pending blocks that can serve
 * it as well. */
TEST_ON(events_are_queried_only_if_their_block_fits, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream block_stream = env_stream(), user_stream = env_stream();
    void *pending = env_alloc(allocator, 30 * MIB, block_stream);

    /* Before memory pressure each allocation queries the event. */
    env_free(allocator, env_alloc(allocator, 50 * MIB, user_stream));
    env_free_in_use(allocator, pending, user_stream);
    uint64_t queries = xseg_sim_calls("cuEventQuery");
    env_free(allocator, env_alloc(allocator, 5 * MIB, user_stream));
    assert_int_equal(xseg_sim_calls("cuEventQuery") - queries, 1);
    /* A request that causes memory pressure. */
    void *ptr = env_alloc(allocator, 150 * MIB, user_stream);
    env_free(allocator, ptr);
    /* Allocations on another stream than that of the block do not query the event. */
    pending = env_alloc(allocator, 30 * MIB, block_stream);
    assert_ok(xseg_record_stream(allocator, pending, user_stream));
    assert_ok(xseg_sim_launch(user_stream, UINT64_MAX));
    env_free(allocator, pending);
    queries = xseg_sim_calls("cuEventQuery");
    for (unsigned i = 0; i < 10; i++)
        env_free(allocator, env_alloc(allocator, 5 * MIB, user_stream));
    assert_int_equal(xseg_sim_calls("cuEventQuery"), queries);
    /* An allocation on the stream of the block queries the event. */
    ptr = env_alloc(allocator, 2 * MIB, block_stream);
    env_free(allocator, ptr);
    assert_int_equal(env_block(allocator, pending).state, XSEG_BLOCK_PENDING_FREE);
    assert_true(xseg_sim_calls("cuEventQuery") > queries);
    assert_ok(xseg_sim_finish(user_stream));
    ptr = env_alloc(allocator, 2 * MIB, block_stream);
    assert_int_not_equal(env_block(allocator, pending).state, XSEG_BLOCK_PENDING_FREE);
    env_free(allocator, ptr);
}

static void record_line(void *context, enum xseg_log_level level, const char *line)
{
    char *lines = context;

    if (level == XSEG_LOG_WARNING)
        (void)snprintf(lines + strlen(lines), 1024 - strlen(lines), "%s\n", line);
}

/* Without addresses for expandable segments, classic segments are allocated, and one warning is logged. */
TEST(segments_are_classic_without_addresses)
{
    struct xseg_allocator *allocator = NULL;
    const struct xseg_sim_settings settings = {sizeof(settings), .address_bytes = 2 * GIB};
    char lines[1024] = "";

    assert_ok(xseg_sim_reset(&settings));
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = record_line,
                                   .log_context = lines};
    assert_ok(xseg_open("expandable_segments:True", &options, &allocator));
    /* Segments reserve whole GiB: the large segment has addresses, and less than a GiB remains for the small segment. */
    void *large = env_alloc(allocator, 5 * MIB, NULL);
    assert_true(env_block(allocator, large).is_expandable);
    assert_string_equal(lines, "");
    xseg_sim_set_external_addresses(MIB);
    void *small = env_alloc(allocator, 1000, NULL);
    assert_false(env_block(allocator, small).is_expandable);
    assert_non_null(strstr(lines, "out of virtual addresses for expandable segments"));
    const size_t length = strlen(lines);
    void *small_1_mib = env_alloc(allocator, 1 * MIB, NULL),
         *large_2_mib = env_alloc(allocator, 2 * MIB, NULL);
    assert_true(env_block(allocator, large_2_mib).is_expandable);
    assert_int_equal(strlen(lines), length);
    /* A request that exceeds all addresses fails without memory pressure. */
    assert_error(env_try_alloc(allocator, 2 * GIB, NULL), NO_ADDRESSES, "");
    env_free(allocator, small_1_mib, large_2_mib, small, large);
    env_close(allocator);
}

TEST_ON(failed_growth_keeps_its_addresses, env_open_mib(200, "expandable_segments:True"))
{
    (void)env_stats(allocator);
    assert_ok(xseg_sim_set_external_memory(0, 200 * MIB));
    assert_error(env_try_alloc(allocator, 50 * MIB, NULL), NO_MEMORY, "");
    const uint64_t addresses = env_stats(allocator).address_bytes;
    assert_int_not_equal(addresses, 0);
    assert_int_equal(env_reserved(allocator), 0);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_ok(xseg_sim_set_external_memory(0, 0));
    const uint64_t reserves = xseg_sim_calls("cuMemAddressReserve");
    void *ptr = env_alloc(allocator, 50 * MIB, NULL);
    assert_int_equal(xseg_sim_calls("cuMemAddressReserve"), reserves);
    assert_int_equal(env_stats(allocator).address_bytes, addresses);
    env_free(allocator, ptr);
}

/* With page_size:small there are no pages of 20 MiB, so a request allocates its size, rounded up to 2 MiB. */
TEST_ON(all_pages_may_be_small, env_open_mib(200, "page_size:small"))
{
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);

    assert_int_equal(env_reserved(allocator), 6 * MIB);
    assert_int_equal(xseg_sim_calls("cuMemCreate") - PROBE_PAGES, 3);
    void *large = env_alloc(allocator, 41 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 46 * MIB);
    /* The third page has the last MiB of the first block, and the first MiB of the second block. */
    env_free(allocator, ptr);
    assert_int_equal(env_reserved_without_cache(allocator), 42 * MIB);
    env_free(allocator, large);
}

/* With throw_on_cudamalloc_oom a growth beyond the device memory is rejected without a retry; cached memory still serves
 * requests. */
TEST_ON(a_growth_past_the_device_is_rejected,
        env_open_mib(100, "expandable_segments:True,throw_on_cudamalloc_oom:True"))
{
    void *idle = env_alloc(allocator, 60 * MIB, NULL);

    env_free(allocator, idle);
    const uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    assert_error(env_try_alloc(allocator, 120 * MIB, NULL), NO_MEMORY, "out of memory on device 0");
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), unmaps);
    assert_int_equal(env_stats(allocator).num_oom_rejections, 1);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_ptr_equal(env_alloc(allocator, 60 * MIB, NULL), idle);
    env_free(allocator, idle);
}

#define HALF "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5"

/* The configuration or xseg_limits_set() sets the rejection fraction.  If a limit denies the request as well, the request
 * fails because of the limit. */
TEST_EACH(a_growth_past_the_fraction_of_rejections_is_rejected, env_open_mib(200, config),
          HALF ",expandable_segments:True", HALF ",expandable_segments:False")
{
    struct xseg_scope scope = {sizeof(scope), .device = 0};
    struct xseg_limits limits = XSEG_LIMITS_INIT;

    assert_error(env_try_alloc(allocator, 120 * MIB, NULL), LIMIT, "per_process_memory_fraction");
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    assert_int_equal(env_stats(allocator).num_oom_rejections, 0);
    /* Without the limit, the rejection fraction is still that of the configuration. */
    assert_ok(xseg_limits_get(allocator, &scope, &limits));
    assert_true(limits.has_rejection_fraction && limits.rejection_fraction == 0.5);
    limits.fraction = 1;
    assert_ok(xseg_limits_set(allocator, &scope, &limits));
    assert_error(env_try_alloc(allocator, 120 * MIB, NULL), LIMIT,
                 "throw_on_cudamalloc_oom rejects the request on device 0, 120.00 MiB "
                 "requested, limit 0.5 of the device");
    assert_int_equal(env_stats(allocator).num_ooms, 1);
    assert_int_equal(env_stats(allocator).num_oom_rejections, 1);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    limits.rejection_fraction = 0.8;
    assert_ok(xseg_limits_set(allocator, &scope, &limits));
    env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
    /* At a fraction of 0, cached memory still serves the request.  Without the key nothing is rejected. */
    limits.rejection_fraction = 0;
    assert_ok(xseg_limits_set(allocator, &scope, &limits));
    env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
    env_empty_cache(allocator);
    assert_error(env_try_alloc(allocator, 120 * MIB, NULL), LIMIT,
                 "throw_on_cudamalloc_oom rejects the request on device 0, 120.00 MiB "
                 "requested, limit 0 of the device");
    assert_ok(xseg_config_set(allocator, "throw_on_cudamalloc_oom:False"));
    env_free(allocator, env_alloc(allocator, 120 * MIB, NULL));
    limits.rejection_fraction = 1.5;
    assert_error(xseg_limits_set(allocator, &scope, &limits), ARGUMENT,
                 "rejection_fraction is out of range, 1.5; ");
}

TEST_IN_POOL(oom_error_lists_the_memory_by_use, env_open_mib(200, "expandable_segments:True"))
{
    void *allocated = env_alloc(allocator, 50 * MIB, NULL); /* on three pages of 20 MiB */
    const char *const words[] = {"100.00 MiB requested", "50.00 MiB allocated",
                                 "120.00 MiB cached by private pools", "10.00 MiB fragmented",
                                 "release unused private pools"};

    env_free(allocator, env_alloc_in(allocator, pool, 120 * MIB, NULL));
    for (unsigned i = 0; i < COUNT_OF(words); i++)
        assert_error(env_try_alloc(allocator, 100 * MIB, NULL), NO_MEMORY, words[i]);
    env_free(allocator, allocated);
}

/* Two pages of 20 MiB, each with 11 MiB cached and 9 MiB allocated: 20 of the 22 MiB are whole pages of 2 MiB. */
TEST_EACH(oom_error_recommends_small_pages, env_open_mib(40, config), "page_size:fixed",
          "page_size:small")
{
    void *block[4], *ptr = NULL;

    for (unsigned j = 0; j < COUNT_OF(block); j++)
        block[j] = env_alloc(allocator, (j % 2 == 0 ? 11 : 9) * MIB, NULL);
    env_free(allocator, block[0], block[2]);
    const xseg_status status = xseg_alloc(allocator, 0, 20 * MIB, NULL, &ptr);
    if (i == 0)
        assert_error(status, NO_MEMORY, "page_size:small");
    else
        assert_ok(status);
    env_free(allocator, ptr, block[1], block[3]);
}

/* --- The steps of the chain: exactly this step serves the request; later steps do not run. --- */

/* Numbers of driver calls, and the statistics num_alloc_retries and num_sync_all_streams. */
struct counters {
    uint64_t creates, releases, unmaps, frees, event_waits, stream_waits, retries, syncs;
};

static struct counters read_counters(struct xseg_allocator *allocator)
{
    const struct xseg_statistics stats = env_stats(allocator);

    return (struct counters){
        .creates = xseg_sim_calls("cuMemCreate"),
        .releases = xseg_sim_calls("cuMemRelease"),
        .unmaps = xseg_sim_calls("cuMemUnmap"),
        .frees = xseg_sim_calls("cuMemFree"),
        .event_waits = xseg_sim_calls("cuEventSynchronize"),
        .stream_waits = xseg_sim_calls("cuStreamSynchronize"),
        .retries = stats.num_alloc_retries,
        .syncs = stats.num_sync_all_streams,
    };
}

static void expect_no_flush(struct xseg_allocator *allocator, const struct counters *before)
{
    const struct counters after = read_counters(allocator);

    assert_int_equal(after.retries, before->retries);
    assert_int_equal(after.syncs, before->syncs);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
}

static void expect_no_wait(struct xseg_allocator *allocator, const struct counters *before)
{
    expect_no_flush(allocator, before);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize"), before->event_waits);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize"), before->stream_waits);
}

/* An event completes after the poll of the request, while growth creates pages until external memory stops it. */
TEST_ON(step_polls_completed_events, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 100 * MIB, NULL);

    assert_ok(xseg_record_stream(allocator, ptr, stream));
    assert_ok(xseg_sim_launch(stream, 5000));
    assert_ok(xseg_sim_set_external_memory(0, 40 * MIB));
    env_free(allocator, ptr);
    const struct counters before = read_counters(allocator);
    assert_ptr_equal(env_alloc(allocator, 100 * MIB, NULL), ptr);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    /* Three pages were released again, and one creation failed: no other step ran. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 4);
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    env_free(allocator, ptr);
    assert_ok(xseg_sim_set_external_memory(0, 0));
}

/* The block that an observer frees under memory pressure. */
struct freed_block {
    struct xseg_allocator *allocator;
    void *ptr;
};

static bool free_block(void *context, const struct xseg_oom_info *oom)
{
    struct freed_block *block = context;

    assert_int_equal(oom->attempt, 0);
    env_free(block->allocator, block->ptr);
    return true;
}

/* Only the callback can free enough memory. */
TEST_ON(step_uses_memory_freed_by_an_observer, env_open_mib(200, "expandable_segments:True"))
{
    struct freed_block block = {allocator, env_alloc(allocator, 200 * MIB, NULL)};

    (void)env_observe(allocator, .on_low_memory = free_block, .context = &block);
    const struct counters before = read_counters(allocator);
    void *ptr = env_alloc(allocator, 60 * MIB, NULL);
    assert_ptr_equal(ptr, block.ptr);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, ptr);
}

/* The segment reserves 240 MiB (9/8 of the device, in whole pages) and has 60 MiB of unmapped addresses, so the request gets
 * another segment, to which the idle 60 MiB are remapped. */
TEST_ON(idle_pages_of_another_segment_are_remapped, env_open_mib(200, "expandable_segments:True"))
{
    void *idle = env_alloc(allocator, 60 * MIB, NULL);
    void *allocated = env_alloc(allocator, 120 * MIB, NULL);

    env_free(allocator, idle);
    const struct counters before = read_counters(allocator);
    void *ptr = env_alloc(allocator, 80 * MIB, NULL);
    assert_ptr_not_equal(env_block(allocator, ptr).segment_base,
                         env_block(allocator, allocated).segment_base);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    /* 20 MiB of the device are free: of the four pages one is created, and three are remapped. */
    assert_int_equal(xseg_sim_calls("cuMemCreate") - before.creates, 1);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    assert_int_equal(env_block(allocator, allocated).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr, allocated);
}

/* The idle pages of the request's own stream are remapped before those of another stream. */
TEST_ON(own_idle_pages_are_remapped_first, env_open_mib(240, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *idle_elsewhere = env_alloc(allocator, 60 * MIB, stream);
    void *own_idle = env_alloc(allocator, 60 * MIB, NULL);
    void *allocated = env_alloc(allocator, 120 * MIB, NULL);

    env_free(allocator, idle_elsewhere, own_idle);
    void *ptr = env_alloc(allocator, 50 * MIB, NULL);
    env_free(allocator, ptr);
    ptr = env_alloc(allocator, 100 * MIB, NULL);
    /* 60 of the 100 MiB are of the request's own stream, and 40 of the other stream. */
    assert_int_equal(env_block(allocator, idle_elsewhere).segment_mapped, 20 * MIB);
    env_free(allocator, ptr, allocated);
}

/* The device is full of idle memory of another stream: ten pages, of which three are remapped. */
TEST_ON(idle_pages_of_another_stream_are_remapped, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 200 * MIB, stream));
    const struct counters before = read_counters(allocator);
    void *ptr = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 0);
    assert_int_equal(env_block(allocator, ptr).segment_mapped, 60 * MIB);
    assert_int_equal(env_reserved(allocator), 200 * MIB);
    env_free(allocator, ptr);
}

TEST_ON(a_full_device_creates_no_pages, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream[] = {NULL, env_stream(), env_stream()};

    env_free(allocator, env_alloc(allocator, 200 * MIB, NULL));
    const struct counters before = read_counters(allocator);
    for (unsigned i = 1; i < 30; i++) {
        void *first = env_alloc(allocator, (1 + i % 7) * 20 * MIB, stream[i % 3]);
        void *second = env_alloc(allocator, 60 * MIB, stream[(i + 1) % 3]);

        assert_int_equal(env_reserved(allocator), 200 * MIB);
        env_free(allocator, first, second);
    }
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(xseg_sim_calls("cuMemUnmap") > before.unmaps);
}

/* Pages are remapped from small segments of a released private pool to a large segment of the default pool. */
TEST_ON(pages_of_released_pools_are_remapped, env_open_mib(40, "expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool(allocator);
    void *small[20];

    for (unsigned i = 0; i < COUNT_OF(small); i++)
        small[i] = env_alloc_in(allocator, pool, MIB, NULL);
    env_free_all(allocator, small, sizeof(small));
    assert_ok(xseg_pool_release(pool));
    const struct counters before = read_counters(allocator);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemRelease"), before.releases);
    assert_true(env_reserved(allocator) <= 40 * MIB);
    env_free(allocator, ptr);
}

/* All idle pages are of a busy stream, so the request waits for this stream. */
TEST_ON(a_busy_stream_is_waited_for, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *block = env_alloc(allocator, 200 * MIB, stream);

    assert_ok(xseg_sim_launch_on(stream, 1000000, (uintptr_t)block, 200 * MIB));
    env_free(allocator, block);
    const struct counters before = read_counters(allocator);
    block = env_alloc(allocator, 60 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuStreamSynchronize") - before.stream_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemCreate"), before.creates);
    env_free(allocator, block);
}

TEST_ON(step_allocates_from_a_fallback_pool, env_open_mib(100, "expandable_segments:True"))
{
    struct xseg_pool *pool = env_pool_of(allocator, .use_on_oom = true);
    void *pool_block = env_alloc_in(allocator, pool, 80 * MIB, NULL);
    env_free(allocator, pool_block);
    const struct counters before = read_counters(allocator);
    assert_ptr_equal(env_alloc(allocator, 60 * MIB, NULL), pool_block);
    expect_no_wait(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, pool_block);
    assert_ok(xseg_pool_release(pool));
}

/* After the wait the request is served from the cache, without an unmap. */
TEST_ON(pending_frees_are_waited_for, env_open_mib(200, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *ptr = env_alloc(allocator, 200 * MIB, NULL);

    env_free_in_use(allocator, ptr, stream);
    const struct counters before = read_counters(allocator);
    assert_ptr_equal(env_alloc(allocator, 60 * MIB, NULL), ptr);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuEventSynchronize") - before.event_waits, 1);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    env_free(allocator, ptr);
}

/* One classic segment of max_split_size_mb or more is released, the smallest that suffices; the larger segment stays cached. */
TEST_ON(step_releases_one_oversize_segment,
        env_open_mib(200, "expandable_segments:False,max_split_size_mb:40"))
{
    void *block_110 = env_alloc(allocator, 110 * MIB, NULL);
    void *block_80 = env_alloc(allocator, 80 * MIB, NULL);

    env_free(allocator, block_110, block_80);
    const struct counters before = read_counters(allocator);
    /* Both cached blocks are too large to be split for the request. */
    void *ptr = env_alloc(allocator, 50 * MIB, NULL);
    expect_no_flush(allocator, &before);
    assert_int_equal(xseg_sim_calls("cuMemFree") - before.frees, 1);
    assert_int_equal(env_block(allocator, block_110).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_reserved(allocator), 160 * MIB);
    env_free(allocator, ptr);
}

/* The flush releases all classic segments and counts as a retry, as in PyTorch. */
TEST_ON(step_releases_all_idle_memory, env_open_mib(200, "expandable_segments:False"))
{
    void *ptr[4];

    for (unsigned i = 0; i < COUNT_OF(ptr); i++)
        ptr[i] = env_alloc(allocator, 50 * MIB, NULL);
    env_free_all(allocator, ptr, sizeof(ptr));
    ptr[0] = env_alloc(allocator, 120 * MIB, NULL);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_sync_all_streams, 1);
    assert_int_equal(xseg_sim_calls("cuMemFree"), 4);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    env_free(allocator, ptr[0]);
}

/* A capture allocates small pages if no full page fits, and neither remaps memory nor waits. */
TEST_IN_POOL(capture_allocates_without_reclaim, env_open_mib(70, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 40 * MIB, NULL);

    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    const struct counters before = read_counters(allocator);
    /* One page of 20 MiB and three of 2 MiB. */
    void *ptr = env_alloc(allocator, 25 * MIB, stream);
    assert_int_equal(env_reserved(allocator), (40 + 20 + 6) * MIB);
    assert_int_equal(env_try_alloc(allocator, 30 * MIB, stream), XSEG_ERR_NO_MEMORY);
    assert_int_equal(xseg_sim_calls("cuMemUnmap"), before.unmaps);
    assert_int_equal(env_block(allocator, idle).state, XSEG_BLOCK_CACHED);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
}

/* After memory pressure idle memory is released before a capture begins, since the capture cannot reclaim it. */
TEST_IN_POOL(capture_begins_after_a_trim_under_memory_pressure,
             env_open_mib(100, "expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    void *idle = env_alloc(allocator, 60 * MIB, NULL);

    /* Without memory pressure no memory is released, and the capture does not wait. */
    env_free(allocator, idle);
    const struct counters before = read_counters(allocator);
    env_capture_begin(pool, stream);
    expect_no_wait(allocator, &before);
    env_capture_end(pool, stream);
    assert_int_equal(env_reserved(allocator), 60 * MIB);
    /* After a request that failed, the begin of a capture trims. */
    idle = env_alloc(allocator, 60 * MIB, NULL);
    assert_int_equal(env_try_alloc(allocator, 70 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    env_free(allocator, idle);
    env_capture_begin(pool, stream);
    assert_int_equal(env_reserved(allocator), 0);
    void *ptr = env_alloc(allocator, 90 * MIB, stream);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
}

/* After memory pressure, the begin of a capture waits for busy streams and pending blocks, since the capture cannot wait. */
TEST_IN_POOL(capture_begins_after_pending_frees_complete,
             env_open_mib(100, "expandable_segments:True"))
{
    const xseg_stream busy = env_stream(), stream = env_stream();
    void *cached = env_alloc(allocator, 40 * MIB, busy);
    void *pending = env_alloc(allocator, 40 * MIB, NULL);

    assert_int_equal(env_try_alloc(allocator, 70 * MIB, NULL), XSEG_ERR_NO_MEMORY);
    /* The work of the busy stream ends after 1 ms of the simulated clock. */
    assert_ok(xseg_record_stream(allocator, pending, busy));
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)cached, 40 * MIB));
    assert_ok(xseg_sim_launch_on(busy, 1000000, (uintptr_t)pending, 40 * MIB));
    env_free(allocator, cached, pending);
    env_capture_begin(pool, stream);
    assert_int_equal(env_reserved(allocator), 0);
    void *ptr = env_alloc(allocator, 90 * MIB, stream);
    env_capture_end(pool, stream);
    env_free(allocator, ptr);
}

/* A limit counts the pages that a request adds, and not the size of the request. */
TEST_ON(a_limit_counts_the_added_pages,
        env_open_mib(1000, "expandable_segments:True,per_process_memory_fraction:0.12"))
{
    assert_int_equal(env_stats(allocator).limit_bytes, 120 * MIB);
    void *first = env_alloc(allocator, 85 * MIB, NULL);
    /* 100 MiB are mapped, and the last 15 MiB are cached.  PyTorch rejects a request of 30 MiB, since 100 + 30 > 120. */
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    void *second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 120 * MIB);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 0);
    assert_error(env_try_alloc(allocator, 6 * MIB, NULL), LIMIT, "per_process_memory_fraction");
    env_free(allocator, second, first);
    env_empty_cache(allocator);
    /* The limit is 130 MiB, and 100 MiB are mapped without cached memory.  PyTorch accepts 30 MiB, and maps 40.  xseg does not
     * map two full pages; pages of 2 MiB serve 30 MiB, but not 31. */
    assert_ok(xseg_config_set(allocator, "per_process_memory_fraction:0.13"));
    first = env_alloc(allocator, 100 * MIB, NULL);
    assert_error(env_try_alloc(allocator, 31 * MIB, NULL), LIMIT, "per_process_memory_fraction");
    assert_int_equal(env_reserved(allocator), 100 * MIB);
    second = env_alloc(allocator, 30 * MIB, NULL);
    assert_int_equal(env_reserved(allocator), 130 * MIB);
    env_free(allocator, second, first);
}
