/* SPDX-License-Identifier: MIT */
#include "tests/support/capture.h"

/* What a program calls itself, by its plain C types. */
struct CUgraph_st;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);
int cuStreamGetCtx(xseg_stream stream, void **context);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, struct CUgraph_st **graph);
int cuGraphDestroy(struct CUgraph_st *graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);

enum { GLOBAL = 0, NON_BLOCKING = 1, UNTIMED = 2 };

void capture_enter(int device)
{
    void *context = NULL;

    assert_int_equal(cuInit(0), 0);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, device), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
}

void capture_leave(int device)
{
    void *context = NULL;

    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
}

xseg_stream capture_stream(int device)
{
    xseg_stream stream = NULL;
    void *context = NULL;

    /* Held until the stream is destroyed. */
    capture_enter(device);
    assert_int_equal(cuStreamCreate(&stream, NON_BLOCKING), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    return stream;
}

void capture_stream_destroy(int device, xseg_stream stream)
{
    capture_enter(device);
    assert_int_equal(cuStreamDestroy_v2(stream), 0);
    capture_leave(device);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(device), 0);
}

/* The context of a stream becomes the current one. */
static void *enter_stream(xseg_stream stream)
{
    void *context = NULL;

    assert_int_equal(cuStreamGetCtx(stream, &context), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
    return context;
}

void capture_start(xseg_stream stream)
{
    void *context = enter_stream(stream);

    assert_int_equal(cuStreamBeginCapture_v2(stream, GLOBAL), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
}

bool capture_stop(xseg_stream stream)
{
    void *context = enter_stream(stream);
    struct CUgraph_st *graph = NULL;
    const bool is_whole = cuStreamEndCapture(stream, &graph) == 0;

    if (is_whole)
        assert_int_equal(cuGraphDestroy(graph), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    return is_whole;
}

void capture_wait(xseg_stream stream, xseg_stream other)
{
    void *context = enter_stream(other);
    xseg_event event = NULL;

    assert_int_equal(cuEventCreate(&event, UNTIMED), 0);
    assert_int_equal(cuEventRecord(event, other), 0);
    (void)enter_stream(stream);
    assert_int_equal(cuStreamWaitEvent(stream, event, 0), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
}

uint64_t capture_disturbances(void)
{
    static const char *const calls[] = {
        "cuMemFree",           "cuMemUnmap",       "cuMemAddressFree", "cuEventQuery",
        "cuEventRecord",       "cuStreamQuery",    "cuEventDestroy",   "cuEventSynchronize",
        "cuStreamSynchronize", "cuCtxSynchronize",
    };
    uint64_t sum = 0;

    for (size_t i = 0; i < COUNT_OF(calls); i++)
        sum += xseg_sim_calls(calls[i]);
    return sum;
}

void capture_launch_on(xseg_stream stream, void *ptr, size_t bytes)
{
    capture_enter(0);
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uintptr_t)ptr, bytes), XSEG_OK);
    capture_leave(0);
}

void capture_close(struct xseg_allocator *allocator, xseg_stream first, xseg_stream second)
{
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    if (second != NULL)
        scene_stream_destroy(second);
    scene_stream_destroy(first);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
}

void capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    assert_int_equal(xseg_capture_begin(pool, stream), XSEG_OK);
    capture_start(stream);
}

void capture_end(struct xseg_pool *pool, xseg_stream stream)
{
    assert_true(capture_stop(stream));
    assert_int_equal(xseg_capture_end(pool), XSEG_OK);
}
