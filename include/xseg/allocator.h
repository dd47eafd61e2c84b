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
 * driver.  The first call that names a device opens it: the primary context is retained, and the creation, mapping,
 * access and unmapping of pages are probed once.  If the probe fails, all segments of the device are classic, and a log
 * line has the reason.
 *
 * Terms:
 *   page      one physical allocation of the driver (one handle).  The default size is 2 MiB in small segments and
 *             20 MiB in large segments (keys large_segment_size_mb and page_size).
 *   segment   a virtual address (VA) range and the pages mapped in it (expandable), or one cuMemAlloc (classic).  Small
 *             segments have the blocks of up to 1 MiB, and large segments have all other blocks.
 *   block     a part of a segment: allocated, pending (freed, but another stream may still use it), cached (free and
 *             mapped), unmapped, or claimed (another call frees, maps or unmaps it).
 *   pool      a set of segments of one device that serves only its own requests; each device has a default pool
 *             (pool.h).
 *   reserved  the memory of mapped pages and classic segments.
 *   physical  the memory that the allocator has from the driver: reserved memory, the page cache (idle pages without a
 *             mapping, key page_cache_mb), and memory that the driver did not release.
 *   hit       a request that the cache serves without the driver; otherwise it is a miss.
 *   growth    an allocation of memory from the driver.
 *   idle      cached memory that can be released to the driver (reclaim.h).
 *   device memory lock
 *             the lock of a device that a call holds while it changes mappings or pages of the device: a growth, a
 *             trim, a decay pass (reclaim.h), the pause of a pool (pool.h).  Driver calls and waits for streams run
 *             under it.  Hits do not wait for it, and frees wait for it only with unmap_on_free or guard_page.
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
 * events.  The following calls wait for them: a request or a resume of a pool under memory pressure, xseg_trim() with
 * `wait`, xseg_capture_begin() after memory pressure, and xseg_close().
 *
 * A stream is identified by its handle.  The handle can be reused after the stream is destroyed, so the end of a stream
 * must be announced with xseg_stream_retire().  NULL and the handle 1 are the legacy default stream of the device.  The
 * handle 2 is the per-thread default stream of the calling thread.  The per-thread default stream of another thread has
 * no handle in this thread; use the legacy default stream, which waits for it.
 *
 * Structures start with struct_size.  `struct xseg_request request = {sizeof(request)};` sets it and clears all other
 * members; zero selects each default.  Structures for which zero is not neutral have an initializer macro.  The library
 * accepts the structures of older and newer headers: a missing member has its default, and a member that the library
 * does not know must be zero.  A result is written up to struct_size.  With -Wextra, gcc and clang warn about this form
 * of initializer unless -Wno-missing-field-initializers is set.
 *
 * Threads: every function can be called from any thread at any time, unless its comment says otherwise.  "Waits for the
 * device memory lock" means that the call may block for as long as another call holds this lock.
 *
 * Fork: in a forked child every function that takes an allocator, a pool or a range returns XSEG_ERR_FORKED and has no
 * effect.  xseg_open() returns XSEG_ERR_DRIVER if the parent has initialized the driver, since such a driver does not
 * work in the child.  Fork before the first xseg_open(), or start the child by exec.
 *
 * Signals: a signal handler may call xseg_status_name() and no other function, because the interrupted thread can hold
 * a lock of the library.  A signal handler must not leave a call of the library by longjmp().  The library installs no
 * signal handler.
 *
 * dlclose: the library stays mapped, so calls in progress and handles stay valid.
 *
 * Environment: xseg_open() reads XSEG_DRIVER, XSEG_ALLOC_CONF, PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF;
 * docs/environment.md lists all variables.  A set-user-ID process (AT_SECURE) ignores them, and a log line lists the
 * ignored variables.
 *
 * Errors: an error leaves the blocks, pools and settings of the caller unchanged.  The cache may have changed: cached
 * memory may have been released or moved, and addresses, host memory or a device context may have been acquired.
 * Output parameters are written only on success, unless their comment says otherwise.  xseg_error_message() returns a
 * message with details.  The following statuses have the same meaning everywhere.  Functions list them only if there is
 * more to say.
 *   XSEG_ERR_ARGUMENT     a pointer is NULL, a number is out of range, a struct_size is unknown, or a handle or stream
 *                         is of another allocator, device or context.
 *   XSEG_ERR_HOST_MEMORY  a host allocation failed.
 *   XSEG_ERR_DRIVER       a driver call failed, for example because a stream does not exist; the message has the name
 *                         and the result of the driver call.
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
    /* Receives log lines; see xseg_open().  NULL: errors and warnings go to standard error. */
    void (*log)(void *context, enum xseg_log_level level, const char *line);
    void *log_context; /* first argument of `log` */
    /* Monotonic clock in nanoseconds; see xseg_open().  NULL: CLOCK_MONOTONIC. */
    uint64_t (*clock)(void *context);
    void *clock_context; /* first argument of `clock` */
};

