/* SPDX-License-Identifier: MIT */
/*
 * The allocator: open, configure, allocate, free, query, close.
 *
 *     struct xseg_allocator *allocator;
 *     void *block; // A device pointer.
 *     if (xseg_open("expandable_segments:True", NULL, &allocator) != XSEG_OK) // Loads the CUDA driver.
 *         return 1;
 *     if (xseg_alloc(allocator, 0, 100 << 20, NULL, &block) == XSEG_OK) {
 *         // Queue work that uses the block on the default stream of device 0.
 *         xseg_free(allocator, block); // A later request on this stream can reuse the block immediately.
 *     }
 *     return xseg_close(allocator) == XSEG_OK ? 0 : 1; // Synchronizes streams and releases all memory.
 *
 * One allocator serves all devices of one driver.  A process can open several allocators; they share only the loaded
 * driver.  The first call that names a device opens it: the primary context is retained, and create, map, set-access
 * and unmap are probed once.
 *
 * Terms:
 *   page     one physical allocation of the driver (one handle): 2 MiB for small blocks, 20 MiB for large blocks.
 *   segment  a virtual address (VA) range and the pages mapped in it (expandable), or one cuMemAlloc (classic).
 *   block    a part of a segment: live (allocated), pending (freed, but another stream may still use it), cached (free
 *            and mapped), or unmapped.
 *   pool     a set of segments of one device that serves only its own requests; each device has a default pool
 *            (pool.h).
 *   hit      a request that the cache serves without the driver; otherwise it is a miss.
 *
 * Stream order: work of one stream runs in order, so a freed block can be reused on its own stream immediately.  Work
 * of another stream on a block must be announced with xseg_record_stream() before the block is freed.  Before a stream
 * is destroyed on which blocks were allocated or used, xseg_stream_retire() must be called (stream.h).
 *
 * Threads: every function can be called from any thread at any time, unless its comment says otherwise.
 *
 * Fork: in a forked child every function that returns a status returns XSEG_ERR_FORKED and has no effect.  The child
 * cannot
 *     open an allocator either (XSEG_ERR_DRIVER), since a driver that was initialized in the parent does not work in
 *     the child.  Fork before the first xseg_open(), or start the child by exec.
 *
 * Signals: a signal handler may call xseg_status_name() and no other function, because the interrupted thread can hold
 * a
 *     lock of the library.  A handler must not leave a call by longjmp().  The library installs no handler.
 *
 * dlclose: the library stays mapped, so calls in progress and handles stay valid.
 *
 * Environment: XSEG_DRIVER, XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are read by xseg_open().  A
 *     set-user-ID process (AT_SECURE) ignores them, and a log line lists the ignored variables.
 *
 * Errors: an error leaves the blocks, pools and settings of the caller unchanged.  The cache may have changed: cached
 * memory
 *     may have been released or moved, and addresses, host memory or a device context may have been acquired.  Output
 *     parameters are written only on success.  xseg_error_message() returns a message with details.  The following
 *     statuses have the same meaning everywhere.  Functions list them only if there is more to say.
 *       XSEG_ERR_ARGUMENT     a pointer is NULL, a number is out of range, a struct_size is unknown, or a handle or
 *                             stream is of another allocator, device or context.
 *       XSEG_ERR_HOST_MEMORY  a host allocation failed.
 *       XSEG_ERR_DRIVER       a driver call failed; the message has its name and result.
 *       XSEG_ERR_DEVICE_LOST  the device has an unrecoverable error (such as an illegal address), its context was
 *                             reset, or the driver is shutting down.  Calls that need device memory fail without driver
 *                             calls; frees, statistics and xseg_close() still work on the host side.
 *       XSEG_ERR_FORKED       the caller is a forked child.
 */
#ifndef XSEG_ALLOCATOR_H
#define XSEG_ALLOCATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "xseg/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* CUDA's struct tags, so a CUstream or cudaStream_t and a CUevent or cudaEvent_t need no cast.  A NULL stream is the
 * legacy default stream. */
typedef struct CUstream_st *xseg_stream;
typedef struct CUevent_st *xseg_event;

struct xseg_allocator;
struct xseg_pool;

