/* SPDX-License-Identifier: MIT */
/*
 * Private pools: segments that serve only the requests of one CUDA graph, one kind of data or one library; captures of
 * CUDA graphs.
 *
 *     struct xseg_request request = {sizeof(request)};
 *     request.bytes = 100 << 20;
 *     if (xseg_pool_create(allocator, 0, NULL, &request.pool) != XSEG_OK ||
 *         xseg_alloc_with(allocator, &request, &weights) != XSEG_OK) // Served from memory of the pool.
 *         return 1;
 *     // Synchronize all streams that used the pool.
 *     xseg_pool_pause(request.pool, XSEG_KEEP_HOST, NULL); // Releases the physical memory; the addresses stay.
 *     xseg_pool_resume(request.pool);  // Maps memory at the same addresses and copies the contents.
 *     xseg_pool_release(request.pool); // Blocks of the pool stay valid until they are freed.
 *
 * Memory of a private pool serves no request of another pool, except with use_on_oom.  While the pool is retained, only
 * calls for this pool release its cached memory: xseg_trim() with the pool as its scope, and xseg_pool_pause().  Under
 * memory pressure a request of a pool with single_page does so, too.  A pool belongs to one device and has its own
 * small and large segments for each stream.  docs/pools.md describes the options in combination.
 *
 * CUDA graphs: allocations of a capturing stream use a private pool.
 *
 *     xseg_pool_create(allocator, 0, NULL, &pool); // The graph uses this pool at each launch.
 *     xseg_capture_begin(pool, stream); // Announces the capture.
 *     cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
 *     xseg_alloc(allocator, 0, bytes, stream, &block); // Is served from the pool.
 *     cudaStreamEndCapture(stream, &graph);
 *     xseg_capture_end(pool); // Ends the redirection.
 *     // The program launches the graph any number of times and destroys it.
 *     xseg_pool_release(pool); // Its memory is released later, once its blocks are freed.
 *
 * If the program selects the streams of a pool itself, or if a capture uses several pools, call xseg_capture_mark() and
 * xseg_capture_unmark() around the capture, and xseg_route_begin() with a predicate for each pool.
 *
 * Graphs that are launched one after another in the order of their captures can share a pool.  Call xseg_pool_retain()
 * for each further graph, and xseg_pool_release() when a graph is destroyed.
 *
 * If streams of several devices take part in a capture, begin and end the capture on each device, with a pool and a
 * stream of that device.  A capture that is not announced must not use memory of the allocator.
 *
 * While a capture is active on a device, the library unmaps and frees no memory of the device, queries no event and
 * synchronizes no stream, since these calls would invalidate the capture.  Memory can grow, and each request queries
 * the capture status.
 *
 * If streams other than its own used a block that is freed during a capture, the block is pending until the end of the
 * capture.  At the end, events are recorded for the uses by streams outside the capture.  Uses by capturing streams
 * need no event, because captured work was not executed.
 *
 * With graph_capture_record_stream_reuse:True such a block is reused within the capture as soon as all nodes that use
 * the block precede all nodes that its stream captures next.  This has two conditions; otherwise the block is pending
 * until the end of the capture.
 *   - The stream of the block takes part in a capture, and all uses by other streams were announced while these streams
 *     took part in the same capture.
 *   - No other thread has named one of these streams since the freeing thread named it during the capture.  A stream is
 *     named by a request, xseg_record_stream() or xseg_capture_begin().
 */
#ifndef XSEG_POOL_H
#define XSEG_POOL_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct xseg_statistics;

/**
 * Memory functions of a pool, which replace the driver.
 *
 * The calling thread can hold the device memory lock, so the functions must not call the library.  They run in relaxed
 * capture mode, so they may allocate and free during a capture.
 */
struct xseg_pool_memory {
    /* Returns 512-byte aligned device memory that work on `stream` can use immediately, or NULL. */
    void *(*alloc)(void *context, size_t bytes, int device, xseg_stream stream);
    /* Releases memory of `alloc`.  No work uses the memory. */
    void (*free)(void *context, void *ptr, size_t bytes, int device, xseg_stream stream);
    void *context; /* first argument of both functions */
};

/** Maximum length of the name of a pool in bytes, without the terminator. */
#define XSEG_POOL_NAME_MAX 63

