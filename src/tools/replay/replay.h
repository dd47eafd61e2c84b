/* SPDX-License-Identifier: MIT */
/*
 * A replay: one run of a trace through an allocator of its own, on a driver of its own making.
 *
 * On the simulator every run starts with a fresh machine, so runs do not influence each other, and
 * two equal runs give equal figures, the measured time aside.  The allocator's trial of the driver
 * comes before the first operation and is not in the figures; neither is the clearing up after the
 * last one.
 *
 * A run ends early where the programme would: at the first allocation that fails although the file
 * does not say so.  Where an allocation that failed in the file succeeds, the block is freed at once,
 * since the programme never had it.
 *
 * A trace with a clock is its own time: the allocator decays by it (watch.h), and a background thread,
 * which sleeps in real time, is replaced by ticks.  A replay that writes its history has no such thread either.
 *
 * Locking: none; one replay at a time in a process, because there is one simulated machine.
 */
#ifndef TOOLS_REPLAY_H
#define TOOLS_REPLAY_H

#include <stdio.h>

#include "src/tools/replay/check.h"
#include "src/tools/replay/explained.h"
#include "src/tools/replay/gpu.h"
#include "src/tools/replay/watch.h"
#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

struct replay_settings {
    const char *file; /* for messages */
    const char *config;
    const char *driver;    /* gpu.h */
    uint64_t device_bytes; /* simulator only */
    const char *costs;     /* simulator only; NULL: the simulator's default */
    enum check_mode check;
    FILE *timeline; /* NULL: none */
    FILE *history;  /* NULL: none */
    uint64_t
        tick_ms; /* of the trace's clock, between two calls of xseg_trim() with due_only; 0: none */
    bool explain;  /* ask at the end why memory is reserved */
    bool quiet;    /* no log lines, no message about an out of memory */
    bool progress; /* draw a bar on standard error */
};

enum replay_end {
    REPLAY_DONE,
    REPLAY_MISMATCH,      /* the check found a difference, or something was left over at the end */
    REPLAY_OUT_OF_MEMORY, /* that was not in the file */
    REPLAY_REFUSED        /* the configuration or the driver; nothing was replayed */
};

struct replay_result {
    enum replay_end end;
    uint64_t events; /* that were replayed */
    int64_t oom_at;  /* number of the event, from 0; -1: none */
    uint64_t failed,
        failed_served; /* allocations that failed in the file; those that did not here */
    uint64_t peak_requested, peak_allocated, peak_active, peak_reserved;
    uint64_t end_reserved; /* after the last operation */
    struct xseg_driver_call *calls;
    size_t call_count;
    bool has_driver_time;
    uint64_t driver_ns;  /* modelled */
    double ns_per_event; /* measured */
    bool was_checked;
    uint64_t checked, mismatches;
    uint32_t check_end_line; /* floor: where the programmes part; 0: nowhere */
    struct watch_result watch;
    struct explained explained;
};

/*
 * Replay a trace.  Whatever goes wrong is said on standard error.
 *
 * @param out  filled in in any case; the caller calls replay_result_fini()
 */
void replay_run(const struct xtrace *trace, const struct replay_settings *settings,
                struct replay_result *out);

void replay_result_fini(struct replay_result *result);

#endif
