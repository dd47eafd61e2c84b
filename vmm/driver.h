/* SPDX-License-Identifier: MIT */
/*
 * The seam: the CUDA driver's binary interface, opened by name at run time.
 *
 * There is one function per entry point, without state, policy or retry; only xseg_driver_poll_event(), a question
 * about an event, also changes the thread's capture mode and back.  Each function counts its call, turns the
 * driver's result into a status, and after a failure leaves an error text with the call and the result.  Entry
 * points are resolved through cuGetProcAddress, each with the version whose signature is used here; the oldest
 * driver that has all of them is that of CUDA 12.0.
 *
 * Terms:
 *   context   a device in use: its ordinal, its retained primary context, its abilities
 *   address   a device address, in bytes
 *   handle    physical memory, as cuMemCreate names it
 *
 * Calls that need the device's context to be current (allocation, streams, events), or that may look at it
 * (unmapping), push it and pop it again.  So the calling thread may have any context current, or none.
 *
 * Threads: any.
 */
#ifndef XSEG_VMM_DRIVER_H
#define XSEG_VMM_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/allocator.h"
#include "xseg/stats.h"

struct xseg_driver;
struct xseg_driver_poll_counts;

typedef struct CUgraphNode_st *xseg_node;

/* The capture that a stream takes part in. */
struct xseg_capture_info {
    uint64_t id;     /* of the capture, never used for another one; 0: in no capture */
    bool is_invalid; /* a forbidden call has spoiled the capture; its id is not known */
    const xseg_node
        *nodes; /* on which the stream's next node will depend; valid until the next call */
    size_t count;
};

/* What memory is made for.  It is fixed when the memory is created, so it is a property of the page (CUDA's allocation
 * properties); zero or more of these together. */
enum xseg_page_property {
    XSEG_PAGE_EXPORTABLE = 1, /* xseg_driver_export() takes it */
    XSEG_PAGE_RDMA = 2 /* other devices, such as network cards, may reach it (GPUDirect RDMA) */
};

/* How many other devices may use the mapped memory of one. */
#define XSEG_PEERS_MAX 63u

/* A device in use.  Filled by xseg_context_open() (context.h). */
struct xseg_context {
    struct xseg_driver *driver;
    struct xseg_driver_poll_counts *poll_counts; /* event polls of this device */
    int ordinal;                                 /* as the user counts devices */
    int device;                                  /* CUdevice */
    void *primary;                               /* CUcontext, retained; NULL: let go */
    uint64_t total_bytes;                        /* memory of the device */
    uint64_t granularity; /* of physical memory and mappings, bytes; 0 without VMM */
    bool has_vmm;         /* virtual memory management works here */
    bool batches_access;  /* one set-access may cover several mappings */
    bool batches_unmap;   /* one unmap may cover several mappings */
    bool has_fabric; /* exportable memory is made with fabric handles as well; found by a trial */
    bool has_rdma;   /* pages can be made for XSEG_PAGE_RDMA; found by a trial */
    /* The error after which nothing on this device works, by the driver's name; NULL: none. */
    _Atomic(const char *) lost;
    _Atomic(const char *) last_oom_call; /* the call that last found no memory; NULL: none */
    atomic_uint
        page_failures; /* calls that reserve, create, map or give access and failed otherwise */
    /* [peers], as CUdevice: the devices that may use the mapped memory of this one.  The owner of the context guards
     * them with the lock under which it maps. */
    int peer[XSEG_PEERS_MAX];
    unsigned peers;
    /* The slow-path flags: a call looks at them before it takes a short way without the driver.  They hold the loss
     * of the device, and the number of pending uses and blocks, which the layer above counts here (pending.h). */
    atomic_uint_fast64_t slow_path;
};

/* The bit of slow_path that says that the device is lost; the bits below hold the number. */
#define XSEG_CONTEXT_LOSS (UINT64_C(1) << 63)

/*
 * Whether the device is lost.  After an error such as an illegal address every call fails until the process
 * ends; after a reset of the context, or the driver's shutdown at exit, all memory of the context is gone.
 * The functions below note the loss, and return XSEG_ERR_DEVICE_LOST.
 */
