/* SPDX-License-Identifier: MIT */
/* Entry points of the driver with plain C types, for tests that do not include cuda.h. */
#ifndef XSEG_TESTS_DRIVER_CALLS_H
#define XSEG_TESTS_DRIVER_CALLS_H

#include "xseg/allocator.h"

struct CUgraph_st;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuDevicePrimaryCtxReset_v2(int device);
int cuCtxSetCurrent(void *context);
int cuCtxGetCurrent(void **context);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuStreamCreate(xseg_stream *stream, unsigned flags);
int cuStreamDestroy_v2(xseg_stream stream);
int cuStreamGetCtx(xseg_stream stream, void **context);
int cuStreamSynchronize(xseg_stream stream);
int cuStreamWaitEvent(xseg_stream stream, xseg_event event, unsigned flags);
int cuStreamBeginCapture_v2(xseg_stream stream, int mode);
int cuStreamEndCapture(xseg_stream stream, struct CUgraph_st **graph);
int cuStreamIsCapturing(xseg_stream stream, int *state);
int cuStreamGetCaptureInfo_v2(xseg_stream stream, int *state, unsigned long long *id, void **graph,
                              const void **nodes, size_t *count);
int cuThreadExchangeStreamCaptureMode(int *mode);
int cuGraphDestroy(struct CUgraph_st *graph);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventQuery(xseg_event event);
int cuEventSynchronize(xseg_event event);
int cuEventDestroy_v2(xseg_event event);
int cuLaunchHostFunc(xseg_stream stream, void (*function)(void *), void *argument);
int cuMemAlloc_v2(unsigned long long *ptr, size_t bytes);
int cuMemFree_v2(unsigned long long ptr);
/* CUmemLocation is a kind (1: device) and an ID. */
int cuMemGetAccess(unsigned long long *flags, const int location[2], unsigned long long address);

#endif
