/* SPDX-License-Identifier: MIT */
/*
 * The general way of an allocation: it serves every request, and may grow.
 *
 * The short ways come before it (hit_alloc.h, hit_stream.h).  device.h follows: it looks at what is pending, chooses
 * pool and arena, and climbs the ladder where memory is short.
 */
#ifndef XSEG_CORE_REQUEST_H
#define XSEG_CORE_REQUEST_H

#include "src/core/device/allocator.h"

/*
 * xseg_alloc_with() of the public header.
 *
 * request:   of the size of the structure as it is now
 * has_asked: what is pending has been looked at for this request already
 */
xseg_status xseg_request_serve(struct xseg_allocator *allocator, const struct xseg_request *request,
                               bool has_asked, void **out);

#endif
