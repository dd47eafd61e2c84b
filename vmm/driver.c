/* SPDX-License-Identifier: MIT */
#include "vmm/driver.h"

#include <cuda.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"

/*
 * Every entry point that the library uses, with the CUDA version that introduced the signature used
 * here (cuda.h renames some calls to _v2 and the like; cuGetProcAddress picks by this number).
 * Names stand without their cu, since the full names are macros in cuda.h and would be expanded.
 */
#define ENTRY_POINTS(X)                       \
    X(Init, 2000)                             \
    X(DriverGetVersion, 2020)                 \
    X(GetErrorName, 6000)                     \
    X(DeviceGetCount, 2000)                   \
    X(DeviceGet, 2000)                        \
    X(DeviceTotalMem, 3020)                   \
    X(DeviceGetAttribute, 2000)               \
    X(DevicePrimaryCtxRetain, 7000)           \
    X(DevicePrimaryCtxRelease, 11000)         \
    X(CtxPushCurrent, 4000)                   \
    X(CtxPopCurrent, 4000)                    \
    X(CtxSynchronize, 2000)                   \
    X(MemGetInfo, 3020)                       \
    X(MemAlloc, 3020)                         \
    X(MemFree, 3020)                          \
    X(MemGetAllocationGranularity, 10020)     \
    X(MemAddressReserve, 10020)               \
    X(MemAddressFree, 10020)                  \
    X(MemCreate, 10020)                       \
    X(MemRelease, 10020)                      \
    X(MemMap, 10020)                          \
    X(MemUnmap, 10020)                        \
    X(MemSetAccess, 10020)                    \
    X(MemRetainAllocationHandle, 11000)       \
    X(MemsetD32Async, 3020)                   \
    X(MemcpyDtoHAsync, 3020)                  \
    X(StreamGetCtx, 9020)                     \
    X(StreamGetId, 12000)                     \
    X(StreamQuery, 2000)                      \
    X(StreamSynchronize, 2000)                \
    X(StreamIsCapturing, 10000)               \
    X(ThreadExchangeStreamCaptureMode, 10010) \
    X(EventCreate, 2000)                      \
    X(EventDestroy, 4000)                     \
    X(EventRecord, 2000)                      \
    X(EventQuery, 2000)                       \
    X(EventSynchronize, 2000)

enum entry {
#define X(name, version) ENTRY_##name,
    ENTRY_POINTS(X)
#undef X
        ENTRY_COUNT
};

struct xseg_driver {
    void *library;
    int devices;
    atomic_uint_fast64_t count[ENTRY_COUNT], failed[ENTRY_COUNT];
#define X(name, version) __typeof__(&cu##name) call_##name;
    ENTRY_POINTS(X)
#undef X
};

/* Where each entry point's address goes, and the version to ask for. */
static const struct {
    const char *name;
    int version;
    size_t offset;
} entry_place[] = {
#define X(name, version) {"cu" #name, version, offsetof(struct xseg_driver, call_##name)},
    ENTRY_POINTS(X)
#undef X
};

/* Call an entry point and count it. */
#define CALL(driver, name, ...) counted((driver), ENTRY_##name, (driver)->call_##name(__VA_ARGS__))

static CUresult counted(struct xseg_driver *driver, enum entry entry, CUresult result)
{
    atomic_fetch_add_explicit(&driver->count[entry], 1, memory_order_relaxed);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
        atomic_fetch_add_explicit(&driver->failed[entry], 1, memory_order_relaxed);
    return result;
}

static const char *result_name(struct xseg_driver *driver, CUresult result)
{
    const char *name = NULL;

    if (driver->call_GetErrorName(result, &name) != CUDA_SUCCESS || name == NULL)
        return "an unknown error";
    return name;
}

/*
 * Results after which nothing works any more: the device is broken until the process ends, the
 * context was reset underneath, or the driver has been shut down.
 */
static bool means_lost(CUresult result)
{
    switch ((int)result) {
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
        return true;
    default:
        return false;
    }
}

/*
 * The status of a result.  `shortage` is what running out of memory means for this call; `context`
 * is NULL for calls that belong to no device.
 */