/**
 * Open an allocator.
 *
 * The log function receives one line per call, without a newline.  Any thread can call it; the thread holds no lock of
 * the library.
 *
 * The clock measures decay (reclaim.h), the history (history.h) and ages.  Any thread can call the clock function, also
 * while it holds locks, so the function must not call the library.  Its origin is arbitrary, and it must never
 * decrease.  The clock is read when the library queries the free memory of the driver, by xseg_trim() with idle_ms or
 * due_only, and by functions of stats.h.  Allocations and frees read it while the history is enabled, or while memory
 * decays without the background thread.
 *
 * @param config   configuration string (docs/options.md).  NULL: the first variable that is set among XSEG_ALLOC_CONF,
 *                 PYTORCH_CUDA_ALLOC_CONF and PYTORCH_ALLOC_CONF.  Strings are not merged.  If a PYTORCH_* variable
 *                 does not name the key expandable_segments, its value is False, as in PyTorch.  Otherwise its default
 *                 is True.
 * @param options  NULL for the defaults.
 * @param out      receives the allocator; release it with xseg_close().
 *
 * @return XSEG_ERR_CONFIG     the string has an error; the message names key, value and position.
 *         XSEG_ERR_NO_DRIVER  the driver library cannot be loaded, lacks an entry point, is older than CUDA 12.0, or
 *                             has no visible device; the message has the reason.
 *         XSEG_ERR_DRIVER     cuInit failed for another reason, or cuDriverGetVersion or cuDeviceGetCount failed.
 * Cost: loads the driver; cuInit, cuDriverGetVersion, cuDeviceGetCount.  No context is created.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_open(const char *config,
                                              const struct xseg_options *options,
                                              struct xseg_allocator **out);

/**
 * Close an allocator: release all memory to the driver and invalidate the handle.
 *
 * The call waits for the work of all streams that use pending blocks or cached memory.  Private pools that the caller
 * still retains are destroyed, and ranges without committed memory are released.  If the call fails, the handle stays
 * valid, and the call can be repeated.
 *
 * @param allocator  NULL has no effect.  No other call on this allocator, its pools or its ranges may be in progress.
 *                   After a successful call the handles are invalid.
 *
 * @return XSEG_ERR_BUSY         blocks are allocated; granules of a range are committed, or decommitted and held; memory
 *                               is pinned, registered, exported or imported; or a capture or a route is active.  The
 *                               message has the reason, and lists the first allocated blocks.
 *         XSEG_ERR_DRIVER       the driver did not release some memory, which stays accounted, or a stream could not be
 *                               synchronized.
 *         XSEG_ERR_HOST_MEMORY  no event could be created for a block that was freed during a capture.
 * Cost: synchronizes the streams of pending blocks and cached memory; unmaps and releases all memory.
 */
XSEG_API xseg_status xseg_close(struct xseg_allocator *allocator);

/**
 * Change the keys that a configuration string names.
 *
 * Existing segments keep their page size.  After expandable_segments:False, expandable segments serve no more requests;
 * their allocated blocks stay valid.  `exportable` and `rdma` apply to devices that are opened and pools that are
 * created later.  Limits apply to open devices and to devices that are opened later.  A hard_limit_mb or a
 * per_process_memory_fraction below the memory in use releases idle memory immediately.
 *
 * @param config  configuration string; keys that it does not name keep their values.
 *
 * @return XSEG_ERR_CONFIG  the string has an error, or its limits contradict those that xseg_limits_set() has set; no
 *                          key is changed.
 * Threads: any; waits for the device memory lock of each open device.
 * Cost: no driver call, unless more than a limit is in use.
 */
XSEG_API xseg_status xseg_config_set(struct xseg_allocator *allocator, const char *config);

/**
 * Get the configuration as a string that xseg_open() accepts.
 *
 * The string names each key, except keys whose value is off or unlimited: PyTorch's grammar has no form for these
 * values.
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
 * Get the source of the configuration that xseg_open() used.
 *
 * @return "argument", "XSEG_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF" or "default", a static string;
 *         "" for a NULL allocator.
 * Cost: no driver call, no lock.
 */
