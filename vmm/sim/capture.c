/* SPDX-License-Identifier: MIT */
#include "vmm/sim/capture.h"

#include <stdlib.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/graph.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/stream.h"

static struct sim_capture *find_capture(uint64_t id)
{
    struct sim_capture *capture = sim_machine.captures;

    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static bool capture_forbids_unsafe_calls(const struct sim_capture *capture,
                                         const struct sim_thread *thread)
{
    if (capture->thread == thread->number)
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_captures_check_unsafe_call(void)
{
    const struct sim_thread *thread = sim_thread();
    CUresult result = CUDA_SUCCESS;

    if (thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next) {
        if (!capture_forbids_unsafe_calls(at, thread))
            continue;
        at->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult sim_capture_check_device_wait(unsigned device)
{
    CUresult result = CUDA_SUCCESS;

    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next)
        for (struct sim_stream *stream = at->streams; stream != NULL; stream = stream->capture_next)
            if (stream->device == device) {
                at->invalid = true;
                result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
            }
    return result;
}

/* Find a capture with a blocking stream of the device of the legacy stream, or NULL. */
static struct sim_capture *find_capture_blocking_legacy(const struct sim_stream *legacy)
{
    if (!legacy->is_legacy)
        return NULL;
    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next)
        for (struct sim_stream *stream = at->streams; stream != NULL; stream = stream->capture_next)
            if (stream->device == legacy->device && stream->flags != CU_STREAM_NON_BLOCKING)
                return at;
    return NULL;
}

/* The legacy stream must not be used while a blocking stream is capturing. */
static CUresult check_legacy_stream(const struct sim_stream *stream)
{
    struct sim_capture *capture = find_capture_blocking_legacy(stream);

    if (capture == NULL)
        return CUDA_SUCCESS;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_capture_check_stream_query(struct sim_stream *stream)
{
    if (stream->capture == NULL)
        return check_legacy_stream(stream);
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_check_event_query(uint64_t id)
{
    struct sim_capture *capture;

    if (id == 0)
        return CUDA_SUCCESS;
    capture = find_capture(id);
    if (capture != NULL)
        capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_capture_check_enqueue(struct sim_stream *stream)
{
    if (stream->capture == NULL)
        return check_legacy_stream(stream);
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

uint64_t sim_capture_id(const struct sim_stream *stream)
{
    return stream->capture == NULL ? 0 : stream->capture->id;
}

static void capture_add_stream(struct sim_capture *capture, struct sim_stream *stream)
{
    stream->capture = capture;
    stream->capture_next = capture->streams;
    capture->streams = stream;
}

/* Invalidate up to two captures and return an error. */
static CUresult invalidate_captures(struct sim_capture *a, struct sim_capture *b, CUresult result)
{
    if (a != NULL)
        a->invalid = true;
    if (b != NULL)
        b->invalid = true;
    return result;
}

static CUresult capture_add_node(struct sim_stream *stream, const struct sim_operation *operation)
{
    return sim_graph_add_node(stream->capture->graph, operation, &stream->dependencies)
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sim_capture_wait(struct sim_stream *stream, const struct sim_event *event,
                          bool is_external, bool *is_captured)
{
    const struct sim_operation waiting = {.type = SIM_NODE_EVENT_WAIT,
                                          .event = (CUevent)(uintptr_t)event->handle};
    struct sim_capture *capture = stream->capture, *event_capture = find_capture(event->capture_id);
    CUresult result = sim_capture_check_enqueue(stream);

    if (result != CUDA_SUCCESS)
        return result;
    *is_captured = capture != NULL || event->capture_id != 0;
    if (is_external)
        return capture_add_node(stream, &waiting);
    if (event->capture_id == 0)
        /* A graph cannot wait for work outside of the capture.  An event that was never recorded is complete. */
        return capture != NULL && event->is_recorded
                   ? invalidate_captures(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                   : CUDA_SUCCESS;
    if (capture == event_capture && capture != NULL)
        return sim_nodes_add(&stream->dependencies, &event->dependencies)
                   ? CUDA_SUCCESS
                   : CUDA_ERROR_OUT_OF_MEMORY;
    if (capture != NULL)
        return invalidate_captures(capture, event_capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    if (event_capture == NULL || event_capture->invalid)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return invalidate_captures(event_capture, NULL, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    if (!sim_nodes_assign(&stream->dependencies, &event->dependencies))
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture_add_stream(event_capture, stream);
    return CUDA_SUCCESS;
}

bool sim_capture_add_operation(struct sim_stream *stream, const struct sim_operation *operation,
                               CUresult *result)
{
    if (stream->capture == NULL)
        return false;
    *result = stream->capture->invalid ? CUDA_SUCCESS : capture_add_node(stream, operation);
    return true;
}

/* Destroy a capture, and its graph unless it is kept or belongs to the application. */
static void capture_destroy(struct sim_capture *capture, bool keeps_graph)
{
    struct sim_capture **at = &sim_machine.captures;

    if (capture->graph != NULL) {
        capture->graph->is_capture_target = false;
        if (!keeps_graph && !capture->is_user_graph)
            sim_graph_destroy(capture->graph);
    }
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    while (capture->streams != NULL) {
        struct sim_stream *stream = capture->streams;

        capture->streams = stream->capture_next;
        stream->capture_next = NULL;
        stream->capture = NULL;
        sim_nodes_clear(&stream->dependencies);
    }
    free(capture);
}

void sim_capture_remove_stream(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;
    struct sim_stream **at;

    if (capture == NULL)
        return;
    if (capture->origin == stream) {
        capture_destroy(capture, false);
        return;
    }
    capture->invalid = true;
    for (at = &capture->streams; *at != stream; at = &(*at)->capture_next)
        continue;
    *at = stream->capture_next;
    stream->capture = NULL;
    sim_nodes_clear(&stream->dependencies);
}

void sim_capture_detach_graph(const struct sim_graph *graph)
{
    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next)
        if (at->graph == graph) {
            at->invalid = true;
            at->graph = NULL;
        }
}

void sim_captures_destroy(void)
{
    struct sim_graph *graph;
    uint32_t at = 0;

    while (sim_machine.captures != NULL)
        capture_destroy(sim_machine.captures, true);
    while ((graph = sim_handles_next(&sim_machine.graphs, &at)) != NULL)
        if (!graph->is_body) {
            sim_graph_destroy(graph);
            at = 0;
        }
}

static CUresult check_begin_capture(CUstream handle, CUstreamCaptureMode mode,
                                    struct sim_stream **out)
{
    const CUresult result = sim_stream_find(handle, true, out);

    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if ((*out)->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return (*out)->capture != NULL ? CUDA_ERROR_ILLEGAL_STATE : CUDA_SUCCESS;
}

static struct sim_capture *capture_create(struct sim_stream *stream, CUstreamCaptureMode mode,
                                          struct sim_graph *graph)
{
    struct sim_capture *capture = calloc(1, sizeof(*capture));

    if (capture == NULL)
        return NULL;
    graph->is_capture_target = true;
    capture->graph = graph;
    capture->id = ++sim_machine.last_capture_id;
    capture->mode = mode;
    capture->thread = sim_thread()->number;
    capture->origin = stream;
    capture->next = sim_machine.captures;
    sim_machine.captures = capture;
    capture_add_stream(capture, stream);
    return capture;
}

static CUresult begin_capture(CUstream handle, CUstreamCaptureMode mode)
{
    struct sim_stream *stream;
    struct sim_graph *graph;
    const CUresult result = check_begin_capture(handle, mode, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    graph = sim_graph_create();
    if (graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (capture_create(stream, mode, graph) != NULL)
        return CUDA_SUCCESS;
    sim_graph_destroy(graph);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Begin a capture into a graph, whose first node depends on nodes of the graph. */
static CUresult begin_capture_to_graph(CUstream handle, CUgraph graph_handle,
                                       const CUgraphNode *nodes, size_t count,
                                       CUstreamCaptureMode mode)
{
    const struct sim_nodes requested = {.node = (CUgraphNode *)(uintptr_t)nodes, .count = count};
    struct sim_graph *graph = sim_graph_find(graph_handle);
    struct sim_capture *capture;
    struct sim_stream *stream;
    CUresult result = check_begin_capture(handle, mode, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (graph == NULL || graph->is_capture_target || !sim_graph_contains(graph, nodes, count))
        return CUDA_ERROR_INVALID_VALUE;
    capture = sim_nodes_assign(&stream->dependencies, &requested)
                  ? capture_create(stream, mode, graph)
                  : NULL;
    if (capture == NULL) {
        sim_nodes_clear(&stream->dependencies);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->is_user_graph = true;
    return CUDA_SUCCESS;
}

/* Get whether the origin depends on all nodes that the other streams captured. */
static bool are_streams_joined(const struct sim_capture *capture)
{
    for (const struct sim_stream *at = capture->streams; at != NULL; at = at->capture_next)
        if (!sim_graph_is_covered(capture->graph, &at->dependencies,
                                  &capture->origin->dependencies))
            return false;
    return true;
}

static CUresult end_capture(CUstream handle, CUgraph *out)
{
    struct sim_capture *capture;
    struct sim_stream *stream;
    struct sim_graph *graph;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    capture = stream->capture;
    /* The result is optional for cuStreamBeginCaptureToGraph. */
    if (out == NULL && (capture == NULL || !capture->is_user_graph))
        return CUDA_ERROR_INVALID_VALUE;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return invalidate_captures(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_thread()->number)
        return invalidate_captures(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    graph = capture->graph;
    result = capture->invalid              ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : are_streams_joined(capture) ? CUDA_SUCCESS
                                           : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (out != NULL)
        *out = result == CUDA_SUCCESS ? (CUgraph)(uintptr_t)graph->handle : NULL;
    capture_destroy(capture, result == CUDA_SUCCESS);
    sim_user_objects_run_destructors();
    return result;
}

static CUresult get_capture_status(CUstream handle, CUstreamCaptureStatus *status,
                                   struct sim_stream **out)
{
    CUresult result;

    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_stream_find(handle, false, out);
    if (result != CUDA_SUCCESS)
        return result;
    if (find_capture_blocking_legacy(*out) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = (*out)->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : (*out)->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

static CUresult get_is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
    struct sim_stream *stream;

    return get_capture_status(handle, status, &stream);
}

static CUresult get_capture_info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                 CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    struct sim_stream *stream;
    CUresult result = get_capture_status(handle, status, &stream);

    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return result;
    if (id != NULL)
        *id = stream->capture->id;
    if (graph != NULL)
        *graph = (CUgraph)(uintptr_t)stream->capture->graph->handle;
    if (dependencies != NULL)
        *dependencies = stream->dependencies.node;
    if (count != NULL)
        *count = stream->dependencies.count;
    return CUDA_SUCCESS;
}

static CUresult get_capture_info_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                    CUgraph *graph, const CUgraphNode **dependencies,
                                    const struct CUgraphEdgeData_st **edges, size_t *count)
{
    struct sim_stream *stream;
    CUresult result;

    if (edges != NULL && dependencies == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = get_capture_info(handle, status, id, graph, dependencies, count);
    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE || edges == NULL)
        return result;
    result = sim_stream_find(handle, false, &stream);
    if (result == CUDA_SUCCESS)
        *edges = (const void *)stream->dependencies.edge;
    return result;
}

/* Get whether an array is part of the array of a set, which cuStreamGetCaptureInfo returns. */
static bool is_slice_of(const struct sim_nodes *set, const CUgraphNode *nodes, size_t count)
{
    const uintptr_t first = (uintptr_t)set->node, at = (uintptr_t)nodes;

    return set->count != 0 && at >= first && (at - first) / sizeof(*nodes) < set->count &&
           count <= set->count - (at - first) / sizeof(*nodes);
}

static CUresult update_capture_dependencies(CUstream handle, CUgraphNode *nodes, size_t count,
                                            unsigned flags)
{
    const struct sim_nodes requested = {.node = nodes, .count = count};
    CUstreamCaptureStatus status;
    struct sim_stream *stream;
    CUresult result = get_capture_status(handle, &status, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_ERROR_INVALID_VALUE;
    if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (!sim_graph_contains(stream->capture->graph, nodes, count))
        return CUDA_ERROR_INVALID_VALUE;
    /* Adding nodes of the stream's own set has no effect, and would read the array while it is reallocated. */
    if (is_slice_of(&stream->dependencies, nodes, count) &&
        flags != CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return CUDA_SUCCESS;
    return (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                ? sim_nodes_assign(&stream->dependencies, &requested)
                : sim_nodes_add(&stream->dependencies, &requested))
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Edge data must be zero. */
static CUresult update_capture_dependencies_v2(CUstream handle, CUgraphNode *nodes,
                                               const struct CUgraphEdgeData_st *edges, size_t count,
                                               unsigned flags)
{
    const unsigned char *data = (const void *)edges;

    for (size_t i = 0; data != NULL && i < count * sizeof(uint64_t); i++)
        if (data[i] != 0)
            return CUDA_ERROR_NOT_SUPPORTED;
    return update_capture_dependencies(handle, nodes, count, flags);
}

static CUresult exchange_capture_mode(CUstreamCaptureMode *mode)
{
    struct sim_thread *thread = sim_thread();
    CUstreamCaptureMode old = thread->capture_mode;

    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

SIM_ENTRY(STREAM_BEGIN_CAPTURE, cuStreamBeginCapture_v2,
          (CUstream hStream, CUstreamCaptureMode mode), begin_capture(hStream, mode));

/* Edge data is ignored. */
SIM_EXPORT CUresult CUDAAPI
cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies,
                            const struct CUgraphEdgeData_st *dependencyData, size_t numDependencies,
                            CUstreamCaptureMode mode)
{
    (void)dependencyData;
    SIM_CALL_BODY(STREAM_BEGIN_CAPTURE_TO_GRAPH,
                  begin_capture_to_graph(hStream, hGraph, dependencies, numDependencies, mode));
}

SIM_ENTRY(STREAM_END_CAPTURE, cuStreamEndCapture, (CUstream hStream, CUgraph *phGraph),
          end_capture(hStream, phGraph));
SIM_ENTRY(STREAM_IS_CAPTURING, cuStreamIsCapturing,
          (CUstream hStream, CUstreamCaptureStatus *captureStatus),
          get_is_capturing(hStream, captureStatus));
SIM_ENTRY(STREAM_GET_CAPTURE_INFO, cuStreamGetCaptureInfo_v2,
          (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **dependencies, size_t *count),
          get_capture_info(hStream, status, id, graph, dependencies, count));
SIM_ENTRY(STREAM_GET_CAPTURE_INFO_V3, cuStreamGetCaptureInfo_v3,
          (CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
           const CUgraphNode **dependencies, const struct CUgraphEdgeData_st **edges,
           size_t *count),
          get_capture_info_v3(hStream, status, id, graph, dependencies, edges, count));

/* Not inlined, so that the fast path of the entry point saves no registers. */
static __attribute__((noinline)) CUresult exchange_capture_mode_locked(CUstreamCaptureMode *mode)
{
    SIM_CALL_BODY(EXCHANGE_CAPTURE_MODE, exchange_capture_mode(mode));
}

/* The call accesses thread-local state only, and has no cost. */
SIM_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    if (!sim_is_lock_free())
        return exchange_capture_mode_locked(mode);
    sim_count_call(SIM_CALL_EXCHANGE_CAPTURE_MODE);
    return exchange_capture_mode(mode);
}

SIM_ENTRY(STREAM_UPDATE_DEPENDENCIES, cuStreamUpdateCaptureDependencies,
          (CUstream hStream, CUgraphNode *dependencies, size_t numDependencies, unsigned int flags),
          update_capture_dependencies(hStream, dependencies, numDependencies, flags));
SIM_ENTRY(STREAM_UPDATE_DEPENDENCIES_V2, cuStreamUpdateCaptureDependencies_v2,
          (CUstream hStream, CUgraphNode *dependencies,
           const struct CUgraphEdgeData_st *dependencyData, size_t numDependencies,
           unsigned int flags),
          update_capture_dependencies_v2(hStream, dependencies, dependencyData, numDependencies,
                                         flags));
