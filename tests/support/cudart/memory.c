/* SPDX-License-Identifier: MIT */
/*
 * Memory: allocations of devices and of the host, copies, fills, and what is known of an address.
 *
 * The stream-ordered allocator, managed memory and symbols of kernels are not there: PyTorch links
 * their calls and makes them only when asked for.
 */
#include <stddef.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

static CUdeviceptr address_of(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

EXPORT cudaError_t cudaMalloc(void **out, size_t bytes)
{
    CUdeviceptr address = 0;
    cudaError_t error = enter();

    if (error == cudaSuccess && out == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && bytes != 0)
        error = error_of(driver.cuMemAlloc(&address, bytes));
    if (error == cudaSuccess)
        *out = (void *)(uintptr_t)address;
    return answer(error);
}

EXPORT cudaError_t cudaFree(void *pointer)
{
    ANSWER(pointer == NULL ? CUDA_SUCCESS : driver.cuMemFree(address_of(pointer)));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    ANSWER(driver.cuMemGetInfo(unused, total));
}

EXPORT cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    ANSWER(driver.cuMemHostAlloc(out, bytes, flags));
}

EXPORT cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    ANSWER(driver.cuMemHostAlloc(out, bytes, 0));
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    ANSWER(pointer == NULL ? CUDA_SUCCESS : driver.cuMemFreeHost(pointer));
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    ANSWER(driver.cuMemHostRegister(pointer, bytes, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    ANSWER(driver.cuMemHostUnregister(pointer));
}

/* The kind of a copy follows from its addresses. */
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    ANSWER(driver.cuMemcpy(address_of(to), address_of(from), bytes));
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   enum cudaMemcpyKind kind, cudaStream_t stream)
{
    ANSWER(driver.cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
}

EXPORT cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                     size_t width, size_t height, enum cudaMemcpyKind kind,
                                     cudaStream_t stream)
{
    cudaError_t error = cudaSuccess;

    for (size_t row = 0; row < height && error == cudaSuccess; row++)
        error = cudaMemcpyAsync((char *)to + row * to_pitch, (const char *)from + row * from_pitch,
                                width, kind, stream);
    return error;
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                       size_t bytes, cudaStream_t stream)
{
    CUcontext to_context, from_context;
    cudaError_t error = enter();

    if (error == cudaSuccess)
        error = context_of(to_device, &to_context);
    if (error == cudaSuccess)
        error = context_of(from_device, &from_context);
    if (error == cudaSuccess)
        error = error_of(driver.cuMemcpyPeerAsync(address_of(to), to_context, address_of(from),
                                                  from_context, bytes, stream));
    return answer(error);
}

EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    ANSWER(driver.cuMemsetD8(address_of(pointer), (unsigned char)value, bytes));
}

EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    ANSWER(driver.cuMemsetD8Async(address_of(pointer), (unsigned char)value, bytes, stream));
}

/* Memory that the driver does not know is the host's. */
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    unsigned type = 0;
    int device = -2; /* cudaInvalidDeviceId */
    CUdeviceptr there = 0;
    CUpointer_attribute asked[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                   CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                   CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *answers[] = {&type, &device, &there};
    cudaError_t error = begin();

    if (error == cudaSuccess)
        error = error_of(driver.cuPointerGetAttributes(3, asked, answers, address_of(pointer)));
    if (error != cudaSuccess)
        return answer(error);
    memset(out, 0, sizeof(*out));
    out->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                             : cudaMemoryTypeUnregistered;
    out->device = out->type == cudaMemoryTypeUnregistered ? -2 : device;
    out->devicePointer = (void *)(uintptr_t)there;
    if (out->type != cudaMemoryTypeDevice)
        out->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    ANSWER(driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, address_of(pointer)));
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle theirs;
    CUdeviceptr address = 0;
    cudaError_t error = enter();

    memcpy(&theirs, &handle, sizeof(theirs));
    if (error == cudaSuccess)
        error = error_of(driver.cuIpcOpenMemHandle(&address, theirs, flags));
    if (error == cudaSuccess)
        *out = (void *)(uintptr_t)address;
    return answer(error);
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    ANSWER(driver.cuIpcCloseMemHandle(address_of(pointer)));
}

EXPORT cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                           void *value)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                           void *value)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                        size_t count)
{
    return answer(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    return answer(cudaErrorNotSupported);
}

/* Graphs allocate nothing of their own. */
EXPORT cudaError_t cudaDeviceGetGraphMemAttribute(int device,
                                                  enum cudaGraphMemAttributeType attribute,
                                                  void *value)
{
    const uint64_t nothing = 0;

    memcpy(value, &nothing, sizeof(nothing));
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSetGraphMemAttribute(int device,
                                                  enum cudaGraphMemAttributeType attribute,
                                                  void *value)
{
    return cudaSuccess;
}