XSEG_API const char *xseg_config_source(const struct xseg_allocator *allocator);

/** A key of the configuration string.  Strings are valid during the visit. */
struct xseg_config_key {
    size_t struct_size;        /* sizeof(struct xseg_config_key) of the library */
    const char *name;          /* as in the configuration string */
    const char *values;        /* accepted values, such as "True or False" */
    const char *description;   /* meaning of the key, as in docs/options.md */
    const char *value;         /* as in a configuration string, or a word such as "unlimited" */
    const char *default_value; /* default value, in the same form */
    bool is_set;               /* the configuration names the key */
    bool is_default;           /* the value is the default */
    bool has_effect;           /* the value has an effect in this configuration */
};

/**
 * Parse a configuration as xseg_open() does, and visit all keys in the order of docs/options.md.
 *
 * The function opens no allocator and loads no driver.  It works in a forked child.
 *
 * @param config   configuration string; NULL: the environment, as for xseg_open().
 * @param source   receives the source of the configuration, a static string as of xseg_config_source(); may be NULL.
 * @param visit    called for each key; returns false to end the visits.  NULL: the configuration is only parsed.
 * @param context  first argument of visit.
 *
 * @return XSEG_OK          also if `visit` ended the visits.
 *         XSEG_ERR_CONFIG  the string has an error; the message names key, value and position.  `visit` was not called.
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
 * The pool of the request is the pool of a capture or route that accepts the stream (pool.h), otherwise the default
 * pool of the device.
 *
 * @param device  CUDA ordinal.
 * @param bytes   size, rounded up to a multiple of 512 bytes, or as roundup_power2_divisions specifies.  With 0 the
 *                result is NULL, and nothing is allocated.
 * @param stream  stream of the device that orders the block; NULL is the legacy default stream.
 * @param out     receives the address, 512-byte aligned; free it with xseg_free().
 *
 * @return XSEG_ERR_NO_MEMORY     the device has too little free memory, even after all idle memory was released.
 *                                During a capture no idle memory is released.  With throw_on_cudamalloc_oom, and
 *                                without a memory fraction below 1, a request that exceeds the remaining device memory
 *                                fails before idle memory is released.
 *         XSEG_ERR_LIMIT         a limit rejects the request: per_process_memory_fraction, hard_limit_mb,
 *                                device_free_min_mb, budget_file, throw_on_cudamalloc_oom, xseg_limits_set() or
 *                                limit_bytes of the pool.  The message names the limit.
 *         XSEG_ERR_NO_ADDRESSES  the driver has no VA range left, and a classic segment cannot be allocated either.
 *         XSEG_ERR_UNSUPPORTED   the page size of the configuration is not a multiple of the device's granularity.
 *         XSEG_ERR_PAUSED        the pool of the request is paused (pool.h).
 * Threads: any; a miss waits for the device memory lock.
 * Cost: a hit makes no driver call, with five exceptions.
 *         - While blocks of the device are pending: one event query for each stream with pending blocks.
 *         - When a stream is seen for the first time: two queries.  The per-thread default stream: one query.
 *         - While a capture is active on the device: one query of the capture status.
 *         - With debug_fill: the stream is synchronized.
 *         - While a decay key is set without background_thread: a decay pass that is due (reclaim.h), which takes at
 *           most 200 us of driver time or releases one page.
 *       A miss creates and maps the missing pages, with one set-access per contiguous run, or calls cuMemAlloc once
 *       (classic).  With device_free_min_mb it also queries the free memory of the device (cuMemGetInfo), unless the
 *       page cache has the pages.  Under memory pressure the call may synchronize streams and release cached memory, except
 *       during a capture.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc(struct xseg_allocator *allocator, int device,
                                               size_t bytes, xseg_stream stream, void **out);

/** Parameters of xseg_alloc_with(). */
struct xseg_request {
    size_t struct_size;     /* sizeof(struct xseg_request) */
    int device;             /* CUDA ordinal; ignored if pool is set */
    size_t bytes;           /* size; see xseg_alloc() */
    xseg_stream stream;     /* stream that orders the block; see xseg_alloc() */
    struct xseg_pool *pool; /* NULL: the pool that xseg_alloc() selects */
    size_t alignment;       /* alignment of the address, a power of two up to 1 GiB; 0: 512 bytes */
    bool zeroed;            /* clear the block in stream order */
    void *user;             /* user value of the block, recorded if the key block_user is set */
};

