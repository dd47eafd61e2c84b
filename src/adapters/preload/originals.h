/* SPDX-License-Identifier: MIT */
/* The functions of the CUDA runtime and driver that libxseg-preload.so stands before, and those that it needs itself. */
#ifndef XSEG_ADAPTERS_PRELOAD_ORIGINALS_H
#define XSEG_ADAPTERS_PRELOAD_ORIGINALS_H

#include "xseg/allocator.h"

/* Each is NULL where the runtime has no such function. */
struct runtime {
    int (*malloc)(void **out, size_t bytes);
    int (*malloc_async)(void **out, size_t bytes, xseg_stream stream);
    int (*free)(void *ptr);
    int (*free_async)(void *ptr, xseg_stream stream);
    int (*mem_get_info)(size_t *free_bytes, size_t *total);
    int (*get_device)(int *device);
    int (*synchronize)(void);
    int (*stream_create)(xseg_stream *out, unsigned flags);
    int (*stream_destroy)(xseg_stream stream);
    int (*stream_is_capturing)(xseg_stream stream, int *status);
};

struct driver {
    int (*mem_alloc)(unsigned long long *out, size_t bytes);
    int (*mem_free)(unsigned long long address);
    int (*mem_get_info)(size_t *free_bytes, size_t *total);
    int (*get_current)(void **out);
    int (*get_device)(int *device);
    int (*synchronize)(void);
    int (*primary_retain)(void **out, int device);
    int (*primary_release)(int device);
    int (*stream_create)(xseg_stream *out, unsigned flags);
    int (*stream_destroy)(xseg_stream stream);
};

/*
 * Find them behind this library in the order of loading; else in a runtime or driver that was opened for a part of the
 * process only, such as by a module of Python.  NULL: there is none so far.
 */
const struct runtime *runtime_found(void);
const struct driver *driver_found(void);

#endif
