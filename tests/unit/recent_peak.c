/* SPDX-License-Identifier: MIT */
/* The highest value of the last minute, against a list of all values that were noted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "src/core/stats/recent_peak.h"
#include "tests/support/draw.h"

#define SECOND UINT64_C(1000000000)

static void nothing_was_noted(void **state)
{
    struct xseg_recent_peak recent;

    (void)state;
    xseg_recent_peak_init(&recent);
    assert_int_equal(xseg_recent_peak_read(&recent, 0, 7), 7);
    assert_int_equal(xseg_recent_peak_read(&recent, 1000 * SECOND, 0), 0);
}

static void a_peak_lasts_a_minute(void **state)
{
    struct xseg_recent_peak recent;

    (void)state;
    xseg_recent_peak_init(&recent);
    xseg_recent_peak_note(&recent, 0, 0, 50);
    xseg_recent_peak_note(&recent, SECOND, 50, 10);
    for (uint64_t at = 1; at < 65; at++) {
        assert_int_equal(xseg_recent_peak_read(&recent, at * SECOND, 10), 50);
        assert_int_equal(xseg_recent_peak_read(&recent, at * SECOND, 10), 50);
    }
    assert_int_equal(xseg_recent_peak_read(&recent, 65 * SECOND, 10), 10);
}

/* A value that was high until it fell counts for the minute after it fell, however long ago it rose. */
static void a_value_counts_until_a_minute_after_it_fell(void **state)
{
    struct xseg_recent_peak recent;

    (void)state;
    xseg_recent_peak_init(&recent);
    xseg_recent_peak_note(&recent, 0, 0, 50);
    xseg_recent_peak_note(&recent, 1003 * SECOND, 50, 10);
    assert_int_equal(xseg_recent_peak_read(&recent, 1063 * SECOND, 10), 50);
    assert_int_equal(xseg_recent_peak_read(&recent, 1065 * SECOND, 10), 10);
    xseg_recent_peak_init(&recent);
    assert_int_equal(xseg_recent_peak_read(&recent, 1063 * SECOND, 10), 10);
}

#define CHANGES 20000u

struct change {
    uint64_t at, value;
};

/* The highest value at any time from `from` on. */
static uint64_t highest(const struct change *change, unsigned count, uint64_t from)
{
    uint64_t most = change[count - 1].value;

    for (unsigned i = count - 1; i > 0 && change[i].at >= from; i--)
        most = change[i - 1].value > most ? change[i - 1].value : most;
    return most;
}

static void any_course_of_values(void **state)
{
    static struct change change[CHANGES];
    struct xseg_recent_peak recent;
    uint64_t random = 11, now = 0;
    unsigned between = 0;

    (void)state;
    xseg_recent_peak_init(&recent);
    for (unsigned i = 1; i < CHANGES; i++) {
        now += draw_next(&random) % 100 == 0 ? draw_next(&random) % (90 * SECOND)
                                             : draw_next(&random) % SECOND;
        change[i] = (struct change){now, draw_next(&random) % 1000};
        xseg_recent_peak_note(&recent, now, change[i - 1].value, change[i].value);
        now += draw_next(&random) % 2 == 0 ? 0 : draw_next(&random) % (3 * SECOND);
        const uint64_t peak = xseg_recent_peak_read(&recent, now, change[i].value);
        /* Not below what the last 60 seconds had, and not above what the last 65 had. */
        const uint64_t least =
            highest(change, i + 1, now - (now < 60 * SECOND ? now : 60 * SECOND));
        const uint64_t most = highest(change, i + 1, now - (now < 65 * SECOND ? now : 65 * SECOND));
        assert_in_range(peak, least, most);
        between += least < most;
    }
    assert_in_range(between, 100, CHANGES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_was_noted),
        cmocka_unit_test(a_peak_lasts_a_minute),
        cmocka_unit_test(a_value_counts_until_a_minute_after_it_fell),
        cmocka_unit_test(any_course_of_values),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
