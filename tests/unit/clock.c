/* SPDX-License-Identifier: MIT */
/* The clock: the system's, or the user's. */
#include <time.h>

#include "src/base/clock.h"
#include "tests/support/test.h"

TEST(system_clock_advances)
{
    const struct xseg_clock clock = {NULL, NULL};
    const struct timespec nap = {0, 30000000};
    const uint64_t before = xseg_clock_fine(&clock);

    assert_int_equal(nanosleep(&nap, NULL), 0);
    assert_true(xseg_clock_fine(&clock) - before >= 30000000);
}

/* The coarse clock is the fine clock at the last tick. A tick may be late, so 10 of at most 100 sleeps are enough. */
TEST(the_coarse_clock_follows_the_fine_one)
{
    const struct xseg_clock clock = {NULL, NULL};
    const struct timespec nap = {0, 30000000};
    unsigned followed = 0;

    for (unsigned i = 0; i < 100 && followed < 10; i++) {
        const uint64_t before = xseg_clock_fine(&clock);

        assert_int_equal(nanosleep(&nap, NULL), 0);
        const uint64_t coarse = xseg_clock_coarse(&clock);
        assert_true(coarse <= xseg_clock_fine(&clock));
        followed += coarse > before;
    }
    assert_int_equal(followed, 10);
}

static uint64_t read_own(void *context)
{
    return ++*(uint64_t *)context;
}

TEST(user_clock_replaces_the_system_clock)
{
    uint64_t now = 41;
    const struct xseg_clock clock = {read_own, &now};

    assert_int_equal(xseg_clock_coarse(&clock), 42);
    assert_int_equal(xseg_clock_fine(&clock), 43);
}
