/* SPDX-License-Identifier: MIT */
/*
 * A CUDA runtime for tests, on top of a driver: this part finds the driver's functions.
 *
 * The driver is libcuda.so.1, whichever the dynamic loader finds; tests put the simulator there.  A function that the
 * driver lacks answers CUDA_ERROR_NOT_SUPPORTED.
 *
 * Every function of the runtime returns through answer(), which turns the driver's error into the runtime's (they have
 * the same numbers) and keeps it for cudaGetLastError().
 *
 * Threads: any.  Each has a current device and a last error of its own.
 */
#ifndef CUDART_DRIVER_H
#define CUDART_DRIVER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/** The version of the driver's interface that the runtime is written for. */
enum { DRIVER_VERSION = 13000, DEVICES_MAX = 64 };

/* clang-format off */
#define DRIVER_CALLS(X)                                                                            \
    X(cuInit) X(cuDriverGetVersion) X(cuDeviceGetCount) X(cuDeviceGetName) X(cuDeviceGetUuid)      \
    X(cuDeviceTotalMem) X(cuDeviceGetAttribute) X(cuDeviceGetPCIBusId)                             \
    X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) X(cuCtxSynchronize)                             \
    X(cuCtxGetStreamPriorityRange) X(cuDeviceCanAccessPeer) X(cuCtxEnablePeerAccess)               \
    X(cuMemGetInfo) X(cuMemAlloc) X(cuMemFree) X(cuMemHostAlloc) X(cuMemFreeHost)                  \
    X(cuMemHostRegister) X(cuMemHostUnregister) X(cuMemcpy) X(cuMemcpyAsync)                       \
    X(cuMemcpyPeerAsync) X(cuMemsetD8) X(cuMemsetD8Async) X(cuPointerGetAttributes)                \
    X(cuIpcGetMemHandle) X(cuIpcOpenMemHandle) X(cuIpcCloseMemHandle) X(cuIpcGetEventHandle)       \
    X(cuIpcOpenEventHandle)                                                                        \
    X(cuStreamCreateWithPriority) X(cuStreamDestroy) X(cuStreamQuery) X(cuStreamSynchronize)       \
    X(cuStreamWaitEvent) X(cuStreamGetPriority) X(cuLaunchHostFunc)                                \
    X(cuEventCreate) X(cuEventDestroy) X(cuEventRecord) X(cuEventRecordWithFlags) X(cuEventQuery) X(cuEventSynchronize)      \
    X(cuEventElapsedTime)                                                                          \
    X(cuStreamBeginCapture) X(cuStreamBeginCaptureToGraph) X(cuStreamEndCapture)                   \
    X(cuStreamIsCapturing) X(cuStreamGetCaptureInfo) X(cuStreamUpdateCaptureDependencies)          \
    X(cuThreadExchangeStreamCaptureMode)                                                           \
    X(cuGraphCreate) X(cuGraphDestroy) X(cuGraphGetNodes) X(cuGraphNodeGetDependencies)            \
    X(cuGraphAddNode) X(cuGraphConditionalHandleCreate) X(cuGraphInstantiate) X(cuGraphLaunch)     \
    X(cuGraphExecDestroy) X(cuGraphRetainUserObject) X(cuUserObjectCreate) X(cuUserObjectRelease)
/* clang-format on */

struct driver {
#define MEMBER(name) __typeof__(name) *name;
    DRIVER_CALLS(MEMBER)
#undef MEMBER
    CUresult (*get_address)(const char *, void **, int, cuuint64_t,
                            CUdriverProcAddressQueryResult *);
    int (*launch)(struct CUstream_st *, uint64_t); /* the simulator's; NULL: another driver */
};

/** The driver's functions, once begin() has returned success. */
extern struct driver driver;

/** Load the driver, the first time.  Returns: cudaErrorInitializationError without a driver. */
cudaError_t begin(void);

/** begin(), then make the context of the calling thread's device current, unless it is. */
cudaError_t enter(void);

/** The calling thread's device. */
int device_here(void);

/** Make a device the calling thread's, and its context current.  Errors: the driver's. */
cudaError_t device_set(int device);

/** The primary context of a device, retained once in the process.  Errors: the driver's. */
cudaError_t context_of(int device, CUcontext *out);

/** Keep an error for cudaGetLastError(), and return it. */
cudaError_t answer(cudaError_t error);

/** A driver's result as the runtime's error. */
static inline cudaError_t error_of(CUresult result)
{
    return (cudaError_t)result;
}

/* Functions whose signature is CUDA's ignore some of their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORT __attribute__((visibility("default")))

/* The body of a function: the driver's result after begin(), or enter(). */
#define ANSWER_AFTER(start, call)     \
    do {                              \
        cudaError_t error_ = (start); \
                                      \
        if (error_ == cudaSuccess)    \
            error_ = error_of(call);  \
        return answer(error_);        \
    } while (0)
#define ANSWER(call) ANSWER_AFTER(enter(), call)

#endif
