/* SPDX-License-Identifier: MIT */
/*
 * Status codes and error messages.
 *
 *     char message[1024];
 *     if (xseg_free(allocator, block) != XSEG_OK) {
 *         xseg_error_message(message, sizeof(message));
 *         fprintf(stderr, "%s\n", message); // Prints the failed operation, the value, and a remedy.
 *     }
 *
 * The numbers are part of the binary interface: add new statuses at the end, and never reuse or renumber one.
 */
#ifndef XSEG_STATUS_H
#define XSEG_STATUS_H

#include <stddef.h>

#if defined(__GNUC__)
#define XSEG_API       __attribute__((visibility("default")))
#define XSEG_NODISCARD __attribute__((warn_unused_result))
#else
#define XSEG_API
#define XSEG_NODISCARD
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define XSEG_STATUS_MAP(X)                                                                  \
    X(OK, 0, "success")                                                                     \
    X(ERR_ARGUMENT, -1, "invalid argument")                                                 \
    X(ERR_CONFIG, -2, "invalid configuration string")                                       \
    X(ERR_NO_MEMORY, -3, "out of device memory")                                            \
    X(ERR_NO_ADDRESSES, -4, "out of device virtual addresses")                              \
    X(ERR_LIMIT, -5, "a memory limit rejects the request")                                  \
    X(ERR_HOST_MEMORY, -6, "out of host memory")                                            \
    X(ERR_NO_DRIVER, -7, "the CUDA driver is missing, is too old, or has no device")        \
    X(ERR_DRIVER, -8, "a driver call failed")                                               \
    X(ERR_NOT_ALLOCATED, -9, "the address is not allocated memory of this allocator")       \
    X(ERR_BUSY, -10, "the memory or the pool is in use")                                    \
    X(ERR_UNSUPPORTED, -11, "not supported by this device or build")                        \
    X(ERR_FORKED, -12, "the allocator belongs to the parent process")                       \
    X(ERR_DEVICE_LOST, -13, "the device or its context is lost; only host-side calls work") \
    X(ERR_PAUSED, -14, "the pool is paused")                                                \
    X(ERR_FILE, -15, "a file or socket operation failed")

enum xseg_status {
#define XSEG_STATUS_ENUM_(name, number, text) XSEG_##name = (number),
    XSEG_STATUS_MAP(XSEG_STATUS_ENUM_)
#undef XSEG_STATUS_ENUM_
};

typedef enum xseg_status xseg_status;

/**
 * Get the description of a status.
 *
 * @return a static string; "unknown status" for a number that is not a status.
 * Cost: no driver call, no lock.
 */
XSEG_API const char *xseg_status_name(xseg_status status);

/**
 * Get the error message of the calling thread's last failed call.
 *
 * Each thread has its own message, which a successful call does not clear.  The form of a message is
 * `<operation>: <what failed>, <value>; <what to do>`, and the operation is the function that failed.
 *
 * @param text   receives the message, truncated to fit and terminated; may be NULL if bytes is 0.
 * @param bytes  size of text.
 *
 * @return the length of the whole message in bytes, without the terminator; 0 if no call of this thread has failed.
 * Cost: no driver call, no lock.
 */
XSEG_API size_t xseg_error_message(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
