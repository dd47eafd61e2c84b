/* SPDX-License-Identifier: MIT */
/* Devices: how many there are, what they are, which one is the calling thread's. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/cudart/driver.h"

/* Members of cudaDeviceProp that are an attribute of the driver's, int by int. */
static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} integers[] = {
#define INTEGER(member, name)                                               \
    {                                                                       \
        offsetof(struct cudaDeviceProp, member), CU_DEVICE_ATTRIBUTE_##name \
    }
    INTEGER(regsPerBlock, MAX_REGISTERS_PER_BLOCK),
    INTEGER(warpSize, WARP_SIZE),
    INTEGER(maxThreadsPerBlock, MAX_THREADS_PER_BLOCK),
    INTEGER(maxThreadsDim[0], MAX_BLOCK_DIM_X),
    INTEGER(maxThreadsDim[1], MAX_BLOCK_DIM_Y),
    INTEGER(maxThreadsDim[2], MAX_BLOCK_DIM_Z),
    INTEGER(maxGridSize[0], MAX_GRID_DIM_X),
    INTEGER(maxGridSize[1], MAX_GRID_DIM_Y),
    INTEGER(maxGridSize[2], MAX_GRID_DIM_Z),
    INTEGER(major, COMPUTE_CAPABILITY_MAJOR),
    INTEGER(minor, COMPUTE_CAPABILITY_MINOR),
    INTEGER(multiProcessorCount, MULTIPROCESSOR_COUNT),
    INTEGER(integrated, INTEGRATED),
    INTEGER(canMapHostMemory, CAN_MAP_HOST_MEMORY),
    INTEGER(concurrentKernels, CONCURRENT_KERNELS),
    INTEGER(pciBusID, PCI_BUS_ID),
    INTEGER(pciDeviceID, PCI_DEVICE_ID),
    INTEGER(pciDomainID, PCI_DOMAIN_ID),
    INTEGER(asyncEngineCount, ASYNC_ENGINE_COUNT),
    INTEGER(unifiedAddressing, UNIFIED_ADDRESSING),
    INTEGER(l2CacheSize, L2_CACHE_SIZE),
    INTEGER(maxThreadsPerMultiProcessor, MAX_THREADS_PER_MULTIPROCESSOR),
    INTEGER(streamPrioritiesSupported, STREAM_PRIORITIES_SUPPORTED),
    INTEGER(regsPerMultiprocessor, MAX_REGISTERS_PER_MULTIPROCESSOR),
    INTEGER(managedMemory, MANAGED_MEMORY),
    INTEGER(pageableMemoryAccess, PAGEABLE_MEMORY_ACCESS),
    INTEGER(concurrentManagedAccess, CONCURRENT_MANAGED_ACCESS),
    INTEGER(cooperativeLaunch, COOPERATIVE_LAUNCH),
    INTEGER(maxBlocksPerMultiProcessor, MAX_BLOCKS_PER_MULTIPROCESSOR),
    INTEGER(memoryPoolsSupported, MEMORY_POOLS_SUPPORTED),
    INTEGER(gpuDirectRDMASupported, GPU_DIRECT_RDMA_SUPPORTED),
#undef INTEGER
};

/* Attributes of type size_t. */
static const struct {
    size_t offset;
    CUdevice_attribute attribute;
} sizes[] = {
#define SIZE(member, name)                                                  \
    {                                                                       \
        offsetof(struct cudaDeviceProp, member), CU_DEVICE_ATTRIBUTE_##name \
    }
    SIZE(sharedMemPerBlock, MAX_SHARED_MEMORY_PER_BLOCK),
    SIZE(memPitch, MAX_PITCH),
    SIZE(totalConstMem, TOTAL_CONSTANT_MEMORY),
    SIZE(textureAlignment, TEXTURE_ALIGNMENT),
    SIZE(sharedMemPerMultiprocessor, MAX_SHARED_MEMORY_PER_MULTIPROCESSOR),
    SIZE(sharedMemPerBlockOptin, MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
    SIZE(reservedSharedMemPerBlock, RESERVED_SHARED_MEMORY_PER_BLOCK),
#undef SIZE
};

/* 0 where the driver does not know the attribute. */
static int attribute_of(int device, CUdevice_attribute attribute)
{
    int value = 0;

    return driver.cuDeviceGetAttribute(&value, attribute, device) == CUDA_SUCCESS ? value : 0;
}

EXPORT cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    cudaError_t error = begin();
    char *const base = (char *)properties;

    memset(properties, 0, sizeof(*properties));
    if (error == cudaSuccess)
        error =
            error_of(driver.cuDeviceGetName(properties->name, sizeof(properties->name), device));
    if (error == cudaSuccess)
        error = error_of(driver.cuDeviceTotalMem(&properties->totalGlobalMem, device));
    if (error == cudaSuccess)
        error = error_of(driver.cuDeviceGetUuid(&properties->uuid, device));
    if (error != cudaSuccess)
        return answer(error);
    for (size_t i = 0; i < sizeof(integers) / sizeof(integers[0]); i++) {
        const int value = attribute_of(device, integers[i].attribute);

        memcpy(base + integers[i].offset, &value, sizeof(value));
    }
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t value = (size_t)attribute_of(device, sizes[i].attribute);

        memcpy(base + sizes[i].offset, &value, sizeof(value));
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    const cudaError_t error = begin();

    if (error != cudaSuccess)
        return answer(error);
    return answer(
        error_of(driver.cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device)));
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device)
{
    const cudaError_t error = begin();

    return answer(error != cudaSuccess ? error
                                       : error_of(driver.cuDeviceGetPCIBusId(text, bytes, device)));
}

EXPORT cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t error = begin();

    *count = 0;
    return answer(error != cudaSuccess ? error : error_of(driver.cuDeviceGetCount(count)));
}

EXPORT cudaError_t cudaGetDevice(int *device)
{
    *device = device_here();
    return answer(begin());
}

EXPORT cudaError_t cudaSetDevice(int device)
{
    const cudaError_t error = begin();

    return answer(error != cudaSuccess ? error : device_set(device));
}

EXPORT cudaError_t cudaDeviceSynchronize(void)
{
    ANSWER(driver.cuCtxSynchronize());
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    ANSWER(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int device, int peer)
{
    const cudaError_t error = begin();

    return answer(error != cudaSuccess ? error
                                       : error_of(driver.cuDeviceCanAccessPeer(can, device, peer)));
}

EXPORT cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags)
{
    CUcontext context;
    cudaError_t error = enter();

    if (error == cudaSuccess)
        error = context_of(peer, &context);
    if (error == cudaSuccess)
        error = error_of(driver.cuCtxEnablePeerAccess(context, flags));
    return answer(error);
}

EXPORT cudaError_t cudaDriverGetVersion(int *version)
{
    const cudaError_t error = begin();

    return answer(error != cudaSuccess ? error : error_of(driver.cuDriverGetVersion(version)));
}

EXPORT cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = DRIVER_VERSION;
    return cudaSuccess;
}

/* Nothing is profiled. */
EXPORT cudaError_t cudaProfilerStart(void)
{
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStop(void)
{
    return cudaSuccess;
}
