/* SPDX-License-Identifier: MIT */
/* Clocks: the system clock, or a clock of the user. */
#include <time.h>

#include "src/base/clock.h"
#include "tests/support/test.h"

#define PAUSE_NS 30000000

TEST(system_clock_advances)
{
    const struct xseg_clock clock = {NULL, NULL};
    const struct timespec pause = {0, PAUSE_NS};
    const uint64_t before = xseg_clock_fine(&clock);

    assert_int_equal(nanosleep(&pause, NULL), 0);
    assert_true(xseg_clock_fine(&clock) - before >= PAUSE_NS);
}

/* The coarse clock is the fine clock at the last tick. A tick may be late, so 10 of at most 100 sleeps are enough. */
TEST(coarse_clock_follows_the_fine_clock)
{
    const struct xseg_clock clock = {NULL, NULL};
    const struct timespec pause = {0, PAUSE_NS};
    unsigned advances = 0;

    for (unsigned i = 0; i < 100 && advances < 10; i++) {
        const uint64_t before = xseg_clock_fine(&clock);

        assert_int_equal(nanosleep(&pause, NULL), 0);
        const uint64_t coarse = xseg_clock_coarse(&clock);
        assert_true(coarse <= xseg_clock_fine(&clock));
        advances += coarse > before;
    }
    assert_int_equal(advances, 10);
}

static uint64_t read_counter(void *context)
{
    return ++*(uint64_t *)context;
}

TEST(user_clock_replaces_the_system_clock)
{
    uint64_t now = 41;
    const struct xseg_clock clock = {read_counter, &now};

    assert_int_equal(xseg_clock_coarse(&clock), 42);
    assert_int_equal(xseg_clock_fine(&clock), 43);
}
