/* SPDX-License-Identifier: MIT */
#include "xseg/capture.h"

#include "src/core/front/device_route.h"
#include "src/entry.h"

xseg_status xseg_capture_begin(struct xseg_pool *pool, xseg_stream stream)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_device_begin_capture(pool, stream);
}

xseg_status xseg_capture_end(struct xseg_pool *pool)
{
    XSEG_ENTRY_POOL(pool);
    return xseg_device_end_capture(pool);
}
