/* SPDX-License-Identifier: MIT */
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
 * Locking: none; watch_now() may be called by any thread.
 */
#ifndef TOOLS_WATCH_H
#define TOOLS_WATCH_H

#include <stdatomic.h>

#include "src/tools/replay/stopwatch.h"
#include "src/tools/replay/timeline.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

struct watch {
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
    uint32_t *request_of;         /* [mark], see watch_init(); 0: no request */
    size_t mark, mark_count;      /* marks so far; of the trace */
    uint64_t *request_ns;         /* [request_count] */
    uint32_t request_count;       /* the first stands for what is in no request */
    uint32_t request;             /* that is going on */
};

/* What came of it. */
struct watch_result {
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
bool watch_init(struct watch *watch, const struct xtrace *trace, bool is_simulated,
                uint64_t tick_ms, struct timeline *timeline, struct stopwatch *stopwatch);
void watch_fini(struct watch *watch);

/* The allocator is open: from here on it is looked at. */
void watch_allocator(struct watch *watch, struct xseg_allocator *allocator);

/* As xseg_options.clock: nanoseconds; context is the watch. */
uint64_t watch_now(void *context);

/* The trace's time at a time of the clock, in nanoseconds: what its `@` lines say, which before the first of them stands
 * still at that.  Of a trace without them, the time since the allocator was opened. */
uint64_t watch_trace_ns(const struct watch *watch, uint64_t time);

/* An `@` line.  Returns false if the allocator refused to be looked at or to tick. */
bool watch_move(struct watch *watch, uint64_t microseconds);

/* The next mark of the trace. */
void watch_mark(struct watch *watch);

/* An allocation or a free has taken so long; only while is_on. */
void watch_call(struct watch *watch, uint64_t nanoseconds);

/* What comes in between is not on the path of a request. */
void watch_step_aside(struct watch *watch);
void watch_step_back(struct watch *watch);

/* The figures so far. */
void watch_read(const struct watch *watch, struct watch_result *out);

#endif
