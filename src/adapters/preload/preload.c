/* SPDX-License-Identifier: MIT */
/*
 * libxseg-preload.so allocates the device memory of a program from xseg, without a change of the program.
 *
 *     LD_PRELOAD=libxseg-preload.so ./program
 *
 * The library defines these functions of the CUDA runtime and of the driver, and the dynamic linker finds them first:
 *
 *   cudaMalloc, cudaFree, cudaMallocAsync, cudaFreeAsync, cudaMemGetInfo, cudaStreamDestroy, cudaDeviceReset,
 *   cudaThreadExit, cudaGetDriverEntryPoint, cudaGetDriverEntryPointByVersion
 *   cuMemAlloc, cuMemFree, cuMemAllocAsync, cuMemFreeAsync, cuMemGetInfo, cuStreamDestroy, cuDevicePrimaryCtxReset,
 *   cuGetProcAddress
 *
 * each with its variants (_v2, and _ptsz for the per-thread default stream).  So the program must use the runtime or the
 * driver as a shared library.  xseg serves calls while the current context is the primary context of its device.
 *
 * The original functions serve all other calls: addresses that are not memory of xseg, other contexts, and requests that
 * xseg denies.  Any of the free functions can free a block, whichever function allocated it.  Every error of a runtime call
 * results from a call of the original runtime, so cudaGetLastError() returns the error, too.
 *
 * CUDA's guarantees for these functions are preserved:
 *   - Every stream can use memory of cudaMalloc immediately.  xseg orders memory by streams; one stream of this library
 *     orders all of this memory, and no work is ever queued on that stream.
 *   - cudaFree and cuMemFree wait for the device that has the memory, because work of any stream may use it.
 *   - cudaMallocAsync and cudaFreeAsync are ordered by their streams, and do not wait.  The memory is on the device of the
 *     stream.  Only a free on a stream of another device waits for that stream.
 *   - In a capture, memory is a node of the graph: the original functions create it.
 *   - A reset of a device frees its memory.
 *
 * Threads: any.
 * Fork:    in the child of a process that has allocated, the original functions serve all calls.
 */
#include <string.h>

#include "devices.h"
#include "originals.h"
#include "xseg/allocator.h"

#define PRELOAD_EXPORT __attribute__((visibility("default")))

/* cudaErrorInvalidValue, CUDA_ERROR_INVALID_VALUE. */
#define INVALID_VALUE 1
/* cudaErrorSharedObjectSymbolNotFound, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND. */
#define NO_ORIGINAL 302

typedef unsigned long long preload_address; /* CUdeviceptr */

PRELOAD_EXPORT int cudaMalloc(void **out, size_t bytes);
PRELOAD_EXPORT int cudaMallocAsync(void **out, size_t bytes, xseg_stream stream);
PRELOAD_EXPORT int cudaMallocAsync_ptsz(void **out, size_t bytes, xseg_stream stream);
PRELOAD_EXPORT int cudaFree(void *ptr);
PRELOAD_EXPORT int cudaFreeAsync(void *ptr, xseg_stream stream);
PRELOAD_EXPORT int cudaFreeAsync_ptsz(void *ptr, xseg_stream stream);
PRELOAD_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total);
PRELOAD_EXPORT int cudaStreamDestroy(xseg_stream stream);
PRELOAD_EXPORT int cudaDeviceReset(void);
PRELOAD_EXPORT int cudaThreadExit(void);
PRELOAD_EXPORT int cudaGetDriverEntryPoint(const char *symbol, void **function,
                                           unsigned long long flags, int *status);
PRELOAD_EXPORT int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function,
                                                unsigned long long flags, int *status);
PRELOAD_EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    int *status);
PRELOAD_EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                         unsigned version, unsigned long long flags,
                                                         int *status);
