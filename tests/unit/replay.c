/* SPDX-License-Identifier: MIT */
/*
 * The time that a replay measures: calls of the allocator, without the replay's own accounting.
 *
 * The test replaces the clock: only library calls take time, a fixed amount each (the linker redirects the calls), so
 * that every sum is exact.
 */
#include <stdio.h>
#include <time.h>

#include "src/tools/replay/replay.h"
#include "src/tools/trace/xtrace.h"
#include "tests/support/test.h"

#define CALL       100     /* nanoseconds per allocation, free or use */
#define TRIM       7000    /* xseg_trim() */
#define ACCOUNTING 9999999 /* statistics, counts of driver calls */

static uint64_t now;

int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
    (void)clock;
    *out = (struct timespec){(time_t)(now / 1000000000), (long)(now % 1000000000)};
    return 0;
}

#define WRAP(name, time, parameters, arguments) \
    xseg_status __real_##name parameters;       \
    xseg_status __wrap_##name parameters;       \
    xseg_status __wrap_##name parameters        \
    {                                           \
        now += time;                            \
        return __real_##name arguments;         \
    }

WRAP(xseg_alloc, CALL,
     (struct xseg_allocator * allocator, int device, size_t bytes, xseg_stream stream, void **out),
     (allocator, device, bytes, stream, out))
WRAP(xseg_free, CALL, (struct xseg_allocator * allocator, void *block), (allocator, block))
WRAP(xseg_record_stream, CALL, (struct xseg_allocator * allocator, void *block, xseg_stream stream),
     (allocator, block, stream))
WRAP(xseg_trim, TRIM,
     (struct xseg_allocator * allocator, const struct xseg_scope *scope,
      const struct xseg_trim_options *trim, struct xseg_trim_result *out),
     (allocator, scope, trim, out))
WRAP(xseg_stats_get, ACCOUNTING,
     (struct xseg_allocator * allocator, const struct xseg_scope *scope,
      struct xseg_statistics *out),
     (allocator, scope, out))
WRAP(xseg_driver_calls, ACCOUNTING,
     (struct xseg_allocator * allocator, struct xseg_driver_call *calls, size_t capacity,
      size_t *count),
     (allocator, calls, capacity, count))

/* The sum of nanoseconds that a replay of a trace reports. */
static double measure_ns(const char *text, uint64_t tick_ms, FILE *timeline)
{
    const struct replay_settings settings = {.file = "test",
                                             .config = "",
                                             .driver = GPU_SIMULATED,
                                             .device_bytes = (uint64_t)1 << 30,
                                             .timeline = timeline,
                                             .tick_ms = tick_ms};
    char program[200];
    const int bytes = snprintf(program, sizeof(program), "xtrace 1\n%s", text);
    FILE *file = fmemopen(program, (size_t)bytes, "r");
    struct xtrace_fault fault = {0};
    struct replay_result result;
    struct xtrace trace;

    assert_non_null(file);
    if (!xtrace_read(file, -1, &trace, &fault))
        fail_msg("%s", fault.text);
    (void)fclose(file);
    replay_run(&trace, &settings, &result);
    assert_int_equal(result.end, REPLAY_DONE);
    double sum = result.ns_per_event * (double)result.events;
    replay_result_fini(&result);
    xtrace_fini(&trace);
    return sum;
}

/* Ticks count as time of the allocator; the accounting of the replay does not. */
TEST(calls_are_measured)
{
    static const struct {
        const char *text;
        uint64_t tick_ms;
        uint64_t ns;
    } cases[] = {
        {"a 0 512 0\nf 0\n", 0, 2 * CALL},
        {"a 0 512 0\nu 0 1\nf 0\ne\n", 0, 3 * CALL + TRIM},
        {"@ 0\na 0 512 0\n@ 10\nm request\nf 0\n@ 20\n", 0, 2 * CALL},
        {"@ 0\na 0 512 0\nu 0 1\n@ 10\nf 0\ne\n@ 20\n", 0, 3 * CALL + TRIM},
        {"a 0 512 0\n@ 0\nf 0\n", 0, 2 * CALL},
        {"@ 0\na 0 512 0\n@ 3000000\nf 0\n", 1000, 2 * CALL + 3 * TRIM},
    };

    for (unsigned i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal((uint64_t)(measure_ns(cases[i].text, cases[i].tick_ms, NULL) * 1000 + 0.5),
                         cases[i].ns * 1000);
}

TEST(timeline_has_no_cost)
{
    static const char *const texts[] = {"a 0 512 0\nm step\nf 0\n",
                                        "@ 0\na 0 512 0\n@ 10\nf 0\n@ 20\n"};

    for (unsigned i = 0; i < 2; i++) {
        FILE *file = tmpfile();

        assert_non_null(file);
        assert_int_equal((int)measure_ns(texts[i], 0, file), 2 * CALL);
        (void)fclose(file);
    }
}
