/* SPDX-License-Identifier: MIT */
/*
 * Private pools: segments that serve only the requests of one graph, tag or library; captures of CUDA graphs.
 *
 *     struct xseg_request request = {sizeof(request)};
 *     request.bytes = 100 << 20;
 *     if (xseg_pool_create(allocator, 0, NULL, &request.pool) != XSEG_OK ||
 *         xseg_alloc_with(allocator, &request, &weights) != XSEG_OK) // Served from memory of the pool.
 *         return 1;
 *     xseg_pool_pause(request.pool, XSEG_KEEP_HOST, NULL); // Releases the physical memory; the addresses stay.
 *     xseg_pool_resume(request.pool);  // Maps memory at the same addresses and copies the contents.
 *     xseg_pool_release(request.pool); // Blocks of the pool stay valid until they are freed.
 *
 * Memory of a private pool serves no request of another pool, except with use_on_oom.  While the pool is retained, its
 * memory is released only by a call that names the pool (xseg_trim(), xseg_pool_pause()).  A pool is of one device and
 * has its own small and large segments for each stream.  docs/pools.md describes the options in combination.
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
 * If the program knows the streams of the capture itself, or a capture uses several pools, call xseg_capture_mark() and
 * xseg_capture_unmark() around the capture, and xseg_route_begin() with a predicate for each pool.
 *
 * Graphs that are launched one after another in the order of their captures can share a pool.  Call xseg_pool_retain()
 * for each further graph, and xseg_pool_release() when a graph is destroyed.
 *
 * If streams of several devices take part in a capture, begin and end it on each device, with a pool and a stream of
 * that device.  A capture that is not announced must not use memory of the allocator.
 *
 * While a capture is active on a device, the library unmaps and frees no memory, queries no event and synchronizes no
 * stream of the device, since that would invalidate the capture.  Memory can grow, and requests query the capture
 * status.  A block that other streams used and that is freed during the capture is pending until the end of the
 * capture.  Uses by capturing streams end with the capture, because a capture executes nothing.  With
 * graph_capture_record_stream_reuse:True such a block is reused within the capture, once the graph orders all its uses
 * before everything that its stream captures next.  This requires that the freeing thread was the last one to name each
 * of these streams (in an allocation, a use or xseg_capture_begin()); otherwise the block is pending until the end.
 */
#ifndef XSEG_POOL_H
#define XSEG_POOL_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

struct xseg_statistics;

/**
 * Memory functions of a pool, in place of the driver.
 *
 * The functions must not call the library.  They are called without a lock of the hot path, and in relaxed capture
 * mode, so they may allocate and free during a capture.
 *
 * alloc: returns `bytes` of device memory, 512-byte aligned and usable by work on `stream` immediately, or NULL.
 * free:  releases memory of alloc, which no work uses.
 */
struct xseg_pool_memory {
    void *(*alloc)(void *context, size_t bytes, int device, xseg_stream stream);
    void (*free)(void *context, void *ptr, size_t bytes, int device, xseg_stream stream);
    void *context;
};

/** Maximum length of the name of a pool in bytes, without the terminator. */
#define XSEG_POOL_NAME_MAX 63

/** Options of xseg_pool_create(). */
struct xseg_pool_options {
    size_t struct_size;   /* sizeof(struct xseg_pool_options) */
    uint64_t limit_bytes; /* maximum of reserved memory; 0: unlimited (xseg_limits_set()) */
    bool no_split;        /* serve a request with a whole cached block */
    bool use_on_oom;      /* let the default pool use cached memory under memory pressure */
    struct xseg_pool_memory memory; /* memory functions, copied; NULL functions: the driver */
    bool exportable;                /* other processes can map the pages (share.h) */
    const char *name;               /* name in messages, copied; NULL or "": the ID of the pool */
    uint64_t id[2]; /* user's ID in the history, such as PyTorch's MempoolId_t; {0, 0}: none */
    /* Called once when the pool is destroyed, with its last statistics; see xseg_pool_release().  NULL: none. */
    void (*on_destroy)(void *context, const struct xseg_statistics *last);
    void *on_destroy_context; /* first argument of `on_destroy` */
    bool rdma; /* other devices, such as network adapters, can access the pages (GPUDirect RDMA) */
    bool single_page; /* a block of more than 1 MiB is one physical page */
};

