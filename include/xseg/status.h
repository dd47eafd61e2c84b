/* SPDX-License-Identifier: MIT */
/*
 * Every status that the library can return: name, number, sentence.
 *
 * The numbers are part of the binary interface.  Add at the end; never reuse or renumber.
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

#define XSEG_STATUS_MAP(X)                                                                       \
    X(OK, 0, "success")                                                                          \
    X(ERR_ARGUMENT, -1, "an argument is outside what the function accepts")                      \
    X(ERR_CONFIG, -2, "the configuration string has an error")                                   \
    X(ERR_NO_MEMORY, -3, "the device has no memory left for the request")                        \
    X(ERR_NO_ADDRESSES, -4, "no device addresses are left to reserve")                           \
    X(ERR_LIMIT, -5, "a limit leaves no room: the fraction, the hard limit, or the pool's")      \
    X(ERR_HOST_MEMORY, -6, "no host memory is left for bookkeeping")                             \
    X(ERR_NO_DRIVER, -7, "the CUDA driver is missing, too old, or shows no device")              \
    X(ERR_DRIVER, -8, "a driver call failed")                                                    \
    X(ERR_NOT_LIVE, -9, "the pointer is not a live block of this allocator")                     \
    X(ERR_BUSY, -10, "live blocks or unfinished work stand in the way")                          \
    X(ERR_UNSUPPORTED, -11, "this device or this build cannot do that")                          \
    X(ERR_FORKED, -12, "the allocator belongs to the parent process")                            \
    X(ERR_DEVICE_LOST, -13, "the device or its context is gone; only the host side still works") \
    X(ERR_PAUSED, -14, "the pool is paused: resume it first")                                    \
    X(ERR_FILE, -15, "a file could not be made, written or read")

enum xseg_status {
#define XSEG_STATUS_ENUM_(name, number, text) XSEG_##name = (number),
    XSEG_STATUS_MAP(XSEG_STATUS_ENUM_)
#undef XSEG_STATUS_ENUM_
};

typedef enum xseg_status xseg_status;

/**
 * The sentence that belongs to a status.
 *
 * Returns: a string that lives as long as the library; "unknown status" for other numbers.
 * Threads: any.
 * Cost:    no driver call, no lock.
 */
XSEG_API const char *xseg_status_text(xseg_status status);

/**
 * What went wrong in the calling thread's last xseg call that failed: the value that was refused,
 * the driver call and its result, the sizes, and what to do.
 *
 * @param text   where the sentence goes, cut to fit and always terminated; NULL when bytes is 0
 * @param bytes  size of text
 *
 * Returns: the length of the whole sentence in bytes without its terminator; 0 if no call of this
 *          thread has failed yet.
 * Threads: any; each thread has its own text.
 * Cost:    no driver call, no lock.
 */
XSEG_API size_t xseg_error_text(char *text, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
