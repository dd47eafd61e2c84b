/* SPDX-License-Identifier: MIT */
#include "vmm/segment_page.h"

xseg_status xseg_segment_set_access(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    struct xseg_context *context = segment->context;
    const bool is_one = segment->length[first] == count;
    xseg_status status = XSEG_ERR_DRIVER;

    if (is_one || context->batches_access)
        status = xseg_driver_set_access(context, xseg_segment_address(segment, first),
                                        count * segment->granule_bytes);
    if (status == XSEG_OK || is_one)
        return status;
    status = XSEG_OK;
    for (uint32_t page = first; page < first + count && status == XSEG_OK;
         page += segment->length[page])
        status = xseg_driver_set_access(context, xseg_segment_address(segment, page),
                                        xseg_segment_page_bytes(segment, page));
    return status;
}