/**
 * Create a private pool.  The caller retains it once.
 *
 * use_on_oom: a block of the default pool that uses memory of this pool has the pool as fallback_pool (struct
 * xseg_block_info).  The pool cannot be paused while such a block is live.  A pool that took part in a capture serves
 * only its own requests, since graphs may write to its cached memory.
 *
 * memory: a pool with memory functions has classic segments, and cannot be exportable, rdma or single_page.
 *
 * exportable: with use_on_oom, importers of a page can access blocks of the default pool on this page.
 *
 * rdma: if the driver cannot create such pages, a log line gives the reason, and the pool has ordinary pages.  Classic
 * segments are always accessible.
 *
 * single_page: a block of more than 1 MiB has a page that no other block shares, so cuMemGetAddressRange() and
 * cuMemRetainAllocationHandle() return the whole block.  The size is rounded up to a multiple of 2 MiB.  A cached block
 * serves a request that is shorter by less than max_non_split_rounding_mb.  A classic segment is always one piece.
 *
 * name and id need not be unique.  The ID of a pool counts the pools of an allocator from 1.
 *
 * @param device   CUDA ordinal.
 * @param options  NULL for the defaults.
 * @param out      receives the pool; release it with xseg_pool_release().
 *
 * @return XSEG_ERR_UNSUPPORTED  the pool is exportable, but the driver cannot create or export such memory.
 * Cost: no driver call once the device is open.  The first exportable pool of a device creates, exports and releases
 *       one page as a probe, and again for fabric handles.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                                                     const struct xseg_pool_options *options,
                                                     struct xseg_pool **out);

/**
 * Allocate at a given address, in cached memory of a pool and a stream (PyTorch's allocateWithAddress;
 * docs/differences.md describes how the statistics differ).  No memory is mapped or moved.
 *
 * @param bytes    size, rounded as by xseg_alloc(); up to 1 MiB in small segments, else in large ones.  0 returns NULL.
 * @param stream   stream of the cached memory.
 * @param address  a multiple of 512.
 * @param out      receives `address`; free it with xseg_free().
 *
 * @return XSEG_ERR_BUSY       some bytes are not cached memory of this pool, stream and kind of segment; the message
 *                             describes them.
 *         XSEG_ERR_NO_MEMORY  the size exceeds the memory of every device.
 *         XSEG_ERR_PAUSED     the pool is paused.
 *         XSEG_ERR_ARGUMENT   also: the pool has been released.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: as a hit of xseg_alloc().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_at(struct xseg_pool *pool, size_t bytes,
                                                  xseg_stream stream, void *address, void **out);

/** Options of a pool that can change. */
enum xseg_pool_setting { XSEG_POOL_NO_SPLIT, XSEG_POOL_USE_ON_OOM, XSEG_POOL_SINGLE_PAGE };

/**
 * Set an option of a pool: no_split and use_on_oom at any time, single_page before the first allocation.
 *
 * no_split applies to later requests; existing blocks keep their size.  After use_on_oom is cleared, the default pool
 * takes no more memory of the pool; blocks that use it stay valid.  A concurrent request can still use the previous
 * value.
 *
 * @return XSEG_ERR_BUSY      single_page of a pool that has served a request.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released, or single_page of a pool with memory functions.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_set(struct xseg_pool *pool, enum xseg_pool_setting setting, bool on);

/**
 * Increment the reference count of a pool.  The caller holds a reference.
 *
 * @return XSEG_ERR_ARGUMENT  the pool is NULL or has no reference.
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_retain(struct xseg_pool *pool);

/**
 * Decrement the reference count of a pool.
 *
 * After the last release the pool serves no requests.  Its live blocks stay valid and are freed as usual.  Its cached
 * memory is released by the next trim or under memory pressure; until then xseg_for_each_block(), xseg_explain() and
 * xseg_for_each_mapping() return the pool.  The pool is destroyed when its last memory is released.
 *
 * The last release invalidates the handle, unless the pool has an `on_destroy` callback.  With a callback the handle is
 * valid for queries and trims until the callback has returned.  The use of an invalid handle is undefined; it is
 * reported as XSEG_ERR_ARGUMENT only while the pool has memory.
 *
 * The callback runs without a lock and may call the allocator; `last` is valid during the call.  It runs once, in one
 * of these calls, which may be of any thread.
 *   - The last release, if the pool has no memory and no capture is active, or the end of the last route or capture.
 *   - Otherwise the trim that releases the last memory of the pool.
 *   - If decay or memory pressure releases this memory: a later trim, release of a pool or miss on the device.
 *   - At the latest xseg_close(), also for a pool that is still retained.  There it must not call the allocator.
 * The memory functions of the pool are not called after the callback.
 *
 * @return XSEG_ERR_ARGUMENT  the pool is NULL or has no reference.
 * Threads: any; the last release of a pool with addresses and without memory waits for a growth or trim of the device.
 * Cost: no driver call, except to free the addresses of a pool without memory.
 */
XSEG_API xseg_status xseg_pool_release(struct xseg_pool *pool);

/**
 * Direct requests to a pool until xseg_route_end().
 *
 * The pool serves requests on its device that name no pool and that the predicate accepts.  If several routes and
 * captures accept a request, the one that began last applies.  The library retains the pool.
 *
 * @param accepts  predicate, called by the allocating thread with the stream of the request, without a lock.  It must
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
 * Cost: waits for predicates that run in other threads.  No driver call; after a capture (xseg_capture_unmark()) as
 *       xseg_capture_end().
 */
