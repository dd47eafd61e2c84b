/* SPDX-License-Identifier: MIT */
#include "src/tools/driver/gpu.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/tools/driver/cuda.h"

#define EVENT_NO_TIMING 2u
#define CAPTURE_GLOBAL  0
#define CAPTURE_RELAXED 2
#define CAPTURE_NONE    0

struct gpu {
    struct cuda cuda;
    void *event; /* recycled by every wait; NULL until the first */
    struct CUstream_st **streams;
    size_t stream_count;
};

struct gpu *gpu_open(const char *driver, char *problem, size_t problem_bytes)
{
    struct gpu *gpu = calloc(1, sizeof(*gpu));
    const char *call;
    int result;

    if (!gpu) {
        snprintf(problem, problem_bytes, "no host memory is left");
        return NULL;
    }
    if (!cuda_load(&gpu->cuda, driver, problem, problem_bytes)) {
        free(gpu);
        return NULL;
    }
    result = cuda_enter(&gpu->cuda, 0, &call);
    if (result == 0)
        return gpu;
    snprintf(problem, problem_bytes, "%s returned %d", call, result);
    gpu_close(gpu);
    return NULL;
}

void gpu_close(struct gpu *gpu)
{
    if (!gpu)
        return;
    if (gpu->event)
        gpu->cuda.event_destroy(gpu->event);
    for (size_t i = 0; i < gpu->stream_count; i++)
        gpu->cuda.stream_destroy(gpu->streams[i]);
    cuda_close(&gpu->cuda);
    free(gpu->streams);
    free(gpu);
}

bool gpu_stream(struct gpu *gpu, struct CUstream_st **out)
{
    struct CUstream_st **streams =
        realloc(gpu->streams, (gpu->stream_count + 1) * sizeof(struct CUstream_st *));

    if (!streams)
        return false;
    gpu->streams = streams;
    if (gpu->cuda.stream_create(&streams[gpu->stream_count], CUDA_STREAM_NON_BLOCKING) != 0)
        return false;
    *out = streams[gpu->stream_count++];
    return true;
}

bool gpu_idle(struct gpu *gpu, struct CUstream_st *stream, bool *out)
{
    int result = gpu->cuda.stream_query(stream);

    if (result != 0 && result != CUDA_NOT_READY)
        return false;
    *out = result == 0;
    return true;
}

/* A capture elsewhere forbids the wait in the thread's own mode, and would be spoilt by it. */
bool gpu_finish(struct gpu *gpu, struct CUstream_st *stream)
{
    int mode = CAPTURE_RELAXED;
    bool fine;

    if (gpu->cuda.exchange_mode(&mode) != 0)
        return false;
    fine = gpu->cuda.stream_synchronize(stream) == 0;
    return gpu->cuda.exchange_mode(&mode) == 0 && fine;
}

bool gpu_finish_all(struct gpu *gpu)
{
    return gpu->cuda.context_synchronize() == 0;
}

bool gpu_wait(struct gpu *gpu, struct CUstream_st *stream, struct CUstream_st *other)
{
    if (!gpu->event && gpu->cuda.event_create(&gpu->event, EVENT_NO_TIMING) != 0) {
        gpu->event = NULL;
        return false;
    }
    return gpu->cuda.event_record(gpu->event, other) == 0 &&
           gpu->cuda.stream_wait(stream, gpu->event, 0) == 0;
}

bool gpu_is_captured(struct gpu *gpu, struct CUstream_st *stream, bool *out)
{
    int status = CAPTURE_NONE;

    /* The legacy stream takes part in no capture, and may not be asked during one. */
    *out = false;
    if (stream == NULL)
        return true;
    if (gpu->cuda.is_capturing(stream, &status) != 0)
        return false;
    *out = status != CAPTURE_NONE;
    return true;
}

bool gpu_capture_begin(struct gpu *gpu, struct CUstream_st *stream)
{
    return gpu->cuda.capture_begin(stream, CAPTURE_GLOBAL) == 0;
}

bool gpu_capture_end(struct gpu *gpu, struct CUstream_st *stream)
{
    void *graph = NULL;

    return gpu->cuda.capture_end(stream, &graph) == 0 &&
           (!graph || gpu->cuda.graph_destroy(graph) == 0);
}

bool gpu_touch(struct gpu *gpu, struct CUstream_st *stream, void *address, size_t bytes)
{
    return gpu->cuda.fill_async((uint64_t)(uintptr_t)address, 0, bytes, stream) == 0;
}
