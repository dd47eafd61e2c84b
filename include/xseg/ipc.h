/* SPDX-License-Identifier: MIT */
/*
 * Legacy IPC of expandable memory: functions of libxseg-ipc.so.
 *
 *     static const struct xseg_ipc_functions functions = {
 *         sizeof(functions), xseg_block_query,  xseg_export_segment,
 *         xseg_import,       xseg_import_close, xseg_error_message};
 *     if (!xseg_ipc_attach(allocator, &functions))
 *         return 1;
 *     cudaIpcGetMemHandle(&handle, block); // Served by xseg.
 *     xseg_ipc_detach();
 *     xseg_close(allocator);
 *
 * The driver rejects cudaIpcGetMemHandle() for memory that was mapped by cuMemMap(), so programs that share buffers by
 * it (custom all-reduce, weight transfer) fail with expandable segments.  libxseg-ipc.so defines these functions:
 *
 *     cudaIpcGetMemHandle, cudaIpcOpenMemHandle, cudaIpcCloseMemHandle
 *     cuIpcGetMemHandle, cuIpcOpenMemHandle, cuIpcCloseMemHandle
 *
 * The dynamic linker finds them before those of the runtime and of the driver, if the library is in LD_PRELOAD, or was
 * loaded with RTLD_GLOBAL before the library that calls them.  They serve expandable memory of the attached allocator
 * and pass everything else to the original functions.
 *
 *   get    The 64 bytes of the handle are the token of xseg_export_segment(): the base address of a segment, which is
 *          what CU_POINTER_ATTRIBUTE_RANGE_START_ADDR returns, stands for all memory that is mapped in the segment.  The
 *          pages are retained until their pool is released or paused, or the allocator is closed.
 *   open   Maps the whole segment at contiguous addresses for the current device, which may be another one than that of
 *          the memory, as xseg_import(), and returns the address that corresponds to the address of the get.  A second
 *          open returns the same memory and counts.
 *   close  Synchronizes the device of the open, which need not be current; the last close unmaps the memory.
 *
 * After an error the functions return a code of CUDA and write a line to standard error:
 *
 *     cudaErrorNotSupported              the memory is not exportable
 *     cudaErrorInvalidResourceHandle     the handle is malformed or of another version, or no allocator is attached
 *     cudaErrorMapBufferObjectFailed     the pool is paused, or the exporter has ended or has closed the memory
 *     cudaErrorMemoryAllocation          no memory or addresses are left
 *     cudaErrorStreamCaptureUnsupported  a capture is active
 *
 * Not served: calls to a CUDA runtime that is linked statically, and functions that a program looks up in the runtime
 * library itself (dlsym() with a handle, Python's ctypes, cuGetProcAddress()).
 */
#ifndef XSEG_IPC_H
#define XSEG_IPC_H

#include "xseg/allocator.h"
#include "xseg/share.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The functions of libxseg.so that the library calls, since it does not link libxseg.so: with LD_PRELOAD it is also in
 * processes that do not use xseg.
 */
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
 * @param functions  functions of the library of the allocator, copied.
 *
 * @return false  another allocator is attached, or the functions are of another version of this library.
 * Threads: any; waits for calls in progress.
 */
XSEG_API bool xseg_ipc_attach(struct xseg_allocator *allocator,
                              const struct xseg_ipc_functions *functions);

/**
 * Stop serving the IPC of the attached allocator.  Close all opened handles first.
 *
 * Threads: any; waits for calls in progress.
 */
XSEG_API void xseg_ipc_detach(void);

#ifdef __cplusplus
}
#endif

#endif
