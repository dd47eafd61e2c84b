/* SPDX-License-Identifier: MIT */
/*
 * A CUDA runtime for tests on top of a driver.  This part loads the driver's functions.
 *
 * The driver is the libcuda.so.1 that the dynamic loader finds; in tests, this is the simulator.  A function that the
 * driver lacks returns CUDA_ERROR_NOT_SUPPORTED.
 *
 * Every function of the runtime returns through record_error(), which records the error for cudaGetLastError().  Errors of
 * the driver and of the runtime have the same values.
 *
 * Threads: any.  Each thread has a current device and a last error.
 */
#ifndef CUDART_DRIVER_H
#define CUDART_DRIVER_H

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/** The version of the driver interface that the runtime uses. */
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
    int (*launch)(struct CUstream_st *, uint64_t); /* of the simulator; NULL for another driver */
};

/** The functions of the driver, valid after load_driver() has succeeded. */
extern struct driver driver;

/** Load the driver, unless it is loaded.  Returns cudaErrorInitializationError without a driver. */
cudaError_t load_driver(void);

/** Load the driver, and make the context of the calling thread's device current, unless it is. */
cudaError_t enter_context(void);

/** The current device of the calling thread. */
int current_device(void);

/** Set the current device of the calling thread, and make its context current.  Returns errors of the driver. */
cudaError_t set_device(int device);

/** The primary context of a device, retained once per process.  Returns errors of the driver. */
cudaError_t primary_context(int device, CUcontext *out);

/** Record an error for cudaGetLastError(), and return it. */
cudaError_t record_error(cudaError_t error);

/** Convert a result of the driver to an error of the runtime. */
static inline cudaError_t to_error(CUresult result)
{
    return (cudaError_t)result;
}

/* Functions whose signature is CUDA's ignore some of their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

#define EXPORT __attribute__((visibility("default")))

/* The body of a function that returns the result of a driver call, after load_driver() or enter_context(). */
#define RETURN_AFTER(start, call)     \
    do {                              \
        cudaError_t error_ = (start); \
                                      \
        if (error_ == cudaSuccess)    \
            error_ = to_error(call);  \
        return record_error(error_);  \
    } while (0)
#define RETURN_CALL(call) RETURN_AFTER(enter_context(), call)

#endif
