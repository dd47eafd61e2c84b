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

struct sim_stream;
struct sim_work;

struct sim_event {
    uint64_t handle;
    unsigned device;
    bool is_timed;          /* may be asked for its time */
    bool is_interprocess;   /* other processes may open it */
    bool is_recorded;       /* at least once */
    uint64_t time;          /* on the virtual clock; known when the work has been forgotten */
    struct sim_work *work;  /* NULL: nothing that is unfinished */
    uint64_t capture_id;    /* 0: recorded outside of any */
    struct sim_nodes needs; /* what the stream had captured last by then */
    struct sim_event *before, *after;
};

/** End all events of a device. */
void sim_events_end(unsigned device);

/** Record an event in a stream outside of any capture.  Errors: CUDA_ERROR_INVALID_HANDLE */
CUresult sim_event_record(CUevent handle, struct sim_stream *stream);

/** Let a stream outside of any capture wait for an event, which may be of another device.  Errors: as above */
CUresult sim_event_let_wait(CUevent handle, struct sim_stream *stream);

/** As cuEventCreate. */
CUresult sim_event_create(CUevent *out, unsigned flags);

/** Whether an event was made for other processes, too.  Errors: CUDA_ERROR_INVALID_HANDLE */
CUresult sim_event_check_interprocess(CUevent handle);

#endif