static inline bool xseg_context_is_lost(const struct xseg_context *context)
{
    return __builtin_expect(atomic_load_explicit(&context->lost, memory_order_relaxed) != NULL, 0);
}

/* Note that the device is lost, and why; the first reason stays. */
void xseg_driver_mark_lost(struct xseg_context *context, const char *why);

/* Fail because the device is lost: writes the error text, and returns XSEG_ERR_DEVICE_LOST. */
xseg_status xseg_driver_fail_lost(const struct xseg_context *context);

/*
 * Load a driver and resolve its entry points.
 *
 * library: as for dlopen(); NULL is XSEG_DRIVER, else libcuda.so.1.
 * Returns: XSEG_OK; XSEG_ERR_NO_DRIVER naming what is missing; XSEG_ERR_DRIVER; XSEG_ERR_HOST_MEMORY
 * Cost:    cuInit, cuDriverGetVersion, cuDeviceGetCount
 */
xseg_status xseg_driver_open(const char *library, struct xseg_driver **out);
void xseg_driver_close(struct xseg_driver *driver);

/* No driver has more entry points. */
#define XSEG_DRIVER_CALLS_MAX 64u

/* How many devices the driver shows. */
int xseg_driver_device_count(const struct xseg_driver *driver);

/* Read the counts of calls, by name; returns how many entry points there are. */
size_t xseg_driver_call_counts(const struct xseg_driver *driver, struct xseg_driver_call *calls,
                               size_t capacity);

/*
 * How long the calls of an entry point took in all, by the system's clock; failed calls count.
 *
 * entry: as in the counts of calls
 * Returns: false if they are not timed, since a call takes hardly longer than reading the clock
 */
bool xseg_driver_call_time(const struct xseg_driver *driver, size_t entry, uint64_t *nanoseconds);

/* --- Devices.  Each function fills the members of a context that stand beside it. --- */

xseg_status xseg_driver_retain(struct xseg_context *context); /* device, primary */
xseg_status
xseg_driver_describe(struct xseg_context *context); /* total_bytes, has_vmm, granularity */
/* Release the primary context; nothing happens if it is released already. */
xseg_status xseg_driver_release_context(struct xseg_context *context);

/* Release the primary context of a device whose opening has failed; if the driver refuses, the context is kept for the
 * next opening. */
void xseg_driver_release_context_or_keep(struct xseg_context *context);

/* Release all contexts that are kept.  Returns: XSEG_OK; else the first error, and refused ones are still kept */
xseg_status xseg_driver_release_kept_contexts(struct xseg_driver *driver);

/* --- Memory.  Sizes and addresses are bytes. --- */

/* Free and total memory of the device. */
xseg_status xseg_driver_memory_info(struct xseg_context *context, uint64_t *free, uint64_t *total);

/* cuMemAlloc; XSEG_ERR_NO_MEMORY when there is none. */
xseg_status xseg_driver_alloc(struct xseg_context *context, uint64_t bytes, uint64_t *address);
xseg_status xseg_driver_free(struct xseg_context *context, uint64_t address);

/* Reserve addresses; alignment is 0 or a power of two.  XSEG_ERR_NO_ADDRESSES when there are none. */
xseg_status xseg_driver_reserve(struct xseg_context *context, uint64_t bytes, uint64_t alignment,
                                uint64_t *address);
xseg_status xseg_driver_unreserve(struct xseg_context *context, uint64_t address, uint64_t bytes);

/*
 * Physical memory; XSEG_ERR_NO_MEMORY when there is none.
 *
 * properties: of enum xseg_page_property; XSEG_ERR_UNSUPPORTED where the driver refuses them
 */
xseg_status xseg_driver_create(struct xseg_context *context, uint64_t bytes, unsigned properties,
                               uint64_t *handle);
xseg_status xseg_driver_release(struct xseg_context *context, uint64_t handle);

/* XSEG_ERR_NO_MEMORY here and from set-access: some drivers find memory for a page only then. */
xseg_status xseg_driver_map(struct xseg_context *context, uint64_t address, uint64_t bytes,
                            uint64_t handle);
