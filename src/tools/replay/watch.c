/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/watch.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/tools/replay/simulator.h"

#define SECOND     UINT64_C(1000000000)
#define TICKS_MOST 65536u /* between two `@` lines; a longer gap has them further apart */
#define CLOCK_MOST (UINT64_C(1) << 62u) /* nanoseconds; later times are this */

/* --- Requests: marks with the same label. --- */

struct label {
    const char *text;
    size_t mark;
};

static int compare_labels(const void *left, const void *right)
{
    return strcmp(((const struct label *)left)->text, ((const struct label *)right)->text);
}

static size_t count_marks(const struct xtrace *trace)
{
    size_t count = 0;

    for (size_t i = 0; i < trace->op_count; i++)
        count += trace->ops[i].kind == XTRACE_MARK;
    return count;
}

static uint64_t find_first(const struct xtrace *trace)
{
    for (size_t i = 0; i < trace->op_count; i++)
        if (trace->ops[i].kind == XTRACE_CLOCK)
            return trace->ops[i].value;
    return 0;
}

/* Number the requests from 1 on. */
static void number_requests(struct watch *watch, struct label *labels)
{
    static const char word[] = "request";
    const char *before = NULL;

    qsort(labels, watch->mark_count, sizeof(*labels), compare_labels);
    for (size_t i = 0; i < watch->mark_count; i++) {
        if (strncmp(labels[i].text, word, sizeof(word) - 1) != 0)
            continue;
        watch->request_count += before == NULL || strcmp(before, labels[i].text) != 0;
        before = labels[i].text;
        watch->request_of[labels[i].mark] = watch->request_count - 1;
    }
}

static bool find_requests(struct watch *watch, const struct xtrace *trace)
{
    struct label *labels;
    size_t mark = 0;

    watch->mark_count = count_marks(trace);
    watch->request_count = 1;
    watch->request_of = calloc(watch->mark_count + 1, sizeof(*watch->request_of));
    labels = calloc(watch->mark_count + 1, sizeof(*labels));
    if (watch->request_of != NULL && labels != NULL) {
        for (size_t i = 0; i < trace->op_count; i++)
            if (trace->ops[i].kind == XTRACE_MARK) {
                labels[mark] = (struct label){trace->labels + trace->ops[i].value, mark};
                mark++;
            }
        number_requests(watch, labels);
    }
    free(labels);
    watch->request_ns = calloc(watch->request_count, sizeof(*watch->request_ns));
    return watch->request_of != NULL && labels != NULL && watch->request_ns != NULL;
}

bool watch_init(struct watch *watch, const struct xtrace *trace, bool is_simulated,
                uint64_t tick_ms, struct timeline *timeline, struct stopwatch *stopwatch)
{
    *watch = (struct watch){.is_simulated = is_simulated,
                            .has_clock = trace->has_clock,
                            .first = find_first(trace),
                            .timeline = timeline,
                            .stopwatch = stopwatch};
    watch->tick = (tick_ms < CLOCK_MOST / 1000000 ? tick_ms : CLOCK_MOST / 1000000) * 1000000;
    return find_requests(watch, trace);
}

void watch_fini(struct watch *watch)
{
    free(watch->request_of);
    free(watch->request_ns);
}

void watch_mark(struct watch *watch)
{
    watch->request = watch->request_of[watch->mark++];
}

/* --- The clock. --- */

uint64_t watch_now(void *context)
{
    struct watch *watch = context;
    struct timespec now = {0};

    /* Not 0 at the start: to the allocator that would be before its first look. */
    if (watch->is_simulated)
        return simulator.clock() + SECOND;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec +
           atomic_load_explicit(&watch->skipped, memory_order_relaxed);
}

static uint64_t since(uint64_t begin, uint64_t time)
{
    return time > begin ? time - begin : 0;
}

uint64_t watch_trace_ns(const struct watch *watch, uint64_t time)
{
    const uint64_t first = watch->first < CLOCK_MOST / 1000 ? watch->first * 1000 : CLOCK_MOST;

    if (!watch->has_clock)
        return since(watch->opened, time);
    return first + (watch->is_on ? since(watch->origin, time) : 0);
}

static void skip_to(struct watch *watch, uint64_t time)
{
    const uint64_t now = watch_now(watch);

    if (time <= now)
        return;
    if (watch->is_simulated)
        simulator.advance(time - now);
    else
        atomic_fetch_add_explicit(&watch->skipped, time - now, memory_order_relaxed);
}

/* --- Waits. --- */