/**
 * Allocate device memory with the parameters of a request.  Otherwise as xseg_alloc().
 *
 * A zeroed block is cleared by a memset on the request's stream; other streams must wait for it as for any work.  On a
 * capturing stream the memset is a node of the graph, so the block is cleared at each launch of the graph.
 *
 * xseg_block_query(), xseg_for_each_block() and the events of the block (struct xseg_history_entry) return the user
 * value.  The library does not dereference it.
 *
 * @return the statuses of xseg_alloc().
 *         XSEG_ERR_DRIVER    also: the memset failed.  The block was freed again, and the statistics count both steps.
 *         XSEG_ERR_ARGUMENT  also: the alignment is not a power of two or exceeds 1 GiB; or the pool has been released.
 * Cost: as xseg_alloc().  An alignment above 512 bytes needs a cached block that is longer by up to the alignment; the
 *       part before the aligned address stays cached.  `zeroed` adds one cuMemsetD32Async.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_with(struct xseg_allocator *allocator,
                                                    const struct xseg_request *request, void **out);

/**
 * Free a block.
 *
 * A later request on the block's stream can reuse the block immediately.  If xseg_record_stream() named other streams,
 * the block is pending until the work that is queued on these streams now has completed.
 *
 * @param ptr  address that an allocation returned; NULL has no effect.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no allocated block starts at ptr; the message describes the address.
 *         XSEG_ERR_DRIVER         an event could not be recorded; the block stays allocated.
 * Cost: no driver call, with four exceptions.
 *         - After xseg_record_stream(): one event record per other stream, and an event create if no event is idle.
 *         - With debug_fill: a memset.
 *         - With unmap_on_free or guard_page: the block's streams are synchronized, and its pages are unmapped and
 *           released.
 *         - While a decay key is set without background_thread: a decay pass, as in xseg_alloc().
 */
XSEG_API xseg_status xseg_free(struct xseg_allocator *allocator, void *ptr);

/**
 * Announce that work on another stream uses a block (PyTorch's record_stream).
 *
 * @param ptr     start of an allocated block; NULL has no effect.
 * @param stream  stream that uses the block; the block's own stream has no effect.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no allocated block starts at ptr.
 * Cost: no driver call, with three exceptions.
 *         - When the stream is seen for the first time: two queries.
 *         - The per-thread default stream: one query.
 *         - While a capture is active on the device: one query of the capture status.
 */
XSEG_API xseg_status xseg_record_stream(struct xseg_allocator *allocator, void *ptr,
                                        xseg_stream stream);

/**
 * Free a block once some events have completed.
 *
 * The block is pending until the events have completed, and until the streams that xseg_record_stream() named have
 * completed their work.  The events can be destroyed or recorded again as soon as the call returns.
 *
 * An internal stream of the device waits for the events.  The blocks of several calls therefore become free in the
 * order of the calls, and a block can stay pending until the events of earlier calls have completed.
 *
 * @param ptr     start of an allocated block; NULL has no effect.
 * @param events  recorded events of the block's device.
 * @param count   number of events; with 0 the call is an xseg_free(), but fails during a capture.
 *
 * @return XSEG_ERR_BUSY           a capture is active on the device; free the block after the capture.
 *         XSEG_ERR_NOT_ALLOCATED  no allocated block starts at ptr.
 *         XSEG_ERR_DRIVER         the driver rejects an event, such as one recorded in a capture; the block stays
 *                                 allocated.
 *         XSEG_ERR_ARGUMENT       also: an event is NULL.
 * Threads: any; waits for the device memory lock if an event has not completed.
 * Cost: one query per event, and one stream wait for each event that has not completed.  If there is such an event, one
 *       event record on the internal stream, which the first such call creates.
 */
XSEG_API xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr,
                                     const xseg_event *events, size_t count);

/**
 * Announce that all work queued on a stream so far has completed.
 *
 * Call this function after the stream was synchronized.  Pending blocks stop waiting for this stream without an event
 * query, and a block that waits for no other stream is cached.
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
 * If the handle is used again, it identifies a new stream.  Allocated blocks of the retired stream stay valid.
 *
 * Once the work that is queued on the stream now has completed, the memory of the stream passes to the next stream that
 * is seen for the first time on the device.  Cached memory then serves requests of that stream.  Allocated blocks in
 * this memory are ordered by that stream from then on (struct xseg_block_info): use them on that stream, or announce
 * other uses with xseg_record_stream().  Until then a trim can release the cached memory.
 *
 * @param device  CUDA ordinal.
 * @param stream  stream of the device, not a default stream; an unknown stream has no effect.
 *
 * @return XSEG_ERR_BUSY  the stream is capturing, or an xseg_capture_begin() on it has no xseg_capture_end() yet.
 * Threads: any; waits for the device memory lock.
 * Cost: one capture query and one event record; no driver call for an unknown stream.
 */
