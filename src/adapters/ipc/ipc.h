/* SPDX-License-Identifier: MIT */
/*
 * libxseg-ipc.so serves CUDA's legacy IPC for expandable memory.
 *
 * cudaIpcGetMemHandle() fails for memory that was mapped by cuMemMap(), so engines that share buffers by it (custom
 * all-reduce, weight transfer) do not work with expandable segments.  This library defines the functions
 *
 *     cudaIpcGetMemHandle, cudaIpcOpenMemHandle, cudaIpcCloseMemHandle
 *     cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle
 *
 * and the dynamic linker finds them before those of the runtime and of the driver, if the library is in LD_PRELOAD or
 * was loaded with RTLD_GLOBAL before them.  For memory of the attached allocator, the 64 bytes of a handle are the
 * token of xseg_export_segment().  Everything else is passed to the original functions.
 *
 *   get    A base address stands for all memory that is mapped in its segment, as engines expect of the base of an
 *          allocation.  The pages are retained until their pool is released or paused, or the exporter exits.
 *   open   Maps the whole segment at contiguous addresses, and returns the address that corresponds to the address of
 *          the get.  A second open of the same pages returns the same memory and counts, as in CUDA.
 *   close  Synchronizes the device; the last close unmaps the memory.
 *
 * Not interposed: a CUDA runtime that is linked statically, and functions that a program looks up in the runtime
 * library itself (dlsym() with a handle, Python's ctypes, cuGetProcAddress()).
 *
 * The library does not link libxseg: whoever opens an allocator passes the functions of its library.
 *
 * Locking: a read-write lock; a detach waits for calls in progress.  Threads: any.
 */
#ifndef XSEG_ADAPTERS_IPC_H
#define XSEG_ADAPTERS_IPC_H

#include "xseg/allocator.h"
#include "xseg/share.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Functions of libxseg.so, by their names without the prefix. */
struct xseg_ipc_functions {
    size_t struct_size; /* sizeof(struct xseg_ipc_functions) */
    xseg_status (*block_query)(struct xseg_allocator *allocator, const void *ptr,
                               struct xseg_block_info *out);
    xseg_status (*export_segment)(struct xseg_allocator *allocator, const void *address,
                                  struct xseg_export_token *token);
    xseg_status (*import)(struct xseg_allocator *allocator, int device,
                          const struct xseg_export_token *token, void **base);
    xseg_status (*import_close)(struct xseg_allocator *allocator, void *base);
    size_t (*error_message)(char *text, size_t capacity);
};

/**
 * Serve the IPC of an allocator, which stays open until xseg_ipc_detach().
 *
 * @return false if another allocator is attached, or the functions are of another version of this library.
 */
__attribute__((visibility("default"))) bool
xseg_ipc_attach(struct xseg_allocator *allocator, const struct xseg_ipc_functions *functions);

/** Stop serving the IPC of the attached allocator. */
__attribute__((visibility("default"))) void xseg_ipc_detach(void);

#ifdef __cplusplus
}
#endif

#endif
