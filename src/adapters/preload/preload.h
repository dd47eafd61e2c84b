/* SPDX-License-Identifier: MIT */
/* The calls that libxseg-preload.so takes over, with CUDA's own signatures; its enumerations are int here. */
#ifndef XSEG_ADAPTERS_PRELOAD_PRELOAD_H
#define XSEG_ADAPTERS_PRELOAD_PRELOAD_H

#include "xseg/allocator.h"

#define PRELOAD_EXPORT __attribute__((visibility("default")))

/* cudaErrorUnknown, CUDA_ERROR_UNKNOWN. */
#define UNKNOWN 999
/* cudaErrorSharedObjectSymbolNotFound, CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND. */
#define NO_ORIGINAL 302

PRELOAD_EXPORT int cudaMalloc(void **out, size_t bytes);
PRELOAD_EXPORT int cudaMallocAsync(void **out, size_t bytes, xseg_stream stream);
PRELOAD_EXPORT int cudaFree(void *ptr);
PRELOAD_EXPORT int cudaFreeAsync(void *ptr, xseg_stream stream);
PRELOAD_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total);
PRELOAD_EXPORT int cudaStreamDestroy(xseg_stream stream);
PRELOAD_EXPORT int cuMemAlloc_v2(unsigned long long *out, size_t bytes);
PRELOAD_EXPORT int cuMemFree_v2(unsigned long long address);
PRELOAD_EXPORT int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
PRELOAD_EXPORT int cuStreamDestroy_v2(xseg_stream stream);

#endif
