/* SPDX-License-Identifier: MIT */
/* Best fit, in cases where two rules or two sizes apply. */
#include <inttypes.h>
#include <stdio.h>

#include "tests/support/env.h"

/* Of two blocks of the same effective size, the smaller one is used, although the other block cannot grow. */
TEST_ON(smaller_of_two_blocks_with_equal_growth_is_used, env_open(NULL))
{
    void *small = env_alloc(allocator, 20 * MIB, NULL);
    void *unmapped = env_alloc(allocator, 40 * MIB, NULL);
    void *separator = env_alloc(allocator, 20 * MIB, NULL);
    void *large = env_alloc(allocator, 60 * MIB, NULL), *end = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, unmapped);
    env_empty_cache(allocator);
    env_free(allocator, large, small);
    assert_ptr_equal(env_alloc(allocator, 20 * MIB, NULL), small);
    env_free(allocator, small, separator, end);
}

/* A block of max_split_size_mb itself is oversize, so only oversize requests use it. */
TEST_ON(block_of_the_largest_split_size_is_not_split,
        env_open("expandable_segments:False,max_split_size_mb:40"))
{
    void *large = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, large);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ptr_not_equal(ptr, large);
    assert_ptr_equal(env_alloc(allocator, 40 * MIB, NULL), large);
    env_free(allocator, ptr, large);
}

TEST_ON(growth_with_small_pages_needs_the_fewest_pages, env_open("page_size:small"))
{
    void *low = env_alloc(allocator, 8 * MIB, NULL),
         *separator = env_alloc(allocator, 2 * MIB, NULL);
    void *cached = env_alloc(allocator, 6 * MIB, NULL);
    void *unmapped = env_alloc(allocator, 4 * MIB, NULL);
    void *end = env_alloc(allocator, 2 * MIB, NULL);
    env_free(allocator, low, unmapped);
    env_empty_cache(allocator);
    env_free(allocator, cached);
    assert_ptr_equal(env_alloc(allocator, 8 * MIB, NULL), cached);
    assert_int_equal(env_reserved(allocator), (8 + 2 + 2) * MIB); /* cached, separator, end */
    env_free(allocator, cached, separator, end);
}

static bool count_low_memory(void *context, const struct xseg_oom_info *oom)
{
    (void)oom;
    ++*(unsigned *)context;
    return false;
}

/* Pages of the page cache count against the limit only once. */
TEST_ON(page_cache_serves_a_growth_at_the_limit,
        env_open_with_clock(NULL, "idle_ms:100,page_cache_mb:100,hard_limit_mb:100"))
{
    const xseg_stream stream = env_stream();
    unsigned calls = 0;

    const uint64_t id =
        env_observe(allocator, .context = &calls, .on_low_memory = count_low_memory);
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    env_advance_and_trim(allocator, 30, 10);
    assert_int_equal(env_stats(allocator).idle_page_bytes, 100 * MIB);
    void *ptr = env_alloc(allocator, 100 * MIB, stream);
    assert_int_equal(calls, 0);
    assert_int_equal(env_stats(allocator).idle_page_bytes, 0);
    env_free(allocator, ptr);
    assert_ok(xseg_observer_remove(allocator, id));
}

/* Examples E1 to E12, with the values of PyTorch 2.15 in the nine columns of a tape (docs/replay.md).  E1, E3, E4 and
 * E7 verify NVIDIA's statements on expandable segments: addresses without memory, growth in place, unmaps by page. */

/* Bytes: allocated, active, inactive split, reserved, requested.  Counts: allocations, active blocks, classic segments,
 * inactive splits.  20971520 is 20 MiB, one page; 41943040 is 40 MiB, and 62914560 is 60 MiB. */
static void expect_columns(struct xseg_allocator *allocator, const char *columns)
{
    const struct xseg_statistics stats = env_stats(allocator);
    char text[256];

    (void)snprintf(
        text, sizeof(text),
        "%" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64
        " %" PRIu64 " %" PRIu64,
        stats.allocated_bytes[XSEG_STAT_ALL].current, stats.active_bytes[XSEG_STAT_ALL].current,
        stats.inactive_split_bytes[XSEG_STAT_ALL].current,
        stats.reserved_bytes[XSEG_STAT_ALL].current, stats.requested_bytes[XSEG_STAT_ALL].current,
        stats.allocation[XSEG_STAT_ALL].current, stats.active[XSEG_STAT_ALL].current,
        stats.segment[XSEG_STAT_ALL].current, stats.inactive_split[XSEG_STAT_ALL].current);
    assert_string_equal(text, columns);
}

