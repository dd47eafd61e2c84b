/* SPDX-License-Identifier: MIT */
/*
 * Events: "all work queued on that stream so far".
 *
 * An event refers to the last piece of work that its stream had when it was recorded, or names the
 * capture in which it was recorded last.  Its time is when that work ended, or when it was recorded
 * if that was later.  It belongs to a context.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_EVENT_H
#define XSEG_SIM_EVENT_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/graph.h"

struct sim_work;

struct sim_event {
    uint64_t handle;
    unsigned device;
    bool is_timed;          /* may be asked for its time */
    bool is_recorded;       /* at least once */
    uint64_t time;          /* on the virtual clock; known when the work has been forgotten */
    struct sim_work *work;  /* NULL: nothing that is unfinished */
    uint64_t capture_id;    /* 0: recorded outside of any */
    struct sim_nodes needs; /* what the stream had captured last by then */
    struct sim_event *before, *after;
};

/** End all events of a device. */
void sim_events_end(unsigned device);

#endif