xseg_status xseg_driver_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes);

/* Let the device and its peers read and write a mapped range. */
xseg_status xseg_driver_set_access(struct xseg_context *context, uint64_t address, uint64_t bytes);

/* Whether network cards may reach the memory at a mapped address, as the driver says. */
xseg_status xseg_driver_is_rdma_capable(struct xseg_context *context, uint64_t address,
                                        bool *reachable);

/* Whether an address is mapped. */
xseg_status xseg_driver_is_mapped(struct xseg_context *context, uint64_t address, bool *mapped);

/* --- Peers: other devices that use the memory of `owner`. --- */

/* Whether the hardware lets a device use the memory of another one. */
xseg_status xseg_driver_can_access_peer(struct xseg_context *owner, const struct xseg_context *peer,
                                        bool *can);

/*
 * Let the context of a peer use all allocations (cuMemAlloc) of the owner's context, also later ones.
 *
 * is_new: whether this call enabled that; false if it was enabled before, perhaps by another library
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED where the hardware cannot, or the peer has the greatest number of peers
 *          already; XSEG_ERR_DRIVER
 */
xseg_status xseg_driver_enable_peer(struct xseg_context *owner, struct xseg_context *peer,
                                    bool *is_new);
xseg_status xseg_driver_disable_peer(struct xseg_context *owner, struct xseg_context *peer);

/* Let a peer, a CUdevice, read and write a mapped range of the owner's, or not any more.  The rights of other devices
 * stay. */
xseg_status xseg_driver_set_peer_access(struct xseg_context *owner, int peer, uint64_t address,
                                        uint64_t bytes, bool is_allowed);

/* --- Sharing. --- */

#define XSEG_DRIVER_UUID_BYTES 16u

/* The UUID of the device, which is the same in every process. */
xseg_status xseg_driver_uuid(struct xseg_context *context, uint8_t uuid[XSEG_DRIVER_UUID_BYTES]);

/*
 * Get a file descriptor for exportable memory, for the caller to close; it is closed on exec.  The memory stays
 * as long as the descriptor is open.
 */
xseg_status xseg_driver_export(struct xseg_context *context, uint64_t handle, int *file);

#define XSEG_DRIVER_FABRIC_BYTES 64u

/*
 * Get a dma-buf descriptor for mapped memory; it is closed on exec.
 *
 * address, bytes: multiples of the host's page size
 * is_pcie:        mapped over PCIe, which older drivers do not know
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED: the driver has none for this memory; XSEG_ERR_DRIVER
 */
xseg_status xseg_driver_dmabuf(struct xseg_context *context, uint64_t address, uint64_t bytes,
                               bool is_pcie, int *file);

/* Get the fabric handle of exportable memory, which holds nothing; and a handle of the memory that one stands for, which
 * must be released.  XSEG_ERR_UNSUPPORTED where the driver refuses, and where the memory was made without. */
xseg_status xseg_driver_export_fabric(struct xseg_context *context, uint64_t handle,
                                      uint8_t out[XSEG_DRIVER_FABRIC_BYTES]);
xseg_status xseg_driver_import_fabric(struct xseg_context *context,
                                      const uint8_t in[XSEG_DRIVER_FABRIC_BYTES], uint64_t *handle);

/* Get a handle of the memory that a file descriptor stands for.  The descriptor is not needed any more; the handle must
 * be released. */
xseg_status xseg_driver_import(struct xseg_context *context, int file, uint64_t *handle);

/* --- Contents, as work of a stream. --- */

/* Fill memory with a word; address and bytes are multiples of 4. */
xseg_status xseg_driver_fill(struct xseg_context *context, uint64_t address, uint64_t bytes,
                             uint32_t word, xseg_stream stream);

/* Copy memory to the host; the copy is complete once the stream has been waited for. */
xseg_status xseg_driver_copy_to_host(struct xseg_context *context, void *host, uint64_t address,
                                     uint64_t bytes, xseg_stream stream);

