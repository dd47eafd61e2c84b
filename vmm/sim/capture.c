/* SPDX-License-Identifier: MIT */
#include "vmm/sim/capture.h"

#include <stdlib.h>

#include "vmm/sim/context.h"
#include "vmm/sim/entry.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/stream.h"

static struct sim_capture *capture_of_id(uint64_t id)
{
    struct sim_capture *capture = sim_machine.captures;

    while (capture != NULL && capture->id != id)
        capture = capture->next;
    return capture;
}

static bool stands_against(const struct sim_capture *capture, const struct sim_thread *thread)
{
    if (capture->thread == thread->number)
        return capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

CUresult sim_capture_refuse_unsafe(void)
{
    const struct sim_thread *thread = sim_thread();
    CUresult result = CUDA_SUCCESS;

    if (thread->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next) {
        if (!stands_against(at, thread))
            continue;
        at->invalid = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult sim_capture_refuse_device_wait(unsigned device)
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

/* A capture on a stream that the legacy stream would wait for, were it used. */
static struct sim_capture *behind_legacy(const struct sim_stream *legacy)
{
    if (!legacy->is_legacy)
        return NULL;
    for (struct sim_capture *at = sim_machine.captures; at != NULL; at = at->next)
        for (struct sim_stream *stream = at->streams; stream != NULL; stream = stream->capture_next)
            if (stream->device == legacy->device && stream->flags != CU_STREAM_NON_BLOCKING)
                return at;
    return NULL;
}

/* The legacy stream must not be used while one that it waits for implicitly is captured. */
static CUresult refuse_legacy(const struct sim_stream *stream)
{
    struct sim_capture *capture = behind_legacy(stream);

    if (capture == NULL)
        return CUDA_SUCCESS;
    capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sim_capture_refuse_stream(struct sim_stream *stream)
{
    if (stream->capture == NULL)
        return refuse_legacy(stream);
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult sim_capture_refuse_event(uint64_t id)
{
    struct sim_capture *capture;

    if (id == 0)
        return CUDA_SUCCESS;
    capture = capture_of_id(id);
    if (capture != NULL)
        capture->invalid = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sim_capture_check_use(struct sim_stream *stream)
{
    if (stream->capture == NULL)
        return refuse_legacy(stream);
    return stream->capture->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

uint64_t sim_capture_id(const struct sim_stream *stream)
{
    return stream->capture == NULL ? 0 : stream->capture->id;
}

static void join(struct sim_capture *capture, struct sim_stream *stream)
{
    stream->capture = capture;
    stream->capture_next = capture->streams;
    capture->streams = stream;
}

/* Both captures, if there are two, are spoilt. */
static CUresult spoil(struct sim_capture *a, struct sim_capture *b, CUresult result)
{
    if (a != NULL)
        a->invalid = true;
    if (b != NULL)
        b->invalid = true;
    return result;
}

CUresult sim_capture_wait(struct sim_stream *stream, const struct sim_event *event,
                          bool is_external, bool *is_captured)
{
    struct sim_capture *own = stream->capture, *other = capture_of_id(event->capture_id);
    CUresult result = sim_capture_check_use(stream);

    if (result != CUDA_SUCCESS)
        return result;
    *is_captured = own != NULL || event->capture_id != 0;
    if (is_external) {
        own->graph->nodes++;
        return CUDA_SUCCESS;
    }
    if (event->capture_id == 0)
        /* Work from outside cannot be waited for in a graph; an event never recorded is empty. */
        return own != NULL && event->is_recorded
                   ? spoil(own, NULL, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                   : CUDA_SUCCESS;
    if (own == other && own != NULL)
        return CUDA_SUCCESS;
    if (own != NULL)
        return spoil(own, other, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    if (other == NULL || other->invalid)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return spoil(other, NULL, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    join(other, stream);
    return CUDA_SUCCESS;
}

bool sim_capture_takes(const struct sim_stream *stream)
{
    if (stream->capture == NULL)
        return false;
    if (!stream->capture->invalid)
        stream->capture->graph->nodes++;
    return true;
}

static void graph_end(struct sim_graph *graph)
{
    sim_handles_remove(&sim_machine.graphs, graph->handle);
    free(graph);
}

/* Out of the machine; the graph is left to the caller. */
static void capture_end(struct sim_capture *capture)
{
    struct sim_capture **at = &sim_machine.captures;

    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    while (capture->streams != NULL) {
        struct sim_stream *stream = capture->streams;

        capture->streams = stream->capture_next;
        stream->capture_next = NULL;
        stream->capture = NULL;
    }
    free(capture);
}

void sim_capture_leave(struct sim_stream *stream)
{
    struct sim_capture *capture = stream->capture;
    struct sim_stream **at;

    if (capture == NULL)
        return;
    if (capture->origin == stream) {
        graph_end(capture->graph);
        capture_end(capture);
        return;
    }
    capture->invalid = true;
    for (at = &capture->streams; *at != stream; at = &(*at)->capture_next)
        continue;
    *at = stream->capture_next;
    stream->capture = NULL;
}

void sim_captures_end(void)
{
    struct sim_graph *graph;
    uint32_t at = 0;

    while (sim_machine.captures != NULL)
        capture_end(sim_machine.captures);
    while ((graph = sim_handles_next(&sim_machine.graphs, &at)) != NULL)
        graph_end(graph);
}

static CUresult begin(CUstream handle, CUstreamCaptureMode mode)
{
    struct sim_capture *capture;
    struct sim_stream *stream;
    CUresult result = sim_stream_find(handle, true, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream->is_legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    capture = calloc(1, sizeof(*capture));
    if (capture == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->graph = calloc(1, sizeof(*capture->graph));
    if (capture->graph != NULL)
        capture->graph->handle = sim_handles_add(&sim_machine.graphs, capture->graph);
    if (capture->graph == NULL || capture->graph->handle == 0) {
        free(capture->graph);
        free(capture);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    capture->graph->is_captured_into = true;
    capture->id = ++sim_machine.last_capture_id;
    capture->mode = mode;
    capture->thread = sim_thread()->number;
    capture->origin = stream;
    capture->next = sim_machine.captures;
    sim_machine.captures = capture;
    join(capture, stream);
    return CUDA_SUCCESS;
}

static CUresult end(CUstream handle, CUgraph *out)
{
    struct sim_capture *capture;
    struct sim_stream *stream;
    struct sim_graph *graph;
    CUresult result = sim_stream_find(handle, true, &stream);
    bool was_invalid;

    if (result != CUDA_SUCCESS)
        return result;
    capture = stream->capture;
    if (out == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream)
        return spoil(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != sim_thread()->number)
        return spoil(capture, NULL, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    graph = capture->graph;
    was_invalid = capture->invalid;
    capture_end(capture);
    graph->is_captured_into = false;
    *out = was_invalid ? NULL : (CUgraph)(uintptr_t)graph->handle;
    if (was_invalid)
        graph_end(graph);
    return was_invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

static CUresult status_of(CUstream handle, CUstreamCaptureStatus *status, struct sim_stream **out)
{
    CUresult result;

    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    result = sim_stream_find(handle, false, out);
    if (result != CUDA_SUCCESS)
        return result;
    if (behind_legacy(*out) != NULL)
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    *status = (*out)->capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
              : (*out)->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                         : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status)
{
    struct sim_stream *stream;

    return status_of(handle, status, &stream);
}

/* The set of nodes that the next one would depend on is always given as empty. */
static CUresult info(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                     const CUgraphNode **dependencies, size_t *count)
{
    struct sim_stream *stream;
    CUresult result = status_of(handle, status, &stream);

    if (result != CUDA_SUCCESS || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return result;
    if (id != NULL)
        *id = stream->capture->id;
    if (graph != NULL)
        *graph = (CUgraph)(uintptr_t)stream->capture->graph->handle;
    if (dependencies != NULL)
        *dependencies = NULL;
    if (count != NULL)
        *count = 0;
    return CUDA_SUCCESS;
}

static CUresult info_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                        CUgraph *graph, const CUgraphNode **dependencies,
                        const struct CUgraphEdgeData_st **edges, size_t *count)
{
    if (edges != NULL && dependencies == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (edges != NULL)
        *edges = NULL;
    return info(handle, status, id, graph, dependencies, count);
}

static CUresult exchange_mode(CUstreamCaptureMode *mode)
{
    struct sim_thread *thread = sim_thread();
    CUstreamCaptureMode old = thread->capture_mode;

    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    thread->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

static CUresult graph_destroy(CUgraph handle)
{
    struct sim_graph *graph = sim_handles_find(&sim_machine.graphs, (uint64_t)(uintptr_t)handle);

    if (graph == NULL || graph->is_captured_into)
        return CUDA_ERROR_INVALID_VALUE;
    graph_end(graph);
    return CUDA_SUCCESS;
}

SIM_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream hStream, CUstreamCaptureMode mode)
{
    SIM_ANSWER(STREAM_BEGIN_CAPTURE, begin(hStream, mode));
}

SIM_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream hStream, CUgraph *phGraph)
{
    SIM_ANSWER(STREAM_END_CAPTURE, end(hStream, phGraph));
}

SIM_EXPORT CUresult CUDAAPI cuStreamIsCapturing(CUstream hStream,
                                                CUstreamCaptureStatus *captureStatus)
{
    SIM_ANSWER(STREAM_IS_CAPTURING, is_capturing(hStream, captureStatus));
}

SIM_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream hStream,
                                                      CUstreamCaptureStatus *status, cuuint64_t *id,
                                                      CUgraph *graph,
                                                      const CUgraphNode **dependencies,
                                                      size_t *count)
{
    SIM_ANSWER(STREAM_GET_CAPTURE_INFO, info(hStream, status, id, graph, dependencies, count));
}

SIM_EXPORT CUresult CUDAAPI cuStreamGetCaptureInfo_v3(
    CUstream hStream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
    const CUgraphNode **dependencies, const struct CUgraphEdgeData_st **edges, size_t *count)
{
    SIM_ANSWER(STREAM_GET_CAPTURE_INFO_V3,
               info_v3(hStream, status, id, graph, dependencies, edges, count));
}

SIM_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    SIM_ANSWER(EXCHANGE_CAPTURE_MODE, exchange_mode(mode));
}

SIM_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph hGraph)
{
    SIM_ANSWER(GRAPH_DESTROY, graph_destroy(hGraph));
}
