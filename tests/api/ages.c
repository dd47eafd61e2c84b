/* SPDX-License-Identifier: MIT */
/* How old is this block?  With history:state each live block has an age of its own. */
#include <string.h>

#include "tests/support/env.h"

#define SECOND UINT64_C(1000000000)

static void expect_age(struct xseg_allocator *allocator, const void *block, uint64_t ms)
{
    const uint64_t age = env_block(allocator, block).age_ms;

    assert_in_range(age, ms < 20 ? 0 : ms - 20, ms + 20);
}

static void expect_no_age(struct xseg_allocator *allocator, const void *block)
{
    assert_true(env_block(allocator, block).age_ms == UINT64_MAX);
}

static const size_t sizes[] = {1, 512, 3000, 200 * KIB, MIB, MIB + 1, 9 * MIB, 50 * MIB};

/* Every size, in every kind of segment. */
TEST(blocks_have_ages)
{
    static const char *const config[] = {
        "history:state",
        "history:state,expandable_segments:False",
        "history:state,guard_page:True",
        "history:state,idle_ms:100000",
        "history:state,roundup_power2_divisions:4",
    };

    for (size_t i = 0; i < COUNT_OF(config); i++) {
        struct xseg_allocator *allocator = env_open_with_clock(NULL, config[i]);
        void *block[2 * COUNT_OF(sizes)];

        for (size_t at = 0; at < COUNT_OF(block); at++) {
            block[at] = env_alloc(allocator, sizes[at % COUNT_OF(sizes)], NULL);
            xseg_sim_advance(SECOND);
        }
        for (size_t at = 0; at < COUNT_OF(block); at++)
            expect_age(allocator, block[at], (COUNT_OF(block) - at) * 1000);
        for (size_t at = 0; at < COUNT_OF(block); at++)
            env_free(allocator, block[at]);
        env_close(allocator);
    }
}

/* A block in the same place is a new one, also where it comes by the shortest way otherwise. */
TEST(a_block_in_the_same_place_is_young)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "history:state");

    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        void *old = env_alloc(allocator, sizes[i], NULL);

        xseg_sim_advance(5 * SECOND);
        expect_age(allocator, old, 5000);
        env_free(allocator, old);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), old);
        expect_age(allocator, old, 0);
        xseg_sim_advance(SECOND);
        expect_age(allocator, old, 1000);
        env_free(allocator, old);
        expect_no_age(allocator, old);
    }
    env_close(allocator);
}

TEST(blocks_of_pools_have_ages)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "history:state");
    struct xseg_pool *pool = env_pool(allocator);
    void *block[2];

    for (size_t i = 0; i < 2; i++) {
        block[i] = env_alloc_in(allocator, pool, i == 0 ? 3000 : 5 * MIB, NULL);
        xseg_sim_advance(3 * SECOND);
    }
    expect_age(allocator, block[0], 6000);
    expect_age(allocator, block[1], 3000);
    /* Through a pause, too. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_age(allocator, block[0], 6000);
    assert_ok(xseg_pool_resume(pool));
    expect_age(allocator, block[1], 3000);
    env_free(allocator, block[0], block[1]);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

TEST(a_restored_block_is_as_old_as_that)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "history:state");
    struct xseg_pool *pool = env_pool(allocator);
    struct xseg_checkpoint *checkpoint = NULL;
    void *block[2];

    for (size_t i = 0; i < 2; i++) {
        block[i] = env_alloc_in(allocator, pool, i == 0 ? 3000 : 5 * MIB, NULL);
    }
    xseg_sim_advance(3 * SECOND);
    assert_ok(xseg_pool_checkpoint(pool, &checkpoint));
    env_free(allocator, block[0], block[1]);
    xseg_sim_advance(3 * SECOND);
    assert_ok(xseg_pool_restore(pool, checkpoint, NULL, NULL));
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < 2; i++) {
        expect_age(allocator, block[i], 1000);
        env_free(allocator, block[i]);
    }
    xseg_checkpoint_destroy(checkpoint);
    assert_ok(xseg_pool_release(pool));
    env_close(allocator);
}

/* What was allocated before the key was set has no age, also where one was stamped earlier. */
TEST(the_key_comes_and_goes)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "expandable_segments:True");
    void *before[COUNT_OF(sizes)], *since[COUNT_OF(sizes)];

    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        before[i] = env_alloc(allocator, sizes[i], NULL);
    assert_ok(xseg_config_set(allocator, "history:state"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++)
        since[i] = env_alloc(allocator, sizes[i], NULL);
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, before[i]);
        expect_age(allocator, since[i], 1000);
    }
    assert_ok(xseg_config_set(allocator, "history:nothing"));
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, since[i]);
        env_free(allocator, since[i]);
        assert_ptr_equal(env_alloc(allocator, sizes[i], NULL), since[i]);
    }
    assert_ok(xseg_config_set(allocator, "history:state"));
    xseg_sim_advance(SECOND);
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        expect_no_age(allocator, since[i]);
        env_free(allocator, since[i], before[i]);
    }
    env_close(allocator);
}

