/* SPDX-License-Identifier: MIT */
/* The free index, compared with a linear search of an array. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/block/free_index.h"
#include "tests/support/audit.h"

#define BLOCKS  600u
#define EXTENTS 7u

static struct {
    uint64_t handle_0;
    struct xseg_block block[BLOCKS];
} records;
static struct xseg_block *const block = records.block;
static bool is_indexed[BLOCKS];
static struct xseg_free_index free_index;
static struct xseg_extent extent[EXTENTS];

/* The address of handle 0, one unit before the first block, which has handle 1. */
static char *records_base(void)
{
    return (char *)records.block - XSEG_BUMP_UNIT;
}

FIXTURE(set_up)
{
    memset(&records, 0, sizeof(records));
    memset(is_indexed, 0, sizeof(is_indexed));
    memset(&free_index, 0, sizeof(free_index));
    xseg_free_index_init(&free_index, records_base());
}

static void expect_index_audit(const char *tag)
{
    expect_audit(xseg_free_index_audit(&free_index, &violation), tag);
}

static bool precedes(const struct xseg_block *candidate, uint64_t bytes, uint64_t position)
{
    return candidate->bytes < bytes ||
           (candidate->bytes == bytes && xseg_block_position(candidate) < position);
}

/* The smallest block not below (bytes, position), found by a linear search. */
static struct xseg_block *search_linearly(uint64_t bytes, uint64_t position)
{
    struct xseg_block *best = NULL;

    for (unsigned i = 0; i < BLOCKS; i++)
        if (is_indexed[i] && !precedes(&block[i], bytes, position) &&
            (best == NULL || precedes(&block[i], best->bytes, xseg_block_position(best))))
            best = &block[i];
    return best;
}

/* Place extents of a size at ascending addresses; their positions are in another order. */
static void place_extents(uint64_t bytes)
{
    for (unsigned i = 0; i < EXTENTS; i++) {
        extent[i].segment.base = 2 * XSEG_MIB + i * bytes;
        extent[i].base = extent[i].segment.base;
        extent[i].segment.bytes = bytes;
        extent[i].position = (1 + i * 3 % EXTENTS) * (bytes >> 9);
    }
}

/* A cached block at an offset from the first extent. */
static struct xseg_block block_at(uint64_t offset, uint64_t bytes)
{
    return (struct xseg_block){
        .state = XSEG_BLOCK_CACHED,
        .base = extent[0].segment.base + offset,
        .bytes = bytes,
        .extent = &extent[offset / extent[0].segment.bytes],
    };
}

static uint64_t random_bytes(void)
{
    switch (random() % 4) {
    case 0:
        return (uint64_t)(random() % 8 + 1) * 512;
    case 1:
        return (uint64_t)(random() % 4096 + 1) * 512;
    case 2:
        return (uint64_t)(random() % 200000 + 1) * 512;
    default:
        return XSEG_GIB + (uint64_t)(random() % 100) * XSEG_GIB / 64;
    }
}

/* Mostly one size, and two other sizes of the same bin. */
static uint64_t similar_bytes(void)
{
    const uint64_t choice = (uint64_t)random() % 10;

    return 20 * XSEG_MIB + (choice < 3 ? choice : 1) * 512;
}

static void insert_or_remove(unsigned i, uint64_t bytes)
{
    if (is_indexed[i]) {
        xseg_free_index_remove(&free_index, &block[i]);
        assert_null(block[i].uses);
    } else {
        block[i].bytes = bytes;
        xseg_free_index_insert(&free_index, &block[i]);
    }
    is_indexed[i] = !is_indexed[i];
}

/* Insert and remove random blocks at regular distances, with sizes from a function. */
static void compare_searches(uint64_t (*next_bytes)(void), uint64_t distance)
{
    (void)set_up(NULL);
    srandom(7);
    place_extents((BLOCKS / EXTENTS + 1) * distance);
    for (unsigned i = 0; i < BLOCKS; i++)
        block[i] = block_at(i * 7919 % BLOCKS * distance, 512);
    for (unsigned step = 0; step < 20000; step++) {
        const unsigned i = (unsigned)random() % BLOCKS;
        const uint64_t bytes = next_bytes();

        insert_or_remove(i, next_bytes());
        assert_ptr_equal(xseg_free_index_find(&free_index, bytes), search_linearly(bytes, 0));
        const uint64_t position = xseg_block_position(&block[i]);

        assert_ptr_equal(xseg_free_index_lower_bound(&free_index, bytes, position),
                         search_linearly(bytes, position));
        if (is_indexed[i])
            assert_ptr_equal(xseg_free_index_next(&free_index, &block[i]),
                             search_linearly(block[i].bytes, position + 1));
        if (step % 1000 == 0)
            expect_index_audit(NULL);
    }
}