enum xseg_log_level {
    XSEG_LOG_ERROR,   /* memory was lost, or a change could not be rolled back */
    XSEG_LOG_WARNING, /* a fallback is used, or a key has no effect */
    XSEG_LOG_INFO     /* one line per device, when it is opened */
};

/** Options of xseg_open().  Initialize with XSEG_OPTIONS_INIT; zero selects the default of each member. */
struct xseg_options {
    size_t struct_size; /* sizeof(struct xseg_options) */
    const char *driver; /* driver library, copied; NULL: $XSEG_DRIVER, else libcuda.so.1 */
    /* Receives log lines without a newline; no lock is held.  NULL: warnings and errors go to standard error. */
    void (*log)(void *context, enum xseg_log_level level, const char *line);
    void *log_context;
    /* Monotonic clock in nanoseconds, for decay, history and ages; see xseg_open().  NULL: CLOCK_MONOTONIC. */
    uint64_t (*clock)(void *context);
    void *clock_context;
};
/* clang-format off */
#define XSEG_OPTIONS_INIT {sizeof(struct xseg_options), NULL, NULL, NULL, NULL, NULL}
/* clang-format on */

/**
 * Open an allocator.
 *
 * The clock function can be called by any thread while locks are held, so it must not call the library.  Its origin
 * is arbitrary, and it must never decrease.  The clock is read when the driver reports free memory, by
 * xseg_trim() with idle_ms or due_only, xseg_device_stats_get(), metrics.h and explain.h.  While a history is enabled,
 * or decay without the background thread, allocations and frees read it.
 *
 * @param config   configuration string (docs/options.md).  NULL: the first variable that is set among XSEG_ALLOC_CONF,
 *                 PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.  Strings are not merged.  The default of the key
 *                 expandable_segments is False in a PYTORCH_* variable, as in PyTorch, and True otherwise.
 * @param options  NULL for the defaults.
 * @param out      receives the allocator; release it with xseg_close().
 *
 * @return XSEG_ERR_CONFIG     the string has an error; the message names key, value and position.
 *         XSEG_ERR_NO_DRIVER  the library cannot be loaded or lacks an entry point; the message names it.
 *         XSEG_ERR_DRIVER     cuInit or cuDeviceGetCount failed.
 * Cost: loads the driver; cuInit, cuDriverGetVersion, cuDeviceGetCount.  No context is created.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_open(const char *config,
                                              const struct xseg_options *options,
                                              struct xseg_allocator **out);

/**
 * Close an allocator: release all memory to the driver and invalidate the handle.
 *
 * Waits for work on pending blocks.  Private pools that the caller still retains are destroyed.
 *
 * @param allocator  NULL has no effect.  No other call on this allocator may be in progress or follow.
 *
 * @return XSEG_ERR_BUSY         blocks are live, or pages are pinned; the message lists the first ones.  The handle
 *                               stays valid.
 *         XSEG_ERR_DRIVER       the driver did not release some memory.  The memory stays accounted, the handle stays
 *                               valid, and the call can be repeated.
 *         XSEG_ERR_HOST_MEMORY  a wait for a block that was freed during a capture failed; as XSEG_ERR_DRIVER.
 * Cost: synchronizes the streams of cached memory; unmaps and releases all memory.
 */
XSEG_API xseg_status xseg_close(struct xseg_allocator *allocator);

/**
 * Change the keys that a configuration string names.  Other keys keep their values.
 *
 * A string with an error changes nothing.  Existing segments keep their page size; after expandable_segments:False
 * existing expandable memory is used only by its live blocks.  per_process_memory_fraction applies to open devices and
 * to devices that are opened later.  A hard_limit_mb below the memory in use releases idle memory immediately.
 *
 * @return XSEG_ERR_CONFIG  the string has an error.
 * Cost: no driver call, unless more than hard_limit_mb is in use.
 */
XSEG_API xseg_status xseg_config_set(struct xseg_allocator *allocator, const char *config);

/**
 * Get the configuration as a string that xseg_open() accepts.
 *
 * The string names every key except those that are off or unlimited, which PyTorch's grammar cannot express.
 *
 * @param text    receives the string, truncated to fit and terminated; may be NULL if bytes is 0.
 * @param bytes   size of text.
 * @param needed  receives the size of the whole string in bytes, including the terminator; may be NULL.
 *
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_config_get(struct xseg_allocator *allocator, char *text, size_t bytes,
                                     size_t *needed);

/**
 * Get the source of the configuration.
 *
 * @return "argument", "XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF" or "default", a static string;
 *         "" for a NULL allocator.
 * Cost: no driver call, no lock.
 */
