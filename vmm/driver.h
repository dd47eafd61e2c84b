/* SPDX-License-Identifier: MIT */
/*
 * The driver: the binary interface of the CUDA driver, loaded by name at run time.
 *
 * This interface is the only seam between the library and a device.  The simulated driver
 * (vmm/sim) is another library with the same entry points, so tests and production run the same
 * loading code, error paths and call order.  Entry points are resolved by cuGetProcAddress(), each
 * one in the version whose signature the library uses.  The oldest driver that has all entry points
 * is that of CUDA 12.0.
 *
 * Most functions call one entry point, without policy; xseg_driver_poll_event() and fences are
 * exceptions.  Only a failed call that restores the context or the capture mode of the thread is
 * retried, once.  Each function counts its call, converts the driver's result to a status, and on
 * failure writes an error message with the call and the result.
 *
 * Terms:
 *   context   an open device: its ordinal, its retained primary context, its capabilities.
 *   address   a device address, in bytes.
 *   handle    a physical page, as returned by cuMemCreate().
 *
 * Calls that need the device's context to be current (allocation, streams, events), or that may
 * inspect it (unmap), push the context and pop it again.  So the calling thread may have any
 * context current, or none.
 *
 * Any thread may call these functions.  A function that changes the capture mode of the calling
 * thread restores the mode before it returns, unless its comment states otherwise.
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

/* The capture of a stream. */
struct xseg_capture_info {
    uint64_t id;            /* of the capture, never reused; 0: the stream is in no capture */
    bool is_invalid;        /* a forbidden call invalidated the capture; its ID is unknown */
    const xseg_node *nodes; /* dependencies of the stream's next node; valid until the next call */
    size_t count;
};

/* Allocation properties of a page, which are fixed when it is created; any combination. */
enum xseg_page_property {
    XSEG_PAGE_EXPORTABLE = 1, /* xseg_driver_export() accepts the page */
    XSEG_PAGE_RDMA = 2        /* network cards can access the page (GPUDirect RDMA) */
};

/* The maximum number of peers with access to the mapped memory of a device. */
#define XSEG_PEERS_MAX 63u

/* An open device.  Filled by xseg_context_open() (context.h). */
struct xseg_context {
    struct xseg_driver *driver;
    struct xseg_driver_poll_counts *poll_counts; /* of this device */
    int ordinal;                                 /* as users count devices */
    int device;                                  /* CUdevice */
    void *primary;                               /* CUcontext, retained; NULL: released */
    uint64_t total_bytes;                        /* memory of the device */
    uint64_t granularity; /* of physical pages and mappings, in bytes; 0 without VMM */
    bool has_vmm;         /* virtual memory management works */
    bool is_integrated;   /* the device uses the memory of the host (free_memory.h) */
    bool batches_access;  /* one set-access call can cover several mappings */
    bool batches_unmap;   /* one unmap call can cover several mappings */
    bool has_fabric;      /* exportable pages also have fabric handles; found by a probe */
    bool has_rdma;        /* pages with XSEG_PAGE_RDMA work; found by a probe */
    /* The driver's name of the error after which every call on this device fails; NULL: none. */
    _Atomic(const char *) lost;
    _Atomic(const char *) last_oom_call; /* the last call that ran out of memory; NULL: none */
    atomic_uint page_failures; /* reserve, create, map and set-access calls with other failures */
    int peer[XSEG_PEERS_MAX];  /* [peers], CUdevice; guarded by the device memory lock */
    unsigned peers;
    /* The slow-path flags: not 0 while the fast path must be skipped.  The highest bit is set when
     * the device is lost; the bits below are the number of pending stream uses and deferred blocks
     * (pending.h). */
    atomic_uint_fast64_t slow_path;
};

#define XSEG_CONTEXT_LOSS (UINT64_C(1) << 63)

/*
 * Whether the device is lost.  After an error such as an illegal address every call fails until the
 * process ends.  After a reset of the context, or the driver's shutdown at exit, all memory of the
 * context is invalid.  The functions below record the loss and return XSEG_ERR_DEVICE_LOST.
 */
static inline bool xseg_context_is_lost(const struct xseg_context *context)
{
    return __builtin_expect(atomic_load_explicit(&context->lost, memory_order_relaxed) != NULL, 0);
}

/* Record that the device is lost, and the reason, a static string.  The first reason is kept. */
void xseg_driver_mark_lost(struct xseg_context *context, const char *reason);

/* Write the error message of a lost device, and return XSEG_ERR_DEVICE_LOST. */
xseg_status xseg_driver_fail_lost(const struct xseg_context *context);

