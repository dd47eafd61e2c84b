/* SPDX-License-Identifier: MIT */
/* Which cached memory a request gets where two rules or two sizes meet. */
#include "tests/support/env.h"
#include "tests/support/trim_due.h"

/* Of blocks that could grow to one size, the smaller one is taken, although the other cannot grow. */
TEST(of_equal_reach_the_smaller_block_is_taken)
{
    struct xseg_allocator *allocator = env_open(NULL);

    void *small = env_alloc(allocator, 20 * MIB, NULL);
    void *hole = env_alloc(allocator, 40 * MIB, NULL);
    void *wall = env_alloc(allocator, 20 * MIB, NULL);
    void *large = env_alloc(allocator, 60 * MIB, NULL);
    void *end = env_alloc(allocator, 20 * MIB, NULL);
    env_free(allocator, hole);
    env_empty_cache(allocator);
    env_free(allocator, large, small);
    void *ptr = env_alloc(allocator, 20 * MIB, NULL);
    assert_ptr_equal(ptr, small);
    env_free(allocator, ptr, wall, end);
    env_close(allocator);
}

/* A block of max_split_size_mb itself is oversize, and so kept for oversize requests. */
TEST(a_block_of_the_largest_split_size_is_not_split)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False,max_split_size_mb:40");

    void *large = env_alloc(allocator, 40 * MIB, NULL);
    env_free(allocator, large);
    void *ptr = env_alloc(allocator, 30 * MIB, NULL);
    assert_ptr_not_equal(ptr, large);
    void *again = env_alloc(allocator, 40 * MIB, NULL);
    assert_ptr_equal(again, large);
    env_free(allocator, ptr, again);
    env_close(allocator);
}

/* With small pages a growth goes where the least memory is missing, not to the lowest hole. */
TEST(small_pages_go_where_the_fewest_are_missing)
{
    struct xseg_allocator *allocator = env_open("page_size:small");

    void *low = env_alloc(allocator, 8 * MIB, NULL);
    void *wall = env_alloc(allocator, 2 * MIB, NULL);
    void *cached = env_alloc(allocator, 6 * MIB, NULL);
    void *hole = env_alloc(allocator, 4 * MIB, NULL);
    void *end = env_alloc(allocator, 2 * MIB, NULL);
    env_free(allocator, low, hole);
    env_empty_cache(allocator);
    env_free(allocator, cached);
    void *ptr = env_alloc(allocator, 8 * MIB, NULL);
    assert_ptr_equal(ptr, cached);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 12 * MIB);
    env_free(allocator, ptr, wall, end);
    env_close(allocator);
}

static bool note_shortage(void *context, const struct xseg_oom_info *shortage)
{
    unsigned *count = context;

    (void)shortage;
    ++*count;
    return false;
}

/* What idle pages cover takes nothing of a limit. */
TEST(idle_pages_serve_a_growth_at_the_limit)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator =
        env_open_with_clock(&settings, "idle_ms:100,page_cache_mb:100,hard_limit_mb:100");
    struct xseg_observer observer = {sizeof(observer), .on_low_memory = note_shortage};
    const xseg_stream stream = env_stream();
    unsigned shortages = 0;
    uint64_t id = 0;

    observer.context = &shortages;
    assert_ok(xseg_observer_add(allocator, &observer, &id));
    env_free(allocator, env_alloc(allocator, 100 * MIB, NULL));
    for (unsigned i = 0; i < 30; i++) {
        xseg_sim_advance(UINT64_C(10000000));
        assert_ok(trim_due(allocator, UINT64_MAX));
    }
    assert_int_equal(env_stats(allocator).idle_page_bytes, 100 * MIB);
    void *ptr = env_alloc(allocator, 100 * MIB, stream);
    assert_int_equal(shortages, 0);
    assert_int_equal(env_stats(allocator).idle_page_bytes, 0);
    env_free(allocator, ptr);
    assert_ok(xseg_observer_remove(allocator, id));
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
    env_close(allocator);
}
