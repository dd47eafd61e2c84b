/* SPDX-License-Identifier: MIT */
#include "tests/support/runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEVICES        64
#define PER_THREAD     ((struct CUstream_st *)(uintptr_t)2) /* cudaStreamPerThread */
#define DEVICE_ORDINAL 9    /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
#define PITCH          512u /* alignment of the rows of cudaMallocPitch() */

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_HANDLE = 400,
    NOT_SUPPORTED = 801,
};

/* clang-format off */
#define DRIVER_CALLS(X)                                                                   \
    X(cuInit, (unsigned flags))                                                           \
    X(cuDeviceGetCount, (int *count))                                                     \
    X(cuDevicePrimaryCtxRetain, (void **out, int device))                                 \
    X(cuDevicePrimaryCtxGetState, (int device, unsigned *flags, int *is_active))          \
    X(cuDevicePrimaryCtxReset_v2, (int device))                                           \
    X(cuCtxSetCurrent, (void *context))                                                   \
    X(cuCtxPushCurrent_v2, (void *context))                                               \
    X(cuCtxPopCurrent_v2, (void **out))                                                   \
    X(cuCtxSynchronize, (void))                                                           \
    X(cuMemAlloc_v2, (void **out, size_t bytes))                                          \
    X(cuMemFree_v2, (void *ptr))                                                          \
    X(cuMemGetInfo_v2, (size_t *free_bytes, size_t *total))                               \
    X(cuPointerGetAttribute, (void *out, int attribute, void *ptr))                       \
    X(cuIpcGetMemHandle, (struct runtime_ipc_handle *handle, void *ptr))                  \
    X(cuIpcOpenMemHandle_v2, (void **out, struct runtime_ipc_handle handle, unsigned flags)) \
    X(cuIpcCloseMemHandle, (void *ptr))                                                   \
    X(cuStreamCreate, (struct CUstream_st **out, unsigned flags))                         \
    X(cuStreamDestroy_v2, (struct CUstream_st *stream))                                   \
    X(cuStreamQuery, (struct CUstream_st *stream))                                        \
    X(cuStreamSynchronize, (struct CUstream_st *stream))                                  \
    X(cuStreamIsCapturing, (struct CUstream_st *stream, int *status))                     \
    X(cuStreamGetCtx, (struct CUstream_st *stream, void **context))                       \
    X(cuGetProcAddress_v2, (const char *symbol, void **function, int version,             \
                            unsigned long long flags, int *status))
/* clang-format on */

static struct {
#define MEMBER(name, arguments) int(*name) arguments;
    DRIVER_CALLS(MEMBER)
#undef MEMBER
} driver;
static int device_count, init_result;
static pid_t owner; /* the process that initialized the driver */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *contexts[DEVICES];

static __thread int device, last_error;

static int record_error(int result)
{
    if (result != 0)
        last_error = result;
    return result;
}