/* Calls in which the host waits for the device; a free of an allocation is one. */
static uint64_t count_waits(const struct watch *watch)
{
    static const char *const names[] = {"cuStreamSynchronize", "cuEventSynchronize",
                                        "cuCtxSynchronize", "cuMemFree"};
    struct xseg_driver_call calls[128];
    size_t count = 0;
    uint64_t waits = 0;

    if (xseg_driver_calls(watch->allocator, calls, sizeof(calls) / sizeof(calls[0]), &count) !=
        XSEG_OK)
        return 0;
    for (size_t i = 0; i < count && i < sizeof(calls) / sizeof(calls[0]); i++)
        for (size_t name = 0; name < sizeof(names) / sizeof(names[0]); name++)
            waits += strcmp(calls[i].name, names[name]) == 0 ? calls[i].count : 0;
    return waits;
}

void watch_step_aside(struct watch *watch)
{
    watch->waits_aside -= count_waits(watch);
}

void watch_step_back(struct watch *watch)
{
    watch->waits_aside += count_waits(watch);
}

void watch_allocator(struct watch *watch, struct xseg_allocator *allocator)
{
    watch->allocator = allocator;
    watch->opened = watch_now(watch);
    watch->waits_before = count_waits(watch);
}

void watch_call(struct watch *watch, uint64_t nanoseconds)
{
    if (nanoseconds > watch->longest_call)
        watch->longest_call = nanoseconds;
    watch->request_ns[watch->request] += nanoseconds;
}

/* --- Time passes. --- */

/* Up to `time` memory is what it is now. */
static bool note_memory(struct watch *watch, uint64_t time)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    where.device = 0;
    if (time <= watch->noted)
        return true;
    /* Up to the host bytes, for which the kernel would be asked. */
    stats.struct_size = offsetof(struct xseg_statistics, host_bytes);
    if (xseg_stats_get(watch->allocator, &where, &stats) != XSEG_OK)
        return false;
    watch->live += (double)stats.allocated_bytes[0].current * (double)(time - watch->noted);
    watch->reserved += (double)stats.reserved_bytes[0].current * (double)(time - watch->noted);
    watch->noted = time;
    if (watch->timeline->file != NULL)
        timeline_until(watch->timeline, (time - watch->origin) / 1000, watch->allocator, &stats);
    return true;
}

/* What a timer would allow: a hundredth of the time. */
static bool tick(struct watch *watch)
{
    const struct xseg_trim_options options = {
        .struct_size = sizeof(options),
        .due_only = true,
        .max_us = watch->tick < 100000 ? 1 : watch->tick / 100000,
    };

    watch_step_aside(watch);
    stopwatch_start(watch->stopwatch);
    const xseg_status status = xseg_trim(watch->allocator, NULL, &options, NULL);
    stopwatch_stop(watch->stopwatch);
    watch_step_back(watch);
    return status == XSEG_OK;
}

bool watch_move(struct watch *watch, uint64_t microseconds)
{
    if (!watch->is_on) {
        watch->is_on = true;
        watch->noted = watch->origin = watch_now(watch);
        return true;
    }
    const uint64_t passed = microseconds - watch->first;
    const uint64_t end = watch->origin + (passed < CLOCK_MOST / 1000 ? passed * 1000 : CLOCK_MOST);
    const uint64_t gap = end - (end < watch->noted ? end : watch->noted);
    const uint64_t step = watch->tick > gap / TICKS_MOST ? watch->tick : gap / TICKS_MOST;
    bool fine = true;

    /* Ticks stand on a grid of their own, however often the trace looks at its clock. */
    for (uint64_t next = watch->noted + 1; watch->tick > 0 && fine; next++) {
        next = watch->origin + (next - watch->origin + step - 1) / step * step;
        if (next > end)
            break;
        fine = note_memory(watch, next);
        skip_to(watch, next);
        fine = fine && tick(watch);
    }
    fine = fine && note_memory(watch, end);
    skip_to(watch, end);
    return fine;
}

/* --- The figures. --- */

void watch_read(const struct watch *watch, struct watch_result *out)
{
    const double time = (double)(watch->noted - watch->origin);

    *out = (struct watch_result){.has_clock = watch->is_on, .has_times = watch->is_simulated};
    if (!watch->is_on)
        return;
    if (time > 0) {
        out->live_time_avg = (uint64_t)(watch->live / time + 0.5);
        out->reserved_time_avg = (uint64_t)(watch->reserved / time + 0.5);
    }
    out->request_path_syncs = count_waits(watch) - watch->waits_before - watch->waits_aside;
    out->max_call_ns = watch->longest_call;
    out->requests = watch->request_count - 1;
    for (uint32_t i = 1; i < watch->request_count; i++)
        if (watch->request_ns[i] > out->max_request_ns)
            out->max_request_ns = watch->request_ns[i];
}
