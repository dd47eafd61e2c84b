/* SPDX-License-Identifier: MIT */
/* The free index, compared with a linear search of an array. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/block/free_index.h"
#include "tests/support/test.h"

#define BLOCKS 600u

/* Extents, registered in an order other than that of their addresses. */
#define EXTENTS 7u

struct fixture {
    struct xseg_free_index free_index;
    struct xseg_extent extent[EXTENTS];
    uint64_t handle_0;
    struct xseg_block block[BLOCKS];
    bool there[BLOCKS];
};

/* The base of handles: the first block has handle 1. */
static char *records_of(struct fixture *f)
{
    return (char *)f->block - XSEG_BUMP_UNIT;
}

static bool comes_before(const struct xseg_block *block, uint64_t bytes, uint64_t position)
{
    return block->bytes < bytes || (block->bytes == bytes && xseg_block_position(block) < position);
}

/* The smallest block not below (bytes, position), found by a linear search. */
static struct xseg_block *slow_from(struct fixture *f, uint64_t bytes, uint64_t position)
{
    struct xseg_block *best = NULL;

    for (unsigned i = 0; i < BLOCKS; i++)
        if (f->there[i] && !comes_before(&f->block[i], bytes, position) &&
            (best == NULL || comes_before(&f->block[i], best->bytes, xseg_block_position(best))))
            best = &f->block[i];
    return best;
}

/* Place extents of this size at ascending addresses. */
static void lay_extents(struct fixture *f, uint64_t bytes)
{
    for (unsigned i = 0; i < EXTENTS; i++) {
        f->extent[i].segment.base = 2 * XSEG_MIB + i * bytes;
        f->extent[i].base = f->extent[i].segment.base;
        f->extent[i].segment.bytes = bytes;
        f->extent[i].position = (1 + i * 3 % EXTENTS) * (bytes >> 9);
    }
}

/* A cached block at an offset from the first extent. */
static struct xseg_block block_at(struct fixture *f, uint64_t offset, uint64_t bytes)
{
    return (struct xseg_block){
        .state = XSEG_BLOCK_CACHED,
        .base = f->extent[0].segment.base + offset,
        .bytes = bytes,
        .extent = &f->extent[offset / f->extent[0].segment.bytes],
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
static uint64_t like_bytes(void)
{
    const uint64_t odd = (uint64_t)random() % 10;

    return 20 * XSEG_MIB + (odd < 3 ? odd : 1) * 512;
}

static void toggle(struct fixture *f, unsigned i, uint64_t bytes)
{
    if (f->there[i]) {
        xseg_free_index_remove(&f->free_index, &f->block[i]);
        assert_null(f->block[i].uses);
    } else {
        f->block[i].bytes = bytes;
        xseg_free_index_insert(&f->free_index, &f->block[i]);
    }
    f->there[i] = !f->there[i];
}

/* Random changes, with sizes from a function and blocks at this distance. */
static void compare_searches(uint64_t (*next_bytes)(void), uint64_t distance)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct xseg_violation violation;

    assert_non_null(f);
    srandom(7);
    xseg_free_index_init(&f->free_index, records_of(f));
    lay_extents(f, (BLOCKS / EXTENTS + 1) * distance);
    for (unsigned i = 0; i < BLOCKS; i++)
        f->block[i] = block_at(f, i * 7919 % BLOCKS * distance, 512);
    for (unsigned step = 0; step < 20000; step++) {
        const unsigned i = (unsigned)random() % BLOCKS;
        const uint64_t bytes = next_bytes();

        toggle(f, i, next_bytes());
        assert_ptr_equal(xseg_free_index_find(&f->free_index, bytes), slow_from(f, bytes, 0));
        const uint64_t position = xseg_block_position(&f->block[i]);

        assert_ptr_equal(xseg_free_index_lower_bound(&f->free_index, bytes, position),
                         slow_from(f, bytes, position));
        if (f->there[i])
            assert_ptr_equal(xseg_free_index_next(&f->free_index, &f->block[i]),
                             slow_from(f, f->block[i].bytes, position + 1));
        if (step % 1000 == 0)
            assert_true(xseg_free_index_audit(&f->free_index, &violation));
    }
    free(f);
}

TEST(agrees_with_the_slow_search)
{
    compare_searches(random_bytes, XSEG_GIB);
}

TEST(agrees_with_it_where_hundreds_share_a_bin)
{
    compare_searches(like_bytes, 20 * XSEG_MIB);
    compare_searches(like_bytes, 244 * XSEG_MIB);
}

/* Each inserted block becomes the first of a bin; then the first block is removed repeatedly. */
TEST(a_bin_can_be_a_stack)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct xseg_violation violation;

