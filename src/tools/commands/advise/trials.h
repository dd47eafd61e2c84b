/* SPDX-License-Identifier: MIT */
/*
 * Replays of one or several programs under many configurations, in parallel.
 *
 * A process has one simulator, so each replay runs in a child process.  Children inherit the traces and write their results to
 * shared memory.
 *
 * A program is a trace with the devices on which it is replayed; of a job, it is one of the ranks.
 *
 * Locking: none; the process has only one thread.
 */
#ifndef TOOLS_TRIALS_H
#define TOOLS_TRIALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/replay/headroom.h"
#include "src/tools/trace/xtrace.h"

#define TRIALS_PROGRAMS 4u /* maximum */

/* The results of a configuration, in bytes and modeled nanoseconds of the driver. */
struct trial_results {
    bool has_ended; /* the replay has ended */
    /* It failed for another reason than memory; an error message is on standard error. */
    bool is_broken;
    /* On a device of device_bytes, as `xseg replay` prints them. */
    bool completes; /* requests that failed in the file may fail */
    int64_t oom_at; /* index of the event at which memory ran out; -1: none */
    uint64_t peak_requested, peak_reserved, driver_ns;
    uint64_t end_reserved; /* after the last event */
    uint64_t failed;       /* requests that failed in the file */
    uint64_t peak_allocated, end_allocated;
    /* On a device of large_bytes, for the comparison of configurations. */
    struct trial_large {
        bool completes;
        uint64_t reach; /* events that were replayed before memory ran out */
        uint64_t peak_reserved, driver_ns;
    } large;
    /* Completes on a device of target_bytes, including requests that failed in the file. */
    bool completes_on_target;
    /* Only with in_full. */
    struct headroom_pair headroom,
        headroom_of_peak; /* of the events that were replayed, on device_bytes */
    bool has_min_device, has_min_full_device;
    uint64_t min_device;      /* the smallest device on which the program completes */
    uint64_t min_full_device; /* the same, including requests that failed in the file */
};

struct trial {
    const char *config;
    struct trial_results results[TRIALS_PROGRAMS];
    /* Of all programs: the conjunction of booleans, the maximum of bytes and times, the sum of counts.  peak_requested is that
     * of the program with the largest peak_reserved, and oom_at is the minimum. */
    struct trial_results combined;
};

struct trial_program {
    const struct xtrace *trace;
    const char *file; /* path, or "standard input" */
    const char *name; /* of ranks: "rank 5" */
    uint64_t device_bytes;
    uint64_t large_bytes, target_bytes; /* can be equal */
};

struct trials {
    struct trial_program programs[TRIALS_PROGRAMS];
    size_t count;     /* of programs, 1 or more */
    const char *name; /* for messages */
    bool progress;    /* draw a bar on standard error */
    size_t done;      /* trials so far, for the bar */
    size_t expected;  /* in all, for the bar */
};

/*
 * Replay all programs under each configuration.
 *
 * @param in_full  also find the headroom, min_device and, if requests failed in the file, enough: a dozen replays each
 * @return false if a process could not be started or was killed; an error message is on standard error
 */
bool trials_run(struct trials *trials, struct trial *const *trial, size_t count, bool is_detailed);

#endif
