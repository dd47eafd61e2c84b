/* SPDX-License-Identifier: MIT */
/*
 * Ask about any block.  An article on PyTorch's memory management asks for two functions that
 * PyTorch does not offer: from a tensor to its block, and from the block to the free space adjacent
 * to it.  With them a program can release first what makes the largest stretch of free memory.
 */
#include "tests/support/env.h"

/* The article's drawing: free, used, free; 800 MB do not fit although 1000 MB are free. */
TEST(the_block_between_two_free_halves)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 1020 * MIB};
    struct xseg_allocator *allocator;
    char *left, *tensor, *right;
    struct xseg_block_info info;
    void *big = NULL;

    allocator = env_open_on(&settings, "expandable_segments:False");
    big = env_alloc(allocator, 1020 * MIB, NULL);
    env_free(allocator, big);
    left = env_alloc(allocator, 500 * MIB, NULL);
    tensor = env_alloc(allocator, 20 * MIB, NULL);
    right = env_alloc(allocator, 500 * MIB, NULL);
    env_free(allocator, left, right);
    assert_int_equal(xseg_alloc(allocator, 0, 800 * MIB, NULL, &big), XSEG_ERR_NO_MEMORY);

    info = env_block(allocator, tensor + 5 * MIB);
    assert_ptr_equal(info.base, tensor);
    assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(info.bytes, 20 * MIB);
    assert_int_equal(info.free_before, 500 * MIB);
    assert_int_equal(info.free_after, 500 * MIB);
    /* Releasing it would make this much room in one piece; so it is released, and 800 MB fit. */
    assert_int_equal(info.free_before + info.bytes + info.free_after, 1020 * MIB);
    env_free(allocator, tensor);
    big = env_alloc(allocator, 800 * MIB, NULL);
    env_free(allocator, big);
    env_close(allocator);
}

/* The article's use of it: of several candidates, release the one that frees the most. */
TEST(the_best_block_to_release)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    char *ptr[8], *best = NULL;
    size_t most = 0;

    for (unsigned i = 0; i < 8; i++)
        ptr[i] = env_alloc(allocator, 10 * MIB, NULL);
    env_free(allocator, ptr[1], ptr[4], ptr[6]);
    for (unsigned i = 0; i < 8; i++) {
        const struct xseg_block_info info = env_block(allocator, ptr[i]);
        const size_t room = info.free_before + info.bytes + info.free_after;

        if (info.state == XSEG_BLOCK_ALLOCATED && room > most) {
            most = room;
            best = ptr[i];
        }
    }
    assert_ptr_equal(best, ptr[5]);
    assert_int_equal(most, 30 * MIB);
    env_free(allocator, ptr[0], ptr[2], ptr[3], ptr[5], ptr[7]);
    env_close(allocator);
}

TEST(small_blocks_from_any_address)
{
    struct xseg_allocator *allocator = env_open(NULL);
    char *ptr[64];
    struct xseg_block_info info;

    for (unsigned i = 0; i < 64; i++)
        ptr[i] = env_alloc(allocator, 100 * (i + 1), NULL);
    for (unsigned i = 0; i < 64; i++) {
        info = env_block(allocator, ptr[i] + 100 * i);
        assert_ptr_equal(info.base, ptr[i]);
        assert_int_equal(info.requested, 100 * (i + 1));
        assert_true(info.is_small);
    }
    for (unsigned i = 0; i < 64; i += 2)
        env_free(allocator, ptr[i]);
    info = env_block(allocator, ptr[30] + 5);
    assert_int_equal(info.state, XSEG_BLOCK_CACHED);
    assert_int_equal(info.requested, 3100);
    info = env_block(allocator, ptr[31]);
    assert_int_equal(info.free_before, 3584);
    assert_int_equal(info.free_after, 3584);
    assert_int_equal(info.unmapped_before, 0);
    for (unsigned i = 1; i < 64; i += 2)
        env_free(allocator, ptr[i]);
    env_close(allocator);
}

/* As in PyTorch: the remainder of a split keeps the size as well. */
TEST(a_free_block_keeps_the_size_of_its_last_request)
{
    static const struct {
        const char *config;
        size_t bytes[3], taken;
    } cases[] = {
        {"expandable_segments:True", {MIB + 5, MIB + 600, MIB + 1500}, MIB + 1},
        {"expandable_segments:False", {MIB + 5, MIB + 600, MIB + 1500}, MIB + 1},
        {"expandable_segments:True", {500, 600, 1500}, 1},
        {"expandable_segments:False", {500, 600, 1500}, 1},
        {"expandable_segments:True", {300 * KIB + 5, 200 * KIB, 128 * KIB}, 150 * KIB},
        {"expandable_segments:False", {300 * KIB + 5, 200 * KIB, 128 * KIB}, 150 * KIB},
    };

    for (unsigned i = 0; i < COUNT_OF(cases); i++) {
        struct xseg_allocator *allocator = env_open(cases[i].config);
        char *ptr[3];

        for (unsigned k = 0; k < 3; k++)
            ptr[k] = env_alloc(allocator, cases[i].bytes[k], NULL);
        void *fence = env_alloc(allocator, cases[i].bytes[0], NULL);
        env_free(allocator, ptr[0]);
        assert_int_equal(env_block(allocator, ptr[0]).requested, cases[i].bytes[0]);
        env_free(allocator, ptr[2]);
        assert_int_equal(env_block(allocator, ptr[2]).requested, cases[i].bytes[2]);
        env_free(allocator, ptr[1]);
        assert_ptr_equal(env_block(allocator, ptr[1]).base, ptr[0]);
        assert_int_equal(env_block(allocator, ptr[1]).requested, cases[i].bytes[1]);
        char *part = env_alloc(allocator, cases[i].taken, NULL);
        assert_ptr_equal(part, ptr[0]);
        assert_int_equal(env_block(allocator, part).requested, cases[i].taken);
        assert_int_equal(env_block(allocator, ptr[1]).requested, cases[i].bytes[1]);
        env_free(allocator, part);
        assert_int_equal(env_block(allocator, ptr[1]).requested, cases[i].taken);
        env_free(allocator, fence);
        env_close(allocator);
    }
}