XSEG_API xseg_status xseg_stream_retire(struct xseg_allocator *allocator, int device,
                                        xseg_stream stream);

/* --- Query. --- */

enum xseg_block_state {
    XSEG_BLOCK_ALLOCATED,    /* returned by an allocation and not freed */
    XSEG_BLOCK_PENDING_FREE, /* pending: freed, but another stream may still use it */
    XSEG_BLOCK_CACHED,       /* free and mapped */
    XSEG_BLOCK_UNMAPPED,     /* addresses of a segment without memory */
    XSEG_BLOCK_CLAIMED       /* another call frees, maps or unmaps it */
};

/** A block and its neighborhood.  Set struct_size before the call. */
struct xseg_block_info {
    size_t struct_size; /* sizeof(struct xseg_block_info) */
    void *base;         /* start address of the block */
    size_t bytes;       /* size; all of it is usable while the block is allocated */
    size_t requested;   /* requested size; of a cached block as in PyTorch's snapshots */
    enum xseg_block_state state;
    int device;
    xseg_stream stream;     /* stream that orders the block; see xseg_block_query() */
    struct xseg_pool *pool; /* private pool of the block; NULL: the default pool */
    bool is_small;          /* the block is in a small segment */
    bool is_expandable;     /* the segment is expandable */
    void *segment_base;     /* start address of the segment */
    size_t segment_bytes;   /* size of its VA range (expandable) or of its memory (classic) */
    size_t segment_mapped;  /* mapped bytes of the segment */
    size_t free_before, free_after;         /* cached bytes next to the block */
    size_t unmapped_before, unmapped_after; /* unmapped bytes beyond these cached bytes */
    uint64_t generation; /* increases when other memory is mapped here; 0: unmapped block */
    bool is_paused;      /* the pool is paused or being paused; the block may be unmapped */
    uint64_t age_ms;     /* time since the allocation, accurate to 20 ms; UINT64_MAX: unknown */
    struct xseg_pool *fallback_pool; /* private pool that has the memory (use_on_oom), or NULL */
    uint32_t stack;                  /* stack of the allocation (history.h); 0: not recorded */
    uint32_t frames;                 /* frames ID of the history hook (history.h); 0: none */
    const char *label;               /* label of the allocating thread (history.h); NULL: none */
    void *user;                      /* user value of the request; NULL: not recorded */
};

/**
 * Query the block that contains an address.
 *
 * The stream of a block is the stream of its allocation, also after xseg_stream_retire(), until another stream takes
 * over the memory; then it is that stream.
 *
 * The members age_ms, stack, frames, label and user are known for allocated and pending blocks only.  The age is known
 * for blocks that were allocated, or restored from a checkpoint, while the key history was set.  Stack, frames and
 * label are recorded while the key history is not `nothing`, and the user value while the key block_user is set.  The
 * label string is valid while the block is allocated or pending.  The pool of fallback_pool may have been released
 * since the allocation.
 *
 * @param anywhere  any address in a segment of the allocator.
 * @param out       receives the result, up to out->struct_size bytes.
 *
 * @return XSEG_ERR_NOT_ALLOCATED  no segment contains the address.
 * Cost: no driver call.  O(1) for the start of an allocated block, plus one table entry per 2 MiB of the block.
 *       O(adjacent free blocks) for other addresses.
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
    struct xseg_pool *pool; /* private pool of the segment; NULL: the default pool */
    bool is_expandable;     /* the segment is expandable */
    bool is_pinned;         /* a page of the run is pinned */
    bool is_exported;       /* a page of the run is exported (share.h) */
    bool is_single_page; /* the run is one page that is its whole segment (single_page in pool.h) */
};

/** The memory that a call applies to.  XSEG_SCOPE_ALL selects all devices, pools and streams. */
struct xseg_scope {
    size_t struct_size;     /* sizeof(struct xseg_scope) */
    int device;             /* CUDA ordinal; -1: all open devices, or the device of `pool` */
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
