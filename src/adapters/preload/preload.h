/* SPDX-License-Identifier: MIT */
/* The calls that libxseg-preload.so interposes, with CUDA's own signatures; its enumerations are int here. */
#ifndef XSEG_ADAPTERS_PRELOAD_PRELOAD_H
#define XSEG_ADAPTERS_PRELOAD_PRELOAD_H

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

#endif
