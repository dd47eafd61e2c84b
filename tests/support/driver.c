/* SPDX-License-Identifier: MIT */
#include "tests/support/driver.h"

#include "tests/support/check.h"
#include "tests/support/driver_calls.h"
#include "xseg/sim.h"

enum {
    DEVICES = 4,
    NON_BLOCKING = 1,
    DISABLE_TIMING = 2,
    NOT_READY = 600,
    CAPTURE_INVALIDATED = 901,
};

static void *contexts[DEVICES];
static unsigned devices;
static void (*lift_faults)(void);

/* Whether a call need not be repeated.  With faults another thread may invalidate a capture; then its streams reject
 * all calls, and its end returns an error. */
static bool is_done(int result, unsigned tries, const char *call)
{
    if (result == 0 || (result == CAPTURE_INVALIDATED && lift_faults != NULL))
        return true;
    if (lift_faults == NULL || tries > 100) {
        (void)fprintf(stderr, "%s: error %d\n", call, result);
        abort();
    }
    if (tries > 0)
        lift_faults();
    return false;
}

#define INSIST(call)                                            \
    for (unsigned tries_ = 0; !is_done((call), tries_, #call);) \
    tries_++

/* The state that is restored after a call. */
struct visit {
    void *context;
    int mode;
};

static struct visit enter(int device)
{
    struct visit visit = {NULL, DRIVER_RELAXED};

    INSIST(cuCtxGetCurrent(&visit.context));
    INSIST(cuCtxSetCurrent(contexts[device]));
    INSIST(cuThreadExchangeStreamCaptureMode(&visit.mode));
    return visit;
}

static void leave(struct visit visit)
{
    INSIST(cuThreadExchangeStreamCaptureMode(&visit.mode));
    INSIST(cuCtxSetCurrent(visit.context));
}

#define INSIST_ON(device, call)                    \
    do {                                           \
        const struct visit visit_ = enter(device); \
        INSIST(call);                              \
        leave(visit_);                             \
    } while (0)

void driver_open(unsigned count, void (*lift)(void))
{
    devices = count;
    lift_faults = lift;
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
    int mode = DRIVER_GLOBAL;

    INSIST(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == DRIVER_GLOBAL);
    INSIST(cuCtxGetCurrent(&current));
    for (unsigned i = 0; i < devices; i++)
        if (current == contexts[i])
            return (int)i;
    return current == NULL ? -1 : DEVICES;
}

xseg_stream driver_stream(int device, bool blocking)
{
    xseg_stream stream = NULL;

    INSIST_ON(device, cuStreamCreate(&stream, blocking ? 0 : NON_BLOCKING));
    return stream;
}

void driver_stream_destroy(int device, xseg_stream stream)
{
    INSIST_ON(device, cuStreamDestroy_v2(stream));
}

void driver_wait(int device, xseg_stream later, xseg_stream earlier)
{
    const xseg_event event = driver_event(device, earlier);

    INSIST_ON(device, cuStreamWaitEvent(later, event, 0));
    driver_event_destroy(event);
}

xseg_event driver_event(int device, xseg_stream stream)
{
    const struct visit visit = enter(device);
    xseg_event event = NULL;

    INSIST(cuEventCreate(&event, DISABLE_TIMING));
    INSIST(cuEventRecord(event, stream));
    leave(visit);
    return event;
}

void driver_event_synchronize(int device, xseg_event event)
{
    INSIST_ON(device, cuEventSynchronize(event));
}

bool driver_event_has_completed(xseg_event event)
{
    const struct visit visit = enter(0);
    const int result = cuEventQuery(event);

    CHECK(result == 0 || result == NOT_READY);
    leave(visit);
    return result == 0;
}

void driver_event_destroy(xseg_event event)
{
    INSIST_ON(0, cuEventDestroy_v2(event));
}

void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes)
{
    const struct visit visit = enter(device);

    CHECK((ptr == NULL
               ? xseg_sim_launch(stream, nanoseconds)
               : xseg_sim_launch_on(stream, nanoseconds, (uintptr_t)ptr, bytes)) == XSEG_OK);
    leave(visit);
}

void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument)
{
    INSIST_ON(device, cuLaunchHostFunc(stream, function, argument));
}

void driver_finish(int device, xseg_stream stream)
{
    INSIST_ON(device, cuStreamSynchronize(stream));
}

/* --- Captures. --- */

void driver_capture_begin(int device, xseg_stream stream, enum driver_mode mode)
{
    INSIST_ON(device, cuStreamBeginCapture_v2(stream, (int)mode));
}

uint64_t driver_capture_id(xseg_stream stream)
{
    const struct visit visit = enter(0);
    unsigned long long id = 0;
    int state = 0;

    INSIST(cuStreamGetCaptureInfo_v2(stream, &state, &id, NULL, NULL, NULL));
    CHECK(state == 1);
    leave(visit);
    return id;
}

void driver_capture_invalidate(int device, xseg_stream stream)
{
    const struct visit visit = enter(device);

    CHECK(cuStreamSynchronize(stream) != 0);
    leave(visit);
}

bool driver_capture_end(int device, xseg_stream stream)
{
    const struct visit visit = enter(device);
    struct CUgraph_st *graph = NULL;
    int state = 1, result = 0;

    /* A fault leaves the capture unchanged; an invalidated capture ends without a graph. */
    while (state != 0) {
        result = cuStreamEndCapture(stream, &graph);
        INSIST(cuStreamIsCapturing(stream, &state));
        CHECK(state == 0 || lift_faults != NULL);
        if (state != 0)
            lift_faults();
    }
    CHECK((result == 0) == (graph != NULL));
    if (graph != NULL)
        INSIST(cuGraphDestroy(graph));
    leave(visit);
    return result == 0;
}

/* --- Memory. --- */

void *driver_alloc(int device, uint64_t bytes)
{
    const struct visit visit = enter(device);
    unsigned long long ptr = 0;

    if (cuMemAlloc_v2(&ptr, bytes) != 0)
        ptr = 0;
    leave(visit);
    return (void *)(uintptr_t)ptr; /* NOLINT(performance-no-int-to-ptr) */
}

void driver_free(int device, void *ptr)
{
    INSIST_ON(device, cuMemFree_v2((uint64_t)(uintptr_t)ptr));
}
