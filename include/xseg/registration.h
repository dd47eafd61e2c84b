/* SPDX-License-Identifier: MIT */
/*
 * Registration: memory that network cards, other libraries and other devices register.
 *
 * Who registers memory remembers what lies beneath its addresses at that time: NCCL its buffers, UCX and verbs their
 * memory regions.  There are two ways to serve it:
 *   - xseg_dmabuf() names the memory by a file descriptor.  A driver of the system takes it (ibv_reg_dmabuf_mr).
 *   - xseg_register() calls a function for each run of memory beneath a range of addresses, whenever memory comes there.
 *     It calls another function before the memory goes, so that what was registered is never stale.
 *
 * Network cards reach only pages that were made for that: `rdma` of the configuration, or of struct xseg_pool_options.
 * Classic segments are reached always.  What asks the driver for one piece of memory wants `single_page`.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_REGISTRATION_H
#define XSEG_REGISTRATION_H

#include "xseg/mapping.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- Descriptors. --- */

/** What a descriptor is to be; 0 or several of these together. */
enum xseg_dmabuf_flags {
    XSEG_DMABUF_PIN = 1, /* the pages are pinned until xseg_dmabuf_close() */
    XSEG_DMABUF_PCIE = 2 /* mapped over PCIe, as CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE */
};

/**
 * Get a descriptor for a range of memory: what ibv_reg_dmabuf_mr() and its like take, together with the offset.
 *
 * The range may be any bytes of one segment that have memory, live or not.  The descriptor covers whole pages of the
 * host, so it shows what lies beside the range in them, too.  It stands for the memory that lies there now: without
 * XSEG_DMABUF_PIN another one is needed when that has changed (mapping.h).
 *
 * @param flags   of enum xseg_dmabuf_flags
 * @param fd      the caller's to close; with XSEG_DMABUF_PIN by xseg_dmabuf_close().  It is closed on exec
 * @param offset  of the range, from the descriptor's first byte on
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE     the range has no memory at some place, which the text names
 *          XSEG_ERR_UNSUPPORTED  a page was made without `rdma`, which the text names; or the driver does not support
 *                                such descriptors
 *          XSEG_ERR_PAUSED       the pool is paused: there is no memory
 *          XSEG_ERR_ARGUMENT     NULL, 0 bytes, or the range ends outside its segment
 *          XSEG_ERR_BUSY         with XSEG_DMABUF_PIN: another call maps or unmaps memory of the range; or the range is
 *                                pinned 2^32 - 1 times already
 *          XSEG_ERR_DRIVER (see `ulimit -n`), XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error nothing has changed, and no descriptor is left open.
 * Threads: any; waits for growths and trims of the device
 * Cost:    one cuMemGetHandleForAddressRange
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_dmabuf(struct xseg_allocator *allocator,
                                                const void *address, size_t bytes, unsigned flags,
                                                int *fd, uint64_t *offset);

/**
 * Close a descriptor of xseg_dmabuf() and release its pin.  If a descriptor was closed by close(), its pin is
 * released when its number is that of another pinned descriptor.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (no descriptor of this allocator that pins), XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_dmabuf_close(struct xseg_allocator *allocator, int fd);

/* --- Registrations. --- */

/** A run of memory beneath a registered range. */
struct xseg_registered {
    size_t struct_bytes; /* sizeof(struct xseg_registered), as the library knows it */
    int device;
    void *base; /* the bytes of the run that lie in the range */
    size_t bytes;
    void *handle; /* NULL; `enter` may set it, and `leave` finds it */
};

/** How to register.  Start from XSEG_REGISTRAR_INIT. */
struct xseg_registrar {
    size_t struct_bytes; /* sizeof(struct xseg_registrar) */
    void *context;       /* first argument of each */
    /* There is memory: register it.  Called for each run of it once: by xseg_register() for what is there, later
     * whenever memory came (a growth, a resume), before anybody is given any of it.  False: it was not registered, so
     * `leave` is not called for it. */
    bool (*enter)(void *context, struct xseg_registered *run);
    /* The memory of a run, or a part of it, is about to go; no work is queued on that.  Deregister the run.  What of it
     * stays enters again, as runs of their own. */
    void (*leave)(void *context, const struct xseg_registered *run);
    bool pin; /* memory that has entered stays, as by xseg_pin(), until xseg_unregister() */
};
/* clang-format off */
#define XSEG_REGISTRAR_INIT {sizeof(struct xseg_registrar), NULL, NULL, NULL, false}
/* clang-format on */

/**
 * Register a range of addresses: from now on `enter` and `leave` follow its memory.
 *
 * Neither is called with a lock of the library held, and no callback waits for another one.  They may call the library; a
 * call that names memory which is being mapped or unmapped is XSEG_ERR_BUSY.  Both are called in the thread whose call
 * caused it, at most once at a time for a run; several threads may be in the functions of a registration for different
 * runs.  Memory of a run for which a function is called at that moment is not unmapped by other threads, which try later.
 *
 * Ranges may overlap, and may be registered several times: each registration has its own ID and calls.  A registration
 * holds the addresses of its range, also when no memory is left there, but no memory unless it pins.  The addresses of a
 * classic segment go with its memory; the registration has none from then on.
 *
 * @param address    the range: bytes of one segment, in which some memory lies
 * @param registrar  copied
 * @param id         for xseg_unregister(); not 0
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NOT_LIVE     no memory lies in the range
 *          XSEG_ERR_PAUSED       the pool is paused: register when it was resumed
 *          XSEG_ERR_UNSUPPORTED  `enter` refused a run; what had entered has left
 *          XSEG_ERR_ARGUMENT     NULL, 0 bytes, or the range ends outside its segment, where other pools are
 *          XSEG_ERR_BUSY         another call maps or unmaps memory of the range: try again; also pinned 2^32 - 1
 *                                times already
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 *          On an error nothing is registered.
 * Threads: any; waits for growths and trims of the device.  Until `enter` has been called for all runs, no memory of the
 *          range is unmapped
 * Cost:    no driver call; O(log n) in the number of other registrations
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_register(struct xseg_allocator *allocator,
                                                  const void *address, size_t bytes,
                                                  const struct xseg_registrar *registrar,
                                                  uint64_t *id);

/**
 * End a registration: `leave` is called for what is there.  After the return none of its functions runs or is called.
 *
 * xseg_close() is XSEG_ERR_BUSY as long as there is a registration.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (there is no such registration), XSEG_ERR_BUSY (called from within one of its
 *          functions, or from within another callback while a thread is in one of its functions, or before
 *          xseg_register() has returned), XSEG_ERR_FORKED
 * Threads: any; waits until other threads have left the registration's functions
 * Cost:    no driver call; O(log n) in the number of other registrations
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_unregister(struct xseg_allocator *allocator, uint64_t id);

#ifdef __cplusplus
}
#endif

#endif
