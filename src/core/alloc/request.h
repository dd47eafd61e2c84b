/* SPDX-License-Identifier: MIT */
/*
 * The general way of an allocation, which serves every request and may grow.
 *
 * Entry points try the short ways first (hit_alloc.h, hit_stream.h).  The general way checks the request and goes on in
 * device_alloc.h, which looks at pending blocks, chooses pool and arena, and climbs the ladder where memory is short.
 */
#ifndef XSEG_CORE_REQUEST_H
#define XSEG_CORE_REQUEST_H

#include "src/core/device/allocator.h"

/*
 * Serve xseg_alloc_with() of the public header.
 *
 * request:   with all members that struct xseg_request has now
 * has_asked: pending blocks were looked at for this request already
 */
xseg_status xseg_request_serve(struct xseg_allocator *allocator, const struct xseg_request *request,
                               bool has_asked, void **out);

#endif