/** Options of xseg_pool_create(). */
struct xseg_pool_options {
    size_t struct_size;             /* sizeof(struct xseg_pool_options) */
    uint64_t limit_bytes;           /* maximum of reserved memory; 0: unlimited */
    bool no_split;                  /* serve each request with a whole cached block */
    bool use_on_oom;                /* let the default pool use cached memory of this pool */
    struct xseg_pool_memory memory; /* memory functions, copied; NULL functions: the driver */
    bool exportable;                /* other processes can map the pages (share.h) */
    const char *name;               /* name in messages, copied; NULL or "": the pool number */
    uint64_t id[2];                 /* user's ID, such as PyTorch's MempoolId_t; {0, 0}: none */
    /* Called once when the pool is destroyed, with its last statistics; NULL: none. */
    void (*on_destroy)(void *context, const struct xseg_statistics *last);
    void *on_destroy_context; /* first argument of `on_destroy` */
    bool rdma;                /* network adapters can access the pages (GPUDirect RDMA) */
    bool single_page;         /* a block of more than 1 MiB is one physical page */
};

/**
 * Create a private pool.  The caller retains it once.
 *
 * limit_bytes: xseg_limits_set() changes the limit.
 *
 * use_on_oom: under memory pressure a request of the default pool can use cached memory of this pool.  The block
 * belongs to the default pool and has this pool as fallback_pool (struct xseg_block_info).  The pool cannot be paused
 * while such a block is allocated.  A pool that took part in a capture serves only its own requests, since graphs may
 * write to its cached memory.
 *
 * memory: a pool with memory functions has classic segments, and cannot be exportable, rdma or single_page.
 *
 * exportable: importers of a page can also access blocks of the default pool on this page (use_on_oom).
 *
 * rdma: if the driver cannot create such pages, a log line has the reason, and the pool has ordinary pages.  Classic
 * segments are always accessible.
 *
 * single_page: a block of more than 1 MiB has a page that no other block shares, so cuMemGetAddressRange() and
 * cuMemRetainAllocationHandle() return the whole block.  The size is rounded up to a multiple of 2 MiB.  A cached block
 * serves a request that is shorter by less than max_non_split_rounding_mb.  A classic segment is always one allocation.
 *
 * name, id: neither must be unique.  The history has both the ID and the pool number, which counts the private pools of
 * an allocator from 1.
 *
 * on_destroy: see xseg_pool_release().
 *
 * @param device   CUDA ordinal.
 * @param options  NULL for the defaults.
 * @param out      receives the pool; release it with xseg_pool_release().
 *
 * @return XSEG_ERR_UNSUPPORTED  the pool is exportable, but the driver cannot create or export such memory.
 * Threads: any; waits for the device memory lock if the pool is exportable or rdma.
 * Cost: no driver call once the device is open.  The first exportable pool of a device creates, exports and releases
 *       one page as a probe, and again for fabric handles.  The first rdma pool probes as the opening of a device does.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                                                     const struct xseg_pool_options *options,
                                                     struct xseg_pool **out);

/**
 * Allocate a block at a given address, in cached memory of a pool and a stream (PyTorch's allocateWithAddress).
 *
 * No memory is mapped or moved.  docs/differences.md describes how the statistics differ.
 *
 * @param bytes    size, rounded as by xseg_alloc(); up to 1 MiB in small segments, otherwise in large ones.  With 0 the
 *                 result is NULL, and nothing is allocated.
 * @param stream   stream of the cached memory.
 * @param address  start address of the block, a multiple of 512.
 * @param out      receives `address`; free it with xseg_free().
 *
 * @return XSEG_ERR_BUSY       some bytes are not cached memory of this pool and stream in this kind of segment (small,
 *                             large); the message describes them.
 *         XSEG_ERR_NO_MEMORY  the size exceeds the maximum allocation size.
 *         XSEG_ERR_PAUSED     the pool is paused.
 *         XSEG_ERR_ARGUMENT   also: the pool has been released.
 * Threads: any; waits for the device memory lock.
 * Cost: as a hit of xseg_alloc().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_at(struct xseg_pool *pool, size_t bytes,
                                                  xseg_stream stream, void *address, void **out);

/** Options of a pool that xseg_pool_set() changes. */
enum xseg_pool_setting { XSEG_POOL_NO_SPLIT, XSEG_POOL_USE_ON_OOM, XSEG_POOL_SINGLE_PAGE };

