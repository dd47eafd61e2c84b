/* SPDX-License-Identifier: MIT */
/*
 * What NVIDIA's notes on CUDA graph memory state about expandable segments: addresses without
 * memory, growth in place, unmapping page by page.  Their tables are in graph_memory.c.
 */
#include "tests/support/env.h"

/* "Reserves a large virtual address space (up to 1 1/8 x total GPU memory)", without memory. */
TEST(addresses_are_reserved_without_memory)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *ptr = env_alloc(allocator, 2 * MIB, NULL);
    const struct xseg_block_info info = env_block(allocator, ptr);

    assert_true(info.is_expandable);
    assert_in_range(info.segment_bytes, 90 * GIB, 90 * GIB + 20 * MIB);
    assert_int_equal(info.segment_mapped, 20 * MIB);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    env_free(allocator, ptr);
    env_close(allocator);
}

/* "Mapped in pages (2MB for small pool, 20MB for large pool) only when needed", growing in place. */
TEST(segments_grow_in_place)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    char *small = env_alloc(allocator, 1000, NULL);
    char *first = env_alloc(allocator, 30 * MIB, NULL), *second;

    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_SMALL].current, 2 * MIB);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_LARGE].current, 40 * MIB);
    second = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(second, first + 30 * MIB);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_LARGE].current, 60 * MIB);
    /* The growth made one run of pages accessible each time, with one call. */
    assert_int_equal(env_block(allocator, second).segment_mapped, 60 * MIB);
    env_free(allocator, small, first, second);
    env_close(allocator);
}

/* "Individually unmapped": only whole pages go, and the live block's page stays. */
TEST(empty_cache_unmaps_single_pages)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    void *before = env_alloc(allocator, 25 * MIB, NULL);
    void *live = env_alloc(allocator, 2 * MIB, NULL);
    void *after = env_alloc(allocator, 33 * MIB, NULL);

    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 60 * MIB);
    env_free(allocator, before, after);
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    assert_int_equal(env_stats(allocator).num_device_free, 2);
    assert_int_equal(env_block(allocator, live).free_before, 5 * MIB);
    assert_int_equal(env_block(allocator, live).free_after, 13 * MIB);
    env_free(allocator, live);
    env_close(allocator);
}
