/* SPDX-License-Identifier: MIT */
/* The set of small numbers: against a plain array of flags, and at the edges of its words. */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/bitmap.h"
#include "tests/support/test.h"

struct fixture {
    struct xseg_bitmap bits;
    uint64_t *storage;
    bool *flag; /* what the set should hold */
    uint64_t random;
};

/* xorshift: the same numbers in every run. */
static uint32_t next_random(struct fixture *f, uint32_t below)
{
    f->random ^= f->random << 13;
    f->random ^= f->random >> 7;
    f->random ^= f->random << 17;
    return (uint32_t)(f->random % below);
}

static void setup(struct fixture *f, uint32_t count)
{
    f->storage = calloc(xseg_bitmap_words(count), sizeof(*f->storage));
    f->flag = calloc(count, sizeof(*f->flag));
    f->random = 88172645463325252u;
    assert_non_null(f->storage);
    assert_non_null(f->flag);
    xseg_bitmap_init(&f->bits, f->storage, count);
}

static void teardown(struct fixture *f)
{
    free(f->storage);
    free(f->flag);
}

static void add(struct fixture *f, uint32_t number)
{
    xseg_bitmap_set(&f->bits, number);
    f->flag[number] = true;
}

static uint32_t flag_next(const struct fixture *f, uint32_t from)
{
    for (uint32_t i = from; i < f->bits.count; i++)
        if (f->flag[i])
            return i;
    return XSEG_BITMAP_NONE;
}

static uint32_t flag_prev(const struct fixture *f, uint32_t below)
{
    for (uint32_t i = below < f->bits.count ? below : f->bits.count; i-- > 0;)
        if (f->flag[i])
            return i;
    return XSEG_BITMAP_NONE;
}

/* BITS-1, member by member. */
static void assert_summaries(const struct fixture *f)
{
    const uint32_t words = (f->bits.count + 63) / 64;

    for (uint32_t i = 0; i < words; i++)
        assert_int_equal(f->bits.word[i] != 0, f->bits.summary[i / 64] >> (i % 64) & 1);
    for (uint32_t i = 0; i < (words + 63) / 64; i++)
        assert_int_equal(f->bits.summary[i] != 0, f->bits.top >> i & 1);
}

TEST(an_empty_set_has_no_members)
{
    struct fixture f;

    setup(&f, 70000);
    assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
    assert_int_equal(xseg_bitmap_next(&f.bits, 69999), XSEG_BITMAP_NONE);
    assert_int_equal(xseg_bitmap_prev(&f.bits, 70000), XSEG_BITMAP_NONE);
    assert_false(xseg_bitmap_test(&f.bits, 4096));
    teardown(&f);
}

/* A lone member at each edge of a word and of a summary word is found from everywhere around it. */
TEST(a_lone_member_is_found_from_both_sides)
{
    static const uint32_t edge[] = {
        0,    1,    62,   63,   64,    65,    127,    4095,
        4096, 4097, 8191, 8192, 65535, 65536, 262080, XSEG_BITMAP_MAX - 1};

    for (size_t i = 0; i < XSEG_COUNT_OF(edge); i++) {
        struct fixture f;

        setup(&f, XSEG_BITMAP_MAX);
        add(&f, edge[i]);
        assert_true(xseg_bitmap_test(&f.bits, edge[i]));
        for (size_t j = 0; j < XSEG_COUNT_OF(edge); j++) {
            assert_int_equal(xseg_bitmap_next(&f.bits, edge[j]),
                             edge[j] <= edge[i] ? edge[i] : XSEG_BITMAP_NONE);
            assert_int_equal(xseg_bitmap_prev(&f.bits, edge[j]),
                             edge[j] > edge[i] ? edge[i] : XSEG_BITMAP_NONE);
        }
        assert_int_equal(xseg_bitmap_prev(&f.bits, UINT32_MAX), edge[i]);
        assert_int_equal(xseg_bitmap_next(&f.bits, UINT32_MAX), XSEG_BITMAP_NONE);
        xseg_bitmap_clear(&f.bits, edge[i]);
        assert_int_equal(f.bits.top, 0);
        assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
        teardown(&f);
    }
}

TEST(last_member_of_a_partial_word_is_found)
{
    static const uint32_t count[] = {1, 63, 64, 65, 4095, 4096, 4097, 100000};

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        struct fixture f;

        setup(&f, count[i]);
        add(&f, count[i] - 1);
        assert_int_equal(xseg_bitmap_next(&f.bits, 0), count[i] - 1);
        assert_int_equal(xseg_bitmap_next(&f.bits, count[i]), XSEG_BITMAP_NONE);
        assert_int_equal(xseg_bitmap_prev(&f.bits, count[i]), count[i] - 1);
        assert_summaries(&f);
        teardown(&f);
    }
}

TEST(random_members_equal_those_of_an_array)
{
    static const uint32_t count[] = {50, 64, 5000, 20000};

    for (size_t i = 0; i < XSEG_COUNT_OF(count); i++) {
        struct fixture f;

        setup(&f, count[i]);
        for (unsigned step = 0; step < 3000; step++) {
            const uint32_t number = next_random(&f, count[i]), at = next_random(&f, count[i] + 9);

            if (next_random(&f, 5) < 2) {
                add(&f, number);
            } else {
                xseg_bitmap_clear(&f.bits, number);
                f.flag[number] = false;
            }
            assert_int_equal(xseg_bitmap_test(&f.bits, number), f.flag[number]);
            assert_int_equal(xseg_bitmap_next(&f.bits, at), flag_next(&f, at));
            assert_int_equal(xseg_bitmap_prev(&f.bits, at), flag_prev(&f, at));
        }
        assert_summaries(&f);
        teardown(&f);
    }
}

TEST(adding_and_removing_twice_changes_nothing)
{
    struct fixture f;

    setup(&f, 200);
    add(&f, 70);
    add(&f, 70);
    xseg_bitmap_clear(&f.bits, 70);
    assert_int_equal(xseg_bitmap_next(&f.bits, 0), XSEG_BITMAP_NONE);
    xseg_bitmap_clear(&f.bits, 70);
    assert_summaries(&f);
    teardown(&f);
}