/**
 * Set an option of a pool: no_split and use_on_oom at any time, single_page before the first allocation.
 *
 * no_split applies to later requests; existing blocks keep their size.  After use_on_oom is cleared, the default pool
 * uses no more memory of the pool; blocks that use it stay valid.  A concurrent request can still use the previous
 * value.
 *
 * @param setting  option to set.
 * @param on       new value.
 *
 * @return XSEG_ERR_BUSY      the setting is single_page, and the pool has served a request.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released, or the setting is single_page and the pool has memory
 *                            functions.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_set(struct xseg_pool *pool, enum xseg_pool_setting setting, bool on);

/**
 * Increment the reference count of a pool.  The caller holds a reference.
 *
 * @return XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_retain(struct xseg_pool *pool);

/**
 * Decrement the reference count of a pool.
 *
 * After the last release the pool serves no requests.  Its allocated blocks stay valid and are freed as usual.  Its
 * cached memory is released by the next trim or under memory pressure; until then xseg_for_each_block(), xseg_explain()
 * and xseg_for_each_mapping() report the pool.  The pool is destroyed when its last memory is released.
 *
 * The last release invalidates the handle, unless the pool has an `on_destroy` callback.  With a callback the handle is
 * valid for queries and trims until the callback has returned.  The use of an invalid handle is undefined; it is
 * reported as XSEG_ERR_ARGUMENT only while the pool has memory.
 *
 * The callback runs without a lock and may call the allocator; `last` is valid during the callback.  It runs once, in
 * one of these calls, which may be of any thread.
 *   - The last release, if the pool has no memory and no capture is active.
 *   - The end of a route or capture that retained the pool last, under the same condition.
 *   - The trim that releases the last memory of the pool.
 *   - If decay or memory pressure releases this memory: a later trim, release of a pool or miss on the device.
 *   - At the latest xseg_close(), also for a pool that is still retained.  In xseg_close() the callback must not call
 *     the allocator.
 * The memory functions of the pool are not called after the callback.
 *
 * @return XSEG_ERR_ARGUMENT  also: the pool has already been released.
 * Threads: any; the last release of a pool with addresses and without memory waits for the device memory lock.
 * Cost: no driver call, except to free the addresses of a pool without memory.
 */
XSEG_API xseg_status xseg_pool_release(struct xseg_pool *pool);

/**
 * Direct requests to a pool until xseg_route_end().
 *
 * The pool serves the requests of all threads on its device that name no pool and that the predicate accepts.  If
 * several routes and captures accept a request, the one that began last applies.  The library retains the pool until
 * the end of the route.
 *
 * @param accepts  predicate.  The allocating thread calls it with the stream of the request, without a lock.  It must
 *                 not call the library.  NULL accepts all requests.
 * @param context  first argument of the predicate.
 *
 * @return XSEG_ERR_BUSY      the pool is already the target of a route or capture.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_route_begin(struct xseg_pool *pool,
                                      bool (*accepts)(void *context, xseg_stream stream),
                                      void *context);

/**
 * End a route.  The predicate is not called after the return.
 *
 * @return XSEG_ERR_ARGUMENT  the pool is not the target of a route.
 * Threads: any; waits for predicates that run in other threads, and as the last xseg_pool_release().
 * Cost: no driver call; after a capture (xseg_capture_unmark()) as xseg_capture_end().
 */
XSEG_API xseg_status xseg_route_end(struct xseg_pool *pool);

/* The allocated blocks of a pool, and the committed granules of its ranges (range.h), at one moment. */
struct xseg_checkpoint;

/**
 * Record the allocated blocks of a pool and the committed granules of its ranges, for xseg_pool_restore().
 *
 * Blocks of the default pool that use memory of this pool (use_on_oom), and decommitted granules, are not recorded.
 *
 * @param out  receives the checkpoint; destroy it with xseg_checkpoint_destroy().
 *
 * @return XSEG_ERR_BUSY      the pool has pending blocks, a capture is active, or another call has claimed a granule of
 *                            a range of the pool.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Threads: any; waits for the device memory lock.
 * Cost: event queries for pending blocks as in xseg_alloc(); O(granules of the pool's ranges).  Host memory: 32 bytes
 *       per allocated or cached block, 16 bytes per run of committed granules.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_checkpoint(struct xseg_pool *pool,
                                                         struct xseg_checkpoint **out);

/** Destroy a checkpoint.  No other call may use it concurrently.  NULL has no effect. */
XSEG_API void xseg_checkpoint_destroy(struct xseg_checkpoint *checkpoint);

