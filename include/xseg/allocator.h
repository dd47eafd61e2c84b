/* SPDX-License-Identifier: MIT */
/*
 * The allocator: open, configure, allocate, free, streams, query, close.
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
 * Streams: work of one stream runs in order, so a freed block can be reused on its own stream immediately.  Work of
 * another stream on a block must be announced with xseg_record_stream() before the block is freed:
 *
 *     xseg_alloc(allocator, 0, bytes, stream_a, &block);
 *     // Work on stream A fills the block, an event is recorded, and stream B waits for the event.
 *     xseg_record_stream(allocator, block, stream_b); // Work on stream B uses the block.
 *     xseg_free(allocator, block); // The block is pending until the work on stream B has completed.
 *     xseg_stream_retire(allocator, 0, stream_b);
 *     cudaStreamDestroy(stream_b);
 *
 * The free records an event on each other stream that used the block.  The next allocations on the device query these
 * events.  Only a request under memory pressure, xseg_trim() with `wait`, xseg_capture_begin() and xseg_close() wait for
 * them.  A stream is identified by its handle, which can be reused after the stream is destroyed, so the end of a stream
 * must be announced with xseg_stream_retire().  NULL and the handle 1 are the legacy default stream of the device.  The
 * handle 2 is the per-thread default stream of the calling thread.  Per-thread default streams of other threads cannot
 * be named; use the legacy default stream, which waits for them.
 *
 * Structures start with struct_size.  `struct xseg_request request = {sizeof(request)};` sets it and clears all other
 * members; zero selects each default.  Structures for which zero is not neutral have an initializer macro.
 *
 * Threads: every function can be called from any thread at any time, unless its comment says otherwise.
 *
 * Fork: in a forked child every function that returns a status returns XSEG_ERR_FORKED and has no effect.  The child
 * cannot open an allocator either (XSEG_ERR_DRIVER), since a driver that was initialized in the parent does not work in
 * the child.  Fork before the first xseg_open(), or start the child by exec.
 *
 * Signals: a signal handler may call xseg_status_name() and no other function, because the interrupted thread can hold a
 * lock of the library.  A handler must not leave a call by longjmp().  The library installs no handler.
 *
 * dlclose: the library stays mapped, so calls in progress and handles stay valid.
 *
 * Environment: XSEG_DRIVER, XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF are read by xseg_open().  A
 * set-user-ID process (AT_SECURE) ignores them, and a log line lists the ignored variables.
 *
 * Errors: an error leaves the blocks, pools and settings of the caller unchanged.  The cache may have changed: cached
 * memory may have been released or moved, and addresses, host memory or a device context may have been acquired.  Output
 * parameters are written only on success.  xseg_error_message() returns a message with details.  The following statuses
 * have the same meaning everywhere.  Functions list them only if there is more to say.
 *   XSEG_ERR_ARGUMENT     a pointer is NULL, a number is out of range, a struct_size is unknown, or a handle or stream
 *                         is of another allocator, device or context.
 *   XSEG_ERR_HOST_MEMORY  a host allocation failed.
 *   XSEG_ERR_DRIVER       a driver call failed; the message has its name and result.
 *   XSEG_ERR_DEVICE_LOST  the device has an unrecoverable error (such as an illegal address), its context was reset, or
 *                         the driver is shutting down.  Calls that need device memory fail without driver calls; frees,
 *                         statistics and xseg_close() still work on the host side.
 *   XSEG_ERR_FORKED       the caller is a forked child.
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

/** Options of xseg_open(). */
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

/**
 * Open an allocator.
 *
 * The clock function can be called by any thread while locks are held, so it must not call the library.  Its origin
 * is arbitrary, and it must never decrease.  The clock is read when the driver reports free memory, by
 * xseg_trim() with idle_ms or due_only, xseg_device_stats_get(), and functions of stats.h.  While a history is enabled,
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

/** A key of the configuration string. */
struct xseg_config_key {
    size_t struct_size;      /* sizeof(struct xseg_config_key) of the library */
    const char *name;        /* as in the configuration string */
    const char *values;      /* accepted values, such as "True or False" */
    const char *description; /* description */
    const char *value;       /* value as in a configuration string, or a word such as "unlimited" */
    const char *default_value; /* default value, in the same form */
    bool is_set;               /* the configuration names the key */
    bool is_default;           /* the value is the default */
    bool has_effect;           /* the value has an effect in this configuration */
};

/**
 * Parse a configuration as xseg_open() does, and visit all keys in the order of docs/options.md.  No allocator is
 * opened.
 *
 * @param config   configuration string; NULL: the environment, as for xseg_open().
 * @param source   receives the source of the configuration as xseg_config_source(), a static string; may be NULL.
 * @param visit    called for each key, which is valid during the call; returns false to end the visits.  NULL: only
 *                 parse.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if visit ended the visits.
 *         XSEG_ERR_CONFIG  the string has an error; the message names key, value and position.  visit was not called.
 * Threads: any; no thread may change the environment concurrently.
 * Cost: no driver call, no lock.
 */
XSEG_API xseg_status xseg_config_keys(const char *config, const char **source,
                                      bool (*visit)(void *context,
                                                    const struct xseg_config_key *key),
                                      void *context);

