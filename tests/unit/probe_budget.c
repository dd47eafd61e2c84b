/* SPDX-License-Identifier: MIT */
/* How the time of a measurement is shared out. */
#include "src/tools/commands/probe/probe_budget.h"
#include "src/tools/replay/stopwatch.h"
#include "tests/support/test.h"

#define SECOND UINT64_C(1000000000)

TEST(unlimited_budget_always_has_time)
{
    struct probe_budget budget;
    struct probe_share share;

    probe_budget_init(&budget, 0, 10);
    share = probe_budget_share(&budget, 10);
    assert_false(probe_budget_is_over(&budget));
    assert_true(probe_share_has_time(&share, false, 1000));
    assert_true(probe_share_has_time(&share, true, 1000));
}

TEST(shares_are_by_weight_and_have_two_halves)
{
    struct probe_budget budget;
    struct probe_share first, last;
    const uint64_t now = stopwatch_now();

    probe_budget_init(&budget, 1000, 10);
    first = probe_budget_share(&budget, 1);
    assert_in_range(first.half - now, 49 * SECOND, 60 * SECOND);
    assert_in_range(first.end - now, 99 * SECOND, 110 * SECOND);
    /* What the first has left is shared among those behind it. */
    (void)probe_budget_share(&budget, 4);
    last = probe_budget_share(&budget, 5);
    assert_in_range(last.end - now, 990 * SECOND, 1010 * SECOND);
    assert_true(probe_share_has_time(&last, false, 1000));
}

TEST(exhausted_share_still_has_three_samples)
{
    const uint64_t now = stopwatch_now();
    const struct probe_share share = {.half = now - 2, .end = now - 1, .deadline = now + SECOND};
    const struct probe_share late = {.half = now - 3, .end = now - 2, .deadline = now - 1};
    const struct probe_share half = {
        .half = now - 1, .end = now + 100 * SECOND, .deadline = now + 100 * SECOND};

    assert_true(probe_share_has_time(&share, false, 2));
    assert_false(probe_share_has_time(&share, false, 3));
    assert_false(probe_share_has_time(&share, true, 3));
    assert_false(probe_share_has_time(&late, true, 0));
    assert_false(probe_share_has_time(&half, false, 3));
    assert_true(probe_share_has_time(&half, true, 3));
}

TEST(exhausted_budget_has_nothing_to_share)
{
    struct probe_budget budget = {.deadline = stopwatch_now() - 1, .weight_left = 5};
    struct probe_share share;

    assert_true(probe_budget_is_over(&budget));
    share = probe_budget_share(&budget, 5);
    assert_false(probe_share_has_time(&share, true, 0));
    assert_int_equal(budget.weight_left, 0);
}
