/* SPDX-License-Identifier: MIT */
/*
 * Hits: the shortest path of an allocation from cached memory, and of a free.
 *
 * An allocation finds a cached block for the stream handle in three lookups: the stream lookup
 * cache (streams.h) leads to the stream's entry, the entry to the arena, and the arena's free index
 * to the best fit (best_fit.h).
 *
 *     xseg_hit_alloc
 *     |- allocate_small_block,        the calling thread owns the biased lock of the arena
 *     |  allocate_large_block
 *     |- poll_and_allocate            blocks are pending: polls their events, then searches
 *     |- allocate_under_shared_lock   several threads use the arena, or the configuration requires
 *     |                               a filter or records (XSEG_FAST_PATH_BY_CONFIG)
 *     `- allocate_without_cache_entry the stream is not in the lookup cache: tries
 *                                     xseg_hit_alloc_on_stream(), then the slow path, which may call
 *                                     the driver
 *
 * A hit that finds no block continues on the slow path.
 *
 * A free finds the block's record by its address in the page map (page_map.h). The record refers to
 * its extent, and the extent to the arena.
 *
 *     xseg_hit_free
 *     |- free_small_block             the start of the address refers to an allocated block
 *     |- free_large_block             the slot of the address refers to an allocated block
 *     |  `- coalesce_freed_block      either kind, if the block has neighbors in its segment
 *     `- free_on_slow_path            all other frees; reports invalid frees
 *
 * Five techniques keep these paths short.
 *
 * - Cached decisions. A stream is in the lookup cache only while its requests need no check of
 *   configuration, device, routes or captures. A change of one of these conditions first removes
 *   the stream from the cache. Together with the tail calls this saved 11 of 28 ns for a 4 KiB
 *   block.
 * - Records. The allocated head of a split block gets the new record and the remainder keeps the old
 *   one, so the split of the last remainder does not change the free index. In the same way a freed
 *   block is merged into the record of a cached neighbor. This lowered an allocation and its free
 *   from 431 to 367 instructions.
 * - Biased lock. The lock of an arena belongs to the first thread that locked it. The owner locks
 *   and unlocks with plain stores (1 ns a pair; an atomic exchange takes 7 ns). If another thread
 *   locks the arena, the lock becomes a shared one, and trylock_owner fails for every thread.
 * - Quotas. A hit adds to three sums of its arena and compares them with precomputed quotas
 *   (counts.h). While no quota is exceeded, no peak of the device can change, so the hit reads
 *   nothing that another arena writes.
 * - Tail calls. Each XSEG_HIT_STEP function is called last by its caller, so the compiler emits a
 *   jump, and a step saves only the registers that it uses itself. This saves a quarter of the
 *   instructions of small blocks. Steps are not inlined, and each begins a cache line: otherwise
 *   their placement by the linker changes the time of traces by up to 5 %.
 *
 * Locking: the only lock is that of the arena. A step that is called with the lock held releases
 * it, or ends in a step that does. No step of a hit makes a driver call, except to poll the events
 * of pending blocks.
 */
#ifndef XSEG_CORE_ALLOC_H
#define XSEG_CORE_ALLOC_H

#include "src/core/device/device.h"

/* xseg_alloc() for an allocator. `out` is not NULL. */
xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out);

/* xseg_free() for an allocator. */
xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr);

/* --- Requests without an entry in the lookup cache. --- */

/*
 * Hits of requests that the stream lookup cache does not cover: the first request of a stream after
 * a change of the conditions, and requests that name a pool.
 *
 * These functions check the conditions of the fast path themselves: no alignment or other option, a
 * known stream, a device that is open and not lost, no route, no active capture. If all conditions
 * are met, the arena is searched by the rules of the configuration; otherwise the slow path serves
 * the request, with the same result and about 500 more instructions.
 *
 * xseg_hit_alloc_on_stream() adds the stream to the lookup cache (streams.h), so that
 * xseg_hit_alloc() serves the next request.
 *
 * Locking: the functions lock the arena that they search, unless stated otherwise.
 */

/*
 * Allocate from the stream's arena of the default pool. Returns false, without an allocation, if
 * the slow path must serve the request.
 *
 * searched:   set to the arena that was searched
 * has_polled: set if pending blocks were polled before the search
 */
bool xseg_hit_alloc_on_stream(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                              xseg_stream stream, void **out, struct xseg_arena **searched,
                              bool *has_polled);

/* Allocate from the stream's arena of a pool, which must not be destroyed during the call. Returns
 * false, without an allocation, if the slow path must serve the request. */
bool xseg_hit_alloc_from_pool(struct xseg_allocator *allocator, struct xseg_pool *pool,
                              uint64_t bytes, xseg_stream stream, void **out,
                              struct xseg_arena **searched);

/* xseg_alloc_with(): tries xseg_hit_alloc_from_pool() if the request names only a pool, then
 * takes the slow path. */
xseg_status xseg_hit_alloc_request(struct xseg_allocator *allocator,
                                   const struct xseg_request *request, void **out);

/* --- Slow path. --- */