XSEG_API xseg_status xseg_route_end(struct xseg_pool *pool);

/* The live blocks of a pool, and the committed granules of its ranges (range.h), at one moment. */
struct xseg_checkpoint;

/**
 * Record the live blocks of a pool and the committed granules of its ranges, for xseg_pool_restore().
 *
 * Blocks of the default pool that use memory of this pool (use_on_oom), and decommitted granules, are not recorded.
 *
 * @param out  receives the checkpoint; destroy it with xseg_checkpoint_destroy().
 *
 * @return XSEG_ERR_BUSY      the pool has pending blocks, a capture is active, or another call has claimed a granule of
 *                            a range of the pool.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Cost: queries of pending events as in xseg_alloc(); O(granules of the pool's ranges).  Host memory: 32 bytes per live
 *       block, 16 bytes per run of committed granules.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_checkpoint(struct xseg_pool *pool,
                                                         struct xseg_checkpoint **out);

/** Destroy a checkpoint.  No other call may use it concurrently.  NULL has no effect. */
XSEG_API void xseg_checkpoint_destroy(struct xseg_checkpoint *checkpoint);

/**
 * Restore a pool to a checkpoint.
 *
 * Blocks that are live now are freed.  Blocks that were live at the checkpoint are live again, with their addresses and
 * requested sizes; their contents are undefined.  Memory that the pool has grown by since then stays cached.  Blocks of
 * the default pool in memory of this pool (use_on_oom) are not affected.
 *
 * Granules of ranges of the pool are committed exactly if they were committed at the checkpoint.  Other committed
 * granules, also of ranges that were reserved since then, are decommitted in the order of the default stream, so make
 * that stream wait for all streams that use them.  Granules that were decommitted since then are recommitted with their
 * contents.  They must still have their memory (see xseg_range_hold()), and must have been decommitted on the default
 * stream, or on a stream whose work has completed.
 *
 * @param moved    called without a lock for each block that was freed (true), then for each block that is live again
 *                 (false).  A block that is live in both states is reported twice.  Ranges are not reported.  May be
 *                 NULL.
 * @param context  first argument of `moved`.
 *
 * @return XSEG_ERR_BUSY      live blocks have uses, the pool has pending blocks, or a capture is active.  Or memory of
 *                            the checkpoint is unmapped, in use by the default pool, or part of an alias
 *                            (xseg_range_alias()); a granule waits for another stream; another call has claimed a
 *                            granule.
 *         XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_ARGUMENT  also: the checkpoint is of another pool, or the pool has been released.
 *         An error leaves the pool unchanged.
 * Threads: no other call may use the pool concurrently.
 * Cost: no driver call for blocks.  For ranges O(granules), an event record for each decommitted run, and event queries
 *       for the streams of decommitted granules.
 */
XSEG_API xseg_status xseg_pool_restore(struct xseg_pool *pool,
                                       const struct xseg_checkpoint *checkpoint,
                                       void (*moved)(void *context, void *ptr, bool freed),
                                       void *context);

/**
 * Check whether a set of addresses is exactly the set of live blocks of a pool.
 *
 * Blocks of the default pool in memory of this pool, and granules of ranges, are not blocks of the pool.
 *
 * @param ptrs     start addresses, in any order; duplicates count once.
 * @param count    elements of ptrs.
 * @param exactly  receives the result.
 *
 * Cost: no driver call.
 */
XSEG_API xseg_status xseg_pool_check_live(struct xseg_pool *pool, void *const *ptrs, size_t count,
                                          bool *exactly);

/** Destination of the contents of a paused pool. */
enum xseg_keep {
    XSEG_KEEP_NOTHING, /* discarded: contents are undefined after xseg_pool_resume() */
    XSEG_KEEP_HOST,    /* pinned host memory of the size of the reserved memory */
    XSEG_KEEP_FILE     /* a sparse file, in which zeros take no space */
};

