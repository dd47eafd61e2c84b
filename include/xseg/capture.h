/* SPDX-License-Identifier: MIT */
/*
 * CUDA graphs: what is allocated while a stream is being captured goes to a pool, whose memory the
 * graph may use each time it is replayed.
 *
 *     xseg_pool_create(&pool)
 *     xseg_capture_begin(pool, stream)
 *     cuStreamBeginCapture(stream)      ...  xseg_alloc(stream): from the pool
 *     cuStreamEndCapture(stream)             other streams: from the default pool
 *     xseg_capture_end(pool)
 *     replay the graph
 *     xseg_pool_release(pool)           when the graph is destroyed
 *
 * Where the program knows the capture's streams better than the driver, or a capture goes to several pools, the
 * two halves are called apart: xseg_capture_mark() for the time of the capture, and xseg_route_begin() with a
 * predicate for the requests.
 *
 * Graphs that are replayed one after another in the order of their capture may share a pool: each
 * holds it once (xseg_pool_retain()).
 *
 * A capture that streams of several devices take part in is begun and ended on each of them, with a
 * pool and a stream of that device.  One that the library is not told of must use no memory of it.
 *
 * While a capture is under way on a device, nothing of the library's is unmapped, freed, waited for
 * or queried there, since that would spoil it.  Growth goes on.  A block that another stream used,
 * and that is freed meanwhile, waits for the end; uses by streams that take part in the capture are
 * over then, since the capture ran nothing.  With graph_capture_record_stream_reuse:True such a block
 * comes back within the capture, as soon as the graph itself orders everything that its stream captures
 * next behind all its uses.  The thread that frees the block finds this out if it was the last to name
 * all these streams: to allocate or use a block on them, or to begin the capture.  Else the block waits
 * for the end.
 *
 * Threads: any.  Fork and errors: as in allocator.h.
 */
#ifndef XSEG_CAPTURE_H
#define XSEG_CAPTURE_H

#include "xseg/pool.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A capture of a stream is about to begin: call it before the driver's begin.
 *
 * From now on what is allocated on the stream while the driver says that it is being captured, and
 * on streams that joined its capture, comes from the pool, unless the request names another.  The
 * library holds the pool until the end.
 *
 * @param stream  not the legacy default stream, which cannot be captured
 *
 * Returns: XSEG_OK
 *          XSEG_ERR_PAUSED    the pool is paused
 *          XSEG_ERR_BUSY      the pool is being captured into, or routed to, already; or a capture
 *                             into another pool began on the stream and has not been ended
 *          XSEG_ERR_ARGUMENT  the legacy default stream, a stream of another device or context, or
 *                             nobody holds the pool any more
 *          XSEG_ERR_DRIVER    such as: there is no such stream
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    two questions about a stream that the library has not met.  Waits until no thread trims
 *          or grows on the device.  Where memory has been short, cached memory goes back to the driver,
 *          as by xseg_trim() that waits, also for a stream whose work does not end: during the capture
 *          nothing can be taken or waited for.  What could not go is no error.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream);

/**
 * The capture is over: call it after the driver's end, whatever that returned, and also for a capture
 * that was given up.
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (no capture into this pool is under way), XSEG_ERR_FORKED
 * Cost:    with graph_capture_record_stream_reuse:True, one event record for each use from outside
 *          the capture of each block that waits; else no driver call.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_capture_end(struct xseg_pool *pool);

/**
 * A capture is under way on a device from now on, without a pool: what capture.h says of the time of a
 * capture holds until xseg_capture_unmark().  Requests go where routes and captures send them:
 * xseg_route_begin() sends them to a pool, and routes may begin and end as often as one likes meanwhile, for
 * the same pool too.  xseg_capture_begin() is this and a route that asks the driver, in one.
 *
 * Marks are counted: the capture is over when each has been taken back and each xseg_capture_begin() has
 * been ended.  A pool that is routed to while its device is marked counts as one that took part in a
 * capture, from then on: graphs may use what is cached there.
 *
 * @param device  CUDA ordinal
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (there is no such device), XSEG_ERR_DRIVER (the device could not be
 *          opened), XSEG_ERR_HOST_MEMORY, XSEG_ERR_DEVICE_LOST, XSEG_ERR_FORKED
 * Cost:    no driver call once the device is open, so it may also follow the driver's begin.  Waits until no
 *          thread trims or grows on the device.
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_capture_mark(struct xseg_allocator *allocator, int device);

/**
 * Take one mark of a device back.
 *
 * @param device  CUDA ordinal
 *
 * Returns: XSEG_OK, XSEG_ERR_ARGUMENT (there is no such device, or it is not marked), XSEG_ERR_FORKED
 * Cost:    as xseg_capture_end().
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_capture_unmark(struct xseg_allocator *allocator,
                                                        int device);

#ifdef __cplusplus
}
#endif

#endif