PRELOAD_EXPORT int cuMemAlloc_v2(preload_address *out, size_t bytes);
PRELOAD_EXPORT int cuMemAllocAsync(preload_address *out, size_t bytes, xseg_stream stream);
PRELOAD_EXPORT int cuMemAllocAsync_ptsz(preload_address *out, size_t bytes, xseg_stream stream);
PRELOAD_EXPORT int cuMemFree_v2(preload_address address);
PRELOAD_EXPORT int cuMemFreeAsync(preload_address address, xseg_stream stream);
PRELOAD_EXPORT int cuMemFreeAsync_ptsz(preload_address address, xseg_stream stream);
PRELOAD_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
PRELOAD_EXPORT int cuStreamDestroy_v2(xseg_stream stream);
PRELOAD_EXPORT int cuDevicePrimaryCtxReset(int device);
PRELOAD_EXPORT int cuDevicePrimaryCtxReset_v2(int device);
PRELOAD_EXPORT int cuGetProcAddress(const char *symbol, void **function, int version,
                                    unsigned long long flags);
PRELOAD_EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                       unsigned long long flags, int *status);

/* The handle of the calling thread's default stream, and the flag of lookups for functions of that stream. */
#define PER_THREAD_STREAM 2

/* The stream of an argument of a _ptsz function, where NULL denotes the per-thread default stream. */
static xseg_stream per_thread_stream(xseg_stream stream)
{
    return stream ? stream : (xseg_stream)(uintptr_t)PER_THREAD_STREAM;
}

/* --- Entry points that programs look up. --- */

typedef void (*entry_function)(void);

#define LATEST(name, version)                                                        \
    {                                                                                \
#name, version, (entry_function)name##_latest, (entry_function)name##_latest \
    }
#define cuMemAlloc_latest      cuMemAlloc_v2
#define cuMemFree_latest       cuMemFree_v2
#define cuMemGetInfo_latest    cuMemGetInfo_v2
#define cuStreamDestroy_latest cuStreamDestroy_v2

static const struct {
    const char *name;
    int version; /* CUDA version that introduced the signature */
    entry_function legacy, per_thread;
} entry_points[] = {
    LATEST(cuMemAlloc, 3020),
    LATEST(cuMemFree, 3020),
    LATEST(cuMemGetInfo, 3020),
    LATEST(cuStreamDestroy, 4000),
    {"cuMemAllocAsync", 11020, (entry_function)cuMemAllocAsync,
     (entry_function)cuMemAllocAsync_ptsz},
    {"cuMemFreeAsync", 11020, (entry_function)cuMemFreeAsync, (entry_function)cuMemFreeAsync_ptsz},
    {"cuDevicePrimaryCtxReset", 7000, (entry_function)cuDevicePrimaryCtxReset_v2,
     (entry_function)cuDevicePrimaryCtxReset_v2},
    {"cuGetProcAddress", 11030, (entry_function)cuGetProcAddress, (entry_function)cuGetProcAddress},
    {"cuGetProcAddress", 12000, (entry_function)cuGetProcAddress_v2,
     (entry_function)cuGetProcAddress_v2},
};

/* Replace a function that the original lookup found by the function of this library, if there is one. */
static void replace_entry_point(const char *symbol, void **function, unsigned version,
                                bool is_per_thread)
{
    const size_t count = sizeof(entry_points) / sizeof(entry_points[0]);

    for (size_t i = 0; symbol && function && *function && i < count; i++)
        if (strcmp(symbol, entry_points[i].name) == 0 && (int)version >= entry_points[i].version)
            memcpy(function, is_per_thread ? &entry_points[i].per_thread : &entry_points[i].legacy,
                   sizeof(*function));
}

/* --- The runtime. --- */

/* Get the device of the calling thread; -1 if its current context is not a primary one. */
static int current_device(const struct runtime *cuda)
{
    const struct driver *cu = get_driver();
    void *context = NULL;
    int device = -1, context_device = -1;

    if (cuda->get_device(&device) != 0 || device >= DEVICES)
        return -1;
    if (!cu || cu->get_current(&context) != 0 || !context || context == device_context(device))
        return device;
    return cu->get_device(&context_device) == 0 && device_is_primary(context_device, context)
               ? device
               : -1;
}

