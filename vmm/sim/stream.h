/* SPDX-License-Identifier: MIT */
/*
 * Streams: queues of work in a context.
 *
 * NULL and CU_STREAM_LEGACY name the current context's legacy default stream, CU_STREAM_PER_THREAD
 * the calling thread's own in that context; both are made when they are first needed.
 *
 * What is queued on the legacy stream waits for what all blocking streams of its device have been given
 * so far, and what is queued on those waits for the legacy stream.  Blocking are the per-thread default
 * streams, and those that were not made with CU_STREAM_NON_BLOCKING.  A query and a wait of the host
 * queue nothing: they ask for a stream's own work.
 *
 * A stream that was destroyed with unfinished work stays, without a handle, until it has ended.
 *
 * Calls that queue or wait want a stream of the current context.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_STREAM_H
#define XSEG_SIM_STREAM_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/graph.h"
#include "vmm/sim/work.h"

struct sim_capture;

struct sim_stream {
    uint64_t handle, id;
    unsigned device, flags;
    bool is_legacy;    /* the legacy default stream */
    bool is_made_here; /* a default stream, which no program created */
    uint64_t thread;   /* number of the thread whose per-thread default stream this is; else 0 */
    struct sim_queue queue;
    uint64_t passed_on;          /* number of its last piece that the legacy stream waits for */
    uint64_t heeded;             /* number of the legacy stream's last piece that it waits for */
    struct sim_capture *capture; /* that it takes part in, or NULL */
    struct sim_nodes needs;      /* nodes that its next one there needs */
    struct sim_stream *capture_next;
    struct sim_stream *before, *after; /* in its device's list */
};

/**
 * The stream of a handle.
 *
 * @param must_be_current  whether it has to belong to the current context
 *
 * Returns: CUDA_ERROR_INVALID_HANDLE, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_CONTEXT_IS_DESTROYED,
 *          CUDA_ERROR_OUT_OF_MEMORY
 */
CUresult sim_stream_find(CUstream handle, bool must_be_current, struct sim_stream **out);

/**
 * Queue what a stream waits for implicitly, before it is given anything.
 *
 * Returns: false when there is no host memory
 */
bool sim_stream_heed(struct sim_stream *stream);

/** Add a piece of work to a stream, as sim_work_queue(), behind what it waits for implicitly. */
bool sim_stream_queue(struct sim_stream *stream, uint64_t duration, struct sim_work *dependency);

/** End all streams of a device; its events have to go first. */
void sim_streams_end(unsigned device);

/** The host waits for all work of a device. */
void sim_streams_wait(unsigned device);

/** Move the clock behind all work of a device that has a known end. */
void sim_streams_pass_timed(unsigned device);

#endif
