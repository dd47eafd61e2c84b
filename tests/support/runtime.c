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
#define PER_THREAD     ((struct CUstream_st *)(uintptr_t)2)
#define DEVICE_ORDINAL 9 /* CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL */
#define PITCH          512u

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
static int devices, started;
static pid_t owner; /* the process that has started the driver */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *contexts[DEVICES];

static __thread int device, last_error;

static int keep(int result)
{
    if (result != 0)
        last_error = result;
    return result;
}

/* From the driver that the runtime opens itself, so whatever interposes the driver is passed by. */
static void start(void)
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
    started = driver.cuInit(0);
    if (started == 0)
        started = driver.cuDeviceGetCount(&devices);
}

/* The primary context of a device, retained anew after a reset by the runtime or by the driver. */
static int context_of(int of, void **out)
{
    unsigned flags = 0;
    int result = 0, is_active = 0;

    (void)pthread_mutex_lock(&lock);
    if (driver.cuDevicePrimaryCtxGetState(of, &flags, &is_active) == 0 && !is_active)
        contexts[of] = NULL;
    if (!contexts[of])
        result = driver.cuDevicePrimaryCtxRetain(&contexts[of], of);
    *out = contexts[of];
    (void)pthread_mutex_unlock(&lock);
    return result;
}

/* Make the context of the thread's device current. */
static int begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    void *context = NULL;

    (void)pthread_once(&once, start);
    int result = owner == getpid() ? started : NOT_INITIALIZED;
    if (result == 0)
        result = context_of(device, &context);
    return result == 0 ? driver.cuCtxSetCurrent(context) : result;
}

/* The body of a function whose result is that of a driver call in the context of the thread's device. */
#define ANSWER(call)                                  \
    do {                                              \
        const int result_ = begin();                  \
        return keep(result_ == 0 ? (call) : result_); \
    } while (0)

int cudaSetDevice(int wanted)
{
    const int before = device;
    int result = begin();

    if (result == 0 && (wanted < 0 || wanted >= devices))
        result = INVALID_DEVICE;
    if (result != 0)
        return keep(result);
    device = wanted;
    result = begin();
    if (result != 0)
        device = before;
    return keep(result);
}

int cudaGetDevice(int *out)
{
    *out = device;
    return 0;
}

int cudaMalloc(void **out, size_t bytes)
{
    if (bytes != 0)
        ANSWER(driver.cuMemAlloc_v2(out, bytes));
    const int result = begin();
    if (result == 0)
        *out = NULL;
    return keep(result);
}

int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    ANSWER(driver.cuMemAlloc_v2(out, *pitch * height));
}

/* A pop that fails is tried once more, so that the caller's context is current again. */
static void pop(void)
{
    void *popped;

    if (driver.cuCtxPopCurrent_v2(&popped) != 0)
        (void)driver.cuCtxPopCurrent_v2(&popped);
}

static int wait_in(void *context, int is_stream, struct CUstream_st *stream)
{
    int result = driver.cuCtxPushCurrent_v2(context);

    if (result != 0)
        return result;
    result = is_stream ? driver.cuStreamSynchronize(stream) : driver.cuCtxSynchronize();
    pop();
    return result;
}

int cudaFree(void *ptr)
{
    void *context = NULL;
    int of = device, result = begin();

    if (result != 0 || !ptr)
        return keep(result);
    (void)driver.cuPointerGetAttribute(&of, DEVICE_ORDINAL, ptr);
    result = context_of(of, &context);
    if (result == 0)
        result = wait_in(context, 0, NULL);
    return keep(result == 0 ? driver.cuMemFree_v2(ptr) : result);
}

/* The context of a stream, and whether the stream is captured. */
static int look_at(struct CUstream_st *stream, void **context, int *status)
{
    int result = begin();

    if (result == 0)
        result = driver.cuStreamGetCtx(stream, context);
    return result == 0 ? driver.cuStreamIsCapturing(stream, status) : result;
}

int cudaMallocAsync(void **out, size_t bytes, struct CUstream_st *stream)
{
    void *context = NULL;
    int status = 0, result = look_at(stream, &context, &status);

    if (result == 0 && status != 0)
        result = NOT_SUPPORTED;
    if (result == 0)
        result = driver.cuCtxPushCurrent_v2(context);
    if (result != 0)
        return keep(result);
    result = driver.cuMemAlloc_v2(out, bytes);
    pop();
    return keep(result);
}

int cudaMallocAsync_ptsz(void **out, size_t bytes, struct CUstream_st *stream)
{
    return cudaMallocAsync(out, bytes, stream ? stream : PER_THREAD);
}

int cudaFreeAsync(void *ptr, struct CUstream_st *stream)
{
    void *context = NULL;
    int status = 0, result = look_at(stream, &context, &status);

    if (result == 0 && status != 0)
        result = INVALID_VALUE;
    if (result == 0)
        result = wait_in(context, 1, stream);
    return keep(result == 0 ? driver.cuMemFree_v2(ptr) : result);
}

int cudaFreeAsync_ptsz(void *ptr, struct CUstream_st *stream)
{
    return cudaFreeAsync(ptr, stream ? stream : PER_THREAD);
}

int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    ANSWER(driver.cuMemGetInfo_v2(free_bytes, total));
}

int cudaIpcGetMemHandle(struct runtime_ipc_handle *handle, void *ptr)
{
    ANSWER(driver.cuIpcGetMemHandle(handle, ptr));
}

int cudaIpcOpenMemHandle(void **out, struct runtime_ipc_handle handle, unsigned flags)
{
    ANSWER(driver.cuIpcOpenMemHandle_v2(out, handle, flags));
}

int cudaIpcCloseMemHandle(void *ptr)
{
    ANSWER(driver.cuIpcCloseMemHandle(ptr));
}

int cudaDeviceSynchronize(void)
{
    ANSWER(driver.cuCtxSynchronize());
}

int cudaDeviceReset(void)
{
    ANSWER(driver.cuDevicePrimaryCtxReset_v2(device));
}

int cudaStreamCreateWithFlags(struct CUstream_st **out, unsigned flags)
{
    ANSWER(driver.cuStreamCreate(out, flags));
}

int cudaStreamDestroy(struct CUstream_st *stream)
{
    const int result = begin();

    if (result == 0 && (uintptr_t)stream <= (uintptr_t)PER_THREAD)
        return keep(INVALID_HANDLE);
    return keep(result == 0 ? driver.cuStreamDestroy_v2(stream) : result);
}

/* cudaErrorNotReady is an answer, not an error. */
int cudaStreamQuery(struct CUstream_st *stream)
{
    const int result = begin();

    return result == 0 ? driver.cuStreamQuery(stream) : keep(result);
}

int cudaStreamIsCapturing(struct CUstream_st *stream, int *status)
{
    ANSWER(driver.cuStreamIsCapturing(stream, status));
}

int cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                     unsigned long long flags, int *status)
{
    ANSWER(driver.cuGetProcAddress_v2(symbol, function, (int)version, flags, status));
}

int cudaGetLastError(void)
{
    const int result = last_error;

    last_error = 0;
    return result;
}