/*
 * Load a driver and resolve its entry points.
 *
 * library: as for dlopen(); NULL: the environment variable XSEG_DRIVER, or libcuda.so.1
 * Returns: XSEG_OK; XSEG_ERR_NO_DRIVER with the missing part; XSEG_ERR_DRIVER; XSEG_ERR_HOST_MEMORY
 * Cost:    cuInit, cuDriverGetVersion, cuDeviceGetCount
 */
xseg_status xseg_driver_open(const char *library, struct xseg_driver **out);
void xseg_driver_close(struct xseg_driver *driver);

/* The maximum number of entry points. */
#define XSEG_DRIVER_CALLS_MAX 64u

/* The number of visible devices. */
int xseg_driver_device_count(const struct xseg_driver *driver);

/* Read the names and call counts of entry points.  Returns the number of entry points. */
size_t xseg_driver_call_counts(const struct xseg_driver *driver, struct xseg_driver_call *calls,
                               size_t capacity);

/*
 * Read the total time of all calls of an entry point, including failed ones, by the system clock.
 *
 * entry: index in the call counts
 * Returns: false if the calls are not timed, because they take little longer than a clock read
 */
bool xseg_driver_call_time(const struct xseg_driver *driver, size_t entry, uint64_t *nanoseconds);

/* --- Devices. --- */

/* Retain the primary context: set `device` and `primary` of the context. */
xseg_status xseg_driver_retain(struct xseg_context *context);

/* Query `total_bytes`, `is_integrated`, `has_vmm` and `granularity` of the context. */
xseg_status xseg_driver_describe(struct xseg_context *context);

/* Release the primary context, unless it is released already. */
xseg_status xseg_driver_release_context(struct xseg_context *context);

/* Release the primary context of a device that failed to open.  If the driver fails, the context is
 * kept for the next open. */
void xseg_driver_release_context_or_keep(struct xseg_context *context);

/* Release all kept contexts.  Returns the first error; contexts that fail are still kept. */
xseg_status xseg_driver_release_kept_contexts(struct xseg_driver *driver);

/* --- Memory.  Sizes and addresses are in bytes. --- */

/* Free and total memory of the device, by cuMemGetInfo; free_memory.h is for all devices. */
xseg_status xseg_driver_memory_info(struct xseg_context *context, uint64_t *free, uint64_t *total);

/* Write the memory of the simulated host in the form of /proc/meminfo.  Returns the length, 0
 * unless the driver is the simulated one and its devices are integrated. */
size_t xseg_driver_simulated_meminfo(const struct xseg_driver *driver, char *text, size_t bytes);

/* cuMemAlloc and cuMemFree.  XSEG_ERR_NO_MEMORY if the device is out of memory. */
xseg_status xseg_driver_alloc(struct xseg_context *context, uint64_t bytes, uint64_t *address);
xseg_status xseg_driver_free(struct xseg_context *context, uint64_t address);

/* Reserve a VA range, and free it.  The alignment is 0 or a power of two.  XSEG_ERR_NO_ADDRESSES if
 * there is no such range. */
xseg_status xseg_driver_reserve(struct xseg_context *context, uint64_t bytes, uint64_t alignment,
                                uint64_t *address);
xseg_status xseg_driver_unreserve(struct xseg_context *context, uint64_t address, uint64_t bytes);

/* Create a physical page, and release it.  XSEG_ERR_NO_MEMORY if the device is out of memory,
 * XSEG_ERR_UNSUPPORTED if the driver does not support the properties (enum xseg_page_property). */
xseg_status xseg_driver_create(struct xseg_context *context, uint64_t bytes, unsigned properties,
                               uint64_t *handle);
xseg_status xseg_driver_release(struct xseg_context *context, uint64_t handle);

/* Map and unmap.  XSEG_ERR_NO_MEMORY from map and set-access, because some drivers allocate the
 * memory of a page only then. */
xseg_status xseg_driver_map(struct xseg_context *context, uint64_t address, uint64_t bytes,
                            uint64_t handle);
xseg_status xseg_driver_unmap(struct xseg_context *context, uint64_t address, uint64_t bytes);

/* Grant the device and its peers read and write access to a mapped range. */
xseg_status xseg_driver_set_access(struct xseg_context *context, uint64_t address, uint64_t bytes);

/* Query whether network cards can access the memory at a mapped address. */
xseg_status xseg_driver_is_rdma_capable(struct xseg_context *context, uint64_t address,
                                        bool *is_capable);

