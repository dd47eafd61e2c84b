/* SPDX-License-Identifier: MIT */
/* Checking a public struct xseg_scope, and finding what it selects, for the entry points. */
#ifndef XSEG_SCOPE_H
#define XSEG_SCOPE_H

#include "src/core/device/allocator.h"
#include "xseg/reclaim.h"

/* What a struct xseg_scope selects on one device. */
struct xseg_selection {
    const struct xseg_pool *pool;           /* NULL: any */
    const struct xseg_known_stream *stream; /* NULL: any */
};

/* Check and copy the caller's structure; NULL selects everything.  Returns: XSEG_OK, XSEG_ERR_ARGUMENT */
xseg_status xseg_scope_check(struct xseg_allocator *allocator, const struct xseg_scope *scope,
                             struct xseg_scope *out);

/* The device of an ordinal if it is open and selected; else NULL. */
struct xseg_device *xseg_scope_device(struct xseg_allocator *allocator,
                                      const struct xseg_scope *scope, int ordinal);

/* Find what is selected on a device.  Returns: XSEG_OK, XSEG_ERR_DRIVER (no such stream), XSEG_ERR_HOST_MEMORY */
xseg_status xseg_scope_select(struct xseg_device *device, const struct xseg_scope *scope,
                              struct xseg_selection *out);

#endif
