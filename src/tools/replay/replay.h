/* SPDX-License-Identifier: MIT */
/*
 * A replay: one run of a trace on a new allocator and driver.
 *
 * The simulator is reset before each replay, so replays are independent, and two equal replays have equal results
 * except for measured times.  The allocator's probe of the driver before the first operation and the cleanup after
 * the last one are not part of the results.
 *
 * On the simulator, queued work remains incomplete until the trace completes it, or until the allocator waits for
 * it.  On a real driver, a use writes one byte of the block, and work without a block is not queued.  A capture is
 * one of the driver, so work that is queued during it becomes part of a graph, which is discarded.
 *
 * A replay ends early where the program would fail: at the first allocation that fails and succeeded in the file.  If
 * an allocation succeeds that failed in the file, its block is freed immediately.
 *
 * With a trace clock (trace_clock.h), the allocator decays by it, and ticks replace the background thread, which
 * sleeps in real time.  A replay that writes its history has no background thread either.
 *
 * Locking: none; one replay at a time in a process, since the simulator has one state.
 */
#ifndef TOOLS_REPLAY_H
#define TOOLS_REPLAY_H

#include <stdio.h>

#include "src/tools/replay/check.h"
#include "src/tools/replay/explanation.h"
#include "src/tools/replay/gpu.h"
#include "src/tools/replay/headroom.h"
#include "src/tools/replay/trace_clock.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

struct replay_settings {
    const char *file; /* name in messages */
    const char *config;
    const char *driver;    /* gpu.h */
    uint64_t device_bytes; /* simulator only */
    const char *costs;     /* simulator only; NULL: the simulator's default */
    enum check_mode check;
    FILE *timeline;   /* NULL: none */
    FILE *history;    /* NULL: none */
    uint64_t tick_ms; /* trace time between two calls of xseg_trim() with due_only; 0: none */
    bool explain;     /* query at the end why memory is reserved */
    bool headroom;    /* find the headroom */
    bool quiet;       /* no log lines, and no message when memory runs out */
    bool progress;    /* on standard error */
};

enum replay_end {
    REPLAY_DONE,
    REPLAY_MISMATCH,      /* the check failed, or a resource leaked */
    REPLAY_OUT_OF_MEMORY, /* and the file does not contain the failure */
    REPLAY_ERROR /* the driver, the configuration or an output file failed; there are no results */
};

struct replay_result {
    enum replay_end end;
    uint64_t events;        /* replayed */
    int64_t oom_at;         /* index of the event; -1: none */
    uint64_t failed;        /* allocations that failed in the file */
    uint64_t failed_served; /* of these, allocations that succeeded */
    uint64_t peak_requested, peak_allocated, peak_active, peak_reserved;
    uint64_t end_allocated, end_reserved; /* after the last operation */
    /* With replay_settings.headroom, of the points after each event: for the allocated bytes, and for their peak so far. */
    struct headroom_pair headroom, headroom_of_peak;
    struct xseg_driver_call *calls;
    size_t call_count;
    bool has_driver_time;
    uint64_t driver_ns;  /* modeled */
    double ns_per_event; /* measured */
    bool was_checked;
    uint64_t checked, mismatches;
    /* CHECK_SUCCESS: where the replay diverges from the tape; 0: nowhere. */
    uint32_t check_end_line;
    struct trace_clock_result clock;
    struct explanation explanation;
};

/* Replay a trace.  Errors are reported on standard error.  *out is always set; the caller calls replay_result_fini(). */
void replay_run(const struct xtrace *trace, const struct replay_settings *settings,
                struct replay_result *out);

void replay_result_fini(struct replay_result *result);

#endif