/* Query whether an address is mapped. */
xseg_status xseg_driver_is_mapped(struct xseg_context *context, uint64_t address, bool *mapped);

/* --- Peers: other devices with access to the memory of `owner`. --- */

/* Query whether the hardware supports access of a peer to the memory of the owner. */
xseg_status xseg_driver_can_access_peer(struct xseg_context *owner, const struct xseg_context *peer,
                                        bool *can_access);

/*
 * Grant the context of a peer access to all allocations (cuMemAlloc) of the owner's context,
 * including later ones.
 *
 * is_new: whether this call enabled the access.  It may have been enabled before, perhaps by
 *         another library.
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED if the hardware cannot, or if the peer has the maximum
 *          number of peers; XSEG_ERR_DRIVER
 */
xseg_status xseg_driver_enable_peer(struct xseg_context *owner, struct xseg_context *peer,
                                    bool *is_new);
xseg_status xseg_driver_disable_peer(struct xseg_context *owner, struct xseg_context *peer);

/* Grant a peer (a CUdevice) read and write access to a mapped range of the owner, or revoke it.
 * The access rights of other devices are unchanged. */
xseg_status xseg_driver_set_peer_access(struct xseg_context *owner, int peer, uint64_t address,
                                        uint64_t bytes, bool is_allowed);

/* --- Sharing. --- */

#define XSEG_DRIVER_UUID_BYTES 16u

/* Query the UUID of the device, which is the same in every process. */
xseg_status xseg_driver_uuid(struct xseg_context *context, uint8_t uuid[XSEG_DRIVER_UUID_BYTES]);

/* Export a page as a file descriptor, which the caller closes; it is closed on exec.  The open
 * descriptor retains the memory. */
xseg_status xseg_driver_export(struct xseg_context *context, uint64_t handle, int *file);

#define XSEG_DRIVER_FABRIC_BYTES 64u

/*
 * Create a dma-buf descriptor for mapped memory; it is closed on exec.
 *
 * address, bytes: multiples of the host's page size
 * is_pcie:        request a mapping over PCIe, which older drivers do not support
 * Returns: XSEG_OK; XSEG_ERR_UNSUPPORTED if the driver has none for this memory; XSEG_ERR_DRIVER
 */
xseg_status xseg_driver_dmabuf(struct xseg_context *context, uint64_t address, uint64_t bytes,
                               bool is_pcie, int *file);

/* Export a page as a fabric handle, which does not retain the memory, and import one as a handle
 * that must be released.  XSEG_ERR_UNSUPPORTED if the driver does not support fabric handles, or if
 * the page was created without one. */
xseg_status xseg_driver_export_fabric(struct xseg_context *context, uint64_t handle,
                                      uint8_t out[XSEG_DRIVER_FABRIC_BYTES]);
xseg_status xseg_driver_import_fabric(struct xseg_context *context,
                                      const uint8_t in[XSEG_DRIVER_FABRIC_BYTES], uint64_t *handle);

/* Import the page of a file descriptor as a handle, which must be released.  The descriptor may be
 * closed afterwards. */
xseg_status xseg_driver_import(struct xseg_context *context, int file, uint64_t *handle);

/* --- Copies, queued on a stream. --- */

/* Fill memory with a 32-bit word; address and bytes are multiples of 4. */
xseg_status xseg_driver_fill(struct xseg_context *context, uint64_t address, uint64_t bytes,
                             uint32_t word, xseg_stream stream);

/* Copy device memory to the host.  The copy is complete after a stream synchronization. */
xseg_status xseg_driver_copy_to_host(struct xseg_context *context, void *host, uint64_t address,
                                     uint64_t bytes, xseg_stream stream);

/* Copy host memory, which must not change until the stream was synchronized, to the device. */
xseg_status xseg_driver_copy_from_host(struct xseg_context *context, uint64_t address,
                                       const void *host, uint64_t bytes, xseg_stream stream);

/* Allocate and free pinned host memory.  XSEG_ERR_HOST_MEMORY if the host is out of memory.  Not
 * allowed in a capture. */
xseg_status xseg_driver_host_alloc(struct xseg_context *context, uint64_t bytes, void **host);
xseg_status xseg_driver_host_free(struct xseg_context *context, void *host);

/* --- Streams and events. --- */

/* Query the ID of a stream, which is never reused.  XSEG_ERR_ARGUMENT for a stream of another
 * context. */
xseg_status xseg_driver_stream_id(struct xseg_context *context, xseg_stream stream, uint64_t *id);
xseg_status xseg_driver_stream_create(struct xseg_context *context, xseg_stream *stream);
xseg_status xseg_driver_stream_destroy(struct xseg_context *context, xseg_stream stream);
xseg_status xseg_driver_stream_wait_event(struct xseg_context *context, xseg_stream stream,
                                          xseg_event event);
