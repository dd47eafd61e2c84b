/* SPDX-License-Identifier: MIT */
/* Variants of a configuration: their strings, and candidate values. */
#include <stdlib.h>

#include "src/tools/commands/advise/tuning.h"
#include "tests/support/test.h"

#define EXPANDABLE_TRUE 1 /* index of the keyword */

static struct tuning_base make_base(const char *config, bool has_clock, bool only_pytorch)
{
    const struct xtrace trace = {.has_clock = has_clock};
    struct tuning_base base;

    assert_true(tuning_base_init(&base, config, &trace, only_pytorch));
    return base;
}

static void expect_settings_string(const struct tuning_base *base, const struct tuning *tuning,
                                   const char *expected)
{
    char *text = tuning_string(base, tuning);

    assert_non_null(text);
    assert_string_equal(text, expected);
    assert_true(tuning_is_valid(text));
    free(text);
}

static bool contains(const uint64_t *values, size_t count, uint64_t value)
{
    bool found = false;

    for (size_t i = 0; i < count; i++)
        found |= values[i] == value;
    return found;
}

TEST(kept_keys_keep_their_order)
{
    const struct tuning_base base =
        make_base(" backend:native , roundup_power2_divisions:[256:1,>:4],"
                  "max_split_size_mb : 64 ,",
                  false, false);
    struct tuning tuning = tuning_unchanged();

    expect_settings_string(
        &base, &tuning,
        "backend:native,roundup_power2_divisions:[256:1,>:4],max_split_size_mb : 64");
    assert_int_equal(tuning_changes(&tuning), 0);
    tuning.value[TUNING_SPLIT] = 128;
    expect_settings_string(
        &base, &tuning,
        "backend:native,roundup_power2_divisions:[256:1,>:4],max_split_size_mb:128");
    tuning.value[TUNING_ROUNDING] = TUNING_REMOVED;
    expect_settings_string(&base, &tuning, "backend:native,max_split_size_mb:128");
    assert_int_equal(tuning_changes(&tuning), 2);
    assert_false(tuning_is_valid("max_split_size_mb:20,large_segment_size_mb:32"));
    assert_false(tuning_base_init(&(struct tuning_base){0}, "max_split_size:64",
                                  &(struct xtrace){.has_clock = false}, false));
}

TEST(expandable_segments_are_toggled)
{
    const struct tuning_base base = make_base("", false, false);
    /* A name within another name does not match. */
    const struct tuning_base off =
        make_base("expandable_segments_reserve:0.5,expandable_segments:False", false, false);
    struct tuning tuning = tuning_unchanged();
    const struct tuning on = tuning_flip_expandable(&off, &tuning);

    expect_settings_string(&base, &tuning, "");
    assert_true(tuning_is_expandable(&base, &tuning));
    tuning = tuning_flip_expandable(&base, &tuning);
    expect_settings_string(&base, &tuning, "expandable_segments:False");
    assert_false(tuning_is_expandable(&base, &tuning));
    tuning = tuning_flip_expandable(&base, &tuning);
    expect_settings_string(&base, &tuning, "");
    assert_int_equal(on.value[TUNING_EXPANDABLE], EXPANDABLE_TRUE);
    expect_settings_string(&off, &on, "expandable_segments_reserve:0.5,expandable_segments:True");
}

TEST(only_different_values_are_tried)
{
    const struct tuning_base base =
        make_base("expandable_segments:False,max_split_size_mb:64", false, false);
    struct tuning tuning = tuning_unchanged();
    uint64_t values[TUNING_VALUES];
    size_t count = tuning_far(&base, &tuning, TUNING_SPLIT, values);

    assert_false(contains(values, count, 64));
    assert_false(contains(values, count, TUNING_UNCHANGED));
    assert_true(contains(values, count, 128));
    assert_true(contains(values, count, TUNING_REMOVED));
    tuning.value[TUNING_SPLIT] = 128;
    count = tuning_far(&base, &tuning, TUNING_SPLIT, values);
    assert_false(contains(values, count, 128));
    assert_true(contains(values, count, TUNING_UNCHANGED));
    assert_int_equal(tuning_far(&base, &tuning, TUNING_EXPANDABLE, values), 0);
}

TEST(only_relevant_keys_are_tried)
{
    const struct tuning_base classic = make_base("expandable_segments:False", false, false);
    const struct tuning_base clocked = make_base("", true, false),
                             pytorch = make_base("", true, true);
    const struct tuning tuning = tuning_unchanged();
    uint64_t values[TUNING_VALUES];

    assert_int_equal(tuning_far(&classic, &tuning, TUNING_PAGE, values), 0);
    assert_int_equal(tuning_far(&classic, &tuning, TUNING_IDLE, values), 0);
    assert_int_equal(tuning_far(&clocked, &tuning, TUNING_SPLIT, values), 0);
    assert_int_equal(tuning_far(&clocked, &tuning, TUNING_REUSE, values), 0);
    /* 3 values of idle_ms, and 2 of page_size. */
    assert_int_equal(tuning_far(&clocked, &tuning, TUNING_IDLE, values), 3);
    assert_int_equal(tuning_far(&clocked, &tuning, TUNING_PAGE, values), 2);
    assert_int_equal(tuning_far(&pytorch, &tuning, TUNING_IDLE, values), 0);
    assert_int_equal(tuning_far(&pytorch, &tuning, TUNING_PAGE, values), 0);
    assert_true(tuning_far(&pytorch, &tuning, TUNING_ROUNDING, values) > 0);
}

TEST(values_converge)
{
    static const uint64_t expected[][2] = {{24, 48}, {28, 40}, {30, 36}};
    struct tuning tuning = tuning_unchanged();
    uint64_t values[TUNING_VALUES];

    assert_int_equal(tuning_close(&tuning, TUNING_SEGMENT, 1, values), 0);
    tuning.value[TUNING_SEGMENT] = 32;
    for (unsigned round = 1; round <= 3; round++) {
        assert_int_equal(tuning_close(&tuning, TUNING_SEGMENT, round, values), 2);
        assert_int_equal(values[0], expected[round - 1][0]);
        assert_int_equal(values[1], expected[round - 1][1]);
    }
    tuning.value[TUNING_IDLE] = 1000;
    assert_int_equal(tuning_close(&tuning, TUNING_IDLE, 1, values), 0);
}

static void expect_and_free(char *text, const char *expected)
{
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}

TEST(pytorch_keys_are_recognized)
{
    const struct tuning_base mixed =
        make_base("history:all, max_split_size_mb:64 "
                  ",history_skip:[free_completed,segment_map],page_size:auto,"
                  "roundup_power2_divisions:[256:1,>:4],backend:native",
                  false, true);
    const struct tuning_base classic = make_base("expandable_segments:False", false, true);
    const struct tuning_base extended =
        make_base("expandable_segments:True,page_size:auto", false, true);

    expect_and_free(tuning_of_pytorch(&mixed),
                    "max_split_size_mb:64,roundup_power2_divisions:[256:1,>:4],backend:native,"
                    "expandable_segments:True");
    expect_and_free(tuning_not_of_pytorch(&mixed),
                    "history:all,history_skip:[free_completed,segment_map],page_size:auto");
    expect_and_free(tuning_of_pytorch(&classic), "expandable_segments:False");
    expect_and_free(tuning_not_of_pytorch(&classic), "");
    expect_and_free(tuning_of_pytorch(&extended), "expandable_segments:True");
}
