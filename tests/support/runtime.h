/* SPDX-License-Identifier: MIT */
/*
 * A part of the CUDA runtime as a shared library on the simulated driver, for libxseg-preload.so to interpose.
 *
 * * Each thread has a current device and a last error.  Every error that a function returns is also the last error.
 * The stream-ordered functions allocate immediately and wait for the stream before they free; during a capture they
 * fail, since graphs have no memory nodes here.
 *
 * * This runtime needs no header of CUDA; tests/support/cudart, which PyTorch runs on, needs those of the runtime.
 *
 * * Threads: any.  In a forked child every call fails, as in the driver.
 */
#ifndef XSEG_TESTS_RUNTIME_H
#define XSEG_TESTS_RUNTIME_H

#include <stddef.h>

struct CUstream_st;
#define RUNTIME_EXPORT __attribute__((visibility("default")))

RUNTIME_EXPORT int cudaMalloc(void **out, size_t bytes);
RUNTIME_EXPORT int cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height);
RUNTIME_EXPORT int cudaMallocAsync(void **out, size_t bytes, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaMallocAsync_ptsz(void **out, size_t bytes, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaFree(void *ptr);
RUNTIME_EXPORT int cudaFreeAsync(void *ptr, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaFreeAsync_ptsz(void *ptr, struct CUstream_st *stream);
RUNTIME_EXPORT int cudaMemGetInfo(size_t *free_bytes, size_t *total);
RUNTIME_EXPORT int cudaGetDevice(int *device);
RUNTIME_EXPORT int cudaSetDevice(int device);
struct runtime_ipc_handle {
    unsigned char bytes[64];
};

RUNTIME_EXPORT int cudaIpcGetMemHandle(struct runtime_ipc_handle *handle, void *ptr);
RUNTIME_EXPORT int cudaIpcOpenMemHandle(void **out, struct runtime_ipc_handle handle,
                                        unsigned flags);
RUNTIME_EXPORT int cudaIpcCloseMemHandle(void *ptr);
RUNTIME_EXPORT int cudaDeviceSynchronize(void);
RUNTIME_EXPORT int cudaDeviceReset(void);
RUNTIME_EXPORT int cudaStreamCreateWithFlags(struct CUstream_st **out, unsigned flags);
RUNTIME_EXPORT int cudaStreamDestroy(struct CUstream_st *stream);
RUNTIME_EXPORT int cudaStreamQuery(struct CUstream_st *stream);
RUNTIME_EXPORT int cudaStreamIsCapturing(struct CUstream_st *stream, int *status);
RUNTIME_EXPORT int cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                    unsigned version, unsigned long long flags,
                                                    int *status);
RUNTIME_EXPORT int cudaGetLastError(void);

#endif