xseg_status xseg_driver_stream_query(struct xseg_context *context, xseg_stream stream,
                                     bool *completed);
xseg_status xseg_driver_stream_synchronize(struct xseg_context *context, xseg_stream stream);

/* Wait for all work of the device's context. */
xseg_status xseg_driver_context_synchronize(struct xseg_context *context);

xseg_status xseg_driver_event_create(struct xseg_context *context, xseg_event *event);
xseg_status xseg_driver_event_destroy(struct xseg_context *context, xseg_event event);
xseg_status xseg_driver_event_record(struct xseg_context *context, xseg_event event,
                                     xseg_stream stream);
/* The caller has set relaxed capture mode; no context needs to be current. */
xseg_status xseg_driver_event_query(struct xseg_context *context, xseg_event event,
                                    bool *completed);
xseg_status xseg_driver_event_synchronize(struct xseg_context *context, xseg_event event);

/*
 * A series of event queries on one device.  The first query changes the capture mode of the thread
 * (xseg_driver_relax_capture_mode()).  The mode is restored after a last query with the result
 * PENDING, and by xseg_driver_poll_end().  One function performs all these steps, because most
 * polls make one query: it needs 110 instead of 160 instructions from the entry point to the driver
 * and back.  The caller holds a lock of the device, so calls are counted without atomic
 * read-modify-write instructions.
 */
struct xseg_driver_poll {
    struct xseg_context *context;
    bool is_open;      /* the capture mode is changed */
    int previous_mode; /* of the thread, before the first query */
};

/* With the last two results an error message is set. */
enum xseg_driver_poll_result {
    XSEG_DRIVER_POLL_PENDING,
    XSEG_DRIVER_POLL_COMPLETED,
    XSEG_DRIVER_POLL_FAILED,
    XSEG_DRIVER_POLL_NOT_QUERIED /* the capture mode could not be changed */
};

/* Query an event.  is_last: the caller makes no further query if the result is PENDING */
enum xseg_driver_poll_result xseg_driver_poll_event(struct xseg_driver_poll *poll, xseg_event event,
                                                    bool is_last);
void xseg_driver_poll_end(struct xseg_driver_poll *poll);

/* --- Fences: recycled events that complete when a stream reaches a point. --- */

/* The events of one device.  Locking: the pending lock of the device. */
struct xseg_fences {
    struct xseg_context *context;
    xseg_event *idle; /* [capacity], at least `created` */
    size_t count, capacity;
    size_t created; /* idle events and events in use */
};

void xseg_fences_init(struct xseg_fences *fences, struct xseg_context *context);

/* Destroy the idle events.  Returns the first error; events that the driver did not destroy remain
 * idle. */
xseg_status xseg_fences_fini(struct xseg_fences *fences);

/* Discard the idle events of a lost device. */
void xseg_fences_abandon(struct xseg_fences *fences);

/*
 * Record an event on a stream: it completes when the work that is queued so far has finished.
 *
 * Returns: XSEG_OK, XSEG_ERR_DRIVER, XSEG_ERR_HOST_MEMORY
 * Cost:    one record; one event create if no event is idle
 */
xseg_status xseg_fences_record(struct xseg_fences *fences, xseg_stream stream, xseg_event *out);

/* Return an event for reuse.  This function never fails and allocates nothing. */
void xseg_fences_return(struct xseg_fences *fences, xseg_event event);

/* --- Captures. --- */

/*
 * Change the calling thread to relaxed capture mode, in which it may make calls that a capture of
 * this or another thread otherwise forbids, and restore the previous mode.  Synchronization, stream
 * queries, xseg_driver_alloc() and xseg_driver_free() change the mode themselves.  For event
 * queries the caller changes the mode, once for many queries.
 */
xseg_status xseg_driver_relax_capture_mode(struct xseg_context *context, int *previous);
void xseg_driver_restore_capture_mode(struct xseg_context *context, int previous);

xseg_status xseg_driver_capture_info(struct xseg_context *context, xseg_stream stream,
                                     struct xseg_capture_info *info);

/*
 * Query the dependencies of a graph node.
 *
 * nodes: [*count]; NULL: query their number only
 * count: in: capacity; out: number of dependencies, at most the capacity
 */
xseg_status xseg_driver_node_dependencies(struct xseg_context *context, xseg_node node,
                                          xseg_node *nodes, size_t *count);

#endif
