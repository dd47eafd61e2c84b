/* SPDX-License-Identifier: MIT */
/*
 * Private pools: a wall around some allocations.
 *
 * Memory of a private pool is never handed out to requests of another pool, and is not given back
 * while somebody holds the pool.  A CUDA graph's memory, a tag's, a library's: each is a pool.
 * A pool belongs to one device and has its own small and large segments on each stream.  What its options
 * and these calls do together stands, pair by pair, in docs/pools.md.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_POOL_H
#define XSEG_POOL_H

#include "xseg/allocator.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Where a pool's memory comes from, if not from the driver.  Both functions are called with no
 * hot-path lock held, but must not call the library again.  The thread's capture mode is relaxed meanwhile, so
 * they may allocate and free while a capture is under way.
 *
 * alloc: `bytes` of device memory, 512-byte aligned, or NULL; work on `stream` may use it at once
 * free:  what alloc gave; no work uses it any more
 */
struct xseg_pool_memory {
    void *(*alloc)(void *context, size_t bytes, int device, xseg_stream stream);
    void (*free)(void *context, void *ptr, size_t bytes, int device, xseg_stream stream);
    void *context;
};

struct xseg_statistics;

/** The most bytes that the name of a pool may have, without its terminator. */
#define XSEG_POOL_NAME_MOST 63

/** Particulars of a pool.  Start from XSEG_POOL_OPTIONS_INIT. */
struct xseg_pool_options {
    size_t struct_bytes;  /* sizeof(struct xseg_pool_options) */
    uint64_t limit_bytes; /* that the pool may reserve; 0: no limit of its own; see xseg_limits() */
    bool no_split;        /* a cached block is handed out whole */
    /* The pool's cached memory serves the default pool when memory is short.  A lent block is held by the
     * default pool until it is freed, and has `lender` in struct xseg_block_info.  While such a block
     * lives, the pool cannot be paused.  A pool that took part in a capture lends nothing: graphs may write
     * to what is cached there. */
    bool use_on_oom;
    /* Own functions underneath, copied: segments of the pool are classic then.  NULL functions: the
     * driver. */
    struct xseg_pool_memory memory;
    /* The pool's memory can be shared with other processes (export.h); not with own functions.  With
     * use_on_oom other processes see what the default pool puts on pages that were exported. */
    bool exportable;
    /* How error texts call the pool, copied; up to XSEG_POOL_NAME_MOST bytes, and names need not differ.
     * NULL or "": its number, by which the pools of an allocator are counted from 1 as they are made. */
    const char *name;
    /* The user's own name for the pool, which the history gives back with each event (pool_id), also when the
     * pool is long over; such as PyTorch's MempoolId_t.  {0, 0}: none.  Names need not differ. */
    uint64_t id[2];
    /*
     * Called once, when the pool has been destroyed: it has no holder, and all its memory is released.  From then on its
     * own functions (`memory`) are not called any more.  Until the callback returns, the handle can be used for queries
     * and trims, also after the last xseg_pool_release().  NULL: the handle is invalid after the last release.
     *
     * The callback runs in
     *   - the last release, if the pool has no memory then and no capture is active.  A route and a capture hold the
     *     pool as well, so it may be the call that ends one of these;
     *   - else the trim that releases the last of its memory;
     *   - if the memory is released in another way, such as by decay or because memory was low: a later trim, release of
     *     a pool or allocation that the cache does not serve, on that device;
     *   - at the latest xseg_close(), also for a pool that still has a holder.
     *
     * The thread need not be the one that released the pool.  Of several threads in such calls, any may call it.
     *
     * context: gone_context
     * last:    the statistics of the pool, as xseg_stats(); valid during the call
     *
     * No lock is held, and the callback may call this allocator, except in xseg_close().
     */
    void (*gone)(void *context, const struct xseg_statistics *last);
    void *gone_context;
    /* Pages are made so that other devices, such as network cards, may reach them (GPUDirect RDMA); not with own
     * functions, and classic segments are so always.  Where the driver makes no such pages, a line of the log says why,
     * and the pool has pages without. */
    bool rdma;
    /*
     * A block of more than 1 MiB is one piece of physical memory, mapped once, which no other block shares.  So a
     * library that asks the driver for the memory at an address sees all of the block (cuMemGetAddressRange,
     * cuMemRetainAllocationHandle).
     * Its bytes are rounded up to whole granules of 2 MiB.  A cached block serves a request whole, if it is longer by
     * less than max_non_split_rounding_mb.  Where segments are classic they serve such requests as ever, since a classic
     * segment is one piece.  Not with own functions.
     */
    bool single_page;
};
/* clang-format off */
#define XSEG_POOL_OPTIONS_INIT {sizeof(struct xseg_pool_options), 0, false, false, {NULL, NULL, NULL}, false, NULL, {0, 0}, NULL, NULL, false, false}
/* clang-format on */

