/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/trace_clock.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/tools/replay/simulator.h"

#define TRIALS      2000
#define TRIALS_USED 1900 /* without the longest trials, during which the thread was preempted */

static int compare_times(const void *first, const void *second)
{
    const uint64_t a = *(const uint64_t *)first, b = *(const uint64_t *)second;

    return (a > b) - (a < b);
}

void stopwatch_init(struct stopwatch *stopwatch)
{
    uint64_t trials[TRIALS], sum = 0;

    for (unsigned i = 0; i < TRIALS; i++) {
        *stopwatch = (struct stopwatch){0};
        stopwatch_start(stopwatch);
        stopwatch_stop(stopwatch);
        trials[i] = stopwatch->elapsed;
    }
    qsort(trials, TRIALS, sizeof(trials[0]), compare_times);
    for (unsigned i = 0; i < TRIALS_USED; i++)
        sum += trials[i];
    *stopwatch = (struct stopwatch){.overhead = (double)sum / TRIALS_USED};
}

double stopwatch_read(const struct stopwatch *stopwatch)
{
    const double time = (double)stopwatch->elapsed - (double)stopwatch->spans * stopwatch->overhead;

    return time > 0 ? time : 0;
}

#define SECOND    UINT64_C(1000000000)
#define TICKS_MAX 65536u /* between two `@` lines; in a longer interval they are further apart */
#define CLOCK_MAX (UINT64_C(1) << 62u) /* nanoseconds; later times are truncated to it */

/* --- Requests: marks with the same label. --- */

struct label {
    const char *text;
    size_t mark;
};

static int compare_labels(const void *first, const void *second)
{
    return strcmp(((const struct label *)first)->text, ((const struct label *)second)->text);
}

static size_t count_marks(const struct xtrace *trace)
{
    size_t count = 0;

    for (size_t i = 0; i < trace->op_count; i++)
        count += trace->ops[i].kind == XTRACE_MARK;
    return count;
}

static uint64_t find_first_time(const struct xtrace *trace)
{
    for (size_t i = 0; i < trace->op_count; i++)
        if (trace->ops[i].kind == XTRACE_CLOCK)
            return trace->ops[i].value;
    return 0;
}

/* Number the requests from 1 on. */
static void number_requests(struct trace_clock *clock, struct label *labels)
{
    static const char word[] = "request";
    const char *previous = NULL;

    qsort(labels, clock->mark_count, sizeof(*labels), compare_labels);
    for (size_t i = 0; i < clock->mark_count; i++) {
        if (strncmp(labels[i].text, word, sizeof(word) - 1) != 0)
            continue;
        clock->request_count += previous == NULL || strcmp(previous, labels[i].text) != 0;
        previous = labels[i].text;
        clock->request_of[labels[i].mark] = clock->request_count - 1;
    }
}

static bool find_requests(struct trace_clock *clock, const struct xtrace *trace)
{
    struct label *labels;
    size_t mark = 0;

    clock->mark_count = count_marks(trace);
    clock->request_count = 1;
    clock->request_of = calloc(clock->mark_count + 1, sizeof(*clock->request_of));
    labels = calloc(clock->mark_count + 1, sizeof(*labels));
    if (clock->request_of != NULL && labels != NULL) {
        for (size_t i = 0; i < trace->op_count; i++)
            if (trace->ops[i].kind == XTRACE_MARK) {
                labels[mark] = (struct label){trace->labels + trace->ops[i].value, mark};
                mark++;
            }
        number_requests(clock, labels);
    }
    free(labels);
    clock->request_ns = calloc(clock->request_count, sizeof(*clock->request_ns));
    return clock->request_of != NULL && labels != NULL && clock->request_ns != NULL;
}

bool trace_clock_init(struct trace_clock *clock, const struct xtrace *trace, bool is_simulated,
                      uint64_t tick_ms, struct timeline *timeline, struct stopwatch *stopwatch)
{
    *clock = (struct trace_clock){.is_simulated = is_simulated,
                                  .has_clock = trace->has_clock,
                                  .first = find_first_time(trace),
                                  .timeline = timeline,
                                  .stopwatch = stopwatch};
    clock->tick = (tick_ms < CLOCK_MAX / 1000000 ? tick_ms : CLOCK_MAX / 1000000) * 1000000;
    return find_requests(clock, trace);
}

void trace_clock_fini(struct trace_clock *clock)
{
    free(clock->request_of);
    free(clock->request_ns);
}

void trace_clock_mark(struct trace_clock *clock)
{
    clock->request = clock->request_of[clock->mark++];
}

/* --- The clock. --- */

uint64_t trace_clock_now(void *context)
{
    struct trace_clock *clock = context;
    struct timespec now = {0};

    /* The allocator uses the time 0 for "never". */
    if (clock->is_simulated)
        return simulator.clock() + SECOND;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec +
           atomic_load_explicit(&clock->skipped, memory_order_relaxed);
}

static uint64_t subtract_times(uint64_t begin, uint64_t time)
{
    return time > begin ? time - begin : 0;
}

uint64_t trace_clock_trace_ns(const struct trace_clock *clock, uint64_t time)
{
    const uint64_t first = clock->first < CLOCK_MAX / 1000 ? clock->first * 1000 : CLOCK_MAX;

    if (!clock->has_clock)
        return subtract_times(clock->opened, time);
    return first + (clock->is_on ? subtract_times(clock->origin, time) : 0);
}