/* Sizes are distributed over all bins, or share one bin. */
TEST(index_agrees_with_a_linear_search)
{
    compare_searches(random_bytes, XSEG_GIB);
    compare_searches(similar_bytes, 20 * XSEG_MIB);
    compare_searches(similar_bytes, 244 * XSEG_MIB);
}

/* Each inserted block becomes the first of a bin; then the first block is removed repeatedly. */
TEST_WITH(bin_can_be_used_as_a_stack, set_up, NULL)
{
    place_extents(BLOCKS * 20 * XSEG_MIB);
    for (unsigned i = BLOCKS; i-- > 0;) {
        block[i] = block_at(i * 20 * XSEG_MIB, 20 * XSEG_MIB);
        xseg_free_index_insert(&free_index, &block[i]);
        assert_int_equal(xseg_free_index_count(&free_index), BLOCKS - i);
        if (i % 50 == 0)
            expect_index_audit(NULL);
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_ptr_equal(xseg_free_index_find(&free_index, 20 * XSEG_MIB), &block[i]);
        xseg_free_index_remove(&free_index, &block[i]);
        if (i % 50 == 0)
            expect_index_audit(NULL);
    }
    assert_null(xseg_free_index_find(&free_index, 20 * XSEG_MIB));
    assert_int_equal(xseg_free_index_count(&free_index), 0);
}

/* The longest run of ascending priorities among 4096 handles at a regular distance: long runs make deep trees. */
static unsigned longest_ascending_run(uint32_t distance)
{
    unsigned run = 0, longest = 0;
    uint32_t previous = 0;

    for (uint32_t i = 1; i <= 4096; i++) {
        const uint32_t priority = xseg_tree_priority(i * distance);

        run = priority > previous ? run + 1 : 0;
        previous = priority;
        longest = run > longest ? run : longest;
    }
    return longest;
}

TEST(regular_distances_have_no_ascending_priorities)
{
    const uint32_t record = sizeof(struct xseg_block) / XSEG_BUMP_UNIT;

    for (uint32_t distance = record; distance < 4096 * record; distance += record)
        assert_in_range(longest_ascending_run(distance), 2, 60);
}

/* Requests may exceed the memory of any device. */
TEST_WITH(no_block_fits_a_size_above_the_maximum, set_up, NULL)
{
    place_extents(1ull << 49);
    block[0] = block_at(0, (1ull << 49) - 512);
    xseg_free_index_insert(&free_index, &block[0]);
    for (unsigned shift = 20; shift < 64; shift++) {
        struct xseg_block *fitting = shift < 49 ? &block[0] : NULL;

        assert_ptr_equal(xseg_free_index_find(&free_index, 1ull << shift), fitting);
        assert_ptr_equal(xseg_free_index_lower_bound(&free_index, 1ull << shift, 512), fitting);
    }
    assert_null(xseg_free_index_find(&free_index, UINT64_MAX));
    assert_null(xseg_free_index_lower_bound(&free_index, UINT64_MAX, UINT64_MAX));
}

TEST_WITH(audit_reports_the_violated_invariant, set_up, NULL)
{
    place_extents(XSEG_MIB);
    for (unsigned i = 0; i < 64; i++) {
        block[i] = block_at(i * 1024, 1024);
        xseg_free_index_insert(&free_index, &block[i]);
    }
    expect_index_audit(NULL);
    WITH_VALUE(block[0].state, XSEG_BLOCK_ALLOCATED, expect_index_audit("INDEX-2"));
    /* The first block names a parent with a higher address. */
    block[1].base -= 1024;
    block[0].base += 1024;
    expect_index_audit("INDEX-3");
    block[1].base += 1024;
    block[0].base -= 1024;
    expect_index_audit(NULL);
    /* A sorted list is not a treap: some block has a higher priority than its parent. */
    const uint32_t first = free_index.bin[2]; /* of blocks of 1024 bytes */
    for (unsigned i = 0; i < 64; i++) {
        block[i].left = i < 63 ? xseg_block_handle(records_base(), &block[i + 1]) : 0;
        block[i].right = 0;
    }
    expect_index_audit("INDEX-4");
    assert_int_equal(free_index.bin[2], first);
    xseg_bitmap_clear(&free_index.used, 2);
    expect_index_audit("INDEX-1");
}
