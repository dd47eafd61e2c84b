/* SPDX-License-Identifier: MIT */
/* The choice of idle memory to release: the oldest first, limited by bytes and pages. */
#include "src/core/reclaim/decay.h"

#include "tests/support/env.h"

static void expect_choice(const struct xseg_idle_ages *ages, uint64_t bytes, uint32_t youngest,
                          uint64_t pages, uint32_t step, uint64_t part, uint64_t part_pages)
{
    struct xseg_idle_limit limit = {.ages = ages};

    xseg_idle_select_oldest(&limit, bytes, youngest, pages);
    assert_int_equal(limit.step, step);
    assert_int_equal(limit.step_bytes, part);
    assert_int_equal(limit.step_pages, part_pages);
    assert_int_equal(limit.pages, pages);
}

TEST(oldest_memory_is_chosen_first)
{
    struct xseg_idle_ages ages = {.span = 1000};

    ages.bytes[10] = 60;
    ages.pages[10] = 3;
    ages.bytes[40] = 40;
    ages.pages[40] = 2;
    ages.bytes[XSEG_IDLE_ALL - 1] = 20;
    ages.pages[XSEG_IDLE_ALL - 1] = 1;
    /* Oldest first, the steps have 20, 40 and 60 bytes. Steps after `step` are chosen completely, and `part` bytes of `step`;
     * if all 120 bytes are chosen, `part` is the remainder of the limit. */
    expect_choice(&ages, 0, 0, 9, XSEG_IDLE_ALL - 1, 0, 9);
    expect_choice(&ages, 19, 0, 9, XSEG_IDLE_ALL - 1, 19, 9);
    expect_choice(&ages, 20, 0, 9, 40, 0, 8);
    expect_choice(&ages, 50, 0, 9, 40, 30, 8);
    expect_choice(&ages, 61, 0, 9, 10, 1, 6);
    expect_choice(&ages, 1000, 0, 9, 0, 880, 3);
    /* The limit of pages ends the choice: the steps have 1, 2 and 3 pages. */
    expect_choice(&ages, 1000, 0, 2, 40, 980, 1);
    expect_choice(&ages, 1000, 0, 4, 10, 940, 1);
    /* Memory younger than step 20 is not chosen. */
    expect_choice(&ages, 1000, 20, 9, 20, 940, 6);
}

/* While a pass notifies observers, another thread may record a time after that of the pass. */
TEST(memory_that_became_idle_during_the_pass_has_age_0)
{
    const struct xseg_idle_ages ages = {.now = 5000, .span = 1000};

    assert_int_equal(xseg_idle_step(&ages, 5000), 0);
    assert_int_equal(xseg_idle_step(&ages, 5001), 0);
    assert_int_equal(xseg_idle_step(&ages, UINT64_MAX), 0);
    assert_true(xseg_idle_step(&ages, 4500) > 0);
    assert_true(xseg_idle_step(&ages, 3000) > xseg_idle_step(&ages, 4500));
}
