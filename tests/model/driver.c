/* SPDX-License-Identifier: MIT */
#include "tests/model/driver.h"

#include "tests/support/env.h"

/* The entry points of the driver, by their plain C types. */
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);
int cuStreamSynchronize(xseg_stream stream);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, void **graph);
int cuStreamGetCaptureInfo_v2(xseg_stream stream, int *state, unsigned long long *id, void **graph,
                              const void **nodes, size_t *count);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGraphDestroy(void *graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventQuery(xseg_event event);
int cuEventSynchronize(xseg_event event);
int cuEventDestroy_v2(xseg_event event);
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);

static void *context[2];

/* The context and capture mode to restore after a call. */
struct visit {
    void *context;
    int mode;
};

static struct visit come(void)
{
    struct visit visit = {NULL, DRIVER_RELAXED};

    assert_int_equal(cuCtxGetCurrent(&visit.context), 0);
    assert_int_equal(cuCtxSetCurrent(context[0]), 0);
    assert_int_equal(cuThreadExchangeStreamCaptureMode(&visit.mode), 0);
    return visit;
}

static void go(struct visit visit)
{
    assert_int_equal(cuThreadExchangeStreamCaptureMode(&visit.mode), 0);
    assert_int_equal(cuCtxSetCurrent(visit.context), 0);
}

void driver_open(void)
{
    assert_int_equal(cuInit(0), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRetain(&context[i], i), 0);
}

void driver_close(void)
{
    assert_int_equal(cuCtxSetCurrent(NULL), 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(cuDevicePrimaryCtxRelease_v2(i), 0);
}

void driver_enter(int device)
{
    assert_int_equal(cuCtxSetCurrent(device < 0 ? NULL : context[device]), 0);
}

int driver_current(void)
{
    void *current = NULL;
    int mode = DRIVER_GLOBAL;

    assert_int_equal(cuThreadExchangeStreamCaptureMode(&mode), 0);
    assert_int_equal(mode, DRIVER_GLOBAL);
    assert_int_equal(cuCtxGetCurrent(&current), 0);
    return current == NULL ? -1 : current == context[0] ? 0 : current == context[1] ? 1 : 2;
}

/* --- Streams and events. --- */

xseg_stream driver_stream(bool blocking)
{
    const struct visit visit = come();
    xseg_stream stream = NULL;

    assert_int_equal(cuStreamCreate(&stream, blocking ? 0 : 1), 0);
    go(visit);
    return stream;
}

void driver_stream_destroy(xseg_stream stream)
{
    const struct visit visit = come();

    assert_int_equal(cuStreamDestroy_v2(stream), 0);
    go(visit);
}

static xseg_event record(xseg_stream stream)
{
    xseg_event event = NULL;

    assert_int_equal(cuEventCreate(&event, 2), 0);
    assert_int_equal(cuEventRecord(event, stream), 0);
    return event;
}

xseg_event driver_work(xseg_stream stream, const void *ptr, size_t bytes)
{
    const struct visit visit = come();

    assert_ok(ptr == NULL
                  ? xseg_sim_launch(stream, UINT64_MAX)
                  : xseg_sim_launch_on(stream, UINT64_MAX, (uint64_t)(uintptr_t)ptr, bytes));
    const xseg_event event = record(stream);
    go(visit);
    return event;
}

void driver_wait(xseg_event event)
{
    const struct visit visit = come();

    assert_int_equal(cuEventSynchronize(event), 0);
    go(visit);
}

bool driver_has_completed(xseg_event event)
{
    const struct visit visit = come();
    const int result = cuEventQuery(event);

    assert_true(result == 0 || result == 600);
    go(visit);
    return result == 0;
}

void driver_event_destroy(xseg_event event)
{
    const struct visit visit = come();

    assert_int_equal(cuEventDestroy_v2(event), 0);
    go(visit);
}

/* --- Captures. --- */

uint64_t driver_capture_begin(xseg_stream stream, enum driver_mode mode)
{
    const struct visit visit = come();
    unsigned long long id = 0;
    int state = 0;

    assert_int_equal(cuStreamBeginCapture_v2(stream, (int)mode), 0);
    assert_int_equal(cuStreamGetCaptureInfo_v2(stream, &state, &id, NULL, NULL, NULL), 0);
    assert_int_equal(state, 1);
    go(visit);
    return id;
}

void driver_capture_node(xseg_stream stream)
{
    const struct visit visit = come();

    assert_ok(xseg_sim_launch(stream, 1000));
    go(visit);
}

void driver_join(xseg_stream later, xseg_stream earlier)
{
    const struct visit visit = come();
    const xseg_event event = record(earlier);

    assert_int_equal(cuStreamWaitEvent(later, event, 0), 0);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    go(visit);
}

void driver_capture_invalidate(xseg_stream stream)
{
    const struct visit visit = come();

    assert_int_not_equal(cuStreamSynchronize(stream), 0);
    go(visit);
}

bool driver_capture_end(xseg_stream stream)
{
    const struct visit visit = come();
    void *graph = NULL;
    const int result = cuStreamEndCapture(stream, &graph);

    assert_int_equal(result == 0, graph != NULL);
    if (graph != NULL)
        assert_int_equal(cuGraphDestroy(graph), 0);
    go(visit);
    return result == 0;
}

/* --- Memory. --- */

void *driver_alloc(size_t bytes)
{
    const struct visit visit = come();
    unsigned long long ptr = 0;

    if (cuMemAlloc_v2(&ptr, bytes) != 0)
        ptr = 0;
    go(visit);
    return (void *)(uintptr_t)ptr; /* NOLINT(performance-no-int-to-ptr) */
}

void driver_free(void *ptr)
{
    const struct visit visit = come();

    assert_int_equal(cuMemFree_v2((uint64_t)(uintptr_t)ptr), 0);
    go(visit);
}
