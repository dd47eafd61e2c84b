/* SPDX-License-Identifier: MIT */
/* Devices: their number and properties, and the current device of each thread. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

/* Members of cudaDeviceProp of type int, and the corresponding attributes of the driver. */
static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} integers[] = {
#define MEMBER(member, name)                                                \
    {                                                                       \
        offsetof(struct cudaDeviceProp, member), CU_DEVICE_ATTRIBUTE_##name \
    }
    MEMBER(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    MEMBER(warpSize, WARP_SIZE),
    MEMBER(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    MEMBER(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    MEMBER(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    MEMBER(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    MEMBER(maxGridSize[0], MAX_GRID_DIM_X),
    MEMBER(maxGridSize[1], MAX_GRID_DIM_Y),
    MEMBER(maxGridSize[2], MAX_GRID_DIM_Z),
    MEMBER(major, COMPUTE_CAPABILITY_MAJOR),
    MEMBER(minor, COMPUTE_CAPABILITY_MINOR),
    MEMBER(multiProcessorCount, MULTIPROCESSOR_COUNT),
    MEMBER(integrated, INTEGRATED),
    MEMBER(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    MEMBER(concurrentKernels, CONCURRENT_KERNELS),
    MEMBER(pciBusID, PCI_BUS_ID),
    MEMBER(pciDeviceID, PCI_DEVICE_ID),
    MEMBER(pciDomainID, PCI_DOMAIN_ID),
    MEMBER(asyncEngineCount, ASYNC_ENGINE_COUNT),
    MEMBER(unifiedAddressing, UNIFIED_ADDRESSING),
    MEMBER(l2CacheSize, L2_CACHE_SIZE),
    MEMBER(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    MEMBER(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    MEMBER(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    MEMBER(managedMemory, MANAGED_MEMORY),
    MEMBER(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    MEMBER(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    MEMBER(cooperativeLaunch, COOPERATIVE_LAUNCH),
    MEMBER(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    MEMBER(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    MEMBER(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
};

/* Members of type size_t. */
static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} sizes[] = {
    MEMBER(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    MEMBER(memPitch, MAX_PITCH),
    MEMBER(totalConstMem, TOTAL_CONSTANT_MEMORY),
    MEMBER(textureAlignment, TEXTURE_ALIGNMENT),
    MEMBER(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    MEMBER(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    MEMBER(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
#undef MEMBER
};

/* Returns 0 if the driver does not support the attribute. */
static int get_attribute(int device, CUdevice_attribute attribute)
{
    int value = 0;

    return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t error = load_driver();
    char *const base = (char *)properties;

    memset(properties, 0, sizeof(*properties));
    if (error == cudaSuccess)
        error =
            to_error(driver.cuDeviceGetName(properties->name, sizeof(properties->name), device));
    if (error == cudaSuccess)
        error = to_error(driver.cuDeviceTotalMem(&properties->totalGlobalMem, device));
    if (error == cudaSuccess)
        error = to_error(driver.cuDeviceGetUuid(&properties->uuid, device));
    if (error != cudaSuccess)
        return record_error(error);
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        const int value = get_attribute(device, integers[i].attribute);

        memcpy(base + integers[i].offset, &value, sizeof(value));
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t value = (size_t)get_attribute(device, sizes[i].attribute);

        memcpy(base + sizes[i].offset, &value, sizeof(value));
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    RETURN_AFTER(load_driver(),
                 driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    RETURN_AFTER(load_driver(), driver.cuDeviceGetPCIBusId(text, bytes, device));
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    *count = 0;
    RETURN_AFTER(load_driver(), driver.cuDeviceGetCount(count));
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = current_device();
    return record_error(load_driver());
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = load_driver();

    return record_error(error != cudaSuccess ? error : set_device(device));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    RETURN_CALL(driver.cuCtxSynchronize());
}

/* Not supported: vLLM looks the function up when it loads the runtime, and does not call it. */
EXPORT cudaError_t cudaDeviceReset(void)
{
    return record_error(cudaErrorNotSupported);
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    RETURN_CALL(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    RETURN_AFTER(load_driver(), driver.cuDeviceCanAccessPeer(can, device, peer));
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    cudaError_t error = enter_context();

    if (error == cudaSuccess)
        error = primary_context(peer, &context);
    if (error == cudaSuccess)
        error = to_error(driver.cuCtxEnablePeerAccess(context, flags));
    return record_error(error);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    RETURN_AFTER(load_driver(), driver.cuDriverGetVersion(version));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return cudaSuccess;
}

/* Profilers are not supported. */
EXPORT cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}