/**
 * Restore a pool to a checkpoint.
 *
 * Blocks that are allocated now are freed.  Blocks that were allocated at the checkpoint are allocated again, with
 * their addresses and requested sizes; their contents are undefined.  Memory by which the pool has grown since the
 * checkpoint stays cached.  Blocks of the default pool in memory of this pool (use_on_oom) are not affected.
 *
 * Granules of ranges of the pool are committed after the call if and only if they were committed at the checkpoint.
 * Other committed granules, also of ranges that were reserved since the checkpoint, are decommitted on the legacy
 * default stream; make this stream wait for all streams that use them.  Granules that were decommitted since the
 * checkpoint are recommitted with their contents.  They must still have their memory (xseg_range_hold()).  They must
 * have been decommitted on the legacy default stream, or on a stream whose work has completed.
 *
 * @param moved    called without a lock for each block that was freed (`freed` is true), then for each block that is
 *                 allocated again (`freed` is false).  A block that is allocated in both states is reported twice.
 *                 Granules are not reported.  May be NULL.
 * @param context  first argument of `moved`.
 *
 * @return XSEG_ERR_BUSY      the pool cannot be restored now, and the message has the reason.
 *                            - Other streams use an allocated block (xseg_record_stream()), or blocks are pending.
 *                            - A capture is active on the device.
 *                            - Memory of the checkpoint is unmapped, has a block of the default pool, or is an aliased
 *                              page (xseg_range_alias()).
 *                            - A granule waits for another stream, or another call has claimed a granule.
 *         XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_ARGUMENT  also: the checkpoint is of another pool, or the pool has been released.
 *         An error leaves the pool unchanged.
 * Threads: no other call may use the pool concurrently.  The call waits for the device memory lock.
 * Cost: no driver call for blocks.  For ranges O(granules), an event record for each decommitted run, and event queries
 *       for the streams of decommitted granules.
 */
XSEG_API xseg_status xseg_pool_restore(struct xseg_pool *pool,
                                       const struct xseg_checkpoint *checkpoint,
                                       void (*moved)(void *context, void *ptr, bool freed),
                                       void *context);

/**
 * Check whether a set of addresses is exactly the set of allocated (live) blocks of a pool.
 *
 * Blocks of the default pool in memory of this pool, and granules of ranges, are not blocks of the pool.
 *
 * @param ptrs     start addresses, in any order; duplicates count once.
 * @param count    number of elements of ptrs.
 * @param exactly  receives the result.
 *
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_check_live(struct xseg_pool *pool, void *const *ptrs, size_t count,
                                          bool *exactly);

/** Destination of the contents of a paused pool. */
enum xseg_keep {
    XSEG_KEEP_NOTHING, /* discarded: contents are undefined after xseg_pool_resume() */
    XSEG_KEEP_HOST,    /* pinned host memory, as large as the reserved memory of the pool */
    XSEG_KEEP_FILE     /* a sparse file, in which zeros take no space */
};

/**
 * Pause a pool: release its physical memory and keep its addresses and blocks.
 *
 * The call releases all mapped memory of the pool.  It keeps the contents of cached memory as well, since graphs may
 * use it.  CUDA graphs that use the pool are valid again after xseg_pool_resume().  Synchronize all streams that used
 * the pool before the call.  While the pool is paused:
 *   - Work that accesses its memory faults.
 *   - Requests of the pool return XSEG_ERR_PAUSED.
 *   - Blocks can be freed and queried, and xseg_record_stream() works, without driver calls.
 *   - Its reserved memory is 0, also for limits.
 *   - The pool can be released.  If it has no blocks then, the next trim or xseg_close() discards the contents.
 *
 * With XSEG_KEEP_FILE two descriptors stay open while the pool is paused.  xseg_pool_resume() removes the file from its
 * directory, also after chdir() or a rename of the directory, unless another file has taken its name.
 *
 * @param keep  destination of the contents.
 * @param file  with XSEG_KEEP_FILE the path of a new file, which is created with mode 0600; otherwise NULL.
 *
 * @return XSEG_ERR_BUSY         the memory is in use, and the message has the reason.
 *                               - A stream of the pool, or a stream that uses an allocated block, has queued work.
 *                               - Blocks are pending, or decommitted granules wait for a stream or are held.
 *                               - A page is pinned or exported.
 *                               - An importer of a segment is connected (xseg_export_segment()).  A closed import is
 *                                 counted until a thread of the exporter has handled the close; retry.
 *                               - A block of the default pool is in memory of the pool (use_on_oom).
 *                               - Another thread allocates from the pool, or runs a registration callback for its
 *                                 memory.
 *                               - A capture is active on the device.
 *         XSEG_ERR_PAUSED       the pool is already paused.
 *         XSEG_ERR_UNSUPPORTED  the pool has classic segments.  Allocate its blocks with expandable_segments:True, and
 *                               create it without memory functions.
 *         XSEG_ERR_ARGUMENT     also: the pool has been released, or keep and file do not match.
 *         XSEG_ERR_HOST_MEMORY  also: the contents do not fit into host memory.
 *         XSEG_ERR_LIMIT        the device is integrated, and with XSEG_KEEP_HOST the copy, which takes its memory,
 *                               would leave less than device_free_min_mb free.  Use XSEG_KEEP_FILE.
 *         XSEG_ERR_FILE         the file cannot be created or written.
 *         An error leaves the pool unchanged; but if the driver does not unmap the memory, exports of segments have
 *         ended.  If the driver also rejects the rollback, the pool is paused, and the
 *         message states this; xseg_pool_resume() then restores memory and contents.
 * Threads: any; waits for the device memory lock, which is not held during the copies.
 * Cost: a query for each stream; one unmap per contiguous run, one release per page.  XSEG_KEEP_HOST: one
 *       cuMemHostAlloc per GiB and one copy per run.  XSEG_KEEP_FILE: one copy and one synchronize per 64 MiB.  The
 *       call waits for the copies.
 */