/**
 * Make a private pool; the caller holds it once.
 *
 * @param device   CUDA ordinal
 * @param options  NULL for the defaults
 * @param out      give it to xseg_alloc_with(); let go of it with xseg_pool_release()
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER (the device could not
 *          be opened, or not be tried), XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          XSEG_ERR_UNSUPPORTED, of one that is exportable: the driver refuses to make or to export such
 *          memory, or the device has no virtual memory management
 * Cost:    no driver call once the device is open; but the first that is exportable tries one page:
 *          create, export, release; with one create or export more for fabric handles.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_create(struct xseg_allocator *allocator, int device,
                                                     const struct xseg_pool_options *options,
                                                     struct xseg_pool **out);

/**
 * Allocate from a pool at a given address, in memory that the pool has cached on a stream; as PyTorch's
 * allocateWithAddress does, which counts differently (docs/differences.md).  No memory is mapped for it, and none is
 * taken from elsewhere.
 *
 * @param bytes    rounded up as by xseg_alloc(): up to 1 MiB it is memory of the pool's small segments that is
 *                 meant, else of its large ones.  0 gives NULL and success
 * @param address  a multiple of 512
 * @param out      `address`, on success; freed with xseg_free()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY      the bytes from the address on are not all cached memory of that pool, that stream
 *                             and such segments; the text says what lies there
 *          XSEG_ERR_ARGUMENT  NULL, an address that is no multiple of 512, a stream of another device or context, or
 *                             nobody holds the pool any more
 *          XSEG_ERR_NO_MEMORY more bytes than any device has
 *          XSEG_ERR_PAUSED, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Threads: any; waits for growths and trims of the device
 * Cost:    as an allocation that hits.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_alloc_at(struct xseg_pool *pool, size_t bytes,
                                                  xseg_stream stream, void *address, void **out);

/** What of a pool's options can be changed later. */
enum xseg_pool_setting { XSEG_POOL_NO_SPLIT, XSEG_POOL_USE_ON_OOM, XSEG_POOL_SINGLE_PAGE };

/**
 * Turn an option of a pool on or off: no_split and use_on_oom at any time, single_page before the first allocation.
 *
 * no_split holds for requests from now on: what is live or cached keeps its size.  use_on_oom turned off
 * lends nothing more; what is lent stays so until it is freed.
 *
 * @param on  as in struct xseg_pool_options
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (NULL, no such setting, nobody holds the pool any more, or single_page of a pool
 *          with own functions), XSEG_ERR_BUSY (single_page, and the pool has had a request before),
 *          XSEG_ERR_FORKED
 * Threads: any; a request under way in another thread may still see the option as it was
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_set(struct xseg_pool *pool,
                                                  enum xseg_pool_setting setting, bool on);

/**
 * Retain a pool once more.  The caller holds it.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (NULL, or the pool has no holder), XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_retain(struct xseg_pool *pool);

/**
 * Release a pool once.
 *
 * After the last release the pool serves no requests.  Its live blocks stay valid and are freed as usual; its cached
 * memory is released at the next trim or when memory is low.  Until then xseg_walk(), xseg_explain() and xseg_mappings()
 * name the pool.  The pool is destroyed with its last memory.
 *
 * The last release ends the handle, unless the pool has a callback (`gone`): then the handle can be used for queries and
 * trims until that callback has returned.  One release too many, or any other use of an invalid handle, is an error of
 * the caller with undefined behavior; the library reports it as XSEG_ERR_ARGUMENT only while the pool has memory.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (NULL, or the pool has no holder), XSEG_ERR_FORKED
 * Threads: any; the last release of a pool that has addresses but no memory waits for growths and trims of the device
 * Cost:    no driver call, except that the last release of a pool that has addresses but no memory frees these.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_release(struct xseg_pool *pool);

/**
 * Send allocations to a pool: until xseg_route_end(), requests that name no pool, and that the
 * predicate accepts, are served from it.  Of several routes and captures that accept a request, the
 * one begun last serves it.  The library holds the pool until the end.
 *
 * @param accepts  called in the allocating thread with the stream of each request for the pool's
 *                 device that names no pool; no lock is held, but it must not call the library.
 *                 NULL accepts everything
 *
 * Returns: XSEG_OK, XSEG_ERR_BUSY (the pool is routed to, or captured into, already),
 *          XSEG_ERR_ARGUMENT (nobody holds the pool any more), XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_route_begin(
    struct xseg_pool *pool, bool (*accepts)(void *context, xseg_stream stream), void *context);

/**
 * End a route.  The predicate is not called any more once this has returned.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (the pool is not routed to), XSEG_ERR_FORKED
 * Cost:    waits until no other thread is in a predicate.  No driver call, but with
 *          graph_capture_record_stream_reuse:True, after a capture (xseg_capture_unmark()), as
 *          xseg_capture_end().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_route_end(struct xseg_pool *pool);

/* Which blocks of a pool were live at some time, and which granules of its ranges (range.h) were committed. */
struct xseg_checkpoint;