static xseg_status status_of(struct xseg_driver *driver, struct xseg_context *context,
                             enum entry entry, CUresult result, xseg_status shortage,
                             uint64_t bytes)
{
    xseg_status status = XSEG_ERR_DRIVER;

    if (result == CUDA_SUCCESS)
        return XSEG_OK;
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        status = shortage;
    /* A retained context that cannot be pushed is gone; elsewhere a wrong context is the caller's. */
    if (context != NULL && (means_lost(result) || (entry == ENTRY_CtxPushCurrent &&
                                                   result == CUDA_ERROR_INVALID_CONTEXT))) {
        atomic_store_explicit(&context->lost, result_name(driver, result), memory_order_relaxed);
        status = XSEG_ERR_DEVICE_LOST;
    }
    (void)xseg_fail(status, "%s failed with %s (%d)", entry_place[entry].name,
                    result_name(driver, result), (int)result);
    if (bytes != 0)
        xseg_fail_add(" for %" PRIu64 " bytes", bytes);
    return status;
}

xseg_status xseg_driver_fail_lost(const struct xseg_context *context)
{
    return xseg_fail(XSEG_ERR_DEVICE_LOST,
                     "device %d is lost since a driver call failed with %s: this process can "
                     "allocate nothing on it any more",
                     context->ordinal, atomic_load_explicit(&context->lost, memory_order_relaxed));
}

/* A call of no device, and a call of a context's device: their status. */
#define STATUS(driver, name, ...) \
    status_of((driver), NULL, ENTRY_##name, CALL(driver, name, __VA_ARGS__), XSEG_ERR_DRIVER, 0)
#define STATUS_ON(context, name, shortage, bytes, ...)    \
    status_of((context)->driver, (context), ENTRY_##name, \
              CALL((context)->driver, name, __VA_ARGS__), shortage, bytes)

/* --- Loading. --- */

typedef __typeof__(CUresult(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *)) *proc_address;

static xseg_status resolve_all(struct xseg_driver *driver, const char *library)
{
    proc_address find;
    void *symbol = dlsym(driver->library, "cuGetProcAddress_v2");

    if (symbol == NULL)
        return xseg_fail(XSEG_ERR_NO_DRIVER,
                         "the driver %s has no cuGetProcAddress_v2: install a driver of CUDA 12.0 "
                         "(r525) or later",
                         library);
    memcpy(&find, &symbol, sizeof(symbol));
    for (unsigned i = 0; i < ENTRY_COUNT; i++) {
        CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
        void *function = NULL;
        const int version = entry_place[i].version;
        const CUresult result = find(entry_place[i].name, &function, version,
                                     CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);

        if (result != CUDA_SUCCESS || function == NULL)
            return xseg_fail(XSEG_ERR_NO_DRIVER,
                             "the driver %s has no %s of CUDA %d.%d: install a driver of CUDA 12.0 "
                             "(r525) or later",
                             library, entry_place[i].name, version / 1000, version % 1000 / 10);
        memcpy((char *)driver + entry_place[i].offset, &function, sizeof(function));
    }
    return XSEG_OK;
}

static xseg_status start(struct xseg_driver *driver, const char *library)
{
    int version = 0;
    XSEG_ASSERT(driver->call_Init != NULL);
    const CUresult result = CALL(driver, Init, 0);

    if (result == CUDA_ERROR_NO_DEVICE)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "the driver %s shows no device", library);
    if (result != CUDA_SUCCESS)
        return status_of(driver, NULL, ENTRY_Init, result, XSEG_ERR_DRIVER, 0);
    xseg_status status = STATUS(driver, DriverGetVersion, &version);
    if (status != XSEG_OK)
        return status;
    if (version < 12000)
        return xseg_fail(XSEG_ERR_NO_DRIVER,
                         "the driver %s is of CUDA %d.%d: 12.0 (r525) is the oldest that works",
                         library, version / 1000, version % 1000 / 10);
    status = STATUS(driver, DeviceGetCount, &driver->devices);
    if (status == XSEG_OK && driver->devices < 1)
        return xseg_fail(XSEG_ERR_NO_DRIVER, "the driver %s shows no device", library);
    return status;
}