/* Wait for a device, which need not be that of the calling thread.  Returns the runtime's result. */
static int runtime_synchronize(const struct runtime *cuda, int device)
{
    const struct driver *cu = get_driver();
    void *context = NULL, *after = NULL;
    int current = -1, result, restored;

    (void)cuda->get_device(&current);
    (void)cu->get_current(&context);
    if (!cuda->set_device || (current == device && (!context || context == device_context(device))))
        return cuda->synchronize();
    result = cuda->set_device(device);
    if (result == 0)
        result = cuda->synchronize();
    restored = cuda->set_device(current);
    if (restored != 0) {
        (void)cuda->set_device(current);
        result = result != 0 ? result : restored;
    }
    if (context && cu->get_current(&after) == 0 && after != context)
        (void)cu->set_current(context);
    return result;
}

/* Get an address that the original functions reject with the error of a freed address.  No allocation of the driver starts
 * there, unlike at `ptr`, because a classic segment of xseg is an allocation. */
static void *inner_address(void *ptr)
{
    return (char *)ptr + 1;
}

/* Get the error of the original function for an address in memory of xseg that is not an allocated block. */
static int deny_free(const struct runtime *cuda, void *ptr)
{
    const int result = cuda->free(inner_address(ptr));

    return result != 0 ? result : INVALID_VALUE;
}

static int deny_free_async(const struct runtime *cuda, int (*original)(void *, xseg_stream),
                           void *ptr, xseg_stream stream)
{
    const int result = original ? original(inner_address(ptr), stream) : 0;

    return result != 0 ? result : deny_free(cuda, ptr);
}

PRELOAD_EXPORT int cudaMalloc(void **out, size_t bytes)
{
    const struct runtime *cuda = get_runtime();

    if (!cuda)
        return NO_ORIGINAL;
    if (!out || bytes == 0 || !service_enter())
        return cuda->malloc(out, bytes);
    if (device_alloc(current_device(cuda), bytes, EVERY_STREAM, out))
        return service_leave(0);
    return service_leave(cuda->malloc(out, bytes));
}

/* handle: the argument of the program, for the original function; stream: the stream that the handle denotes */
static int malloc_async(int (*original)(void **, size_t, xseg_stream), void **out, size_t bytes,
                        xseg_stream handle, xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();
    int device;

    if (cuda && out && bytes != 0 && service_enter()) {
        device = current_device(cuda);
        if (device >= 0)
            device = device_of_stream(stream, device);
        if (device >= 0 && !device_is_capturing(device, stream) &&
            device_alloc(device, bytes, stream, out))
            return service_leave(0);
        return service_leave(original ? original(out, bytes, handle) : NO_ORIGINAL);
    }
    return original ? original(out, bytes, handle) : NO_ORIGINAL;
}

PRELOAD_EXPORT int cudaMallocAsync(void **out, size_t bytes, xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();

    return malloc_async(cuda ? cuda->malloc_async : NULL, out, bytes, stream, stream);
}

PRELOAD_EXPORT int cudaMallocAsync_ptsz(void **out, size_t bytes, xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();

    return malloc_async(cuda ? cuda->malloc_async_ptsz : NULL, out, bytes, stream,
                        per_thread_stream(stream));
}

PRELOAD_EXPORT int cudaFree(void *ptr)
{
    const struct runtime *cuda = get_runtime();
    enum ownership owner;
    int device, result;

    if (!cuda)
        return NO_ORIGINAL;
    if (!ptr || !service_enter()) /* cudaFree(NULL) starts the runtime */
        return cuda->free(ptr);
    owner = device_find(ptr, &device);
    if (owner == FOREIGN)
        return service_leave(cuda->free(ptr));
    result = owner == ALLOCATED ? runtime_synchronize(cuda, device) : 0;
    if (result == 0 && (owner == NOT_ALLOCATED || !device_free(device, ptr)))
        result = deny_free(cuda, ptr);
    return service_leave(result);
}