/* Load the driver by its path, so that libraries that interpose the driver do not affect the runtime. */
static void load_driver(void)
{
    void *library = dlopen(getenv("XSEG_DRIVER"), RTLD_NOW);

#define RESOLVE(name, arguments)                               \
    do {                                                       \
        void *symbol = library ? dlsym(library, #name) : NULL; \
                                                               \
        if (!symbol)                                           \
            abort();                                           \
        memcpy(&driver.name, &symbol, sizeof(symbol));         \
    } while (0);
    DRIVER_CALLS(RESOLVE)
#undef RESOLVE
    owner = getpid();
    init_result = driver.cuInit(0);
    if (init_result == 0)
        init_result = driver.cuDeviceGetCount(&device_count);
}

/* The primary context of a device, which is retained again after a reset. */
static int primary_context(int ordinal, void **out)
{
    unsigned flags = 0;
    int result = 0, is_active = 0;

    (void)pthread_mutex_lock(&lock);
    if (driver.cuDevicePrimaryCtxGetState(ordinal, &flags, &is_active) == 0 && !is_active)
        contexts[ordinal] = NULL;
    if (!contexts[ordinal])
        result = driver.cuDevicePrimaryCtxRetain(&contexts[ordinal], ordinal);
    *out = contexts[ordinal];
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* Make the context of the thread's device current. */
static int enter_context(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void *context = NULL;

    (void)pthread_once(&once, load_driver);
    int result = owner == getpid() ? init_result : NOT_INITIALIZED;
    if (result == 0)
        result = primary_context(device, &context);
    return result == 0 ? driver.cuCtxSetCurrent(context) : result;
}

/* The body of a function whose result is that of a driver call in the context of the thread's device. */
#define RETURN_CALL(call)                                     \
    do {                                                      \
        const int result_ = enter_context();                  \
        return record_error(result_ == 0 ? (call) : result_); \
    } while (0)

int cudaSetDevice(int new_device)
{
    const int previous = device;
    int result = enter_context();

    if (result == 0 && (new_device < 0 || new_device >= device_count))
        result = INVALID_DEVICE;
    if (result != 0)
        return record_error(result);
    device = new_device;
    result = enter_context();
    if (result != 0)
        device = previous;
    return record_error(result);
}

int cudaGetDevice(int *out)
{
    *out = device;
    return 0;
}

int cudaMalloc(void **out, size_t bytes)
{
    if (bytes != 0)
        RETURN_CALL(driver.cuMemAlloc_v2(out, bytes));
    const int result = enter_context();
    if (result == 0)
        *out = NULL;
    return record_error(result);
}

int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    RETURN_CALL(driver.cuMemAlloc_v2(out, *pitch * height));
}

/* Pop the context, with one retry, so that the caller's context is current again. */
static void pop_context(void)
{
    void *popped;

    if (driver.cuCtxPopCurrent_v2(&popped) != 0)
        (void)driver.cuCtxPopCurrent_v2(&popped);
}

static int wait_in_context(void *context, int is_stream, struct CUstream_st *stream)
{
    int result = driver.cuCtxPushCurrent_v2(context);

    if (result != 0)
        return result;
    result = is_stream ? driver.cuStreamSynchronize(stream) : driver.cuCtxSynchronize();
    pop_context();
    return result;
}

int cudaFree(void *ptr)
{
    void *context = NULL;
    int ordinal = device, result = enter_context();

    if (result != 0 || !ptr)
        return record_error(result);
    (void)driver.cuPointerGetAttribute(&ordinal, DEVICE_ORDINAL, ptr);
    result = primary_context(ordinal, &context);
    if (result == 0)
        result = wait_in_context(context, 0, NULL);
    return record_error(result == 0 ? driver.cuMemFree_v2(ptr) : result);
}

/* Query the context and the capture status of a stream. */
static int query_stream(struct CUstream_st *stream, void **context, int *status)
{
    int result = enter_context();

    if (result == 0)
        result = driver.cuStreamGetCtx(stream, context);
    return result == 0 ? driver.cuStreamIsCapturing(stream, status) : result;
}

int cudaMallocAsync(void **out, size_t bytes, struct CUstream_st *stream)
{
    void *context = NULL;
    int status = 0, result = query_stream(stream, &context, &status);

    if (result == 0 && status != 0)
        result = NOT_SUPPORTED;
    if (result == 0)
        result = driver.cuCtxPushCurrent_v2(context);
    if (result != 0)
        return record_error(result);
    result = driver.cuMemAlloc_v2(out, bytes);
    pop_context();
    return record_error(result);
}

int cudaMallocAsync_ptsz(void **out, size_t bytes, struct CUstream_st *stream)
{
    return cudaMallocAsync(out, bytes, stream ? stream : PER_THREAD);
}

int cudaFreeAsync(void *ptr, struct CUstream_st *stream)
{
    void *context = NULL;
    int status = 0, result = query_stream(stream, &context, &status);

    if (result == 0 && status != 0)
        result = INVALID_VALUE;
    if (result == 0)
        result = wait_in_context(context, 1, stream);
    return record_error(result == 0 ? driver.cuMemFree_v2(ptr) : result);
}

int cudaFreeAsync_ptsz(void *ptr, struct CUstream_st *stream)
{
    return cudaFreeAsync(ptr, stream ? stream : PER_THREAD);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    RETURN_CALL(driver.cuMemGetInfo_v2(free_bytes, total));
}

int cudaIpcGetMemHandle(struct runtime_ipc_handle *handle, void *ptr)
{
    RETURN_CALL(driver.cuIpcGetMemHandle(handle, ptr));
}

int cudaIpcOpenMemHandle(void **out, struct runtime_ipc_handle handle, unsigned flags)
{
    RETURN_CALL(driver.cuIpcOpenMemHandle_v2(out, handle, flags));
}

int cudaIpcCloseMemHandle(void *ptr)
{
    RETURN_CALL(driver.cuIpcCloseMemHandle(ptr));
}

int cudaDeviceSynchronize(void)
{
    RETURN_CALL(driver.cuCtxSynchronize());
}

int cudaDeviceReset(void)
{
    RETURN_CALL(driver.cuDevicePrimaryCtxReset_v2(device));
}

int cudaStreamCreateWithFlags(struct CUstream_st **out, unsigned flags)
{
    RETURN_CALL(driver.cuStreamCreate(out, flags));
}

int cudaStreamDestroy(struct CUstream_st *stream)
{
    const int result = enter_context();

    if (result == 0 && (uintptr_t)stream <= (uintptr_t)PER_THREAD)
        return record_error(INVALID_HANDLE);
    return record_error(result == 0 ? driver.cuStreamDestroy_v2(stream) : result);
}

/* cudaErrorNotReady is not recorded as an error. */
int cudaStreamQuery(struct CUstream_st *stream)
{
    const int result = enter_context();

    return result == 0 ? driver.cuStreamQuery(stream) : record_error(result);
}

int cudaStreamIsCapturing(struct CUstream_st *stream, int *status)
{
    RETURN_CALL(driver.cuStreamIsCapturing(stream, status));
}

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status)
{
    RETURN_CALL(driver.cuGetProcAddress_v2(symbol, function, (int)version, flags, status));
}

int cudaGetLastError(void)
{
    const int result = last_error;

    last_error = 0;
    return result;
}