/**
 * Pause a pool: release its physical memory and keep its addresses and blocks.
 *
 * All mapped memory of the pool is released, and the contents of all of it are kept, since graphs may use cached
 * memory.  CUDA graphs that use the pool are valid again after xseg_pool_resume().  Synchronize all streams that used
 * the pool before the call.  While the pool is paused:
 *   - Work that accesses its memory faults.
 *   - Requests that name the pool, or are directed to it, return XSEG_ERR_PAUSED.
 *   - Blocks can be freed, used and queried, without driver calls.
 *   - Its reserved memory is 0, also for limits.
 *   - It can be released.  If it has no blocks then, the contents are discarded by the next trim, or by xseg_close().
 *
 * @param keep  destination of the contents.
 * @param file  with XSEG_KEEP_FILE the path of a new file in a directory with space for the contents, created with mode
 *              0600; otherwise NULL.  xseg_pool_resume() removes
 *              the file from its directory, also after chdir() or a rename of the directory, unless another file has
 *              taken its name.  Two descriptors stay open until then.
 *
 * @return XSEG_ERR_BUSY         the memory is in use, and the message has the reason.  A stream of the pool, or a
 *                               stream that xseg_record_stream() named for a live block, has queued work.  Blocks are
 *                               pending.  Decommitted granules wait for a stream or are held.  A page is pinned or
 *                               exported.  A block of the default pool is in memory of the pool.  Another thread
 *                               allocates from the pool or runs a registration callback for its memory.  A capture is
 *                               active.
 *         XSEG_ERR_PAUSED       the pool is already paused.
 *         XSEG_ERR_UNSUPPORTED  the pool has classic segments.  Allocate its blocks with expandable_segments:True, and
 *                               create it without memory functions.
 *         XSEG_ERR_ARGUMENT     also: the pool has been released, or keep and file do not match.
 *         XSEG_ERR_HOST_MEMORY, XSEG_ERR_FILE  the contents cannot be stored.
 *         An error leaves the pool unchanged.  If the driver also rejects the rollback, the pool is paused, and the
 *         message says so; xseg_pool_resume() restores memory and contents in that case.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: a query for each stream; one unmap per contiguous run, one release per page.  XSEG_KEEP_HOST: one
 *       cuMemHostAlloc per GiB and one copy per run.  XSEG_KEEP_FILE: one copy and one synchronize per 64 MiB.  Waits
 *       for the copies.
 */
XSEG_API xseg_status xseg_pool_pause(struct xseg_pool *pool, enum xseg_keep keep, const char *file);

/**
 * Resume a paused pool: map memory at the same addresses, and copy the contents that xseg_pool_pause() kept.
 *
 * Under memory pressure idle memory of the device is released first, as for an allocation.
 *
 * @return XSEG_ERR_NO_MEMORY    the device has too little free memory.
 *         XSEG_ERR_LIMIT        a limit of the device or of the pool rejects the memory; raise it, or release memory.
 *         XSEG_ERR_BUSY         a capture is active on the device.
 *         XSEG_ERR_ARGUMENT     also: the pool is not paused.
 *         XSEG_ERR_FILE         the file cannot be read.
 *         XSEG_ERR_UNSUPPORTED  the pool is exportable, but the driver cannot create such memory.
 *         An error leaves the pool paused, with its contents.
 * Threads: any; waits for a growth or trim of the device.
 * Cost: one create and one map per page, one set-access per run, and the copies of xseg_pool_pause().
 */
XSEG_API xseg_status xseg_pool_resume(struct xseg_pool *pool);

/* --- Captures. --- */

/**
 * Announce the capture of a stream.  Call it before cuStreamBeginCapture().
 *
 * Until xseg_capture_end(), requests on the stream and on streams that joined its capture are served from the pool
 * while the driver reports these streams as capturing, unless a request names another pool.  The library retains the
 * pool.
 *
 * @param stream  stream of the pool's device, not the legacy default stream.
 *
 * @return XSEG_ERR_PAUSED    the pool is paused.
 *         XSEG_ERR_BUSY      the pool is already the target of a capture or route, or a capture of the stream into
 *                            another pool has not ended.
 *         XSEG_ERR_ARGUMENT  also: the pool has been released.
 * Cost: two queries for a stream that is seen for the first time.  Waits for a growth or trim of the device.  After
 *       memory pressure on the device, cached memory is released first, as by xseg_trim() with `wait`, which can block
 *       without a time limit; failures are ignored.
 */
XSEG_API xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream);

/**
 * Announce the end of a capture.  Call it after cuStreamEndCapture(), also if the capture failed.
 *
 * @return XSEG_ERR_ARGUMENT  no capture into this pool is active.
 * Cost: no driver call.  With graph_capture_record_stream_reuse:True, one event record for each use of each pending
 *       block by a stream outside the capture.
 */
XSEG_API xseg_status xseg_capture_end(struct xseg_pool *pool);

/**
 * Announce a capture on a device without a pool.
 *
 * Until xseg_capture_unmark() the device counts as capturing.  Routes (xseg_route_begin()) select the pools of
 * requests; they can begin and end during the capture.  A pool that is the target of a route during a capture counts as
 * used by a graph from then on.
 *
 * Marks are counted: the capture ends when each mark is removed and each xseg_capture_begin() has its
 * xseg_capture_end().
 *
 * @param device  CUDA ordinal.
 *
 * Cost: no driver call once the device is open, so the call can follow cuStreamBeginCapture().  Waits for a growth or
 *       trim of the device.
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