/* What stays of a block whose pages are unmapped has no last request; the mapped pages have the one of before. */
TEST(a_remainder_of_an_unmapped_block_has_no_request)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    char *first = env_alloc(allocator, 3 * MIB, NULL);
    char *second = env_alloc(allocator, 50 * MIB + 1, NULL);
    char *third = env_alloc(allocator, 3 * MIB, NULL);

    env_free(allocator, second);
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, first + 3 * MIB).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, first + 3 * MIB).requested, 0);
    assert_int_equal(env_block(allocator, third - MIB).requested, 0);
    assert_int_equal(env_block(allocator, first + 25 * MIB).state, XSEG_BLOCK_UNMAPPED);
    assert_int_equal(env_block(allocator, first + 25 * MIB).requested, 0);
    void *again = env_alloc(allocator, 21 * MIB, NULL);
    assert_ptr_equal(again, second);
    assert_int_equal(env_block(allocator, first + 25 * MIB).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, first + 25 * MIB).requested, 50 * MIB + 1);
    env_free(allocator, again, first, third);
    env_close(allocator);
}

/* PyTorch's answers: blocks are unmapped by size, so memory that is mapped again has the size of the largest; an empty
 * segment is destroyed, so a new one has none. */
TEST(memory_that_is_mapped_again_has_the_size_of_what_was_unmapped_last)
{
    static const size_t cases[][3] = {{40, 20, 20}, {20, 20, 40}};
    static const size_t last[] = {40 * MIB - 1, 40 * MIB - 3};

    for (unsigned i = 0; i < COUNT_OF(cases); i++) {
        struct xseg_allocator *allocator = env_open("expandable_segments:True");
        char *ptr[3];

        for (unsigned k = 0; k < 3; k++)
            ptr[k] = env_alloc(allocator, cases[i][k] * MIB - k - 1, NULL);
        void *fence = env_alloc(allocator, 20 * MIB, NULL);
        env_free(allocator, ptr[1]);
        env_empty_cache(allocator);
        env_free(allocator, ptr[0], ptr[2]);
        env_empty_cache(allocator);
        char *again = env_alloc(allocator, 10 * MIB, NULL);
        assert_ptr_equal(again, ptr[0]);
        assert_int_equal(env_block(allocator, again + 10 * MIB).state, XSEG_BLOCK_CACHED);
        assert_int_equal(env_block(allocator, again + 10 * MIB).requested, last[i]);
        env_free(allocator, again, fence);
        env_empty_cache(allocator);
        again = env_alloc(allocator, 10 * MIB, NULL);
        assert_int_equal(env_block(allocator, again + 10 * MIB).requested, 0);
        env_free(allocator, again);
        env_close(allocator);
    }
}

/* Across 4 GiB and more, where the starts are in several chunks. */
TEST(large_blocks_from_any_address)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    char *first = env_alloc(allocator, 9 * GIB, NULL);
    char *second = env_alloc(allocator, 3 * MIB, NULL);
    char *third = env_alloc(allocator, 20 * GIB, NULL);

    assert_ptr_equal(env_block(allocator, first).base, first);
    assert_ptr_equal(env_block(allocator, first + 9 * GIB - 1).base, first);
    assert_ptr_equal(env_block(allocator, second + MIB + 7).base, second);
    assert_ptr_equal(env_block(allocator, third + 13 * GIB).base, third);
    env_free(allocator, first);
    assert_int_equal(env_block(allocator, first + 5 * GIB).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, second).free_before, 9 * GIB);
    env_free(allocator, second);
    assert_int_equal(env_block(allocator, third).free_before, 9 * GIB + 3 * MIB);
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, first + 5 * GIB).state, XSEG_BLOCK_UNMAPPED);
    env_free(allocator, third);
    env_close(allocator);
}

TEST(unknown_addresses_and_older_callers)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = env_alloc(allocator, 512, NULL);
    struct xseg_block_info info = {sizeof(info)};

    env_expect_error(xseg_block_query(allocator, &info, &info), XSEG_ERR_NOT_ALLOCATED,
                     "not in memory");
    env_expect_error(xseg_block_query(allocator, NULL, &info), XSEG_ERR_NOT_ALLOCATED,
                     "not in memory");
    env_expect_error(xseg_block_query(allocator, ptr, NULL), XSEG_ERR_ARGUMENT, "NULL");
    /* A caller built against a header with fewer members gets those, and no more. */
    info.struct_size = offsetof(struct xseg_block_info, state);
    info.device = 1234;
    assert_ok(xseg_block_query(allocator, ptr, &info));
    assert_ptr_equal(info.base, ptr);
    assert_int_equal(info.device, 1234);
    env_free(allocator, ptr);
    env_close(allocator);
}