/* Copy memory of the host, which must not change until the stream has been waited for. */
xseg_status xseg_driver_copy_from_host(struct xseg_context *context, uint64_t address,
                                       const void *host, uint64_t bytes, xseg_stream stream);

/* Pinned host memory; XSEG_ERR_HOST_MEMORY when there is none.  Not to be called in a capture. */
xseg_status xseg_driver_host_alloc(struct xseg_context *context, uint64_t bytes, void **host);
xseg_status xseg_driver_host_free(struct xseg_context *context, void *host);

/* --- Streams and events. --- */

/* The number of a stream, never used for another one.  XSEG_ERR_ARGUMENT for a stream of another context. */
xseg_status xseg_driver_stream_id(struct xseg_context *context, xseg_stream stream, uint64_t *id);
xseg_status xseg_driver_stream_create(struct xseg_context *context, xseg_stream *stream);
xseg_status xseg_driver_stream_destroy(struct xseg_context *context, xseg_stream stream);
xseg_status xseg_driver_stream_wait_event(struct xseg_context *context, xseg_stream stream,
                                          xseg_event event);
xseg_status xseg_driver_stream_query(struct xseg_context *context, xseg_stream stream, bool *done);
xseg_status xseg_driver_stream_synchronize(struct xseg_context *context, xseg_stream stream);

/* Wait for all work of the device's context. */
xseg_status xseg_driver_context_synchronize(struct xseg_context *context);

xseg_status xseg_driver_event_create(struct xseg_context *context, xseg_event *event);
xseg_status xseg_driver_event_destroy(struct xseg_context *context, xseg_event event);
xseg_status xseg_driver_event_record(struct xseg_context *context, xseg_event event,
                                     xseg_stream stream);
/* Needs no current context, but relaxed capture mode. */
xseg_status xseg_driver_event_query(struct xseg_context *context, xseg_event event, bool *done);
xseg_status xseg_driver_event_synchronize(struct xseg_context *context, xseg_event event);

/*
 * Questions about the events of a device, one after the other.  The first question changes the thread's capture
 * mode (see xseg_driver_relax_capture_mode()); a no to the last one changes it back, and so does xseg_driver_poll_end().  One
 * function does all of that, since most looks have one question: 110 instructions from the entry point to the
 * driver and back instead of 160.  The caller holds a lock of the device, so calls are counted without a locked
 * instruction.
 */
struct xseg_driver_poll {
    struct xseg_context *context;
    bool is_open; /* the mode is changed */
    int was;      /* the thread's own mode */
};

/* The answer to a question.  FAILED and UNASKED leave an error text.  UNASKED: the mode could not be changed */
enum xseg_driver_poll_result {
    XSEG_DRIVER_POLL_PENDING,
    XSEG_DRIVER_POLL_COMPLETED,
    XSEG_DRIVER_POLL_FAILED,
    XSEG_DRIVER_POLL_NOT_QUERIED
};

/* Ask whether an event is complete.  is_last: after a no, no more questions follow */
enum xseg_driver_poll_result xseg_driver_poll_event(struct xseg_driver_poll *questions,
                                                    xseg_event event, bool is_last);
void xseg_driver_poll_end(struct xseg_driver_poll *questions);

/* --- Captures. --- */

/*
 * Let the calling thread make calls that its own or another thread's capture forbids in other
 * modes; `was` goes to xseg_driver_restore_capture_mode().  Waits, stream queries, xseg_driver_alloc() and
 * xseg_driver_free() call it themselves; for event queries, of which there may be many, the caller does.
 */
xseg_status xseg_driver_relax_capture_mode(struct xseg_context *context, int *was);
void xseg_driver_restore_capture_mode(struct xseg_context *context, int was);

xseg_status xseg_driver_capture_info(struct xseg_context *context, xseg_stream stream,
                                     struct xseg_capture_info *info);

/*
 * The nodes that a node of a graph depends on.
 *
 * needs: [*count], or NULL: only their number is asked
 * count: how many there are, at most what there was room for
 */
xseg_status xseg_driver_node_dependencies(struct xseg_context *context, xseg_node node,
                                          xseg_node *needs, size_t *count);

#endif