XSEG_API const char *xseg_config_source(const struct xseg_allocator *allocator);

/**
 * Allocate device memory in stream order.
 *
 * The memory is from the pool to which a capture or a route directs the stream (capture.h, pool.h), otherwise from the
 * default pool of the device.
 *
 * @param device  CUDA ordinal.
 * @param bytes   size, rounded up to a multiple of 512 bytes, or as roundup_power2_divisions specifies; 0 returns NULL.
 * @param stream  stream of the device that orders the block; NULL is the legacy default stream.
 * @param out     receives the address, 512-byte aligned; free it with xseg_free().
 *
 * @return XSEG_ERR_NO_MEMORY     the device has too little free memory, also after all idle memory was released.
 *                                During a capture no idle memory is released.  With throw_on_cudamalloc_oom a request
 *                                larger than the remaining device memory fails immediately.
 *         XSEG_ERR_LIMIT         per_process_memory_fraction, hard_limit_mb, xseg_limits_set(), budget_file,
 *                                throw_on_cudamalloc_oom or the limit of the pool rejects the request; the message
 *                                names it.
 *         XSEG_ERR_NO_ADDRESSES  the driver has no address range left, and no memory for a classic segment either.
 *         XSEG_ERR_UNSUPPORTED   the device cannot map pages of the configured size.
 *         XSEG_ERR_PAUSED        the pool is paused (pool.h).
 *         XSEG_ERR_ARGUMENT      also: the stream is of another device or context.
 * Cost: a hit makes no driver call.  Exceptions: an event query for each stream with pending blocks, and two queries
 *       when a stream is seen for the first time.  While a capture is active on the device, each call queries the
 *       capture status.  A miss creates and maps the missing pages, with one set-access per contiguous run, or calls
 *       cuMemAlloc once (classic).  Under memory pressure the call may synchronize streams and release cached memory,
 *       except during a capture.  With debug_fill it synchronizes the stream.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc(struct xseg_allocator *allocator, int device,
                                               size_t bytes, xseg_stream stream, void **out);

/** Parameters of xseg_alloc_with().  Initialize with XSEG_REQUEST_INIT. */
struct xseg_request {
    size_t struct_size;     /* sizeof(struct xseg_request) */
    int device;             /* CUDA ordinal; ignored if pool is set */
    size_t bytes;           /* as for xseg_alloc() */
    xseg_stream stream;     /* as for xseg_alloc() */
    struct xseg_pool *pool; /* NULL: the pool that xseg_alloc() selects */
    size_t alignment;       /* of the address: a power of two up to 1 GiB; 0: 512 bytes */
    bool zeroed;            /* clear the block in stream order */
    void *user;             /* user value of the block; recorded if the key block_user is set */
};
/* clang-format off */
#define XSEG_REQUEST_INIT {sizeof(struct xseg_request), 0, 0, NULL, NULL, 0, false, NULL}
/* clang-format on */

/**
 * Allocate device memory with the parameters of a request.  Otherwise as xseg_alloc().
 *
 * A zeroed block is cleared by a memset on the request's stream; other streams must wait for it as for any work.  On a
 * capturing stream the memset is a node of the graph, so the block is cleared at each launch of the graph.
 *
 * The user value is returned by xseg_block_query() and xseg_for_each_block() and in the events of the block (struct
 * xseg_history_entry).  The library does not dereference it.
 *
 * @return as xseg_alloc().
 *         XSEG_ERR_DRIVER    also: the memset failed.  The block was freed again, and the totals count it.
 *         XSEG_ERR_ARGUMENT  also: the alignment is not a power of two or exceeds 1 GiB.
 * Cost: as xseg_alloc().  An alignment above 512 bytes searches for a block that is longer by up to the alignment; the
 *       part before the aligned address stays cached.  `zeroed` adds one cuMemsetD32Async.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_with(struct xseg_allocator *allocator,
                                                    const struct xseg_request *request, void **out);

/**
 * Free a block.
 *
 * A later request on the block's stream can reuse the block immediately.  If xseg_record_stream() named other streams,
 * the block is pending until the work that these streams contain now has completed.
 *
 * @param ptr  address that xseg_alloc() returned; NULL has no effect.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no live block starts at ptr; the message describes the address.
 *         XSEG_ERR_DRIVER    an event could not be recorded; the block stays live.
 * Cost: no driver call.  After xseg_record_stream(), one event record per other stream, and an event create if no event
 *       is idle.  With
 *       debug_fill a memset.  With unmap_on_free or guard_page the block's streams are synchronized, and its pages are
 *       unmapped and released.
 */
