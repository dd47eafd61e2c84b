/* SPDX-License-Identifier: MIT */
/* Streams, events, and the capture of streams. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    RETURN_CALL(driver.cuStreamCreateWithPriority(stream, flags, priority));
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
    RETURN_CALL(driver.cuStreamDestroy(stream));
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    RETURN_CALL(driver.cuStreamQuery(stream));
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    RETURN_CALL(driver.cuStreamSynchronize(stream));
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    RETURN_CALL(driver.cuStreamWaitEvent(stream, event, flags));
}

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    RETURN_CALL(driver.cuStreamGetPriority(stream, priority));
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *argument)
{
    RETURN_CALL(driver.cuLaunchHostFunc(stream, function, argument));
}

/* The arguments of a stream callback, allocated until it runs. */
struct callback {
    cudaStream_t stream;
    cudaStreamCallback_t function;
    void *argument;
};

/* The host function of cudaStreamAddCallback(). */
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
        return record_error(cudaErrorMemoryAllocation);
    *callback = (struct callback){stream, function, argument};
    cudaError_t error = cudaLaunchHostFunc(stream, call_back, callback);
    if (error != cudaSuccess)
        free(callback);
    return error;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    RETURN_CALL(driver.cuEventCreate(event, flags));
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    RETURN_CALL(driver.cuEventDestroy(event));
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    RETURN_CALL(driver.cuEventRecord(event, stream));
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags)
{
    RETURN_CALL(driver.cuEventRecordWithFlags(event, stream, flags));
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event)
{
    RETURN_CALL(driver.cuEventQuery(event));
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    RETURN_CALL(driver.cuEventSynchronize(event));
}

EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    RETURN_CALL(driver.cuEventElapsedTime(milliseconds, start, end));
}

EXPORT cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
    RETURN_CALL(driver.cuIpcGetEventHandle((CUipcEventHandle *)handle, event));
}

EXPORT cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
    CUipcEventHandle driver_handle;

    memcpy(&driver_handle, &handle, sizeof(driver_handle));
    RETURN_CALL(driver.cuIpcOpenEventHandle(event, driver_handle));
}

EXPORT cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    RETURN_CALL(driver.cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                                 const cudaGraphNode_t *dependencies,
                                                 const cudaGraphEdgeData *edges, size_t count,
                                                 enum cudaStreamCaptureMode mode)
{
    RETURN_CALL(driver.cuStreamBeginCaptureToGraph(stream, graph, dependencies,
                                                   (const CUgraphEdgeData *)edges, count,
                                                   (CUstreamCaptureMode)mode));
}

EXPORT cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    RETURN_CALL(driver.cuStreamEndCapture(stream, graph));
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
    RETURN_CALL(driver.cuStreamIsCapturing(stream, (CUstreamCaptureStatus *)status));
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                            enum cudaStreamCaptureStatus *status,
                                            unsigned long long *id, cudaGraph_t *graph,
                                            const cudaGraphNode_t **dependencies,
                                            const cudaGraphEdgeData **edges, size_t *count)
{
    cuuint64_t driver_id = 0;
    cudaError_t error = enter_context();

    if (error == cudaSuccess)
        error = to_error(driver.cuStreamGetCaptureInfo(stream, (CUstreamCaptureStatus *)status,
                                                       &driver_id, graph, dependencies,
                                                       (const CUgraphEdgeData **)edges, count));
    if (error == cudaSuccess && id != NULL)
        *id = driver_id;
    return record_error(error);
}

EXPORT cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream,
                                                       cudaGraphNode_t *dependencies,
                                                       const cudaGraphEdgeData *edges, size_t count,
                                                       unsigned flags)
{
    RETURN_CALL(driver.cuStreamUpdateCaptureDependencies(
        stream, dependencies, (const CUgraphEdgeData *)edges, count, flags));
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
    RETURN_AFTER(load_driver(),
                 driver.cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}
