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

/* Whether a call need not be repeated.  With faults another thread may invalidate a capture; then the streams of the
 * capture reject all calls, and the end of the capture returns an error. */
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

/* Repeat a call until it succeeds, or abort. */
#define RETRY(call)                                             \
    for (unsigned tries_ = 0; !is_done((call), tries_, #call);) \
    tries_++

/* The state that is restored after a call. */
struct saved_context {
    void *context;
    int mode;
};

static struct saved_context enter_context(int device)
{
    struct saved_context saved = {NULL, DRIVER_RELAXED};

    RETRY(cuCtxGetCurrent(&saved.context));
    RETRY(cuCtxSetCurrent(contexts[device]));
    RETRY(cuThreadExchangeStreamCaptureMode(&saved.mode));
    return saved;
}

static void restore_context(struct saved_context saved)
{
    RETRY(cuThreadExchangeStreamCaptureMode(&saved.mode));
    RETRY(cuCtxSetCurrent(saved.context));
}

#define RETRY_ON(device, call)                                     \
    do {                                                           \
        const struct saved_context saved_ = enter_context(device); \
        RETRY(call);                                               \
        restore_context(saved_);                                   \
    } while (0)

void driver_open(unsigned count, void (*lift)(void))
{
    devices = count;
    lift_faults = lift;
    RETRY(cuInit(0));
    for (unsigned i = 0; i < devices; i++)
        RETRY(cuDevicePrimaryCtxRetain(&contexts[i], (int)i));
}

void driver_close(void)
{
    RETRY(cuCtxSetCurrent(NULL));
    for (unsigned i = 0; i < devices; i++)
        RETRY(cuDevicePrimaryCtxRelease_v2((int)i));
}

void driver_set_current(int device)
{
    RETRY(cuCtxSetCurrent(device < 0 ? NULL : contexts[device]));
}

int driver_current(void)
{
    void *current = NULL;
    int mode = DRIVER_GLOBAL;

    RETRY(cuThreadExchangeStreamCaptureMode(&mode));
    CHECK(mode == DRIVER_GLOBAL);
    RETRY(cuCtxGetCurrent(&current));
    for (unsigned i = 0; i < devices; i++)
        if (current == contexts[i])
            return (int)i;
    return current == NULL ? -1 : DEVICES;
}

xseg_stream driver_stream(int device, bool blocking)
{
    xseg_stream stream = NULL;

    RETRY_ON(device, cuStreamCreate(&stream, blocking ? 0 : NON_BLOCKING));
    return stream;
}

void driver_stream_destroy(int device, xseg_stream stream)
{
    RETRY_ON(device, cuStreamDestroy_v2(stream));
}

void driver_wait(int device, xseg_stream later, xseg_stream earlier)
{
    const xseg_event event = driver_event(device, earlier);

    RETRY_ON(device, cuStreamWaitEvent(later, event, 0));
    driver_event_destroy(event);
}

xseg_event driver_event(int device, xseg_stream stream)
{
    const struct saved_context saved = enter_context(device);
    xseg_event event = NULL;

    RETRY(cuEventCreate(&event, DISABLE_TIMING));
    RETRY(cuEventRecord(event, stream));
    restore_context(saved);
    return event;
}

void driver_event_synchronize(int device, xseg_event event)
{
    RETRY_ON(device, cuEventSynchronize(event));
}

bool driver_event_has_completed(xseg_event event)
{
    const struct saved_context saved = enter_context(0);
    const int result = cuEventQuery(event);

    CHECK(result == 0 || result == NOT_READY);
    restore_context(saved);
    return result == 0;
}

void driver_event_destroy(xseg_event event)
{
    RETRY_ON(0, cuEventDestroy_v2(event));
}

void driver_work(int device, xseg_stream stream, uint64_t nanoseconds, const void *ptr,
                 uint64_t bytes)
{
    const struct saved_context saved = enter_context(device);

    CHECK((ptr == NULL
               ? xseg_sim_launch(stream, nanoseconds)
               : xseg_sim_launch_on(stream, nanoseconds, (uintptr_t)ptr, bytes)) == XSEG_OK);
    restore_context(saved);
}

void driver_call_host(int device, xseg_stream stream, void (*function)(void *argument),
                      void *argument)
{
    RETRY_ON(device, cuLaunchHostFunc(stream, function, argument));
}

void driver_finish(int device, xseg_stream stream)
{
    RETRY_ON(device, cuStreamSynchronize(stream));
}

/* --- Captures. --- */

void driver_capture_begin(int device, xseg_stream stream, enum driver_mode mode)
{
    RETRY_ON(device, cuStreamBeginCapture_v2(stream, (int)mode));
}

uint64_t driver_capture_id(xseg_stream stream)
{
    const struct saved_context saved = enter_context(0);
    unsigned long long id = 0;
    int state = 0;

    RETRY(cuStreamGetCaptureInfo_v2(stream, &state, &id, NULL, NULL, NULL));
    CHECK(state == 1);
    restore_context(saved);
    return id;
}

void driver_capture_invalidate(int device, xseg_stream stream)
{
    const struct saved_context saved = enter_context(device);

    CHECK(cuStreamSynchronize(stream) != 0);
    restore_context(saved);
}

bool driver_capture_end(int device, xseg_stream stream)
{
    const struct saved_context saved = enter_context(device);
    struct CUgraph_st *graph = NULL;
    int state = 1, result = 0;

    /* A fault leaves the capture unchanged; an invalidated capture ends without a graph. */
    while (state != 0) {
        result = cuStreamEndCapture(stream, &graph);
        RETRY(cuStreamIsCapturing(stream, &state));
        CHECK(state == 0 || lift_faults != NULL);
        if (state != 0)
            lift_faults();
    }
    CHECK((result == 0) == (graph != NULL));
    if (graph != NULL)
        RETRY(cuGraphDestroy(graph));
    restore_context(saved);
    return result == 0;
}

/* --- Memory. --- */

void *driver_alloc(int device, uint64_t bytes)
{
    const struct saved_context saved = enter_context(device);
    unsigned long long ptr = 0;

    if (cuMemAlloc_v2(&ptr, bytes) != 0)
        ptr = 0;
    restore_context(saved);
    return (void *)(uintptr_t)ptr; /* NOLINT(performance-no-int-to-ptr) */
}

void driver_free(int device, void *ptr)
{
    RETRY_ON(device, cuMemFree_v2((uint64_t)(uintptr_t)ptr));
}
