/* SPDX-License-Identifier: MIT */
/* The functions of the CUDA runtime and driver that libxseg-preload.so interposes, and those that it calls itself. */
#ifndef XSEG_ADAPTERS_PRELOAD_ORIGINALS_H
#define XSEG_ADAPTERS_PRELOAD_ORIGINALS_H

#include "xseg/allocator.h"

/* Functions of the runtime and of the driver.  A member is NULL if the library has no such function. */
struct runtime {
    int (*malloc)(void **out, size_t bytes);
    int (*malloc_async)(void **out, size_t bytes, xseg_stream stream);
    int (*malloc_async_ptsz)(void **out, size_t bytes, xseg_stream stream);
    int (*free)(void *ptr);
    int (*free_async)(void *ptr, xseg_stream stream);
    int (*free_async_ptsz)(void *ptr, xseg_stream stream);
    int (*mem_get_info)(size_t *free_bytes, size_t *total);
    int (*get_device)(int *device);
    int (*set_device)(int device);
    int (*synchronize)(void);
    int (*device_reset)(void);
    int (*thread_exit)(void);
    int (*stream_destroy)(xseg_stream stream);
    int (*entry_point)(const char *symbol, void **function, unsigned long long flags, int *status);
    int (*entry_point_ptsz)(const char *symbol, void **function, unsigned long long flags,
                            int *status);
    int (*entry_point_by_version)(const char *symbol, void **function, unsigned version,
                                  unsigned long long flags, int *status);
    int (*entry_point_by_version_ptsz)(const char *symbol, void **function, unsigned version,
                                       unsigned long long flags, int *status);
};

struct driver {
    int (*mem_alloc)(unsigned long long *out, size_t bytes);
    int (*mem_alloc_async)(unsigned long long *out, size_t bytes, xseg_stream stream);
    int (*mem_alloc_async_ptsz)(unsigned long long *out, size_t bytes, xseg_stream stream);
    int (*mem_free)(unsigned long long address);
    int (*mem_free_async)(unsigned long long address, xseg_stream stream);
    int (*mem_free_async_ptsz)(unsigned long long address, xseg_stream stream);
    int (*mem_get_info)(size_t *free_bytes, size_t *total);
    int (*get_current)(void **out);
    int (*set_current)(void *context);
    int (*push_current)(void *context);
    int (*pop_current)(void **out);
    int (*get_device)(int *device);
    int (*get_id)(void *context, unsigned long long *id);
    int (*synchronize)(void);
    int (*primary_retain)(void **out, int device);
    int (*primary_release)(int device);
    int (*primary_state)(int device, unsigned *flags, int *is_active);
    int (*primary_reset)(int device);
    int (*primary_reset_v2)(int device);
    int (*stream_create)(xseg_stream *out, unsigned flags);
    int (*stream_destroy)(xseg_stream stream);
    int (*stream_synchronize)(xseg_stream stream);
    int (*stream_is_capturing)(xseg_stream stream, int *status);
    int (*exchange_mode)(int *mode);
    int (*stream_get_context)(xseg_stream stream, void **out);
    int (*proc_address)(const char *symbol, void **function, int version, unsigned long long flags);
    int (*proc_address_v2)(const char *symbol, void **function, int version,
                           unsigned long long flags, int *status);
};

/*
 * Get the functions.  They are looked up after this library in the load order, then in a loaded runtime or driver that is
 * not in the global scope (RTLD_LOCAL), such as that of a Python module.  Returns NULL while no such library is loaded.
 *
 * Lock-free, because in a forked child another thread of the parent may have held a lock at the fork.
 */
const struct runtime *get_runtime(void);
const struct driver *get_driver(void);

#endif