XSEG_API xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr);

enum xseg_block_state {
    XSEG_BLOCK_ALLOCATED,    /* live: returned by an allocation and not freed */
    XSEG_BLOCK_PENDING_FREE, /* freed, but another stream may still use it */
    XSEG_BLOCK_CACHED,       /* free and mapped */
    XSEG_BLOCK_UNMAPPED,     /* unmapped */
    XSEG_BLOCK_CLAIMED       /* claimed: another call frees, maps or unmaps it */
};

/** A block and its neighborhood.  Set struct_size before the call. */
struct xseg_block_info {
    size_t struct_size; /* sizeof(struct xseg_block_info) */
    void *base;         /* start address of the block */
    size_t bytes;       /* size; all of it is usable while the block is live */
    size_t requested;   /* requested size; of a cached block the value in PyTorch's snapshots */
    enum xseg_block_state state;
    int device;
    /* Stream that orders the block: the stream of the allocation, also after xseg_stream_retire(), until another stream
     * takes over the memory; then that stream. */
    xseg_stream stream;
    struct xseg_pool *pool; /* private pool of the block; NULL: the default pool */
    bool is_small;          /* the block is in small segments */
    bool is_expandable;     /* the segment is expandable */
    void *segment_base;     /* start address of the segment */
    size_t segment_bytes;   /* size of its VA range (expandable) or of its memory (classic) */
    size_t segment_mapped;  /* mapped bytes of the segment */
    size_t free_before, free_after;         /* cached bytes next to the block */
    size_t unmapped_before, unmapped_after; /* unmapped bytes next to those, or to the block */
    uint64_t generation; /* increases when other memory is mapped here; 0: unmapped block */
    bool is_paused;      /* the pool is paused or being paused, so the block may be unmapped */
    uint64_t age_ms; /* live, pending: age in milliseconds, within 20 ms; UINT64_MAX if unknown */
    struct xseg_pool
        *fallback_pool; /* private pool whose memory the block uses (use_on_oom), or NULL */
    uint32_t stack;     /* live, pending: stack of the allocation (history.h); 0 if not recorded */
    uint32_t frames;    /* live, pending: frames ID of the history hook (history.h); 0 if none */
    const char *label;  /* live, pending: label of the thread (history.h), or NULL */
    void *user; /* live, pending: user value of the request, with the key block_user; or NULL */
};
/* clang-format off */
#define XSEG_BLOCK_INFO_INIT {sizeof(struct xseg_block_info), NULL, 0, 0, XSEG_BLOCK_UNMAPPED, 0, NULL, NULL, false, false, NULL, 0, 0, 0, 0, 0, 0, 0, false, 0, NULL, 0, 0, NULL, NULL}
/* clang-format on */

/**
 * Query the block that contains an address.
 *
 * The age is known for blocks that were allocated, or restored from a checkpoint, while the key history was set.
 * Stack, frames and label are recorded while the key history is not `nothing`; the label string is valid while the
 * block is live or pending.  The handle in fallback_pool may have been released since the allocation.
 *
 * @param anywhere  any address in a segment of the allocator.
 * @param out       receives the result, up to out->struct_size bytes.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no segment contains the address.
 * Cost: no driver call.  O(1) for the start of a live block, plus one table entry per 2 MiB of the block.  For other
 *       addresses O(adjacent free blocks).
 */
XSEG_API xseg_status xseg_block_query(struct xseg_allocator *allocator, const void *anywhere,
                                      struct xseg_block_info *out);

#ifdef __cplusplus
}
#endif

#endif
