/* SPDX-License-Identifier: MIT */
/*
 * Stream capture: operations become nodes of a graph instead of queued work.
 *
 * A capture begins on one stream, its origin.  A stream that waits for an event recorded in the capture joins it.  An
 * operation that is queued on a participating stream becomes a node.  Each participating stream has the set of nodes on
 * which its next node depends.  An event recorded in a capture stores a copy of this set, and a stream that waits for
 * the event adds the copy to its own set (fork and join).
 *
 * A prohibited call invalidates the capture: its status becomes CU_STREAM_CAPTURE_STATUS_INVALIDATED, it must still be
 * ended, and it returns no graph.  The functions sim_capture_check_*() return the error of a prohibited call and
 * invalidate the captures that prohibit it.  Prohibited are:
 *
 *   - potentially unsafe calls, by the capture modes of the thread and of the captures.
 *   - query, wait and destruction of a participating stream, and query and wait of an event recorded in a capture.
 *   - a wait for a device with a participating stream.
 *   - use of the legacy stream while a blocking stream of the device participates.
 *
 * The end of a capture requires that the sets of all participating streams are covered by the set of the origin: each
 * fork has been joined.
 *
 * Invariants: a stream is in the list of the capture to which it points.  The origin of a capture is in its list.  Only an
 * invalidated capture has no graph.
 *
 * Locking: the machine lock.
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
    uint64_t thread; /* number of the thread that began the capture */
    bool invalid;
    struct sim_graph *graph;
    bool is_user_graph; /* cuStreamBeginCaptureToGraph: the application owns the graph */
    struct sim_stream *origin;
    struct sim_stream *streams; /* participating streams */
    struct sim_capture *next;
};

/** As sim_capture_check_unsafe_call(), with active captures. */
CUresult sim_captures_check_unsafe_call(void);

/**
 * Check whether the calling thread may make a potentially unsafe call.
 *
 * Returns CUDA_SUCCESS or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
 */
static inline CUresult sim_capture_check_unsafe_call(void)
{
    return __builtin_expect(sim_machine.captures == NULL, 1) ? CUDA_SUCCESS
                                                             : sim_captures_check_unsafe_call();
}

/** Check whether the host may wait for all work of a device. */
CUresult sim_capture_check_device_wait(unsigned device);

/** Check whether a stream can be queried, waited for or destroyed. */
CUresult sim_capture_check_stream_query(struct sim_stream *stream);

/** Check whether an event can be queried or waited for by the host; `id` is the capture of its last record, or 0. */
CUresult sim_capture_check_event_query(uint64_t id);

/** Check whether an operation can be queued on a stream. */
CUresult sim_capture_check_enqueue(struct sim_stream *stream);

/** Get the ID of the capture of a stream, or 0. */
uint64_t sim_capture_id(const struct sim_stream *stream);

/**
 * Capture a wait of a stream for an event, or check that the wait does not cross the boundary of a capture.
 *
 * @param is_external  CU_EVENT_WAIT_EXTERNAL: the wait becomes a node.
 * @param is_captured  receives whether the wait was captured.
 */
CUresult sim_capture_wait(struct sim_stream *stream, const struct sim_event *event,
                          bool is_external, bool *is_captured);

/**
 * Add an operation to the graph of a capturing stream.
 *
 * @param result  receives CUDA_SUCCESS or CUDA_ERROR_OUT_OF_MEMORY if the stream is capturing.
 *
 * Returns whether the stream is capturing.
 */
bool sim_capture_add_operation(struct sim_stream *stream, const struct sim_operation *operation,
                               CUresult *result);

/** Remove a stream that is destroyed from its capture: invalidates the capture, or destroys it with its origin. */
void sim_capture_remove_stream(struct sim_stream *stream);

/** Invalidate the capture into a graph that is destroyed. */
void sim_capture_detach_graph(const struct sim_graph *graph);

/** Destroy all captures and graphs. */
void sim_captures_destroy(void);

#endif
