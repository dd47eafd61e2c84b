/* SPDX-License-Identifier: MIT */
/* Addition to and comparison with words in memory: the result equals that of C, for values that fit an immediate
 * operand and others. */
#include "src/base/single_writer.h"
#include "tests/support/test.h"

static const uint64_t values[] = {0,          1,         INT32_MAX,         (uint64_t)INT32_MAX + 1,
                                  UINT32_MAX, INT64_MAX, (uint64_t)1 << 63, UINT64_MAX};

#define VALUES (sizeof(values) / sizeof(values[0]))

TEST(a_word_is_compared_without_a_sign)
{
    for (size_t i = 0; i < VALUES; i++) {
        const atomic_uint_fast64_t word = values[i];

        for (size_t j = 0; j < VALUES; j++) {
            assert_int_equal(xseg_single_writer_equals(&word, values[j]), values[i] == values[j]);
            assert_int_equal(xseg_single_writer_is_below(&word, values[j]), values[i] < values[j]);
        }
    }
}

TEST(a_word_is_added_to_and_wraps)
{
    for (size_t i = 0; i < VALUES; i++) {
        for (size_t j = 0; j < VALUES; j++) {
            atomic_uint_fast64_t word = values[i];

            xseg_single_writer_add(&word, values[j]);
            assert_true(word == values[i] + values[j]);
        }
    }
}

/* gcc may place constants in the instruction only if their sign extension has the same value. */
TEST(immediate_operands_are_not_sign_extended)
{
    atomic_uint_fast64_t word = UINT64_MAX;

    assert_true(xseg_single_writer_equals(&word, UINT64_MAX));
    assert_false(xseg_single_writer_equals(&word, UINT32_MAX));
    assert_false(xseg_single_writer_is_below(&word, 1));
    xseg_single_writer_add(&word, UINT32_MAX);
    assert_true(xseg_single_writer_equals(&word, UINT32_MAX - UINT64_C(1)));
    xseg_single_writer_add(&word, 2);
    assert_true(xseg_single_writer_equals(&word, UINT64_C(1) << 32));
}
