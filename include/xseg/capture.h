/* SPDX-License-Identifier: MIT */
/*
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
 * xseg_capture_unmark() around the capture, and xseg_route_begin() with a predicate for each pool (pool.h).
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
#ifndef XSEG_CAPTURE_H
#define XSEG_CAPTURE_H

#include "xseg/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

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
