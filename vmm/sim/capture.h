/* SPDX-License-Identifier: MIT */
/*
 * Stream capture: work that goes into a graph instead of being run.
 *
 * A capture begins on one stream, its origin; a stream that waits for an event recorded in it joins
 * it.  What is queued on a stream that takes part becomes a node of the graph and keeps nobody busy.
 * A call that breaks the rules invalidates the capture: it has to be ended still, and yields no
 * graph.
 *
 * Each stream that takes part has the set of nodes that its next node needs.  An event recorded in
 * a capture keeps a copy of the set of its stream, and a stream that waits for the event adds that
 * copy to its own set.  At the end, the sets of all streams have to be behind that of the origin.
 *
 * Invariants: a stream is in the list of the capture that it points to; every capture in the
 * machine's list has an origin.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_CAPTURE_H
#define XSEG_SIM_CAPTURE_H

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"

struct sim_event;
struct sim_stream;

struct sim_capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread; /* that began it */
    bool invalid;
    struct sim_graph *graph;
    bool is_graph_theirs; /* the program made it, and keeps it if the capture fails */
    struct sim_stream *origin;
    struct sim_stream *streams; /* that take part, the origin included */
    struct sim_capture *next;
};

/** As sim_capture_refuse_unsafe(), while something is captured. */
CUresult sim_capture_refuse_unsafe_now(void);

/**
 * Whether the calling thread may make a "potentially unsafe" call.  If not, the captures that stand
 * against it become invalid.
 *
 * Returns: CUDA_SUCCESS or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
 */
static inline CUresult sim_capture_refuse_unsafe(void)
{
    return __builtin_expect(sim_machine.captures == NULL, 1) ? CUDA_SUCCESS
                                                             : sim_capture_refuse_unsafe_now();
}

/** As sim_capture_refuse_unsafe(), for waiting for a whole device. */
CUresult sim_capture_refuse_device_wait(unsigned device);

/** As sim_capture_refuse_unsafe(), for query, wait or destroy of a stream. */
CUresult sim_capture_refuse_stream(struct sim_stream *stream);

/**
 * As sim_capture_refuse_unsafe(), for query or wait of an event that was recorded in a capture
 * (id 0: in none).
 */
CUresult sim_capture_refuse_event(uint64_t id);

/** Whether something can be queued on a stream now. */
CUresult sim_capture_check_use(struct sim_stream *stream);

/** The capture that a stream takes part in, by id; 0 for none. */
uint64_t sim_capture_id(const struct sim_stream *stream);

/**
 * A stream is to wait for an event: join the capture, or refuse what crosses its border.
 *
 * @param is_external  the wait becomes a node of its own
 * @param is_captured  set when the wait went into a graph
 */
CUresult sim_capture_wait(struct sim_stream *stream, const struct sim_event *event,
                          bool is_external, bool *is_captured);

/**
 * Work queued on a stream that takes part in a capture goes into the graph.
 *
 * @param result  CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY, when it does
 *
 * Returns: whether it does
 */
bool sim_capture_takes(struct sim_stream *stream, const struct sim_operation *operation,
                       CUresult *result);

/** A stream ends: its capture is invalid from here on, and over if the stream was its origin. */
void sim_capture_leave(struct sim_stream *stream);

/** A graph that is captured into ends: its capture is invalid from here on. */
void sim_capture_lose(const struct sim_graph *graph);

/** End all captures and graphs, for the end of the machine. */
void sim_captures_end(void);

#endif
