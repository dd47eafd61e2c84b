/* SPDX-License-Identifier: MIT */
#include "vmm/segment_page.h"

xseg_status xseg_segment_set_rights(struct xseg_segment *segment, uint32_t first, uint32_t count,
                                    bool reads)
{
    xseg_status (*const set)(struct xseg_context *, uint64_t, uint64_t) =
        reads ? xseg_driver_set_access_read_only : xseg_driver_set_access;
    struct xseg_context *context = segment->context;
    const bool is_one = segment->length[first] == count;
    xseg_status status = XSEG_ERR_DRIVER;

    if (is_one || context->batches_access)
        status = set(context, xseg_segment_address(segment, first), count * segment->granule_bytes);
    if (status == XSEG_OK || is_one)
        return status;
    status = XSEG_OK;
    for (uint32_t page = first; page < first + count && status == XSEG_OK;
         page += segment->length[page])
        status = set(context, xseg_segment_address(segment, page),
                     xseg_segment_page_bytes(segment, page));
    return status;
}

/* Whether the device may only read a page from now on.  Memory on its way back is to get its contents first. */
static bool reads_now(const struct xseg_segment *segment, uint32_t page)
{
    return xseg_segment_reads(segment, page) &&
           (!xseg_segment_is_evicted(segment, page) || xseg_segment_is_guest(segment, page));
}

xseg_status xseg_segment_access(struct xseg_segment *segment, uint32_t first, uint32_t count)
{
    const uint32_t end = first + count;
    xseg_status status = XSEG_OK;

    for (uint32_t at = first, next; status == XSEG_OK && at < end; at = next) {
        const bool reads = reads_now(segment, at);

        next = at + segment->length[at];
        while (next < end && reads_now(segment, next) == reads)
            next += segment->length[next];
        status = xseg_segment_set_rights(segment, at, next - at, reads);
    }
    return status;
}
