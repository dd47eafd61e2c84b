/* SPDX-License-Identifier: MIT */
/*
 * Time that is spent in the allocator, added up in spans; what is between them does not count.  What
 * starting and stopping takes is measured once, and taken off for each span.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_TRACE_CLOCK_H
#define TOOLS_TRACE_CLOCK_H

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#include "src/tools/replay/timeline.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

struct stopwatch {
    uint64_t began; /* nanoseconds */
    uint64_t spent; /* by all spans */
    uint64_t spans;
    double empty; /* what a span takes in which nothing is done */
};

void stopwatch_init(struct stopwatch *stopwatch);

/* Nanoseconds in the spans so far. */
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
    stopwatch->spent += stopwatch_now() - stopwatch->began;
    stopwatch->spans++;
}

/*
 * The clock of a trace, and what a replay measures by it: memory weighted by time, waits, and what the
 * driver adds to a call and to a request.
 *
 *     @ 1000000     a 0 ...  f 0 ...      @ 9000000
 *        |          no time passes but      |<- ticks: xseg_trim() with due_only, as a service's timer calls it
 *        |          what the driver takes   |
 *
 * On the simulator time is its virtual clock, which `@` moves on; driver calls and waits move it, too.
 * On a real driver it is the machine's, which `@` moves on as well.  The allocator decays by it.
 *
 * A *request* is what stands between a mark whose label begins with "request" and the next mark; pieces
 * with the same label belong to one request.
 *
 * Locking: none; trace_clock_now() may be called by any thread.
 */

struct trace_clock {
    struct xseg_allocator *allocator; /* NULL until it is open */
    struct timeline *timeline;
    struct stopwatch *stopwatch; /* ticks are measured */
    bool is_simulated;
    bool has_clock;               /* the trace has one */
    bool is_on;                   /* and it has been read */
    uint64_t tick;                /* nanoseconds between two ticks; 0: none */
    atomic_uint_fast64_t skipped; /* real driver: nanoseconds that `@` moved the clock on */
    uint64_t opened;              /* clock when the allocator was */
    uint64_t first;               /* microseconds on the first `@` */
    uint64_t origin;              /* clock then, in nanoseconds */
    uint64_t noted;               /* clock up to which memory is added up */
    double live, reserved;        /* added up: bytes x nanoseconds */
    uint64_t longest_call;        /* nanoseconds of an allocation or a free */
    uint64_t waits_before;        /* of the allocator's trial of the driver */
    uint64_t waits_aside;         /* in ticks and `e` lines */
    uint32_t *request_of;         /* [mark], see trace_clock_init(); 0: no request */
    size_t mark, mark_count;      /* marks so far; of the trace */
    uint64_t *request_ns;         /* [request_count] */
    uint32_t request_count;       /* the first stands for what is in no request */
    uint32_t request;             /* that is going on */
};

/* What came of it. */
struct trace_clock_result {
    bool has_clock;
    uint64_t live_time_avg, reserved_time_avg; /* bytes */
    uint64_t request_path_syncs;
    bool has_times;          /* the next are known: modelled */
    uint64_t max_call_ns;    /* the longest allocation or free */
    uint32_t requests;       /* that the trace has */
    uint64_t max_request_ns; /* the most that allocations and frees of a request took */
};

/*
 * Get ready for a replay of a trace.
 *
 * tick_ms: 0 for no ticks
 * Returns: false without host memory
 */
bool trace_clock_init(struct trace_clock *clock, const struct xtrace *trace, bool is_simulated,
                      uint64_t tick_ms, struct timeline *timeline, struct stopwatch *stopwatch);
void trace_clock_fini(struct trace_clock *clock);

/* The allocator is open: from here on it is looked at. */
void trace_clock_begin(struct trace_clock *clock, struct xseg_allocator *allocator);

/* As xseg_options.clock: nanoseconds; context is the watch. */
uint64_t trace_clock_now(void *context);

/* The trace's time at a time of the clock, in nanoseconds: what its `@` lines say, which before the first of them stands
 * still at that.  Of a trace without them, the time since the allocator was opened. */
uint64_t trace_clock_trace_ns(const struct trace_clock *clock, uint64_t time);

/* An `@` line.  Returns false if the allocator refused to be looked at or to tick. */
bool trace_clock_advance(struct trace_clock *clock, uint64_t microseconds);

/* The next mark of the trace. */
void trace_clock_mark(struct trace_clock *clock);

/* An allocation or a free has taken so long; only while is_on. */
void trace_clock_record_call(struct trace_clock *clock, uint64_t nanoseconds);

/* What comes in between is not on the path of a request. */
void trace_clock_suspend_waits(struct trace_clock *clock);
void trace_clock_resume_waits(struct trace_clock *clock);

/* The figures so far. */
void trace_clock_get(const struct trace_clock *clock, struct trace_clock_result *out);

#endif
