/* SPDX-License-Identifier: MIT */
/* Scopes of the entry points: validate a public struct xseg_scope, and find the device, pool and stream it selects. */
#ifndef XSEG_SCOPE_H
#define XSEG_SCOPE_H

#include "src/core/device/allocator.h"
#include "xseg/reclaim.h"

/* The pool and the stream that a scope selects on one device. */
struct xseg_selection {
    const struct xseg_pool *pool;           /* NULL: any */
    const struct xseg_known_stream *stream; /* NULL: any */
};

/* Validate and copy the scope of the caller; NULL selects all memory.  Returns: XSEG_OK, XSEG_ERR_ARGUMENT */
xseg_status xseg_scope_check(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             struct xseg_scope *out);

/* The device of an ordinal; NULL if the device is not open or not selected. */
struct xseg_device *xseg_scope_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, int ordinal);

/* Find the selected pool and stream on a device.  Returns: XSEG_OK; XSEG_ERR_DRIVER: the stream does not exist;
 * XSEG_ERR_HOST_MEMORY */
xseg_status xseg_scope_select(struct xseg_device *device, const struct xseg_scope *scope,
                              struct xseg_selection *out);

#endif