/**
 * Remember which blocks of a pool are live, and which granules of its ranges are committed, so that it can be brought
 * back to that state.  What the pool has lent (use_on_oom) is not among them, nor are granules that leave.
 *
 * @param out  the caller ends it with xseg_checkpoint_end()
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY  freed blocks of the pool wait for other streams, a capture is under way, or another call
 *                         works on a granule of a range of the pool
 *          XSEG_ERR_ARGUMENT (nobody holds the pool), XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    as an allocation looks at pending blocks; a step for each granule of the pool's ranges; host memory of
 *          32 bytes a live block, and 16 bytes a run of committed granules.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_checkpoint(struct xseg_pool *pool,
                                                         struct xseg_checkpoint **out);

/** Forget a checkpoint.  NULL is fine.  It must not be used by another call meanwhile. */
XSEG_API void xseg_checkpoint_end(struct xseg_checkpoint *checkpoint);

/**
 * Bring a pool back to the state of a checkpoint.  The blocks that are live now are freed.  Those
 * that were live then are live again, at the same addresses and with the sizes that were asked for;
 * they contain whatever lies there.  Memory that the pool got since then stays cached.  What the
 * pool has lent (use_on_oom) stays as it is.
 *
 * Of the ranges of the pool, exactly those granules are committed then that were so at the checkpoint.  Others that are
 * committed now, those of ranges reserved since then included, are decommitted in the order of the default stream: the
 * caller has made that stream wait for others that use them.  Granules that were decommitted since then are taken back
 * as they are.  They need to have their memory still, which xseg_range_hold() keeps for them, and to leave with the
 * default stream, or with one that has passed.  `moved` is not told of ranges.
 *
 * @param moved  NULL, or told of every block that was freed (true), then of every block that is live
 *               again (false): a block live in both states is told of twice.  No lock is held
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_ARGUMENT  the checkpoint is of another pool, or nobody holds the pool
 *          XSEG_ERR_BUSY      blocks that are live now have uses, freed ones wait for other streams,
 *                             a capture is under way, the memory of the checkpoint is gone, or some of
 *                             it is lent, which the text names; a granule of the checkpoint leaves with
 *                             another stream that has not passed, or has its page at another place, too
 *                             (xseg_range_share()); another call works on a granule
 *          XSEG_ERR_PAUSED    the pool is paused
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED; with ranges, XSEG_ERR_DRIVER
 *          On an error nothing has changed.
 * Threads: no other call may use this pool meanwhile.
 * Cost:    no driver call for blocks.  For ranges, a few steps for each of their granules; an event record for each run
 *          that is decommitted, and what xseg_range_decommit() costs later; where a granule is to be taken back whose
 *          stream may not have passed, an event query for each stream that memory leaves with
 */
XSEG_API XSEG_NODISCARD xseg_status
xseg_pool_restore(struct xseg_pool *pool, const struct xseg_checkpoint *checkpoint,
                  void (*moved)(void *context, void *ptr, bool freed), void *context);