/* Numbers of growths, of releases, and of waits for all pending blocks. */
static void expect_counts(struct xseg_allocator *allocator, uint64_t growths, uint64_t releases,
                          uint64_t waits)
{
    const struct xseg_statistics stats = env_stats(allocator);

    assert_int_equal(stats.num_device_alloc, growths);
    assert_int_equal(stats.num_device_free, releases);
    assert_int_equal(stats.num_sync_all_streams, waits);
}

/* E1: one page of 2 MiB, whose head is allocated; the rest does not count as an inactive split. */
TEST_ON(e1_a_first_small_block_maps_a_page, env_open("expandable_segments:True"))
{
    void *ptr = env_alloc(allocator, 1000, NULL);

    expect_columns(allocator, "1024 1024 0 2097152 1000 1 1 0 0");
    expect_counts(allocator, 1, 0, 0);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_SMALL].current, 2 * MIB);
    assert_int_equal(env_block(allocator, ptr).free_after, 2 * MIB - 1024);
    assert_int_equal(xseg_sim_used(0), 2 * MIB);
    env_free(allocator, ptr);
}

/* E2: with a classic segment the tail is an inactive split. */
TEST_ON(e2_classic_request_allocates_a_segment, env_open("expandable_segments:False"))
{
    void *ptr = env_alloc(allocator, 1000, NULL);

    expect_columns(allocator, "1024 1024 2096128 2097152 1000 1 1 1 1");
    expect_counts(allocator, 1, 0, 0);
    env_free(allocator, ptr);
}

/* E3: 30 MiB map two pages of 20 MiB.  E4: 20 MiB more need one page, after the cached tail of 10 MiB. */
TEST_ON(e3_e4_a_cached_tail_grows, env_open("expandable_segments:True"))
{
    char *first = env_alloc(allocator, 30 * MIB, NULL);
    const struct xseg_block_info info = env_block(allocator, first);

    expect_columns(allocator, "31457280 31457280 0 41943040 31457280 1 1 0 0");
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_LARGE].current, 40 * MIB);
    assert_int_equal(info.free_after, 10 * MIB);
    /* Unmapped addresses: 9/8 of the memory of 80 GiB are 90 GiB. */
    assert_true(info.is_expandable);
    assert_in_range(info.segment_bytes, 90 * GIB, 90 * GIB + 20 * MIB);
    assert_int_equal(info.segment_mapped, 40 * MIB);
    char *second = env_alloc(allocator, 20 * MIB, NULL);
    expect_columns(allocator, "52428800 52428800 0 62914560 52428800 2 2 0 0");
    expect_counts(allocator, 2, 0, 0);
    assert_ptr_equal(second, first + 30 * MIB);
    assert_int_equal(env_block(allocator, second).segment_mapped, 60 * MIB);
    env_free(allocator, first, second);
}

/* E5: the tail of 10 MiB fits best, but can grow, so the block of 30 MiB is used.  E6: one call unmaps all idle pages. */
TEST_ON(e5_e6_growable_tail_is_not_used, env_open("expandable_segments:True"))
{
    char *first = env_alloc(allocator, 30 * MIB, NULL);
    char *second = env_alloc(allocator, 20 * MIB, NULL);

    env_free(allocator, first);
    expect_columns(allocator, "20971520 20971520 0 62914560 20971520 1 1 0 0");
    char *third = env_alloc(allocator, 8 * MIB, NULL);
    expect_columns(allocator, "29360128 29360128 0 62914560 29360128 2 2 0 0");
    assert_ptr_equal(third, first);

    env_free(allocator, second, third);
    expect_columns(allocator, "0 0 0 62914560 0 0 0 0 0");
    uint64_t unmaps = xseg_sim_calls("cuMemUnmap");
    env_empty_cache(allocator);
    expect_columns(allocator, "0 0 0 0 0 0 0 0 0");
    expect_counts(allocator, 2, 1, 1);
    assert_int_equal(xseg_sim_calls("cuMemUnmap") - unmaps, 1);
    assert_int_equal(xseg_sim_used(0), 0);
    assert_int_equal(env_stats(allocator).address_bytes, 90 * GIB);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, NULL), first);
    env_free(allocator, first);
}