xseg_status xseg_driver_open(const char *library, struct xseg_driver **out)
{
    struct xseg_driver *driver = calloc(1, sizeof(*driver));
    xseg_status status;

    if (driver == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for the driver's table");
    if (library == NULL)
        library = secure_getenv("XSEG_DRIVER");
    if (library == NULL || library[0] == '\0')
        library = "libcuda.so.1";
    driver->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (driver->library == NULL) {
        const char *reason = dlerror();
        status = xseg_fail(XSEG_ERR_NO_DRIVER, "the driver library cannot be loaded: %s",
                           reason != NULL ? reason : library);
        goto free_driver;
    }
    status = resolve_all(driver, library);
    if (status == XSEG_OK)
        status = start(driver, library);
    if (status != XSEG_OK)
        goto close_library;
    *out = driver;
    return XSEG_OK;

close_library:
    (void)dlclose(driver->library);
free_driver:
    free(driver);
    return status;
}

void xseg_driver_close(struct xseg_driver *driver)
{
    (void)dlclose(driver->library);
    free(driver);
}

int xseg_driver_device_count(const struct xseg_driver *driver)
{
    return driver->devices;
}

size_t xseg_driver_call_counts(const struct xseg_driver *driver, struct xseg_driver_call *calls,
                               size_t capacity)
{
    for (size_t i = 0; i < ENTRY_COUNT && i < capacity; i++) {
        calls[i].name = entry_place[i].name;
        calls[i].count = atomic_load_explicit(&driver->count[i], memory_order_relaxed);
        calls[i].failed = atomic_load_explicit(&driver->failed[i], memory_order_relaxed);
    }
    return ENTRY_COUNT;
}

/* --- Devices. --- */

xseg_status xseg_driver_retain(struct xseg_context *context)
{
    CUcontext primary = NULL;
    xseg_status status =
        STATUS_ON(context, DeviceGet, XSEG_ERR_DRIVER, 0, &context->device, context->ordinal);

    if (status == XSEG_OK)
        status = STATUS_ON(context, DevicePrimaryCtxRetain, XSEG_ERR_DRIVER, 0, &primary,
                           context->device);
    context->primary = primary;
    return status;
}

xseg_status xseg_driver_let_go(struct xseg_context *context)
{
    return STATUS_ON(context, DevicePrimaryCtxRelease, XSEG_ERR_DRIVER, 0, context->device);
}

static CUmemAllocationProp page_properties(struct xseg_context *context)
{
    CUmemAllocationProp prop;

    memset(&prop, 0, sizeof(prop));
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.location.id = context->device;
    return prop;
}

xseg_status xseg_driver_describe(struct xseg_context *context)
{
    const CUmemAllocationProp prop = page_properties(context);
    size_t total = 0, granularity = 0;
    int has_vmm = 0;
    xseg_status status =
        STATUS_ON(context, DeviceTotalMem, XSEG_ERR_DRIVER, 0, &total, context->device);

    if (status == XSEG_OK)
        status =
            STATUS_ON(context, DeviceGetAttribute, XSEG_ERR_DRIVER, 0, &has_vmm,
                      CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, context->device);
    if (status == XSEG_OK && has_vmm != 0)
        status = STATUS_ON(context, MemGetAllocationGranularity, XSEG_ERR_DRIVER, 0, &granularity,
                           &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    context->total_bytes = total;
    context->has_vmm = has_vmm != 0;
    context->granularity = granularity;
    return status;
}

static xseg_status enter(struct xseg_context *context)
{
    return STATUS_ON(context, CtxPushCurrent, XSEG_ERR_DRIVER, 0, context->primary);
}

/* A pop has no reason to fail; if it does, once more, so that the caller's context is current again. */
static void leave(struct xseg_context *context)
{
    CUcontext popped = NULL;

    if (CALL(context->driver, CtxPopCurrent, &popped) != CUDA_SUCCESS)
        (void)CALL(context->driver, CtxPopCurrent, &popped);
}

/* A call in the device's context: its status, as STATUS_ON() gives it. */
#define INSIDE(context, name, shortage, bytes, ...)                       \
    do {                                                                  \
        xseg_status status_ = enter(context);                             \
        if (status_ != XSEG_OK)                                           \
            return status_;                                               \
        status_ = STATUS_ON(context, name, shortage, bytes, __VA_ARGS__); \
        leave(context);                                                   \
        return status_;                                                   \
    } while (0)

/* --- Memory. --- */

xseg_status xseg_driver_memory(struct xseg_context *context, uint64_t *free, uint64_t *total)
{
    INSIDE(context, MemGetInfo, XSEG_ERR_DRIVER, 0, free, total);
}

xseg_status xseg_driver_alloc(struct xseg_context *context, uint64_t bytes, uint64_t *address)
{
    CUdeviceptr pointer = 0;
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    status = status_of(context->driver, context, ENTRY_MemAlloc,
                       CALL(context->driver, MemAlloc, &pointer, bytes), XSEG_ERR_NO_MEMORY, bytes);
    leave(context);
    if (status == XSEG_OK)
        *address = pointer;
    return status;
}

xseg_status xseg_driver_free(struct xseg_context *context, uint64_t address)
{
    INSIDE(context, MemFree, XSEG_ERR_DRIVER, 0, address);
}

xseg_status xseg_driver_reserve(struct xseg_context *context, uint64_t bytes, uint64_t alignment,
                                uint64_t *address)
{
    CUdeviceptr pointer = 0;
    const CUresult result =
        CALL(context->driver, MemAddressReserve, &pointer, bytes, alignment, 0, 0);

    if (result == CUDA_SUCCESS)
        *address = pointer;
    return status_of(context->driver, context, ENTRY_MemAddressReserve, result,
                     XSEG_ERR_NO_ADDRESSES, bytes);
}

xseg_status xseg_driver_unreserve(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    return STATUS_ON(context, MemAddressFree, XSEG_ERR_DRIVER, bytes, address, bytes);
}

xseg_status xseg_driver_create(struct xseg_context *context, uint64_t bytes, uint64_t *handle)
{
    const CUmemAllocationProp prop = page_properties(context);
    CUmemGenericAllocationHandle created = 0;
    const CUresult result = CALL(context->driver, MemCreate, &created, bytes, &prop, 0);

    if (result == CUDA_SUCCESS)
        *handle = created;
    return status_of(context->driver, context, ENTRY_MemCreate, result, XSEG_ERR_NO_MEMORY, bytes);
}

xseg_status xseg_driver_release(struct xseg_context *context, uint64_t handle)
{
    return STATUS_ON(context, MemRelease, XSEG_ERR_DRIVER, 0, handle);
}

xseg_status xseg_driver_map(struct xseg_context *context, uint64_t address, uint64_t bytes,
                            uint64_t handle)
{
    return STATUS_ON(context, MemMap, XSEG_ERR_DRIVER, bytes, address, bytes, 0, handle, 0);
}

xseg_status xseg_driver_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    return STATUS_ON(context, MemUnmap, XSEG_ERR_DRIVER, bytes, address, bytes);
}

xseg_status xseg_driver_set_access(struct xseg_context *context, uint64_t address, uint64_t bytes)
{
    CUmemAccessDesc access;

    memset(&access, 0, sizeof(access));
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = context->device;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return STATUS_ON(context, MemSetAccess, XSEG_ERR_DRIVER, bytes, address, bytes, &access, 1);
}

xseg_status xseg_driver_is_mapped(struct xseg_context *context, uint64_t address, bool *mapped)
{
    CUmemGenericAllocationHandle handle = 0;
    void *pointer = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    const CUresult result = CALL(context->driver, MemRetainAllocationHandle, &handle, pointer);

    if (result == CUDA_ERROR_INVALID_VALUE) {
        *mapped = false;
        return XSEG_OK;
    }
    if (result == CUDA_SUCCESS) {
        *mapped = true;
        /* Nobody could give this reference back later, so a refusal is tried once more. */
        if (CALL(context->driver, MemRelease, handle) == CUDA_SUCCESS)
            return XSEG_OK;
        return STATUS_ON(context, MemRelease, XSEG_ERR_DRIVER, 0, handle);
    }
    return status_of(context->driver, context, ENTRY_MemRetainAllocationHandle, result,
                     XSEG_ERR_DRIVER, 0);
}

/* --- Contents. --- */

xseg_status xseg_driver_fill(struct xseg_context *context, uint64_t address, uint64_t bytes,
                             uint32_t word, xseg_stream stream)
{
    INSIDE(context, MemsetD32Async, XSEG_ERR_DRIVER, bytes, address, word, bytes / 4, stream);
}

xseg_status xseg_driver_read(struct xseg_context *context, void *host, uint64_t address,
                             uint64_t bytes, xseg_stream stream)
{
    INSIDE(context, MemcpyDtoHAsync, XSEG_ERR_DRIVER, bytes, host, address, bytes, stream);
}

/* --- Streams and events. --- */

xseg_status xseg_driver_stream_id(struct xseg_context *context, xseg_stream stream, uint64_t *id)
{
    unsigned long long number = 0;
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    /* The default streams belong to whatever context is current, which is this one. */
    if ((uintptr_t)stream > (uintptr_t)CU_STREAM_PER_THREAD) {
        CUcontext owner = NULL;

        status = STATUS_ON(context, StreamGetCtx, XSEG_ERR_DRIVER, 0, stream, &owner);
        if (status == XSEG_OK && owner != context->primary)
            status =
                xseg_fail(XSEG_ERR_ARGUMENT, "the stream belongs to another device or context");
    }
    if (status == XSEG_OK)
        status = STATUS_ON(context, StreamGetId, XSEG_ERR_DRIVER, 0, stream, &number);
    leave(context);
    if (status == XSEG_OK)
        *id = number;
    return status;
}

/* Whether a query's result says that everything has finished. */
static xseg_status done_of(struct xseg_context *context, enum entry entry, CUresult result,
                           bool *done)
{
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_NOT_READY) {
        *done = result == CUDA_SUCCESS;
        return XSEG_OK;
    }
    return status_of(context->driver, context, entry, result, XSEG_ERR_DRIVER, 0);
}

