/* SPDX-License-Identifier: MIT */
/* The begin and the end of routes and captures of a device. */
#ifndef XSEG_CORE_DEVICE_ROUTE_H
#define XSEG_CORE_DEVICE_ROUTE_H

#include "src/core/device/device.h"

/* Set *captured to whether a stream takes part in a capture; the driver is only asked while one is under way. */
xseg_status xseg_device_is_captured(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured);

/* Get the device's side stream, which waits for users' events; the first call makes it. */
xseg_status xseg_device_side_stream(struct xseg_device *device, struct xseg_known_stream **out);

/*
 * Begin and end a route or a capture: serve xseg_route_begin() and its siblings of the public headers.
 *
 * stream: the stream that is captured
 */
xseg_status xseg_device_begin_route(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                                    void *self);
xseg_status xseg_device_end_route(struct xseg_pool *pool);
xseg_status xseg_device_begin_capture(struct xseg_pool *pool, xseg_stream stream);
xseg_status xseg_device_end_capture(struct xseg_pool *pool);

/*
 * Mark a device as capturing once more, and take a mark back.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST; false if the device is not marked
 */
xseg_status xseg_device_mark(struct xseg_device *device);
bool xseg_device_unmark(struct xseg_device *device);

#endif
