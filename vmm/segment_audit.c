/* SPDX-License-Identifier: MIT */
/* The audit of segment.h. */
#include <inttypes.h>

#include "vmm/segment_page.h"

static bool audit_pages(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    uint32_t at = 0;

    while (at < segment->granules) {
        const uint32_t length = segment->length[at];
        const uint8_t state = segment->state[at];

        XSEG_INVARIANT(violation, "SEG-4", (length == 0) == (state == XSEG_PAGE_UNMAPPED),
                       "granule %" PRIu32 " is in state %d with length %" PRIu32, at, state,
                       length);
        for (uint32_t i = at + 1; i < at + length; i++)
            XSEG_INVARIANT(violation, "SEG-4",
                           i < segment->granules && segment->length[i] == 0 &&
                               segment->state[i] == state,
                           "page at granule %" PRIu32 " is inconsistent at %" PRIu32, at, i);
        at += length == 0 ? 1 : length;
    }
    return true;
}

/* Bytes of a page's memory that is neither in use nor given back; of an aliased page those of a stuck granule. */
static uint64_t stuck_bytes(const struct xseg_segment *segment, uint32_t page)
{
    const bool is_held = segment->state[page] == XSEG_PAGE_UNKNOWN ||
                         (xseg_segment_is_evicted(segment, page) && segment->handle[page] != 0);

    return segment->length[page] != 0 && is_held ? xseg_segment_page_bytes(segment, page) : 0;
}

bool xseg_segment_audit(const struct xseg_segment *segment, struct xseg_violation *violation)
{
    const uint64_t mapped = atomic_load(&segment->mapped);
    uint64_t backed = 0, unknown = 0;

    if (!xseg_segment_is_expandable(segment))
        return true;
    XSEG_INVARIANT(violation, "SEG-1",
                   segment->base % segment->context->granularity == 0 &&
                       segment->base <= UINT64_MAX - segment->reserved_bytes,
                   "base %#" PRIx64 " with %" PRIu64 " bytes", segment->base,
                   segment->reserved_bytes);
    for (uint32_t at = 0; at < segment->granules; at++) {
        backed += segment->state[at] == XSEG_PAGE_MAPPED ? segment->granule_bytes : 0;
        unknown += stuck_bytes(segment, at);
    }
    XSEG_INVARIANT(violation, "SEG-2", mapped == backed && segment->unknown == unknown,
                   "mapped is %" PRIu64 ", pages have %" PRIu64 "; stuck is %" PRIu64
                   ", pages have %" PRIu64,
                   mapped, backed, segment->unknown, unknown);
    XSEG_INVARIANT(
        violation, "SEG-3", segment->reserved_bytes >= segment->granules * segment->granule_bytes,
        "%" PRIu32 " granules in %" PRIu64 " bytes", segment->granules, segment->reserved_bytes);
    return audit_pages(segment, violation) && xseg_segment_audit_retains(segment, violation);
}
