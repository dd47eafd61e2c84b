/* SPDX-License-Identifier: MIT */
/* Names and messages of the errors that the simulated driver and this runtime return. */
#include <stddef.h>

#include "tests/support/cudart/driver.h"

#define ERRORS(X)                                                                               \
    X(cudaSuccess, "no error")                                                                  \
    X(cudaErrorInvalidValue, "invalid argument")                                                \
    X(cudaErrorMemoryAllocation, "out of memory")                                               \
    X(cudaErrorInitializationError, "initialization error")                                     \
    X(cudaErrorCudartUnloading, "driver shutting down")                                         \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                          \
    X(cudaErrorInvalidSymbol, "invalid device symbol")                                          \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                \
    X(cudaErrorNoDevice, "no device was found")                                                 \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                         \
    X(cudaErrorDeviceUninitialized, "no context is current")                                    \
    X(cudaErrorPeerAccessUnsupported, "devices cannot access each other")                       \
    X(cudaErrorOperatingSystem, "a call of the operating system failed")                        \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                \
    X(cudaErrorIllegalState, "the operation is not permitted in this state")                    \
    X(cudaErrorSymbolNotFound, "named symbol not found")                                        \
    X(cudaErrorNotReady, "the work has not completed")                                          \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                      \
    X(cudaErrorPeerAccessAlreadyEnabled, "peer access is enabled already")                      \
    X(cudaErrorPeerAccessNotEnabled, "peer access is not enabled")                              \
    X(cudaErrorContextIsDestroyed, "the context was destroyed")                                 \
    X(cudaErrorTooManyPeers, "the device has the maximum number of peers")                      \
    X(cudaErrorHostMemoryAlreadyRegistered, "the host memory is registered already")            \
    X(cudaErrorHostMemoryNotRegistered, "the host memory is not registered")                    \
    X(cudaErrorLaunchFailure, "unspecified launch failure")                                     \
    X(cudaErrorNotPermitted, "operation not permitted")                                         \
    X(cudaErrorNotSupported, "operation not supported")                                         \
    X(cudaErrorStreamCaptureUnsupported, "operation not permitted when stream is capturing")    \
    X(cudaErrorStreamCaptureInvalidated, "an error has invalidated the capture of the stream")  \
    X(cudaErrorStreamCaptureMerge, "two captures cannot be merged")                             \
    X(cudaErrorStreamCaptureUnmatched, "the capture was begun on another stream")               \
    X(cudaErrorStreamCaptureUnjoined, "the capture was not joined to its origin")               \
    X(cudaErrorStreamCaptureIsolation, "a captured stream depends on work outside the capture") \
    X(cudaErrorStreamCaptureImplicit, "the default stream depends on a captured stream")        \
    X(cudaErrorCapturedEvent, "the event was recorded in a capture")                            \
    X(cudaErrorStreamCaptureWrongThread, "the capture was begun by another thread")             \
    X(cudaErrorUnknown, "unknown error")

EXPORT const char *cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define NAME(id, text) \
    case id:           \
        return #id;
        ERRORS(NAME)
#undef NAME
    default:
        return "unrecognized error code";
    }
}

EXPORT const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define TEXT(id, text) \
    case id:           \
        return text;
        ERRORS(TEXT)
#undef TEXT
    default:
        return "unrecognized error code";
    }
}