/* E7: the first and the third of three pages are released.  E8: 45 MiB do not fit before the allocated block. */
TEST_ON(e7_e8_trim_releases_idle_pages_only, env_open("expandable_segments:True"))
{
    char *before = env_alloc(allocator, 25 * MIB, NULL);
    char *allocated = env_alloc(allocator, 2 * MIB, NULL),
         *after = env_alloc(allocator, 33 * MIB, NULL);

    expect_columns(allocator, "62914560 62914560 0 62914560 62914560 3 3 0 0");
    env_free(allocator, before, after);
    env_empty_cache(allocator);
    expect_columns(allocator, "2097152 2097152 0 20971520 2097152 1 1 0 0");
    expect_counts(allocator, 2, 2, 1);
    struct xseg_block_info info = env_block(allocator, allocated);
    assert_int_equal(info.free_before, 5 * MIB);
    assert_int_equal(info.unmapped_before, 20 * MIB);
    assert_int_equal(info.free_after, 13 * MIB);
    assert_true(info.unmapped_after > 80 * GIB);

    char *next = env_alloc(allocator, 45 * MIB, NULL);
    expect_columns(allocator, "49283072 49283072 0 62914560 49283072 2 2 0 0");
    expect_counts(allocator, 3, 2, 1);
    assert_ptr_equal(next, allocated + 2 * MIB);
    assert_int_equal(env_block(allocator, allocated).unmapped_before, 20 * MIB);
    env_free(allocator, allocated, next);
}

/* E9: a freed block is active until the other stream completes and an allocation polls. */
TEST_ON(e9_use_by_another_stream_delays_the_free, env_open("expandable_segments:True"))
{
    const xseg_stream side = env_stream();
    char *first = env_alloc(allocator, 5 * MIB, NULL);

    env_use(allocator, first, side);
    expect_columns(allocator, "5242880 5242880 0 20971520 5242880 1 1 0 0");
    env_free(allocator, first);
    expect_columns(allocator, "0 5242880 0 20971520 5242880 0 1 0 0");
    char *second = env_alloc(allocator, 4 * MIB, NULL);
    expect_columns(allocator, "4194304 9437184 0 20971520 9437184 1 2 0 0");
    assert_ptr_equal(second, first + 5 * MIB);

    assert_ok(xseg_sim_finish(side));
    expect_columns(allocator, "4194304 9437184 0 20971520 9437184 1 2 0 0");
    env_free(allocator, second);
    expect_columns(allocator, "0 5242880 0 20971520 5242880 0 1 0 0");
    char *third = env_alloc(allocator, 4 * MIB, NULL);
    expect_columns(allocator, "4194304 4194304 0 20971520 4194304 1 1 0 0");
    assert_ptr_equal(third, first);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, NULL), first + 4 * MIB);
    expect_columns(allocator, "9437184 9437184 0 20971520 9437184 2 2 0 0");
    expect_counts(allocator, 1, 0, 0);
    env_free(allocator, third, first + 4 * MIB);
}

/* E12: the segments of a capture's pool stay reserved after the graph is destroyed, until the cache is emptied. */
TEST_ON(e12_graph_pool_has_separate_segments, env_open("expandable_segments:True"))
{
    const xseg_stream stream = env_stream();
    struct xseg_pool *pool = env_pool(allocator);
    void *outside = env_alloc(allocator, 5 * MIB, NULL);

    env_capture_begin(pool, stream);
    expect_columns(allocator, "5242880 5242880 0 20971520 5242880 1 1 0 0");
    void *large = env_alloc(allocator, 5 * MIB, stream);
    expect_columns(allocator, "10485760 10485760 0 41943040 10485760 2 2 0 0");
    void *small = env_alloc(allocator, 1000, stream);
    expect_columns(allocator, "10486784 10486784 0 44040192 10486760 3 3 0 0");
    assert_ptr_equal(env_block(allocator, large).pool, pool);
    assert_ptr_equal(env_block(allocator, small).pool, pool);
    env_capture_end(pool, stream);

    env_free(allocator, large);
    expect_columns(allocator, "5243904 5243904 0 44040192 5243880 2 2 0 0");
    env_free(allocator, small);
    expect_columns(allocator, "5242880 5242880 0 44040192 5242880 1 1 0 0");
    env_empty_cache(allocator);
    expect_columns(allocator, "5242880 5242880 0 44040192 5242880 1 1 0 0");
    /* After the capture the stream does not use memory of the pool. */
    void *next = env_alloc(allocator, 5 * MIB, stream);
    expect_columns(allocator, "10485760 10485760 0 65011712 10485760 2 2 0 0");
    assert_null(env_block(allocator, next).pool);

    assert_ok(xseg_pool_release(pool));
    expect_columns(allocator, "10485760 10485760 0 65011712 10485760 2 2 0 0");
    void *last = env_alloc(allocator, 5 * MIB, stream);
    expect_columns(allocator, "15728640 15728640 0 65011712 15728640 3 3 0 0");
    env_empty_cache(allocator);
    expect_columns(allocator, "15728640 15728640 0 41943040 15728640 3 3 0 0");
    expect_counts(allocator, 4, 2, 2);
    env_free(allocator, outside, next, last);
}