    assert_non_null(f);
    xseg_free_index_init(&f->free_index, records_of(f));
    lay_extents(f, BLOCKS * 20 * XSEG_MIB);
    for (unsigned i = BLOCKS; i-- > 0;) {
        f->block[i] = block_at(f, i * 20 * XSEG_MIB, 20 * XSEG_MIB);
        xseg_free_index_insert(&f->free_index, &f->block[i]);
        assert_int_equal(xseg_free_index_count(&f->free_index), BLOCKS - i);
        assert_true(i % 50 != 0 || xseg_free_index_audit(&f->free_index, &violation));
    }
    for (unsigned i = 0; i < BLOCKS; i++) {
        assert_ptr_equal(xseg_free_index_find(&f->free_index, 20 * XSEG_MIB), &f->block[i]);
        xseg_free_index_remove(&f->free_index, &f->block[i]);
        assert_true(i % 50 != 0 || xseg_free_index_audit(&f->free_index, &violation));
    }
    assert_null(xseg_free_index_find(&f->free_index, 20 * XSEG_MIB));
    assert_int_equal(xseg_free_index_count(&f->free_index), 0);
    free(f);
}

/* The longest run of ascending priorities among 4096 records at a regular distance: long runs make deep trees. */
static unsigned longest_rise(uint32_t distance)
{
    unsigned run = 0, longest = 0;
    uint32_t before = 0;

    for (uint32_t i = 1; i <= 4096; i++) {
        const uint32_t priority = xseg_tree_priority(i * distance);

        run = priority > before ? run + 1 : 0;
        before = priority;
        longest = run > longest ? run : longest;
    }
    return longest;
}

TEST(no_regular_distance_has_priorities_in_order)
{
    const uint32_t record = sizeof(struct xseg_block) / XSEG_BUMP_UNIT;

    for (uint32_t distance = record; distance < 4096 * record; distance += record)
        assert_in_range(longest_rise(distance), 2, 60);
}

/* Requests may exceed the memory of any device. */
TEST(no_block_fits_a_size_above_the_maximum)
{
    struct fixture *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    xseg_free_index_init(&f->free_index, records_of(f));
    lay_extents(f, 1ull << 49);
    f->block[0] = block_at(f, 0, (1ull << 49) - 512);
    xseg_free_index_insert(&f->free_index, &f->block[0]);
    for (unsigned shift = 20; shift < 64; shift++) {
        struct xseg_block *fitting = shift < 49 ? &f->block[0] : NULL;

        assert_ptr_equal(xseg_free_index_find(&f->free_index, 1ull << shift), fitting);
        assert_ptr_equal(xseg_free_index_lower_bound(&f->free_index, 1ull << shift, 512), fitting);
    }
    assert_null(xseg_free_index_find(&f->free_index, UINT64_MAX));
    assert_null(xseg_free_index_lower_bound(&f->free_index, UINT64_MAX, UINT64_MAX));
    free(f);
}

static void expect(struct fixture *f, const char *tag)
{
    struct xseg_violation violation = {0};

    assert_false(xseg_free_index_audit(&f->free_index, &violation));
    assert_string_equal(violation.tag, tag);
}

/* The audit names what is broken. */
TEST(the_audit_can_fail)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct xseg_violation violation = {0};

    assert_non_null(f);
    xseg_free_index_init(&f->free_index, records_of(f));
    lay_extents(f, XSEG_MIB);
    for (unsigned i = 0; i < 64; i++) {
        f->block[i] = block_at(f, i * 1024, 1024);
        xseg_free_index_insert(&f->free_index, &f->block[i]);
    }
    assert_true(xseg_free_index_audit(&f->free_index, &violation));
    f->block[0].state = XSEG_BLOCK_ALLOCATED;
    expect(f, "INDEX-2");
    f->block[0].state = XSEG_BLOCK_CACHED;
    /* The first block names a parent with a higher address. */
    f->block[1].base -= 1024;
    f->block[0].base += 1024;
    expect(f, "INDEX-3");
    f->block[1].base += 1024;
    f->block[0].base -= 1024;
    assert_true(xseg_free_index_audit(&f->free_index, &violation));
    /* A sorted list is no treap. */
    const uint32_t first = f->free_index.bin[2];
    for (unsigned i = 0; i < 64; i++) {
        f->block[i].left = i < 63 ? xseg_block_handle(records_of(f), &f->block[i + 1]) : 0;
        f->block[i].right = 0;
    }
    expect(f, "INDEX-4");
    assert_int_equal(f->free_index.bin[2], first);
    xseg_bitmap_clear(&f->free_index.used, 2);
    expect(f, "INDEX-1");
    free(f);
}
