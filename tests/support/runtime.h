/* SPDX-License-Identifier: MIT */
/* A few calls of the CUDA runtime, as a shared library over the simulated driver: what libxseg-preload.so stands before. */
#ifndef TESTS_SUPPORT_RUNTIME_H
#define TESTS_SUPPORT_RUNTIME_H

#include <stddef.h>

struct CUstream_st;
#define RUNTIME_EXPORT __attribute__((visibility("default")))

RUNTIME_EXPORT int cudaMalloc(void **out, size_t bytes);
RUNTIME_EXPORT int cudaMallocAsync(void **out, size_t bytes, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaFree(void *ptr);
RUNTIME_EXPORT int cudaFreeAsync(void *ptr, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total);
RUNTIME_EXPORT int cudaGetDevice(int *device);
RUNTIME_EXPORT int cudaDeviceSynchronize(void);
RUNTIME_EXPORT int cudaStreamCreateWithFlags(struct CUstream_st **out, unsigned flags);
RUNTIME_EXPORT int cudaStreamDestroy(struct CUstream_st *stream);
RUNTIME_EXPORT int cudaStreamIsCapturing(struct CUstream_st *stream, int *status);
RUNTIME_EXPORT int cudaGetLastError(void);

#endif