static int free_async(int (*original)(void *, xseg_stream), void *ptr, xseg_stream handle,
                      xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();
    enum ownership owner;
    int device, current;

    if (!cuda || !ptr || !service_enter())
        return original ? original(ptr, handle) : NO_ORIGINAL;
    owner = device_find(ptr, &device);
    if (owner == FOREIGN)
        return service_leave(original ? original(ptr, handle) : NO_ORIGINAL);
    current = current_device(cuda);
    /* A captured free must free an allocation of the same graph, so a capture rejects the block. */
    if (owner == ALLOCATED && !device_is_capturing(device_of_stream(stream, current), stream) &&
        device_free_after(device, ptr, stream, current))
        return service_leave(0);
    return service_leave(deny_free_async(cuda, original, ptr, handle));
}

PRELOAD_EXPORT int cudaFreeAsync(void *ptr, xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();

    return free_async(cuda ? cuda->free_async : NULL, ptr, stream, stream);
}

PRELOAD_EXPORT int cudaFreeAsync_ptsz(void *ptr, xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();

    return free_async(cuda ? cuda->free_async_ptsz : NULL, ptr, stream, per_thread_stream(stream));
}

PRELOAD_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    const struct runtime *cuda = get_runtime();

    if (!cuda || !cuda->mem_get_info)
        return NO_ORIGINAL;
    if (!service_enter())
        return cuda->mem_get_info(free_bytes, total);
    return service_leave(
        device_memory_info(current_device(cuda), cuda->mem_get_info, free_bytes, total));
}

PRELOAD_EXPORT int cudaStreamDestroy(xseg_stream stream)
{
    const struct runtime *cuda = get_runtime();

    if (!cuda || !cuda->stream_destroy)
        return NO_ORIGINAL;
    if (!service_enter())
        return cuda->stream_destroy(stream);
    device_retire_stream(stream);
    return service_leave(cuda->stream_destroy(stream));
}

/* Reset the device of the calling thread. */
static int reset_current_device(int (*original)(void))
{
    const struct runtime *cuda = get_runtime();
    int device = -1, result;

    if (!original)
        return NO_ORIGINAL;
    if (!service_enter())
        return original();
    (void)cuda->get_device(&device);
    device_reset_begin(device);
    result = original();
    device_reset_end();
    return service_leave(result);
}

PRELOAD_EXPORT int cudaDeviceReset(void)
{
    const struct runtime *cuda = get_runtime();

    return reset_current_device(cuda ? cuda->device_reset : NULL);
}

PRELOAD_EXPORT int cudaThreadExit(void)
{
    const struct runtime *cuda = get_runtime();

    return reset_current_device(cuda ? cuda->thread_exit : NULL);
}

PRELOAD_EXPORT int cudaGetDriverEntryPoint(const char *symbol, void **function,
                                           unsigned long long flags, int *status)
{
    const struct runtime *cuda = get_runtime();
    const int result = cuda && cuda->entry_point
                           ? cuda->entry_point(symbol, function, flags, status)
                           : NO_ORIGINAL;

    if (result == 0)
        replace_entry_point(symbol, function, ~0u >> 1, flags == PER_THREAD_STREAM);
    return result;
}

PRELOAD_EXPORT int cudaGetDriverEntryPoint_ptsz(const char *symbol, void **function,
                                                unsigned long long flags, int *status)
{
    const struct runtime *cuda = get_runtime();
    const int result = cuda && cuda->entry_point_ptsz
                           ? cuda->entry_point_ptsz(symbol, function, flags, status)
                           : NO_ORIGINAL;

    if (result == 0)
        replace_entry_point(symbol, function, ~0u >> 1, flags == 0 || flags == PER_THREAD_STREAM);
    return result;
}