xseg_status xseg_driver_stream_done(struct xseg_context *context, xseg_stream stream, bool *done)
{
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    status = done_of(context, ENTRY_StreamQuery, CALL(context->driver, StreamQuery, stream), done);
    leave(context);
    return status;
}

xseg_status xseg_driver_stream_wait(struct xseg_context *context, xseg_stream stream)
{
    INSIDE(context, StreamSynchronize, XSEG_ERR_DRIVER, 0, stream);
}

xseg_status xseg_driver_stream_captured(struct xseg_context *context, xseg_stream stream,
                                        bool *captured)
{
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    status = STATUS_ON(context, StreamIsCapturing, XSEG_ERR_DRIVER, 0, stream, &state);
    leave(context);
    *captured = state != CU_STREAM_CAPTURE_STATUS_NONE;
    return status;
}

xseg_status xseg_driver_exchange_mode(struct xseg_context *context, int *mode)
{
    return STATUS_ON(context, ThreadExchangeStreamCaptureMode, XSEG_ERR_DRIVER, 0,
                     (CUstreamCaptureMode *)mode);
}

xseg_status xseg_driver_context_wait(struct xseg_context *context)
{
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    status = status_of(
        context->driver, context, ENTRY_CtxSynchronize,
        counted(context->driver, ENTRY_CtxSynchronize, context->driver->call_CtxSynchronize()),
        XSEG_ERR_DRIVER, 0);
    leave(context);
    return status;
}

xseg_status xseg_driver_event_create(struct xseg_context *context, xseg_event *event)
{
    INSIDE(context, EventCreate, XSEG_ERR_DRIVER, 0, event, CU_EVENT_DISABLE_TIMING);
}

xseg_status xseg_driver_event_destroy(struct xseg_context *context, xseg_event event)
{
    INSIDE(context, EventDestroy, XSEG_ERR_DRIVER, 0, event);
}

xseg_status xseg_driver_event_record(struct xseg_context *context, xseg_event event,
                                     xseg_stream stream)
{
    INSIDE(context, EventRecord, XSEG_ERR_DRIVER, 0, event, stream);
}

xseg_status xseg_driver_event_done(struct xseg_context *context, xseg_event event, bool *done)
{
    xseg_status status = enter(context);

    if (status != XSEG_OK)
        return status;
    status = done_of(context, ENTRY_EventQuery, CALL(context->driver, EventQuery, event), done);
    leave(context);
    return status;
}

xseg_status xseg_driver_event_wait(struct xseg_context *context, xseg_event event)
{
    INSIDE(context, EventSynchronize, XSEG_ERR_DRIVER, 0, event);
}
