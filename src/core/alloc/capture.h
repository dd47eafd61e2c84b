/* SPDX-License-Identifier: MIT */
/*
 * Routes and captures of a device: their begin and end.
 *
 * A route sends the requests of some streams to a private pool (route.h); it retains the pool while it is active.  A capture is
 * a route for the stream that is captured and the streams that join the capture, and it counts in pending->captures.  While
 * that count is not 0, no thread queries events, synchronizes streams or unmaps memory on the device, and freed blocks are
 * deferred (pending.h).  A mark counts as a capture without a route, for captures that the application begins by itself.
 *
 * The count is increased with the device memory lock and the lock of the pending queue held, so a growth, a trim or a poll ends
 * before the capture begins.  Beginning a route drops the entries of the device in the stream lookup cache, so that requests
 * on the fast path see the route.
 *
 * Locking: the caller holds no lock.
 */
#ifndef XSEG_CORE_CAPTURE_H
#define XSEG_CORE_CAPTURE_H

#include "src/core/device/device.h"

/* Set *captured to whether a stream takes part in a capture.  Cost: a driver call if a capture is active, else none */
xseg_status xseg_capture_has_stream(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured);

/* Get the side stream of the device, which waits for events of the application; the first call creates it. */
xseg_status xseg_side_stream_get(struct xseg_device *device, struct xseg_known_stream **out);

/*
 * Begin and end a route or a capture: serve xseg_route_begin() and its siblings of the public headers.
 *
 * stream: the stream that is captured
 */
xseg_status xseg_route_start(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                             void *self);
xseg_status xseg_route_stop(struct xseg_pool *pool);
xseg_status xseg_capture_start(struct xseg_pool *pool, xseg_stream stream);
xseg_status xseg_capture_stop(struct xseg_pool *pool);

/*
 * Add a mark to a device, and remove a mark.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST; false if the device has no mark
 */
xseg_status xseg_capture_mark_device(struct xseg_device *device);
bool xseg_capture_unmark_device(struct xseg_device *device);

#endif