static void skip_to(struct trace_clock *clock, uint64_t time)
{
    const uint64_t now = trace_clock_now(clock);

    if (time <= now)
        return;
    if (clock->is_simulated)
        simulator.advance(time - now);
    else
        atomic_fetch_add_explicit(&clock->skipped, time - now, memory_order_relaxed);
}

/* --- Waits. --- */

/* Count the calls in which the host waits for the device; cuMemFree() also waits. */
static uint64_t count_waits(const struct trace_clock *clock)
{
    static const char *const names[] = {"cuStreamSynchronize", "cuEventSynchronize",
                                        "cuCtxSynchronize", "cuMemFree"};
    struct xseg_driver_call calls[128];
    size_t count = 0;
    uint64_t waits = 0;

    if (xseg_driver_calls(clock->allocator, calls, sizeof(calls) / sizeof(calls[0]), &count) !=
        XSEG_OK)
        return 0;
    for (size_t i = 0; i < count && i < sizeof(calls) / sizeof(calls[0]); i++)
        for (size_t name = 0; name < sizeof(names) / sizeof(names[0]); name++)
            waits += strcmp(calls[i].name, names[name]) == 0 ? calls[i].count : 0;
    return waits;
}

void trace_clock_suspend_waits(struct trace_clock *clock)
{
    clock->waits_excluded -= count_waits(clock);
}

void trace_clock_resume_waits(struct trace_clock *clock)
{
    clock->waits_excluded += count_waits(clock);
}

void trace_clock_begin(struct trace_clock *clock, struct xseg_allocator *allocator)
{
    clock->allocator = allocator;
    clock->opened = trace_clock_now(clock);
    clock->waits_before = count_waits(clock);
}

void trace_clock_record_call(struct trace_clock *clock, uint64_t nanoseconds)
{
    if (nanoseconds > clock->longest_call)
        clock->longest_call = nanoseconds;
    clock->request_ns[clock->request] += nanoseconds;
}

/* --- The `@` line. --- */

/* Account for memory, which did not change until `time`. */
static bool account_memory(struct trace_clock *clock, uint64_t time)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    scope.device = 0;
    if (time <= clock->accounted)
        return true;
    /* Read the statistics before host_bytes, which would require a system call. */
    stats.struct_size = offsetof(struct xseg_statistics, host_bytes);
    if (xseg_stats_get(clock->allocator, &scope, &stats) != XSEG_OK)
        return false;
    clock->allocated +=
        (double)stats.allocated_bytes[0].current * (double)(time - clock->accounted);
    clock->reserved += (double)stats.reserved_bytes[0].current * (double)(time - clock->accounted);
    clock->accounted = time;
    if (clock->timeline->file != NULL)
        timeline_until(clock->timeline, (time - clock->origin) / 1000, clock->allocator, &stats);
    return true;
}

/* Call xseg_trim() as the timer of a service does; a tick may take 1 % of the time. */
static bool run_tick(struct trace_clock *clock)
{
    const struct xseg_trim_options options = {
        .struct_size = sizeof(options),
        .due_only = true,
        .max_us = clock->tick < 100000 ? 1 : clock->tick / 100000,
    };

    trace_clock_suspend_waits(clock);
    stopwatch_start(clock->stopwatch);
    const xseg_status status = xseg_trim(clock->allocator, NULL, &options, NULL);
    stopwatch_stop(clock->stopwatch);
    trace_clock_resume_waits(clock);
    return status == XSEG_OK;
}

bool trace_clock_advance(struct trace_clock *clock, uint64_t microseconds)
{
    if (!clock->is_on) {
        clock->is_on = true;
        clock->accounted = clock->origin = trace_clock_now(clock);
        return true;
    }
    const uint64_t elapsed = microseconds - clock->first;
    const uint64_t end = clock->origin + (elapsed < CLOCK_MAX / 1000 ? elapsed * 1000 : CLOCK_MAX);
    const uint64_t interval = end - (end < clock->accounted ? end : clock->accounted);
    const uint64_t step = clock->tick > interval / TICKS_MAX ? clock->tick : interval / TICKS_MAX;
    bool success = true;

    /* Ticks are multiples of the step since the origin, independent of the `@` lines. */
    for (uint64_t next = clock->accounted + 1; clock->tick > 0 && success; next++) {
        next = clock->origin + (next - clock->origin + step - 1) / step * step;
        if (next > end)
            break;
        success = account_memory(clock, next);
        skip_to(clock, next);
        success = success && run_tick(clock);
    }
    success = success && account_memory(clock, end);
    skip_to(clock, end);
    return success;
}

/* --- The measures. --- */

void trace_clock_get(const struct trace_clock *clock, struct trace_clock_result *out)
{
    const double time = (double)(clock->accounted - clock->origin);

    *out = (struct trace_clock_result){.has_clock = clock->is_on, .has_times = clock->is_simulated};
    if (!clock->is_on)
        return;
    if (time > 0) {
        out->allocated_time_avg = (uint64_t)(clock->allocated / time + 0.5);
        out->reserved_time_avg = (uint64_t)(clock->reserved / time + 0.5);
    }
    out->request_path_syncs = count_waits(clock) - clock->waits_before - clock->waits_excluded;
    out->max_operation_ns = clock->longest_call;
    out->requests = clock->request_count - 1;
    for (uint32_t i = 1; i < clock->request_count; i++)
        if (clock->request_ns[i] > out->max_request_ns)
            out->max_request_ns = clock->request_ns[i];
}
