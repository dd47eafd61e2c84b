/* SPDX-License-Identifier: MIT */
/* The clock: the system's, or the user's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "src/base/clock.h"

#define SECOND UINT64_C(1000000000)

static void the_system_s_clock_goes_on(void **state)
{
    const struct xseg_clock clock = {NULL, NULL};
    const struct timespec nap = {0, 30000000};
    const uint64_t fine = xseg_clock_fine(&clock), coarse = xseg_clock_coarse(&clock);

    (void)state;
    assert_int_equal(nanosleep(&nap, NULL), 0);
    assert_true(xseg_clock_fine(&clock) - fine >= 30000000);
    assert_true(xseg_clock_coarse(&clock) > coarse);
    assert_true(xseg_clock_fine(&clock) - xseg_clock_coarse(&clock) < SECOND);
}

static uint64_t read_own(void *context)
{
    return ++*(uint64_t *)context;
}

static void the_user_s_clock_is_read_instead(void **state)
{
    uint64_t now = 41;
    const struct xseg_clock clock = {read_own, &now};

    (void)state;
    assert_int_equal(xseg_clock_coarse(&clock), 42);
    assert_int_equal(xseg_clock_fine(&clock), 43);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_system_s_clock_goes_on),
        cmocka_unit_test(the_user_s_clock_is_read_instead),
    };

    return cmocka_run_group_tests_name("clock", tests, NULL, NULL);
}