/* With a history as well, whose events read a clock of their own. */
TEST(a_block_is_younger_than_one_of_before)
{
    struct xseg_allocator *allocator = env_open("history:all");
    void *old = env_alloc(allocator, 1000, NULL);

    while (env_block(allocator, old).age_ms < 60)
        continue;
    void *young = env_alloc(allocator, 1000, NULL);
    const uint64_t age = env_block(allocator, young).age_ms;
    assert_true(age + 30 <= env_block(allocator, old).age_ms);
    env_free(allocator, young, old);
    env_close(allocator);
}

/* --- Where they are told. --- */

TEST(a_pending_block_has_its_age)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "history:state");
    const xseg_stream stream = env_stream();
    void *block = env_alloc(allocator, 5 * MIB, NULL);

    xseg_sim_advance(2 * SECOND);
    env_launch(allocator, stream, block);
    assert_ok(xseg_record_stream(allocator, block, stream));
    env_free(allocator, block);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_PENDING_FREE);
    expect_age(allocator, block, 2000);
    xseg_sim_finish_all();
    env_close(allocator, stream);
}

struct sum {
    unsigned known, unknown;
    uint64_t ms;
};

static bool add_block(void *context, const struct xseg_block_info *block)
{
    struct sum *sum = context;

    assert_true(block->state == XSEG_BLOCK_ALLOCATED || block->age_ms == UINT64_MAX);
    sum->known += block->age_ms != UINT64_MAX;
    sum->unknown += block->state == XSEG_BLOCK_ALLOCATED && block->age_ms == UINT64_MAX;
    sum->ms += block->age_ms != UINT64_MAX ? block->age_ms : 0;
    return true;
}

static bool add_reason(void *context, const struct xseg_reason *reason)
{
    struct sum *sum = context;

    assert_true(reason->block != NULL || reason->block_age_ms == UINT64_MAX);
    sum->known += reason->block_age_ms != UINT64_MAX;
    sum->unknown += reason->block != NULL && reason->block_age_ms == UINT64_MAX;
    sum->ms += reason->block_age_ms != UINT64_MAX ? reason->block_age_ms : 0;
    /* The age of the page is another thing: nothing decays, so nobody knows it. */
    assert_true(reason->age_ms == UINT64_MAX);
    return true;
}

/* An old block among many young ones, which come and go: its page is old for its sake. */
TEST(a_walk_tells_each_and_a_reason_that_of_its_block)
{
    static const char *const config[] = {"history:state", "expandable_segments:True"};

    for (unsigned i = 0; i < 2; i++) {
        struct xseg_allocator *allocator = env_open_with_clock(NULL, config[i]);
        void *old = env_alloc(allocator, 3000, NULL), *young[100];
        struct sum blocks = {0, 0, 0}, reasons = {0, 0, 0};

        xseg_sim_advance(60 * SECOND);
        for (unsigned at = 0; at < COUNT_OF(young); at++)
            young[at] = env_alloc(allocator, 2000, NULL);
        xseg_sim_advance(SECOND);
        assert_ok(xseg_for_each_block(allocator, NULL, add_block, &blocks));
        assert_int_equal(blocks.known, i == 0 ? 101 : 0);
        assert_int_equal(blocks.unknown, i == 0 ? 0 : 101);
        assert_in_range(blocks.ms, i == 0 ? 161000 - 101 * 20 : 0, i == 0 ? 161000 + 101 * 20 : 0);
        assert_ok(xseg_explain(allocator, NULL, add_reason, &reasons, NULL));
        assert_int_equal(reasons.known, i == 0);
        assert_int_equal(reasons.unknown, i != 0);
        assert_in_range(reasons.ms, i == 0 ? 60980 : 0, i == 0 ? 61020 : 0);
        for (unsigned at = 0; at < COUNT_OF(young); at++)
            env_free(allocator, young[at]);
        env_free(allocator, old);
        env_close(allocator);
    }
}

/* A caller that knows a shorter struct is told as much of it. */
TEST(older_callers_are_told_what_they_know)
{
    struct xseg_allocator *allocator = env_open_with_clock(NULL, "history:state");
    struct xseg_block_info info = {sizeof(info), .age_ms = 77};
    void *block = env_alloc(allocator, 3000, NULL);

    info.struct_size = offsetof(struct xseg_block_info, age_ms);
    assert_ok(xseg_block_query(allocator, block, &info));
    assert_ptr_equal(info.base, block);
    assert_int_equal(info.age_ms, 77);
    env_free(allocator, block);
    env_close(allocator);
}

/* By the system's clock: the age is real. */
TEST(the_clock_of_the_system_does)
{
    struct xseg_allocator *allocator = env_open("history:state");
    void *block = env_alloc(allocator, 3000, NULL);

    assert_true(env_block(allocator, block).age_ms < 60000);
    env_free(allocator, block);
    env_close(allocator);
}
