/* SPDX-License-Identifier: MIT */
/* Functions of the CUDA runtime and of the driver that preloaded.c and preloaded_random.c call. */
#ifndef XSEG_TESTS_TOOL_PRELOADED_H
#define XSEG_TESTS_TOOL_PRELOADED_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/support/runtime.h"
#include "tests/support/symbol.h"
#include "xseg/sim.h"

#define MIB          ((size_t)1 << 20)
#define FOREVER      UINT64_MAX
#define THREAD_LOCAL 1 /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
#define RELAXED      2 /* CU_STREAM_CAPTURE_MODE_RELAXED */

int cuMemAlloc_v2(uint64_t *out, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total);
int cuPointerGetAttribute(void *out, int attribute, uint64_t address);
int cuStreamBeginCapture_v2(struct CUstream_st *stream, int mode);
int cuStreamEndCapture(struct CUstream_st *stream, void **graph);
int cuGraphDestroy(void *graph);
int cuStreamDestroy_v2(struct CUstream_st *stream);
int cuStreamQuery(struct CUstream_st *stream);
int cuCtxGetCurrent(void **out);
int cuDevicePrimaryCtxReset_v2(int device);
int cuGetProcAddress_v2(const char *symbol, void **function, int version, unsigned long long flags,
                        int *status);
int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t bytes);

#endif