PRELOAD_EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    int *status)
{
    const struct runtime *cuda = get_runtime();
    const int result = cuda && cuda->entry_point_by_version
                           ? cuda->entry_point_by_version(symbol, function, version, flags, status)
                           : NO_ORIGINAL;

    if (result == 0)
        replace_entry_point(symbol, function, version, flags == PER_THREAD_STREAM);
    return result;
}

PRELOAD_EXPORT int cudaGetDriverEntryPointByVersion_ptsz(const char *symbol, void **function,
                                                         unsigned version, unsigned long long flags,
                                                         int *status)
{
    const struct runtime *cuda = get_runtime();
    const int result =
        cuda && cuda->entry_point_by_version_ptsz
            ? cuda->entry_point_by_version_ptsz(symbol, function, version, flags, status)
            : NO_ORIGINAL;

    if (result == 0)
        replace_entry_point(symbol, function, version, flags == 0 || flags == PER_THREAD_STREAM);
    return result;
}

/* --- The driver, by the names to which cuda.h maps cuMemAlloc and other functions. --- */

/* Get the device whose primary context is current; -1 if no context or another context is current. */
static int primary_device(const struct driver *cu)
{
    void *current = NULL;
    int device = -1;

    if (cu->get_current(&current) != 0 || !current || cu->get_device(&device) != 0 ||
        device >= DEVICES)
        return -1;
    return current == device_context(device) || device_is_primary(device, current) ? device : -1;
}

PRELOAD_EXPORT int cuMemAlloc_v2(preload_address *out, size_t bytes)
{
    const struct driver *cu = get_driver();
    void *ptr = NULL;

    if (!cu)
        return NO_ORIGINAL;
    if (!out || bytes == 0 || !service_enter()) /* the driver denies an allocation of 0 bytes */
        return cu->mem_alloc(out, bytes);
    if (!device_alloc(primary_device(cu), bytes, EVERY_STREAM, &ptr))
        return service_leave(cu->mem_alloc(out, bytes));
    *out = (preload_address)(uintptr_t)ptr;
    return service_leave(0);
}

static int mem_alloc_async(int (*original)(preload_address *, size_t, xseg_stream),
                           preload_address *out, size_t bytes, xseg_stream handle,
                           xseg_stream stream)
{
    const struct driver *cu = get_driver();
    void *ptr = NULL;
    int device;

    if (cu && out && bytes != 0 && service_enter()) {
        device = device_of_stream(stream, primary_device(cu));
        if (device >= 0 && !device_is_capturing(device, stream) &&
            device_alloc(device, bytes, stream, &ptr)) {
            *out = (preload_address)(uintptr_t)ptr;
            return service_leave(0);
        }
        return service_leave(original ? original(out, bytes, handle) : NO_ORIGINAL);
    }
    return original ? original(out, bytes, handle) : NO_ORIGINAL;
}

PRELOAD_EXPORT int cuMemAllocAsync(preload_address *out, size_t bytes, xseg_stream stream)
{
    const struct driver *cu = get_driver();

    return mem_alloc_async(cu ? cu->mem_alloc_async : NULL, out, bytes, stream, stream);
}

PRELOAD_EXPORT int cuMemAllocAsync_ptsz(preload_address *out, size_t bytes, xseg_stream stream)
{
    const struct driver *cu = get_driver();

    return mem_alloc_async(cu ? cu->mem_alloc_async_ptsz : NULL, out, bytes, stream,
                           per_thread_stream(stream));
}

PRELOAD_EXPORT int cuMemFree_v2(preload_address address)
{
    const struct driver *cu = get_driver();
    void *ptr = (void *)(uintptr_t)address;
    enum ownership owner;
    int device, result;

    if (!cu)
        return NO_ORIGINAL;
    if (!ptr || !service_enter())
        return cu->mem_free(address);
    owner = device_find(ptr, &device);
    if (owner == FOREIGN)
        return service_leave(cu->mem_free(address));
    result = owner == ALLOCATED ? device_synchronize(device) : 0;
    if (result == 0 && (owner == NOT_ALLOCATED || !device_free(device, ptr)))
        result = INVALID_VALUE;
    return service_leave(result);
}

