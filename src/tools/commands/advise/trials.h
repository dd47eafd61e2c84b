/* SPDX-License-Identifier: MIT */
/*
 * Replays of one programme, or of a few, under many configurations; several replays run at a time.
 *
 * A process has one simulated machine, so replays run in child processes.  A child has the traces in memory that it
 * inherits, and writes its figures to memory that it shares with its parent.  The calling process itself never replays.
 *
 * Terms:
 *   programme  a trace, and the devices that it is replayed on; of a job, one of its ranks
 *
 * Locking: none; called by one thread, and the process has no other.
 */
#ifndef TOOLS_TRIALS_H
#define TOOLS_TRIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/trace/xtrace.h"

#define TRIALS_PROGRAMMES 4u /* at most */

/* What a configuration led to; bytes, and modelled nanoseconds of the driver. */
struct trial_figures {
    bool is_there;
    bool is_broken; /* a replay ended for another reason than memory; standard error has it */
    /* On a device of device_bytes, as a replay tells it. */
    bool completes; /* what failed in the file may fail */
    int64_t oom_at; /* number of the event, from 0, at which memory ran out; -1: none */
    uint64_t peak_requested, peak_reserved, driver_ns;
    uint64_t end_reserved; /* after the last event */
    uint64_t failed;       /* requests that failed in the file */
    /* On one of roomy_bytes, by which configurations are compared. */
    struct trial_room {
        bool completes;
        uint64_t reach; /* events that were played before memory ran out */
        uint64_t peak_reserved, driver_ns;
    } room;
    bool serves; /* completes on one of target_bytes, and what failed in the file is served */
    /* In full only. */
    bool has_min_device, has_enough;
    uint64_t min_device; /* the smallest device on which it completes, as min_device.h says */
    uint64_t enough;     /* the same, with what failed in the file served */
};

struct trial {
    const char *config;
    struct trial_figures figures[TRIALS_PROGRAMMES];
    /*
     * Of all programmes: what is true of each, the largest of bytes and times, and sums of counts.  The requested peak is
     * that of the programme whose reserved one is the largest; memory ran out at the first event at which it did in any.
     */
    struct trial_figures whole;
};

struct programme {
    const struct xtrace *trace;
    const char *file; /* its path, or what stands for it */
    const char *name; /* of ranks: "rank 5" */
    uint64_t device_bytes;
    uint64_t roomy_bytes, target_bytes; /* may be the same */
};

struct trials {
    struct programme programmes[TRIALS_PROGRAMMES];
    size_t count;     /* of programmes, 1 at least */
    const char *name; /* of all of them, for messages */
    bool progress;    /* draw a bar on standard error */
    size_t done;      /* trials so far, for the bar */
    size_t expected;  /* in all, for the bar */
};

/*
 * Replay all programmes under each configuration.
 *
 * @param in_full  find min_device and, if requests failed in the file, enough, too: a dozen replays each
 *
 * Returns: false where a process could not be started or did not end well; standard error has the sentence.
 */
bool trials_run(struct trials *trials, struct trial *const *trial, size_t count, bool in_full);

#endif