/*
 * The slow path of an allocation: every request that the fast path does not serve.
 *
 * An entry point, or the fast path after a miss, fills in one structure of allocation parameters (struct
 * xseg_alloc_params): configuration, requested size, stream, pool, and the arena that the fast path has searched.  The slow
 * path adds the arena and the rounded sizes, and passes the structure through the fallback chain to growth.  The result
 * is one struct xseg_alloc_result.
 *
 *     fast path --> allocation parameters --> choose the arena     one lookup of the stream, the pool and the arena
 *                                         --> poll pending blocks  unless the fast path did
 *                                         --> search               unless the fast path did
 *                                         --> fallback_chain.h     with the device memory lock: search, grow, reclaim
 *
 * The slow path uses the arena of the fast path unless a route or a capture may select another pool.  The free lists are
 * searched once without the device memory lock, by the fast path or here, and once under it.  A poll of pending blocks
 * between the two searches can free a block, so a search without the lock follows the poll.  In all other cases the slow path
 * does not repeat the search of the fast path.
 *
 * A result with XSEG_OK and without a block means that the state on which the parameters depend has changed during the call
 * (pages were disabled on the device, or the pool was paused while the block was zeroed): the request starts again.
 *
 * Locking: the caller holds no lock.
 */

/*
 * Allocate a block.  The caller sets `config`, `requested`, which is not 0, and `stream`, and if they apply `pool`,
 * `alignment`, `address`, `zeroed`, `arena` and `has_polled`.
 *
 * Returns: XSEG_OK with the address in *out; the statuses of xseg_alloc_with() and xseg_alloc_at() of the public headers
 */
xseg_status xseg_slow_path_alloc(struct xseg_device *device, struct xseg_alloc_params *params,
                                 void **out);

/* Check a request of xseg_alloc_with() and allocate.  searched: the arena that the fast path has searched, or NULL */
xseg_status xseg_slow_path_alloc_request(struct xseg_allocator *allocator,
                                         const struct xseg_request *request,
                                         struct xseg_arena *searched, void **out);

/* Grow for a request, without allocating the block: serves xseg_prewarm() of the public header.  The caller sets
 * `config`, `requested`, `stream` and `pool`. */
xseg_status xseg_slow_path_prewarm(struct xseg_device *device, struct xseg_alloc_params *params);

/* Query the events of pending blocks, and free the blocks whose events have completed, before an arena is searched.  During a
 * capture only blocks that its graph can reuse are freed.  Called only while blocks are pending. */
void xseg_slow_path_poll_pending(struct xseg_arena *arena, const struct xseg_config *config);

/* End an allocation or a free: run a decay pass, deliver traces, and run housekeeping.  Called if the configuration has
 * has_call_epilogue. */
void xseg_slow_path_end_call(struct xseg_device *device, const struct xseg_config *config);

/* --- Free on the slow path. --- */

/*
 * The slow path of a free, for all blocks; and two other calls for an allocated block: recording a stream that uses the block,
 * and a free after events.
 *
 * Each call looks the block up once and holds the arena lock that the lookup has acquired.  The call repeats the lookup only
 * after it has released that lock to refill the slab of records or to query a stream.  A block that other streams
 * use is claimed under the lock, and its events are recorded after the lock is released (pending.h).
 *
 * If an address is not the start of an allocated block, the error message describes the memory at the address, and the last
 * free of the address if the history contains it.
 *
 * Locking: the caller holds no lock.
 */

/* Free a block: serves xseg_free() of the public header. */
xseg_status xseg_allocator_free(struct xseg_allocator *allocator, const void *pointer);

/* Free a block after events: serves xseg_free_after() of the public header. */
xseg_status xseg_allocator_free_after(struct xseg_allocator *allocator, const void *pointer,
                                      const xseg_event *events, size_t count);

/* Record a stream that uses a block: serves xseg_record_stream() of the public header. */
xseg_status xseg_allocator_record_stream(struct xseg_allocator *allocator, const void *pointer,
                                         xseg_stream stream);

/* --- Routes and captures. --- */

/*
 * Start and end of routes and captures of a device.
 *
 * A route sends the requests of some streams to a private pool (device.h), and retains the pool while the route is active.  A
 * capture is a route for the captured stream and the streams that join the capture, and is counted in pending->captures.
 * While that count is not 0, no thread queries events, synchronizes streams or unmaps memory on the device, and freed blocks
 * are deferred (pending.h).  A mark counts as a capture without a route, for captures that the application begins by itself.
 *
 * xseg_capture_start() and xseg_capture_mark_device() increase the count under the device memory lock and the lock of the
 * pending queue, so a growth, a trim or a poll ends before the capture begins.  Beginning a route drops the entries of the
 * device in the stream lookup cache, so that requests on the fast path see the route.
 *
 * Locking: the caller holds no lock.
 */

/* Set *captured to whether a stream belongs to an active capture.  Cost: a driver call if a capture is active, else none */
xseg_status xseg_capture_has_stream(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured);

/* Get the side stream of the device, which waits for events of the application; the first call creates it. */
xseg_status xseg_side_stream_get(struct xseg_device *device, struct xseg_known_stream **out);

/*
 * Begin and end a route or a capture: serve xseg_route_begin(), xseg_route_end(), xseg_capture_begin() and
 * xseg_capture_end() of the public headers.
 *
 * stream: the stream to capture
 */
xseg_status xseg_route_start(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                             void *self);
xseg_status xseg_route_stop(struct xseg_pool *pool);
xseg_status xseg_capture_start(struct xseg_pool *pool, xseg_stream stream);
xseg_status xseg_capture_stop(struct xseg_pool *pool);

/*
 * Add a mark to a device, and remove a mark from a device.
 *
 * Returns: XSEG_OK or XSEG_ERR_DEVICE_LOST; whether a mark was removed
 */
xseg_status xseg_capture_mark_device(struct xseg_device *device);
bool xseg_capture_unmark_device(struct xseg_device *device);

#endif