/**
 * Whether the live blocks of a pool are exactly these.  What it has lent (use_on_oom) is not its, and what is committed
 * of its ranges is no block.
 *
 * @param ptrs   starts of blocks, in any order; one that is named twice counts once
 * @param exactly  true if every one of them is a live block of the pool and there is no other
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FORKED
 * Cost:    no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_holds(struct xseg_pool *pool, void *const *ptrs,
                                                    size_t count, bool *exactly);

/** What becomes of the contents of a pool that is paused. */
enum xseg_keep {
    XSEG_KEEP_NOTHING, /* they are lost: after xseg_pool_resume() memory contains anything */
    XSEG_KEEP_HOST,    /* in pinned host memory, as much as the pool reserves */
    XSEG_KEEP_FILE     /* in a file, which is sparse: zeros take no room in it */
};

/**
 * Take the physical memory of a pool away; its addresses stay, and so do its blocks.  What refers to
 * these addresses, such as a CUDA graph, is valid again after xseg_pool_resume().
 *
 * All memory that the pool has mapped goes, cached memory as well, since graphs may use it; contents
 * are kept of all of it.  While the pool is paused
 *   - work must not touch its memory: the device faults;
 *   - allocations from it return XSEG_ERR_PAUSED, by name, route or capture;
 *   - blocks can be freed, used and asked about as ever, without the driver;
 *   - it reserves nothing: its memory counts neither in `reserved` nor towards limits;
 *   - it can be released.  Once nobody holds it and it has no blocks, what was kept is forgotten, at
 *     the next trim and when the allocator closes.
 *
 * Nobody is waited for: synchronise first the streams that used the pool's memory.
 *
 * @param keep  see enum xseg_keep
 * @param file  XSEG_KEEP_FILE: the name of a file that does not exist yet, in a folder that has room
 *              for the contents; else NULL.  It is made with mode 0600.  xseg_pool_resume() removes it
 *              from the folder in which it was made, also after a chdir() or where that folder has been
 *              renamed; another file that has taken its name is left alone.  Two descriptors stay open
 *              until then
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_BUSY         work is queued on a stream of the pool, or on one that xseg_use()
 *                                named for a live block of it; freed blocks wait for other streams;
 *                                granules of a range have been decommitted, and their stream has not passed
 *                                or something holds them; a page is pinned or exported; a block lives there
 *                                that the pool has lent (use_on_oom), which the text names, whatever `keep` is;
 *                                another thread allocates from the pool or is in a registration callback about
 *                                its memory; a capture is under way on the device
 *          XSEG_ERR_PAUSED       it is paused already
 *          XSEG_ERR_UNSUPPORTED  it has classic segments, whose addresses go with their memory: make
 *                                its blocks with expandable_segments:True, without memory functions
 *          XSEG_ERR_ARGUMENT     nobody holds the pool, or keep and file do not fit
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_FILE  the contents cannot be kept
 *          XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error the pool is as it was.  Only when the driver also refuses to undo what it did
 *          is the pool paused in spite of an error, which the text says; then xseg_pool_resume()
 *          brings everything back, contents included, whatever `keep` says.
 * Threads: any; waits for growths and trims of the device
 * Cost:    a query for each stream; one unmap a contiguous run of pages, one release a page; with
 *          XSEG_KEEP_HOST one cuMemHostAlloc a GiB and one copy a run, with XSEG_KEEP_FILE one copy
 *          and one wait for each 64 MiB.  Copies are waited for.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_pause(struct xseg_pool *pool, enum xseg_keep keep,
                                                    const char *file);

/**
 * Bring the memory of a paused pool back beneath the same addresses, and its contents as
 * xseg_pool_pause() kept them.
 *
 * When memory is short, idle memory of the device is given back first, as for an allocation.
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT  there is not enough, or per_process_memory_fraction,
 *                             hard_limit_mb, xseg_limits() of the device, or the pool's own limit
 *                             does not allow it: free or trim something, or raise the limit
 *          XSEG_ERR_BUSY      a capture is under way on the device
 *          XSEG_ERR_ARGUMENT  the pool is not paused
 *          XSEG_ERR_FILE      the file cannot be read
 *          XSEG_ERR_UNSUPPORTED  the pool is exportable, and the driver refuses to make such memory
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 *          On an error the pool is still paused, and nothing that was kept is lost.
 * Threads: any; waits for growths and trims of the device
 * Cost:    one create and one map a page, one set-access a run, copies as xseg_pool_pause(), which are
 *          waited for
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_pool_resume(struct xseg_pool *pool);

#ifdef __cplusplus
}
#endif

#endif
