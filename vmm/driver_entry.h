/* SPDX-License-Identifier: MIT */
/* The table of the driver's entry points and the macros that call them, for driver*.c only. */
#ifndef XSEG_VMM_DRIVER_ENTRY_H
#define XSEG_VMM_DRIVER_ENTRY_H

#include <cuda.h>

#include "src/base/clock.h"
#include "vmm/driver.h"

/* Every entry point that the library uses, with the CUDA version that introduced its signature.
 * cuda.h maps some names to _v2 and later variants, and cuGetProcAddress() selects a variant by the
 * version.  The names omit their prefix cu because the full names are macros of cuda.h and would be
 * expanded. */
#define XSEG_ENTRY_POINTS(X, TYPED)                           \
    X(Init, 2000)                                             \
    X(DriverGetVersion, 2020)                                 \
    X(GetErrorName, 6000)                                     \
    X(DeviceGetCount, 2000)                                   \
    X(DeviceGet, 2000)                                        \
    X(DeviceTotalMem, 3020)                                   \
    X(DeviceGetAttribute, 2000)                               \
    X(DeviceGetUuid, 11040)                                   \
    X(DeviceCanAccessPeer, 4000)                              \
    X(DevicePrimaryCtxRetain, 7000)                           \
    X(DevicePrimaryCtxRelease, 11000)                         \
    X(CtxPushCurrent, 4000)                                   \
    X(CtxPopCurrent, 4000)                                    \
    X(CtxGetCurrent, 4000)                                    \
    X(CtxSynchronize, 2000)                                   \
    X(CtxEnablePeerAccess, 4000)                              \
    X(CtxDisablePeerAccess, 4000)                             \
    X(MemGetInfo, 3020)                                       \
    X(MemAlloc, 3020)                                         \
    X(MemFree, 3020)                                          \
    X(MemGetAllocationGranularity, 10020)                     \
    X(MemAddressReserve, 10020)                               \
    X(MemAddressFree, 10020)                                  \
    X(MemCreate, 10020)                                       \
    X(MemRelease, 10020)                                      \
    X(MemMap, 10020)                                          \
    X(MemUnmap, 10020)                                        \
    X(MemSetAccess, 10020)                                    \
    X(PointerGetAttributes, 7000)                             \
    X(MemGetHandleForAddressRange, 11070)                     \
    X(MemExportToShareableHandle, 10020)                      \
    X(MemImportFromShareableHandle, 10020)                    \
    X(MemsetD32Async, 3020)                                   \
    X(MemcpyDtoHAsync, 3020)                                  \
    X(MemcpyHtoDAsync, 3020)                                  \
    X(MemHostAlloc, 2020)                                     \
    X(MemFreeHost, 2000)                                      \
    X(StreamGetCtx, 9020)                                     \
    X(StreamGetId, 12000)                                     \
    X(StreamCreate, 2000)                                     \
    X(StreamDestroy, 4000)                                    \
    X(StreamWaitEvent, 3020)                                  \
    X(StreamQuery, 2000)                                      \
    X(StreamSynchronize, 2000)                                \
    X(EventCreate, 2000)                                      \
    X(EventDestroy, 4000)                                     \
    X(EventRecord, 2000)                                      \
    X(EventQuery, 2000)                                       \
    X(EventSynchronize, 2000)                                 \
    X(ThreadExchangeStreamCaptureMode, 10010)                 \
    TYPED(StreamGetCaptureInfo, 11030, capture_info_function) \
    TYPED(GraphNodeGetDependencies, 10000, node_dependencies_function)

/* The signatures of entry points for which newer versions of cuda.h declare a later variant. */
typedef CUresult(CUDAAPI *capture_info_function)(CUstream, CUstreamCaptureStatus *, cuuint64_t *,
                                                 CUgraph *, const CUgraphNode **, size_t *);
typedef CUresult(CUDAAPI *node_dependencies_function)(CUgraphNode, CUgraphNode *, size_t *);

enum xseg_entry {
#define X(name, version)           XSEG_ENTRY_##name,
#define TYPED(name, version, type) XSEG_ENTRY_##name,
    XSEG_ENTRY_POINTS(X, TYPED)
#undef X
#undef TYPED
        XSEG_ENTRY_COUNT
};

/* Calls of xseg_driver_poll_event() on one device, in a cache line with one writer at a time. */
struct xseg_driver_poll_counts {
    atomic_uint_fast64_t modes, events;
    uint64_t rest_of_line[6];
};

