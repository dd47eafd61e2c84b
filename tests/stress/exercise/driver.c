/* SPDX-License-Identifier: MIT */
#include "tests/stress/exercise/driver.h"

#include "tests/stress/exercise/failure.h"
#include "tests/stress/exercise/fault.h"
#include "xseg/sim.h"

/* Driver entry points with plain C types. */
struct CUgraph_st;
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
int cuStreamEndCapture(xseg_stream stream, struct CUgraph_st **graph);
int cuStreamIsCapturing(xseg_stream stream, int *state);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGraphDestroy(struct CUgraph_st *graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);
int cuLaunchHostFunc(xseg_stream stream, void (*function)(void *), void *argument);
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);

enum {
    DEVICES = 4,
    GLOBAL = 0,
    RELAXED = 2,
    NON_BLOCKING = 1,
    UNTIMED = 2,
    OUT_OF_MEMORY = 2,
    CAPTURE_INVALIDATED = 901
};

static void *contexts[DEVICES];
static unsigned devices;

/* Retry until the call succeeds. With faults another thread may invalidate a capture; then its streams reject all
 * calls, and its end returns an error. */
#define INSIST(call)                                                           \
    do {                                                                       \
        int result_;                                                           \
        for (unsigned tries_ = 0; (result_ = (call)) != 0; tries_++) {         \
            if (result_ == CAPTURE_INVALIDATED)                                \
                break;                                                         \
            if (tries_ > 100)                                                  \
                failure("%s:%d: %s does not work", __FILE__, __LINE__, #call); \
            if (tries_ > 0)                                                    \
                fault_lift();                                                  \
        }                                                                      \
    } while (0)

/* The state that is restored after a call. */
struct visit {
    void *context;
    int mode;
};

static struct visit come(int device)
{
    struct visit visit = {NULL, RELAXED};

    INSIST(cuCtxGetCurrent(&visit.context));
    INSIST(cuCtxSetCurrent(contexts[device]));
    INSIST(cuThreadExchangeStreamCaptureMode(&visit.mode));
    return visit;
}

static void go(struct visit visit)
{
    INSIST(cuThreadExchangeStreamCaptureMode(&visit.mode));
    INSIST(cuCtxSetCurrent(visit.context));
}

void driver_open(unsigned count)
{
    devices = count;
    INSIST(cuInit(0));
    for (unsigned i = 0; i < devices; i++)
        INSIST(cuDevicePrimaryCtxRetain(&contexts[i], (int)i));
}

void driver_close(void)
{
    INSIST(cuCtxSetCurrent(NULL));
    for (unsigned i = 0; i < devices; i++)
        INSIST(cuDevicePrimaryCtxRelease_v2((int)i));
}

void driver_set_current(int device)
{
    INSIST(cuCtxSetCurrent(device < 0 ? NULL : contexts[device]));
}

int driver_current(void)
{
    void *current = NULL;
    int mode = GLOBAL;

    INSIST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == GLOBAL);
    INSIST(cuCtxGetCurrent(&current));
    for (unsigned i = 0; i < devices; i++)
        if (current == contexts[i])
            return (int)i;
    return current == NULL ? -1 : DEVICES;
}

xseg_stream driver_stream(int device)
{
    const struct visit visit = come(device);
    xseg_stream stream = NULL;

    INSIST(cuStreamCreate(&stream, NON_BLOCKING));
    go(visit);
    return stream;
}

void driver_stream_destroy(int device, xseg_stream stream)
{
    const struct visit visit = come(device);

    INSIST(cuStreamDestroy_v2(stream));
    go(visit);
}

void driver_wait(int device, xseg_stream later, xseg_stream earlier)
{
    const xseg_event event = driver_event(device, earlier);
    const struct visit visit = come(device);

    INSIST(cuStreamWaitEvent(later, event, 0));
    go(visit);
    driver_event_destroy(event);
}

xseg_event driver_event(int device, xseg_stream stream)
{
    const struct visit visit = come(device);
    xseg_event event = NULL;

    INSIST(cuEventCreate(&event, UNTIMED));
    INSIST(cuEventRecord(event, stream));
    go(visit);
    return event;
}

void driver_event_destroy(xseg_event event)
{
    INSIST(cuEventDestroy_v2(event));
}

void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes)
{
    const struct visit visit = come(device);

    CHECK(xseg_sim_launch_on(stream, nanoseconds, (uint64_t)(uintptr_t)ptr, bytes) == XSEG_OK);
    go(visit);
}

void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument)
{
    const struct visit visit = come(device);

    INSIST(cuLaunchHostFunc(stream, function, argument));
    go(visit);
}

void driver_finish(int device, xseg_stream stream)
{
    const struct visit visit = come(device);

    INSIST(cuStreamSynchronize(stream));
    go(visit);
}

void driver_capture_begin(int device, xseg_stream stream)
{
    const struct visit visit = come(device);

    INSIST(cuStreamBeginCapture_v2(stream, GLOBAL));
    go(visit);
}

bool driver_capture_end(int device, xseg_stream stream)
{
    const struct visit visit = come(device);
    struct CUgraph_st *graph = NULL;
    int state = 1, result = 0;

    /* A fault leaves the capture unchanged; an invalidated capture ends without a graph. */
    while (state != 0) {
        result = cuStreamEndCapture(stream, &graph);
        INSIST(cuStreamIsCapturing(stream, &state));
        if (state != 0)
            fault_lift();
    }
    if (graph != NULL)
        INSIST(cuGraphDestroy(graph));
    go(visit);
    return result == 0;
}

void *driver_alloc(int device, uint64_t bytes)
{
    const struct visit visit = come(device);
    unsigned long long ptr = 0;

    if (cuMemAlloc_v2(&ptr, bytes) != 0)
        ptr = 0;
    go(visit);
    return (void *)(uintptr_t)ptr; /* NOLINT(performance-no-int-to-ptr) */
}

void driver_free(int device, void *ptr)
{
    const struct visit visit = come(device);

    INSIST(cuMemFree_v2((uint64_t)(uintptr_t)ptr));
    go(visit);
}
