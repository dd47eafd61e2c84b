/* SPDX-License-Identifier: MIT */
/*
 * Registration: interfaces for network adapters and communication libraries that access device memory.
 *
 *     struct xseg_registrar registrar = {sizeof(registrar)};
 *     registrar.enter = register_run;   // Calls ibv_reg_mr() for the run and stores the memory region in run->handle.
 *     registrar.leave = deregister_run; // Calls ibv_dereg_mr() for run->handle.
 *     if (xseg_register(allocator, block, bytes, &registrar, &id) != XSEG_OK)
 *         return 1;
 *     // The callbacks run when memory of the block is unmapped or mapped.
 *     xseg_unregister(allocator, id);
 *
 * NCCL, UCX and verbs record the physical memory of an address when they register the address.  Two interfaces keep
 * such a registration valid:
 *   - xseg_dmabuf_open() returns a file descriptor of the memory (ibv_reg_dmabuf_mr()), and can pin the memory.
 *   - xseg_register() calls `enter` for each run of memory in a range of addresses, also for memory that is mapped
 *     later, and `leave` before the memory is unmapped.
 *
 * A run is a contiguous mapped part of the range of a registration.
 *
 * Network adapters access only pages that were created for GPUDirect RDMA: with the key `rdma`, or with `rdma` of
 * struct xseg_pool_options.  Classic segments are always accessible.  Libraries that need one physical page per block
 * need `single_page` of struct xseg_pool_options.
 */
#ifndef XSEG_REGISTER_H
#define XSEG_REGISTER_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Descriptors. --- */

/** Flags of xseg_dmabuf_open(). */
enum xseg_dmabuf_flags {
    XSEG_DMABUF_PIN = 1, /* pin the pages until xseg_dmabuf_close() */
    XSEG_DMABUF_PCIE = 2 /* map over PCIe: CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE */
};

/**
 * Get a dma-buf descriptor of a range of memory, for ibv_reg_dmabuf_mr() and similar functions.
 *
 * The descriptor covers whole host pages, so it also exposes memory next to the range.  It refers to the memory that is
 * mapped now: without XSEG_DMABUF_PIN a new descriptor is needed after the mapping has changed (struct xseg_mapping).
 *
 * @param address  start of the range.  The range is mapped memory of one segment, allocated or not.
 * @param bytes    size of the range, not 0.
 * @param flags    bitwise OR of enum xseg_dmabuf_flags, or 0.
 * @param fd       receives the descriptor, which is closed on exec.  Close it by xseg_dmabuf_close() if it is pinned,
 *                 otherwise by close().
 * @param offset   receives the offset of the range in the descriptor, in bytes.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  a part of the range is not mapped; the message has its address.
 *         XSEG_ERR_UNSUPPORTED    a page was created without `rdma`; or the driver has no dma-buf support, does not
 *                                 support XSEG_DMABUF_PCIE, or creates descriptors of single pages only.  In the last
 *                                 case make one call per page (`page_bytes` of xseg_for_each_mapping()).
 *         XSEG_ERR_PAUSED         the pool is paused.
 *         XSEG_ERR_BUSY           XSEG_DMABUF_PIN: another call has claimed the memory, or a page has 2^32 - 1 pins.
 *         XSEG_ERR_DRIVER         also: too many descriptors are open; see `ulimit -n`.
 *         XSEG_ERR_ARGUMENT       also: the range exceeds its segment.
 *         After an error no descriptor is open.
 * Threads: any; waits for the device memory lock.
 * Cost: one cuMemGetHandleForAddressRange.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_dmabuf_open(struct xseg_allocator *allocator,
                                                     const void *address, size_t bytes,
                                                     unsigned flags, int *fd, uint64_t *offset);

/**
 * Close a descriptor of xseg_dmabuf_open() with XSEG_DMABUF_PIN, and release its pin.
 *
 * If the program closes such a descriptor by close(), its pin stays until another pinned descriptor gets the same
 * number.
 *
 * @return XSEG_ERR_ARGUMENT  fd is not a pinned descriptor of the allocator.
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_dmabuf_close(struct xseg_allocator *allocator, int fd);

/* --- Registrations. --- */

/** A run of memory in a registered range. */
struct xseg_registered {
    size_t struct_size; /* sizeof(struct xseg_registered) of the library */
    int device;         /* CUDA ordinal */
    void *base;         /* start address of the run */
    size_t bytes;       /* size of the run */
    void *handle;       /* set by `enter` for `leave`; initially NULL */
};

/** Callbacks of a registration, both required.  See xseg_register(). */
struct xseg_registrar {
    size_t struct_size; /* sizeof(struct xseg_registrar) */
    void *context;      /* first argument of each callback */
    /* Registers a run.  Returns false if the run is not registered. */
    bool (*enter)(void *context, struct xseg_registered *run);
    /* Deregisters a run for which `enter` returned true. */
    void (*leave)(void *context, const struct xseg_registered *run);
    bool pin; /* pin registered memory until xseg_unregister() */
};

/**
 * Register a range of addresses.
 *
 * `enter` is called during this call for each run of mapped memory.  Later it is called for memory that is mapped or
 * resumed in the range, before this memory serves a request.  `leave` is called before a part of a run is unmapped,
 * when no work is queued on that part; `enter` is then called for each remaining part of the run.
 *
 * Callbacks run without a lock, in the thread whose call is the cause, or in the background thread.  At most one
 * callback runs at a time for one run; several threads can run callbacks for different runs.  A callback never waits
 * for another callback.  While a callback runs for a run, other threads keep the memory of the run mapped.  A
 * callback may call the library; calls that name claimed memory return XSEG_ERR_BUSY.
 *
 * Ranges can overlap and can be registered repeatedly; each registration has its own ID and callbacks.  A registration
 * keeps the addresses of an expandable segment reserved; it keeps memory mapped only with `pin`.  When a classic
 * segment is released, its registrations stay without memory.  xseg_close() returns XSEG_ERR_BUSY while a registration
 * exists.
 *
 * @param address    start of the range.  The range is a part of one segment and has some mapped memory.
 * @param bytes      size of the range, not 0.
 * @param registrar  callbacks, copied.
 * @param id         receives the ID for xseg_unregister(), not 0.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  the range has no memory.
 *         XSEG_ERR_PAUSED         the pool is paused; register after it is resumed.
 *         XSEG_ERR_UNSUPPORTED    `enter` returned false; `leave` was called for the other runs.
 *         XSEG_ERR_BUSY           another call has claimed memory of the range, or a page has 2^32 - 1 pins; retry.
 *         XSEG_ERR_ARGUMENT       also: the range exceeds its segment.
 *         An error leaves nothing registered.
 * Threads: any; waits for the device memory lock.  No memory of the range is unmapped during the call.
 * Cost: no driver call; O(log n) in the number of registrations.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_register(struct xseg_allocator *allocator,
                                                  const void *address, size_t bytes,
                                                  const struct xseg_registrar *registrar,
                                                  uint64_t *id);

/**
 * End a registration.
 *
 * The call runs `leave` for all registered runs.  No callback of the registration runs after the return.
 *
 * @return XSEG_ERR_ARGUMENT  no registration has this ID.
 *         XSEG_ERR_BUSY      the calling thread runs a callback of this registration, or it runs another callback while
 *                            a thread runs a callback of this registration.  Also: xseg_register() has not returned
 *                            yet.
 * Threads: any; waits for the device memory lock, and for callbacks of the registration in other threads.
 * Cost: no driver call; O(log n) in the number of registrations.
 */
XSEG_API xseg_status xseg_unregister(struct xseg_allocator *allocator, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