static int mem_free_async(int (*original)(preload_address, xseg_stream), preload_address address,
                          xseg_stream handle, xseg_stream stream)
{
    const struct driver *cu = get_driver();
    void *ptr = (void *)(uintptr_t)address;
    enum ownership owner;
    int device, current;

    if (!cu || !ptr || !service_enter())
        return original ? original(address, handle) : NO_ORIGINAL;
    owner = device_find(ptr, &device);
    if (owner == FOREIGN)
        return service_leave(original ? original(address, handle) : NO_ORIGINAL);
    current = primary_device(cu);
    if (owner == ALLOCATED && !device_is_capturing(device_of_stream(stream, current), stream) &&
        device_free_after(device, ptr, stream, current))
        return service_leave(0);
    return service_leave(INVALID_VALUE);
}

PRELOAD_EXPORT int cuMemFreeAsync(preload_address address, xseg_stream stream)
{
    const struct driver *cu = get_driver();

    return mem_free_async(cu ? cu->mem_free_async : NULL, address, stream, stream);
}

PRELOAD_EXPORT int cuMemFreeAsync_ptsz(preload_address address, xseg_stream stream)
{
    const struct driver *cu = get_driver();

    return mem_free_async(cu ? cu->mem_free_async_ptsz : NULL, address, stream,
                          per_thread_stream(stream));
}

PRELOAD_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    const struct driver *cu = get_driver();

    if (!cu)
        return NO_ORIGINAL;
    if (!service_enter())
        return cu->mem_get_info(free_bytes, total);
    return service_leave(
        device_memory_info(primary_device(cu), cu->mem_get_info, free_bytes, total));
}

PRELOAD_EXPORT int cuStreamDestroy_v2(xseg_stream stream)
{
    const struct driver *cu = get_driver();

    if (!cu)
        return NO_ORIGINAL;
    if (!service_enter())
        return cu->stream_destroy(stream);
    device_retire_stream(stream);
    return service_leave(cu->stream_destroy(stream));
}

static int reset_primary(int (*original)(int), int device)
{
    int result;

    if (!original)
        return NO_ORIGINAL;
    if (!service_enter())
        return original(device);
    device_reset_begin(device);
    result = original(device);
    device_reset_end();
    return service_leave(result);
}

PRELOAD_EXPORT int cuDevicePrimaryCtxReset(int device)
{
    const struct driver *cu = get_driver();

    return reset_primary(cu ? cu->primary_reset : NULL, device);
}

PRELOAD_EXPORT int cuDevicePrimaryCtxReset_v2(int device)
{
    const struct driver *cu = get_driver();

    return reset_primary(cu ? cu->primary_reset_v2 : NULL, device);
}

PRELOAD_EXPORT int cuGetProcAddress(const char *symbol, void **function, int version,
                                    unsigned long long flags)
{
    const struct driver *cu = get_driver();
    const int result =
        cu && cu->proc_address ? cu->proc_address(symbol, function, version, flags) : NO_ORIGINAL;

    if (result == 0 && version >= 0)
        replace_entry_point(symbol, function, (unsigned)version, flags == PER_THREAD_STREAM);
    return result;
}

PRELOAD_EXPORT int cuGetProcAddress_v2(const char *symbol, void **function, int version,
                                       unsigned long long flags, int *status)
{
    const struct driver *cu = get_driver();
    const int result = cu && cu->proc_address_v2
                           ? cu->proc_address_v2(symbol, function, version, flags, status)
                           : NO_ORIGINAL;

    if (result == 0 && version >= 0)
        replace_entry_point(symbol, function, (unsigned)version, flags == PER_THREAD_STREAM);
    return result;
}