struct xseg_driver {
    void *library;
    int devices;
    size_t (*simulated_meminfo)(char *text,
                                size_t bytes);   /* xseg_sim_meminfo(); NULL: a real driver */
    struct xseg_driver_poll_counts *poll_counts; /* [devices]; not in `count` */
    /* [devices]: a primary context that the driver did not release after a failed open; NULL:
     * none. */
    CUcontext *kept_context;
    atomic_uint_fast64_t count[XSEG_ENTRY_COUNT], failed[XSEG_ENTRY_COUNT];
    atomic_uint_fast64_t nanoseconds[XSEG_ENTRY_COUNT]; /* of timed calls */
#define X(name, version)           __typeof__(&cu##name) call_##name;
#define TYPED(name, version, type) type call_##name;
    XSEG_ENTRY_POINTS(X, TYPED)
#undef X
#undef TYPED
};

/* Whether calls of an entry point are timed.  Short calls are not, because reading the clock would
 * take a large part of their time. */
static inline bool xseg_driver_is_timed(enum xseg_entry entry)
{
    switch (entry) {
    case XSEG_ENTRY_GetErrorName:
    case XSEG_ENTRY_CtxPushCurrent:
    case XSEG_ENTRY_CtxPopCurrent:
    case XSEG_ENTRY_CtxGetCurrent:
    case XSEG_ENTRY_StreamQuery:
    case XSEG_ENTRY_EventRecord:
    case XSEG_ENTRY_EventQuery:
    case XSEG_ENTRY_ThreadExchangeStreamCaptureMode:
    case XSEG_ENTRY_StreamGetCaptureInfo:
    case XSEG_ENTRY_GraphNodeGetDependencies:
        return false;
    default:
        return true;
    }
}

/* The start time of a call in nanoseconds; 0 if the call is not timed. */
static inline uint64_t xseg_driver_call_start(enum xseg_entry entry)
{
    const struct xseg_clock clock = {NULL, NULL};

    return xseg_driver_is_timed(entry) ? xseg_clock_fine(&clock) : 0;
}

/* Call an entry point, count the call, and time it. */
#define CALL(driver, name, ...)                                                                 \
    __extension__({                                                                             \
        const uint64_t start_ns_ = xseg_driver_call_start(XSEG_ENTRY_##name);                   \
        xseg_driver_count_call((driver), XSEG_ENTRY_##name, (driver)->call_##name(__VA_ARGS__), \
                               start_ns_);                                                      \
    })

CUresult xseg_driver_count_call(struct xseg_driver *driver, enum xseg_entry entry, CUresult result,
                                uint64_t start_ns);

/* Convert a result to a status, and write the error message.  `oom_status` is the status for an
 * out-of-memory result of this call; `context` is NULL for a call without a device. */
xseg_status xseg_driver_status(struct xseg_driver *driver, struct xseg_context *context,
                               enum xseg_entry entry, CUresult result, xseg_status oom_status,
                               uint64_t bytes);

/* Make a call without a device, or for the device of a context, and return its status. */
#define CALL_STATUS(driver, name, ...)                                                     \
    xseg_driver_status((driver), NULL, XSEG_ENTRY_##name, CALL(driver, name, __VA_ARGS__), \
                       XSEG_ERR_DRIVER, 0)
#define CALL_STATUS_ON(context, name, oom_status, bytes, ...)           \
    xseg_driver_status((context)->driver, (context), XSEG_ENTRY_##name, \
                       CALL((context)->driver, name, __VA_ARGS__), oom_status, bytes)

/* Push the device's context, and pop it again. */
xseg_status xseg_driver_push_context(struct xseg_context *context);
void xseg_driver_pop_context(struct xseg_context *context);

/* Make a call with the device's context current, and return its status from the calling
 * function. */
#define RETURN_CALL_IN_CONTEXT(context, name, oom_status, bytes, ...)            \
    do {                                                                         \
        xseg_status status_ = xseg_driver_push_context(context);                 \
        if (status_ != XSEG_OK)                                                  \
            return status_;                                                      \
        status_ = CALL_STATUS_ON(context, name, oom_status, bytes, __VA_ARGS__); \
        xseg_driver_pop_context(context);                                        \
        return status_;                                                          \
    } while (0)

/* Push the device's context and change to relaxed capture mode, for calls that query, wait,
 * allocate or free.  In another mode such a call could invalidate a capture elsewhere in the
 * process, even on another device. */
xseg_status xseg_driver_push_context_relaxed(struct xseg_context *context, int *mode);
void xseg_driver_pop_context_relaxed(struct xseg_context *context, int mode);

#define RETURN_CALL_RELAXED(context, name, oom_status, bytes, ...)               \
    do {                                                                         \
        int mode_ = 0;                                                           \
        xseg_status status_ = xseg_driver_push_context_relaxed(context, &mode_); \
        if (status_ != XSEG_OK)                                                  \
            return status_;                                                      \
        status_ = CALL_STATUS_ON(context, name, oom_status, bytes, __VA_ARGS__); \
        xseg_driver_pop_context_relaxed(context, mode_);                         \
        return status_;                                                          \
    } while (0)

#endif
