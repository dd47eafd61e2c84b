/* SPDX-License-Identifier: MIT */
/* Blocks of a pool at a given address. */
#include "tests/support/env.h"

static const char *const configs[] = {"expandable_segments:True", "expandable_segments:False"};

static void *at(void *base, size_t offset)
{
    return (char *)base + offset;
}

/* In front of the block, and behind it, the memory stays cached. */
TEST(a_block_comes_to_its_address)
{
    static const struct {
        size_t cached, offset, bytes;
    } cases[] = {
        {40 * MIB, 0, 40 * MIB},       {40 * MIB, 0, 4 * MIB},     {40 * MIB, 10 * MIB, 4 * MIB},
        {40 * MIB, 36 * MIB, 4 * MIB}, {64 * KIB, 0, 4 * KIB},     {64 * KIB, 512, 512},
        {64 * KIB, 60 * KIB, 4 * KIB}, {64 * KIB, 30 * KIB, 1000},
    };

    for (size_t i = 0; i < COUNT_OF(configs) * COUNT_OF(cases); i++) {
        const size_t number = i / COUNT_OF(configs);
        struct xseg_allocator *allocator = env_open(configs[i % COUNT_OF(configs)]);
        struct xseg_pool *pool = env_pool(allocator);
        void *base = env_alloc_in(allocator, pool, cases[number].cached, NULL), *ptr = NULL;
        void *wanted = at(base, cases[number].offset);
        const uint64_t grown = env_stats(allocator).num_device_alloc;

        env_free(allocator, base);
        assert_ok(xseg_alloc_at(pool, cases[number].bytes, NULL, wanted, &ptr));
        assert_ptr_equal(ptr, wanted);
        assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
        assert_int_equal(env_block(allocator, ptr).requested, cases[number].bytes);
        assert_ptr_equal(env_block(allocator, ptr).pool, pool);
        if (cases[number].offset > 0)
            assert_int_equal(env_block(allocator, base).bytes, cases[number].offset);
        assert_int_equal(env_stats(allocator).num_device_alloc, grown);
        const struct xseg_statistics stats = env_stats(allocator);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].current, 1);
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].allocated, 2); /* with `base` */
        assert_int_equal(stats.allocation[XSEG_STAT_ALL].peak, 1);
        env_free(allocator, ptr);
        assert_ptr_equal(env_alloc_in(allocator, pool, cases[number].cached, NULL), base);
        env_free(allocator, base);
        env_close(allocator);
    }
}

TEST(what_is_not_cached_there_is_refused)
{
    for (size_t i = 0; i < COUNT_OF(configs); i++) {
        struct xseg_allocator *allocator = env_open(configs[i]);
        const xseg_stream side = env_stream();
        struct xseg_pool *pool = env_pool(allocator), *other = env_pool(allocator);
        void *base = env_alloc_in(allocator, pool, 40 * MIB, NULL), *ptr = NULL;
        void *pending = env_alloc_in(allocator, pool, 40 * MIB, NULL);
        void *live = env_alloc_in(allocator, pool, 40 * MIB, NULL);
        char nowhere[512];

        env_free(allocator, base);
        assert_ok(xseg_record_stream(allocator, pending, side));
        assert_ok(xseg_sim_launch(side, UINT64_MAX));
        env_free(allocator, pending);
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, live, &ptr), XSEG_ERR_BUSY,
                         "in an allocated block");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, pending, &ptr), XSEG_ERR_BUSY,
                         "another stream still uses");
        env_expect_error(xseg_alloc_at(pool, 41 * MIB, NULL, base, &ptr), XSEG_ERR_BUSY,
                         "cached block is too short");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, at(base, 38 * MIB), &ptr),
                         XSEG_ERR_BUSY, "cached block is too short");
        env_expect_error(xseg_alloc_at(other, 4 * MIB, NULL, base, &ptr), XSEG_ERR_BUSY,
                         "another pool, stream or kind");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, side, base, &ptr), XSEG_ERR_BUSY,
                         "another pool, stream or kind");
        env_expect_error(xseg_alloc_at(pool, 512, NULL, base, &ptr), XSEG_ERR_BUSY,
                         "another pool, stream or kind");
        env_expect_error(
            xseg_alloc_at(pool, 4 * MIB, NULL, at(nowhere, 512 - (uintptr_t)nowhere % 512), &ptr),
            XSEG_ERR_BUSY, "no segment");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, at(base, 8), &ptr), XSEG_ERR_ARGUMENT,
                         "multiple of 512");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, NULL, &ptr), XSEG_ERR_ARGUMENT,
                         "multiple of 512");
        env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, base, NULL), XSEG_ERR_ARGUMENT, "NULL");
        env_expect_error(xseg_alloc_at(NULL, 4 * MIB, NULL, base, &ptr), XSEG_ERR_ARGUMENT, "NULL");
        assert_null(ptr);
        ptr = base;
        assert_ok(xseg_alloc_at(pool, 0, NULL, base, &ptr));
        assert_null(ptr);
        /* A pending block has come back once its stream has passed. */
        assert_ok(xseg_sim_finish(side));
        assert_ok(xseg_alloc_at(pool, 4 * MIB, NULL, pending, &ptr));
        env_free(allocator, ptr, live);
        assert_ok(xseg_pool_release(other));
        other = env_observed_pool(allocator);
        live = env_alloc_in(allocator, other, 4 * MIB, NULL);
        assert_ok(xseg_pool_release(other));
        env_expect_error(xseg_alloc_at(other, 4 * MIB, NULL, base, &ptr), XSEG_ERR_ARGUMENT,
                         "pool has been released");
        env_free(allocator, live);
        env_empty_cache(allocator);
        env_close(allocator, side);
    }
}

TEST(a_paused_pool_has_no_addresses_to_give)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    struct xseg_pool *pool = env_pool(allocator);
    void *base = env_alloc_in(allocator, pool, 40 * MIB, NULL), *ptr = NULL;

    env_free(allocator, base);
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    env_expect_error(xseg_alloc_at(pool, 4 * MIB, NULL, base, &ptr), XSEG_ERR_PAUSED, "paused");
    assert_ok(xseg_pool_resume(pool));
    assert_ok(xseg_alloc_at(pool, 4 * MIB, NULL, base, &ptr));
    env_free(allocator, ptr);
    env_close(allocator);
}