/**
 * Allocate device memory in stream order.
 *
 * The memory is from the pool to which a capture or a route directs the stream (pool.h, pool.h), otherwise from the
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

/** Parameters of xseg_alloc_with(). */
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

/**
 * Announce that work on another stream uses a block (PyTorch's record_stream).
 *
 * @param ptr     start of a live block; NULL has no effect.
 * @param stream  stream that uses the block; the block's own stream has no effect.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no live block starts at ptr.
 * Cost: no driver call, except one for a stream that is seen for the first time, and one while a capture is active on
 *       the device.
 */
XSEG_API xseg_status xseg_record_stream(struct xseg_allocator *allocator, void *ptr,
                                        xseg_stream stream);

/**
 * Free a block once some events have completed.
 *
 * The block is pending until the events and the streams that used it have completed.  The events can be destroyed or
 * recorded again as soon as the call returns.  Events complete in the order of the calls, also for different blocks, so
 * a block can be pending until the events of earlier calls have completed.
 *
 * @param ptr     start of a live block; NULL has no effect.
 * @param events  recorded events of the block's device.
 * @param count   number of events; with 0 the call is xseg_free(), but fails during a capture.
 *
 * @return XSEG_ERR_BUSY      a capture is active on the device; free the block after the capture.
 *         XSEG_ERR_NOT_ALLOCATED  no live block starts at ptr.
 *         XSEG_ERR_DRIVER    the driver rejects an event, such as one recorded in a capture; the block stays live.
 * Cost: one query per event, and one wait on an internal stream for each event that has not completed.  If there is
 *       one, one event record on that stream, which the first such call creates.
 */
XSEG_API xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr,
                                     const xseg_event *events, size_t count);

/**
 * Announce that all work queued on a stream so far has completed.
 *
 * The caller has synchronized the stream.  Pending blocks stop waiting for this stream without an event query; a block
 * that waits for no other stream becomes free.
 *
 * @param device  CUDA ordinal.
 * @param stream  stream of the device; an unknown stream has no effect.
 *
 * Cost: no driver call, except one for the per-thread default stream.
 */
XSEG_API xseg_status xseg_stream_synchronized(struct xseg_allocator *allocator, int device,
                                              xseg_stream stream);

/**
 * Announce that a stream is about to be destroyed.
 *
 * Live blocks of the stream stay valid.  The stream's cached memory passes to the next stream that the allocator sees
 * for the first time, once the work queued now has completed, or is released by a trim.  Live blocks in memory that
 * another stream takes over are ordered by that stream from then on (struct xseg_block_info): use them on that stream,
 * or announce other uses.  If the handle is reused, it identifies a new stream.
 *
 * @param device  CUDA ordinal.
 * @param stream  stream of the device, not a default stream; an unknown stream has no effect.
 *
 * @return XSEG_ERR_BUSY  the stream is capturing, or xseg_capture_begin() was called for it without xseg_capture_end().
 * Cost: one capture query and one event record; none for an unknown stream.  Waits for a growth or trim of the device.
 */
XSEG_API xseg_status xseg_stream_retire(struct xseg_allocator *allocator, int device,
                                        xseg_stream stream);

/* --- Query. --- */

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
    struct xseg_pool *fallback_pool; /* private pool that has the memory (use_on_oom), or NULL */
    uint32_t stack;    /* live, pending: stack of the allocation (history.h); 0 if not recorded */
    uint32_t frames;   /* live, pending: frames ID of the history hook (history.h); 0 if none */
    const char *label; /* live, pending: label of the thread (history.h), or NULL */
    void *user; /* live, pending: user value of the request, with the key block_user; or NULL */
};

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

/** A run of mapped pages of one size and generation, or a classic segment. */
struct xseg_mapping {
    size_t struct_size; /* sizeof(struct xseg_mapping) of the library */
    int device;
    void *base;             /* start address */
    size_t bytes;           /* size of the run */
    size_t page_bytes;      /* size of each physical page (handle); of a classic segment its size */
    uint64_t generation;    /* increases when other memory is mapped at the address; never 0 */
    xseg_stream stream;     /* stream of the segment */
    struct xseg_pool *pool; /* private pool of the segment, or NULL */
    bool is_expandable;
    bool is_pinned;      /* a page of the run is pinned */
    bool is_exported;    /* a page of the run is exported (share.h) */
    bool is_single_page; /* the run is one page that is its whole segment (single_page in pool.h) */
};

/** The memory that a call applies to.  XSEG_SCOPE_ALL selects all devices, pools and streams. */
struct xseg_scope {
    size_t struct_size;     /* sizeof(struct xseg_scope) */
    int device;             /* CUDA ordinal; -1: all open devices */
    bool one_stream;        /* select only memory of `stream` */
    xseg_stream stream;     /* ignored unless one_stream */
    struct xseg_pool *pool; /* select only this private pool; NULL: all pools */
};
/* clang-format off */
#define XSEG_SCOPE_ALL {sizeof(struct xseg_scope), -1, false, NULL, NULL}
/* clang-format on */

#ifdef __cplusplus
}
#endif

#endif
