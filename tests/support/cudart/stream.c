/* SPDX-License-Identifier: MIT */
/* Streams, events, and the capture of streams. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    ANSWER(driver.cuStreamCreateWithPriority(stream, flags, priority));
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithPriority(stream, cudaStreamDefault, 0);
}

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    ANSWER(driver.cuStreamDestroy(stream));
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    ANSWER(driver.cuStreamQuery(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    ANSWER(driver.cuStreamSynchronize(stream));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    ANSWER(driver.cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    ANSWER(driver.cuStreamGetPriority(stream, priority));
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    ANSWER(driver.cuLaunchHostFunc(stream, function, argument));
}

/* The arguments of a stream callback, until it has run. */
struct callback {
    cudaStream_t stream;
    cudaStreamCallback_t function;
    void *argument;
};

static void call_back(void *argument)
{
    const struct callback callback = *(struct callback *)argument;

    free(argument);
    callback.function(callback.stream, cudaSuccess, callback.argument);
}

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function,
                                         void *argument, unsigned flags)
{
    struct callback *callback = malloc(sizeof(*callback));

    if (callback == NULL)
        return answer(cudaErrorMemoryAllocation);
    *callback = (struct callback){stream, function, argument};
    cudaError_t error = cudaLaunchHostFunc(stream, call_back, callback);
    if (error != cudaSuccess)
        free(callback);
    return error;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    ANSWER(driver.cuEventCreate(event, flags));
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    ANSWER(driver.cuEventDestroy(event));
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ANSWER(driver.cuEventRecord(event, stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    ANSWER(driver.cuEventRecordWithFlags(event, stream, flags));
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    ANSWER(driver.cuEventQuery(event));
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    ANSWER(driver.cuEventSynchronize(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    ANSWER(driver.cuEventElapsedTime(milliseconds, start, end));
}

EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    ANSWER(driver.cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle theirs;

    memcpy(&theirs, &handle, sizeof(theirs));
    ANSWER(driver.cuIpcOpenEventHandle(event, theirs));
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    ANSWER(driver.cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                 const cudaGraphNode_t *needs,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode)
{
    ANSWER(driver.cuStreamBeginCaptureToGraph(stream, graph, needs, (const CUgraphEdgeData *)edges,
                                              count, (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    ANSWER(driver.cuStreamEndCapture(stream, graph));
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    ANSWER(driver.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                            enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **needs,
                                            const cudaGraphEdgeData **edges, size_t *count)
{
    cuuint64_t number = 0;
    cudaError_t error = enter();

    if (error == cudaSuccess)
        error = error_of(driver.cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status,
                                                       &number, graph, needs,
                                                       (const CUgraphEdgeData **)edges, count));
    if (error == cudaSuccess && id != NULL)
        *id = number;
    return answer(error);
}

EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *needs,
                                                       const cudaGraphEdgeData *edges, size_t count,
                                                       unsigned flags)
{
    ANSWER(driver.cuStreamUpdateCaptureDependencies(stream, needs, (const CUgraphEdgeData *)edges,
                                                    count, flags));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    ANSWER_AFTER(begin(), driver.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}
