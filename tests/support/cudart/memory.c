/* SPDX-License-Identifier: MIT */
/*
 * Memory: allocations of devices and of the host, copies, fills, and attributes of pointers.
 *
 * The stream-ordered allocator and managed memory are not supported: PyTorch links their functions, but calls them only
 * on request.
 */
#include <stddef.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

static CUdeviceptr device_pointer(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

EXPORT cudaError_t cudaMalloc(void **out, size_t bytes)
{
    CUdeviceptr address = 0;
    cudaError_t error = enter_context();

    if (error == cudaSuccess && out == NULL)
        error = cudaErrorInvalidValue;
    if (error == cudaSuccess && bytes != 0)
        error = to_error(driver.cuMemAlloc(&address, bytes));
    if (error == cudaSuccess)
        *out = (void *)(uintptr_t)address;
    return record_error(error);
}

EXPORT cudaError_t cudaFree(void *pointer)
{
    RETURN_CALL(pointer == NULL ? CUDA_SUCCESS : driver.cuMemFree(device_pointer(pointer)));
}

EXPORT cudaError_t cudaMemGetInfo(size_t *unused, size_t *total)
{
    RETURN_CALL(driver.cuMemGetInfo(unused, total));
}

EXPORT cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    RETURN_CALL(driver.cuMemHostAlloc(out, bytes, flags));
}

EXPORT cudaError_t cudaMallocHost(void **out, size_t bytes)
{
    RETURN_CALL(driver.cuMemHostAlloc(out, bytes, 0));
}

EXPORT cudaError_t cudaFreeHost(void *pointer)
{
    RETURN_CALL(pointer == NULL ? CUDA_SUCCESS : driver.cuMemFreeHost(pointer));
}

EXPORT cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    RETURN_CALL(driver.cuMemHostRegister(pointer, bytes, flags));
}

EXPORT cudaError_t cudaHostUnregister(void *pointer)
{
    RETURN_CALL(driver.cuMemHostUnregister(pointer));
}

/* The driver derives the kind of a copy from the addresses. */
EXPORT cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    RETURN_CALL(driver.cuMemcpy(device_pointer(to), device_pointer(from), bytes));
}

EXPORT cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                                   enum cudaMemcpyKind kind, cudaStream_t stream)
{
    RETURN_CALL(driver.cuMemcpyAsync(device_pointer(to), device_pointer(from), bytes, stream));
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
    cudaError_t error = enter_context();

    if (error == cudaSuccess)
        error = primary_context(to_device, &to_context);
    if (error == cudaSuccess)
        error = primary_context(from_device, &from_context);
    if (error == cudaSuccess)
        error = to_error(driver.cuMemcpyPeerAsync(
            device_pointer(to), to_context, device_pointer(from), from_context, bytes, stream));
    return record_error(error);
}

EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t bytes)
{
    RETURN_CALL(driver.cuMemsetD8(device_pointer(pointer), (unsigned char)value, bytes));
}

EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream)
{
    RETURN_CALL(
        driver.cuMemsetD8Async(device_pointer(pointer), (unsigned char)value, bytes, stream));
}

/* Memory that is unknown to the driver is unregistered host memory. */
EXPORT cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    unsigned type = 0;
    int device = -2; /* cudaInvalidDeviceId */
    CUdeviceptr address = 0;
    CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                        CU_POINTER_ATTRIBUTE_DEVICE_POINTER};
    void *values[] = {&type, &device, &address};
    cudaError_t error = load_driver();

    if (error == cudaSuccess)
        error =
            to_error(driver.cuPointerGetAttributes(3, attributes, values, device_pointer(pointer)));
    if (error != cudaSuccess)
        return record_error(error);
    memset(out, 0, sizeof(*out));
    out->type = type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
                : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                             : cudaMemoryTypeUnregistered;
    out->device = out->type == cudaMemoryTypeUnregistered ? -2 : device;
    out->devicePointer = (void *)(uintptr_t)address;
    if (out->type != cudaMemoryTypeDevice)
        out->hostPointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
}

EXPORT cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer)
{
    RETURN_CALL(driver.cuIpcGetMemHandle((CUipcMemHandle *)handle, device_pointer(pointer)));
}

EXPORT cudaError_t cudaIpcOpenMemHandle(void **out, cudaIpcMemHandle_t handle, unsigned flags)
{
    CUipcMemHandle driver_handle;
    CUdeviceptr address = 0;
    cudaError_t error = enter_context();

    memcpy(&driver_handle, &handle, sizeof(driver_handle));
    if (error == cudaSuccess)
        error = to_error(driver.cuIpcOpenMemHandle(&address, driver_handle, flags));
    if (error == cudaSuccess)
        *out = (void *)(uintptr_t)address;
    return record_error(error);
}

EXPORT cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    RETURN_CALL(driver.cuIpcCloseMemHandle(device_pointer(pointer)));
}

EXPORT cudaError_t cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                           void *value)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute,
                                           void *value)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *access,
                                        size_t count)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes)
{
    return record_error(cudaErrorNotSupported);
}

/* Graphs have no memory nodes. */
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
