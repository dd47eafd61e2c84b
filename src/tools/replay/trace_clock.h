/* SPDX-License-Identifier: MIT */
/*
 * Time in a replay: the clock of the trace, measures by that clock, and a stopwatch for real time.
 *
 *     @ 1000000     a 0 ...  f 0 ...      @ 9000000
 *        |          only the driver's     |<- ticks: xseg_trim() with due_only, as a service's timer calls it
 *        |          time passes           |
 *
 * On the simulator, the trace clock is the virtual clock of the simulator, which `@` advances; driver calls and waits
 * advance it as well.  On a real driver, it is the clock of the host plus the advances.  The allocator decays by the
 * trace clock.  The measures are memory weighted by time, waits, and the driver time of calls and requests.
 *
 * A *request* is the part of a trace between a mark whose label begins with "request" and the next mark; parts with
 * equal labels belong to one request.
 *
 * The *stopwatch* adds up the time spent in the allocator.  The overhead of starting and stopping it is measured once
 * and subtracted for each span.
 *
 * Locking: none; any thread may call trace_clock_now().
 */
#ifndef TOOLS_TRACE_CLOCK_H
#define TOOLS_TRACE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "src/tools/replay/timeline.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

/* --- The stopwatch; times in nanoseconds. --- */

struct stopwatch {
    uint64_t began;
    uint64_t elapsed; /* in all spans */
    uint64_t spans;
    double overhead; /* of starting and stopping */
};

void stopwatch_init(struct stopwatch *stopwatch);

/* Get the time of all spans, without the overhead. */
double stopwatch_read(const struct stopwatch *stopwatch);

static inline uint64_t stopwatch_now(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void stopwatch_start(struct stopwatch *stopwatch)
{
    stopwatch->began = stopwatch_now();
}

static inline void stopwatch_stop(struct stopwatch *stopwatch)
{
    stopwatch->elapsed += stopwatch_now() - stopwatch->began;
    stopwatch->spans++;
}

/* --- The trace clock. --- */

struct trace_clock {
    struct xseg_allocator *allocator; /* NULL before trace_clock_begin() */
    struct timeline *timeline;
    struct stopwatch *stopwatch; /* measures ticks */
    bool is_simulated;
    bool has_clock;               /* the trace has `@` lines */
    bool is_on;                   /* the first `@` line was played */
    uint64_t tick;                /* nanoseconds between two ticks; 0: none */
    atomic_uint_fast64_t skipped; /* real driver: nanoseconds by which `@` advanced the clock */
    uint64_t opened;              /* time at which the allocator was opened */
    uint64_t first;               /* microseconds of the first `@` */
    uint64_t origin;              /* time of the first `@`, in nanoseconds */
    uint64_t accounted;           /* time until which memory is added up */
    double allocated, reserved;   /* sums of bytes x nanoseconds */
    uint64_t longest_call;        /* nanoseconds of an allocation or a free */
    uint64_t waits_before;        /* during the allocator's probe of the driver */
    uint64_t waits_excluded;      /* in ticks and `e` lines */
    uint32_t *request_of;         /* [mark]: its request; 0: none */
    size_t mark, mark_count;      /* played marks; marks of the trace */
    uint64_t *request_ns;         /* [request_count]; element 0: outside of requests */
    uint32_t request_count;
    uint32_t request; /* the current one */
};

struct trace_clock_result {
    bool has_clock;
    uint64_t allocated_time_avg, reserved_time_avg; /* bytes */
    uint64_t request_path_syncs;
    bool has_times;            /* the following are known: modeled */
    uint64_t max_operation_ns; /* longest allocation or free */
    uint32_t requests;         /* of the trace */
    uint64_t max_request_ns;   /* longest sum of the allocations and frees of a request */
};

/* tick_ms: 0: no ticks.  Returns false if out of host memory. */
bool trace_clock_init(struct trace_clock *clock, const struct xtrace *trace, bool is_simulated,
                      uint64_t tick_ms, struct timeline *timeline, struct stopwatch *stopwatch);
void trace_clock_fini(struct trace_clock *clock);

/* Begin the measurement; the allocator is open. */
void trace_clock_begin(struct trace_clock *clock, struct xseg_allocator *allocator);

/* Get the time in nanoseconds, as xseg_options.clock; context is the clock. */
uint64_t trace_clock_now(void *context);

/* Convert a time to trace time in nanoseconds, as in `@` lines; before the first `@` line, the time of that line.  In a
 * trace without `@` lines, trace time is the time since the allocator was opened. */
uint64_t trace_clock_trace_ns(const struct trace_clock *clock, uint64_t time);

/* Play an `@` line.  Returns false if the statistics cannot be read or a tick fails. */
bool trace_clock_advance(struct trace_clock *clock, uint64_t microseconds);

/* Play the next mark of the trace. */
void trace_clock_mark(struct trace_clock *clock);

/* Record the time of an allocation or a free.  Requires is_on. */
void trace_clock_record_call(struct trace_clock *clock, uint64_t nanoseconds);

/* Exclude the waits between these calls, which are not on the path of a request. */
void trace_clock_suspend_waits(struct trace_clock *clock);
void trace_clock_resume_waits(struct trace_clock *clock);

/* Get the measures so far. */
void trace_clock_get(const struct trace_clock *clock, struct trace_clock_result *out);

#endif
