/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/replay/simulator.h"

#define RESULT_NOT_READY    600
#define STREAM_NON_BLOCKING 1u
#define EVENT_NO_TIMING     2u
#define CAPTURE_GLOBAL      0
#define CAPTURE_RELAXED     2
#define CAPTURE_NONE        0

/* Member, name in the library, parameters: the driver's binary interface without cuda.h. */
#define ENTRY_POINTS(X)                                                                  \
    X(init, "cuInit", (unsigned flags))                                                  \
    X(device_get, "cuDeviceGet", (int *device, int ordinal))                             \
    X(context_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))          \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (int device))                     \
    X(context_push, "cuCtxPushCurrent_v2", (void *context))                              \
    X(context_pop, "cuCtxPopCurrent_v2", (void **context))                               \
    X(context_synchronize, "cuCtxSynchronize", (void))                                   \
    X(stream_create, "cuStreamCreate", (struct CUstream_st * *stream, unsigned flags))   \
    X(stream_destroy, "cuStreamDestroy_v2", (struct CUstream_st * stream))               \
    X(stream_query, "cuStreamQuery", (struct CUstream_st * stream))                      \
    X(stream_synchronize, "cuStreamSynchronize", (struct CUstream_st * stream))          \
    X(stream_wait, "cuStreamWaitEvent",                                                  \
      (struct CUstream_st * stream, void *event, unsigned flags))                        \
    X(exchange_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                   \
    X(is_capturing, "cuStreamIsCapturing", (struct CUstream_st * stream, int *status))   \
    X(capture_begin, "cuStreamBeginCapture_v2", (struct CUstream_st * stream, int mode)) \
    X(capture_end, "cuStreamEndCapture", (struct CUstream_st * stream, void **graph))    \
    X(graph_destroy, "cuGraphDestroy", (void *graph))                                    \
    X(event_create, "cuEventCreate", (void **event, unsigned flags))                     \
    X(event_destroy, "cuEventDestroy_v2", (void *event))                                 \
    X(event_record, "cuEventRecord", (void *event, struct CUstream_st *stream))

struct gpu {
    void *library;
    int device;
    bool retained, pushed;
    void *event; /* reused by each wait; NULL before the first */
    struct CUstream_st **streams;
    size_t stream_count;
#define X(member, name, parameters) int(*member) parameters;
    ENTRY_POINTS(X)
#undef X
    /* NULL in the simulator, which has its own function for queued work. */
    int (*memset_async)(uint64_t address, unsigned char byte, size_t bytes,
                        struct CUstream_st *stream);
};

const char *gpu_driver_of(const char *text)
{
    if (!text || strcmp(text, "sim") == 0)
        return GPU_SIMULATED;
    return strcmp(text, "cuda") == 0 ? "libcuda.so.1" : text;
}

const char *gpu_library(const char *driver)
{
    return driver == GPU_SIMULATED ? simulator_path() : driver;
}

/* ISO C has no conversion from an object pointer to a function pointer, so the bytes are copied. */
static bool resolve_entry_points(struct gpu *gpu, char *error, size_t error_bytes)
{
    void *symbol;

#define X(member, name, parameters)                                              \
    symbol = dlsym(gpu->library, name);                                          \
    if (!symbol) {                                                               \
        snprintf(error, error_bytes, "the driver has no entry point, %s", name); \
        return false;                                                            \
    }                                                                            \
    memcpy(&gpu->member, &symbol, sizeof(symbol));
    ENTRY_POINTS(X)
#undef X
    symbol = dlsym(gpu->library, "cuMemsetD8Async");
    memcpy(&gpu->memset_async, &symbol, sizeof(symbol));
    return true;
}

static bool push_context(struct gpu *gpu, char *error, size_t error_bytes)
{
    const char *call = "cuInit";
    int result = gpu->init(0);
    void *context;

    if (result == 0) {
        call = "cuDeviceGet";
        result = gpu->device_get(&gpu->device, 0);
    }
    if (result == 0) {
        call = "cuDevicePrimaryCtxRetain";
        result = gpu->context_retain(&context, gpu->device);
        gpu->retained = result == 0;
    }
    if (result == 0) {
        call = "cuCtxPushCurrent";
        result = gpu->context_push(context);
        gpu->pushed = result == 0;
    }
    if (result != 0)
        snprintf(error, error_bytes, "%s returned %d", call, result);
    return result == 0;
}

struct gpu *gpu_open(const char *driver, char *error, size_t error_bytes)
{
    const char *library = gpu_library(driver);
    struct gpu *gpu = calloc(1, sizeof(*gpu));

    if (!gpu || !library) {
        snprintf(error, error_bytes, gpu ? "the simulator is not loaded" : "out of host memory");
        free(gpu);
        return NULL;
    }
    gpu->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library) {
        snprintf(error, error_bytes, "the driver cannot be loaded: %s", dlerror());
        free(gpu);
        return NULL;
    }
    if (resolve_entry_points(gpu, error, error_bytes) && push_context(gpu, error, error_bytes))
        return gpu;
    gpu_close(gpu);
    return NULL;
}