XSEG_API xseg_status xseg_pool_pause(struct xseg_pool *pool, enum xseg_keep keep, const char *file);

/**
 * Resume a paused pool: map memory at the same addresses, and copy the contents that xseg_pool_pause() kept.
 *
 * Under memory pressure idle memory of the device is released first, as by xseg_trim() with `wait`.
 *
 * @return XSEG_ERR_NO_MEMORY    the device has too little free memory.
 *         XSEG_ERR_LIMIT        a limit of the device or of the pool rejects the memory; raise the limit, or free
 *                               memory.
 *         XSEG_ERR_PAUSED       another thread pauses or resumes the pool.
 *         XSEG_ERR_BUSY         a capture is active on the device.
 *         XSEG_ERR_ARGUMENT     also: the pool is not paused.
 *         XSEG_ERR_FILE         the file cannot be read.
 *         XSEG_ERR_UNSUPPORTED  the pool is exportable, but the driver cannot create such memory.
 *         An error leaves the pool paused, with its contents.
 * Threads: any; waits for the device memory lock, which is not held during the copies.
 * Cost: one create and one map per page, one set-access per run, and the copies of xseg_pool_pause(); one cuMemGetInfo
 *       with device_free_min_mb.
 */
XSEG_API xseg_status xseg_pool_resume(struct xseg_pool *pool);

/* --- Captures. --- */

/**
 * Announce the capture of a stream.  Call this function before cuStreamBeginCapture().
 *
 * Until xseg_capture_end(), the pool serves requests that name no pool, on the stream and on streams that joined its
 * capture, while the driver reports the stream of the request as capturing.  The library retains the pool until then.
 *
 * @param stream  stream of the pool's device, not the legacy default stream.
 *
 * @return XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_BUSY      the pool is already the target of a capture or route, or a capture of the stream into
 *                            another pool has not ended.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Threads: any; waits for the device memory lock.
 * Cost: two queries for a stream that is seen for the first time.  After memory pressure on the device, cached memory
 *       is released first, as by xseg_trim() with `wait`, which can block without a time limit; failures are ignored.
 */
XSEG_API xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream);

/**
 * Announce the end of a capture.  Call this function after cuStreamEndCapture(), also if the capture failed.
 *
 * @return XSEG_ERR_ARGUMENT  no capture into this pool is active.
 * Cost: no driver call.  With graph_capture_record_stream_reuse:True, one event record for each use of each pending
 *       block by a stream outside the capture.
 */
XSEG_API xseg_status xseg_capture_end(struct xseg_pool *pool);

/**
 * Announce a capture on a device without a pool.
 *
 * Until xseg_capture_unmark() a capture is active on the device.  Routes (xseg_route_begin()) select the pools of
 * requests; they can begin and end during the capture.  A pool that is the target of a route during the capture takes
 * part in the capture.
 *
 * Marks are counted.  The capture ends when each mark has been removed, and each xseg_capture_begin() has its
 * xseg_capture_end().
 *
 * @param device  CUDA ordinal.
 *
 * Threads: any; waits for the device memory lock.
 * Cost: no driver call once the device is open, so the call can follow cuStreamBeginCapture().
 */
XSEG_API xseg_status xseg_capture_mark(struct xseg_allocator *allocator, int device);

/**
 * Remove one mark of a device.
 *
 * @param device  CUDA ordinal.
 *
 * @return XSEG_ERR_ARGUMENT  the device has no mark.
 * Cost: as xseg_capture_end().
 */
XSEG_API xseg_status xseg_capture_unmark(struct xseg_allocator *allocator, int device);

#ifdef __cplusplus
}
#endif

#endif
