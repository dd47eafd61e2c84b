/* SPDX-License-Identifier: MIT */
/* Routes and captures of a device: they begin and end. */
#ifndef XSEG_CORE_DEVICE_ROUTE_H
#define XSEG_CORE_DEVICE_ROUTE_H

#include "src/core/device/device.h"

/* Whether a stream takes part in a capture; asked only while one is under way. */
xseg_status xseg_device_is_captured(struct xseg_device *device, struct xseg_known_stream *stream,
                                    bool *captured);

/* The stream that waits for users' events, made if need be. */
xseg_status xseg_device_side_stream(struct xseg_device *device, struct xseg_known_stream **out);

/*
 * Begin and end a route or a capture; as xseg_route_begin() and so on of the public headers.
 *
 * stream: of the capture; ignored for a route
 */
xseg_status xseg_device_begin_route(struct xseg_pool *pool, bool (*accepts)(void *, xseg_stream),
                                    void *self);
xseg_status xseg_device_end_route(struct xseg_pool *pool);
xseg_status xseg_device_begin_capture(struct xseg_pool *pool, xseg_stream stream);
xseg_status xseg_device_end_capture(struct xseg_pool *pool);

#endif