/* Errors are ignored: there is no recovery from a failed cleanup. */
void gpu_close(struct gpu *gpu)
{
    void *context;

    if (!gpu)
        return;
    if (gpu->event)
        gpu->event_destroy(gpu->event);
    for (size_t i = 0; i < gpu->stream_count; i++)
        gpu->stream_destroy(gpu->streams[i]);
    if (gpu->pushed)
        gpu->context_pop(&context);
    if (gpu->retained)
        gpu->context_release(gpu->device);
    dlclose(gpu->library);
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
    if (gpu->stream_create(&streams[gpu->stream_count], STREAM_NON_BLOCKING) != 0)
        return false;
    *out = streams[gpu->stream_count++];
    return true;
}

bool gpu_query(struct gpu *gpu, struct CUstream_st *stream, bool *out)
{
    int result = gpu->stream_query(stream);

    if (result != 0 && result != RESULT_NOT_READY)
        return false;
    *out = result == 0;
    return true;
}

/* In the thread's default capture mode, the wait would fail during a capture of another stream, and invalidate it. */
bool gpu_synchronize(struct gpu *gpu, struct CUstream_st *stream)
{
    int mode = CAPTURE_RELAXED;
    bool success;

    if (gpu->exchange_mode(&mode) != 0)
        return false;
    success = gpu->stream_synchronize(stream) == 0;
    return gpu->exchange_mode(&mode) == 0 && success;
}

bool gpu_synchronize_all(struct gpu *gpu)
{
    return gpu->context_synchronize() == 0;
}

bool gpu_wait(struct gpu *gpu, struct CUstream_st *stream, struct CUstream_st *awaited)
{
    if (!gpu->event && gpu->event_create(&gpu->event, EVENT_NO_TIMING) != 0) {
        gpu->event = NULL;
        return false;
    }
    return gpu->event_record(gpu->event, awaited) == 0 &&
           gpu->stream_wait(stream, gpu->event, 0) == 0;
}

bool gpu_is_captured(struct gpu *gpu, struct CUstream_st *stream, bool *out)
{
    int status = CAPTURE_NONE;

    /* The legacy stream is never captured, and a query of it during a capture fails. */
    *out = false;
    if (stream == NULL)
        return true;
    if (gpu->is_capturing(stream, &status) != 0)
        return false;
    *out = status != CAPTURE_NONE;
    return true;
}

bool gpu_capture_begin(struct gpu *gpu, struct CUstream_st *stream)
{
    return gpu->capture_begin(stream, CAPTURE_GLOBAL) == 0;
}

bool gpu_capture_end(struct gpu *gpu, struct CUstream_st *stream)
{
    void *graph = NULL;

    return gpu->capture_end(stream, &graph) == 0 && (!graph || gpu->graph_destroy(graph) == 0);
}

bool gpu_write(struct gpu *gpu, struct CUstream_st *stream, void *address, size_t bytes)
{
    return gpu->memset_async &&
           gpu->memset_async((uint64_t)(uintptr_t)address, 0, bytes, stream) == 0;
}
