/* SPDX-License-Identifier: MIT */
#include "src/core/grow/scrub.h"

#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"

struct xseg_page_taker xseg_scrub_taker(const struct xseg_arena *arena,
                                        const struct xseg_segment *segment)
{
    struct xseg_device *device = arena->device;
    struct xseg_page_taker taker = {
        xseg_pool_owner(arena->pool), XSEG_PAGE_ANY,
        segment != NULL ? segment->properties : xseg_pool_properties(arena->pool), NULL};

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (!xseg_allocator_config(device->allocator)->scrub)
        return taker;
    taker.choice = xseg_pending_captures(device->pending) ||
                           !xseg_streams_is_open(&device->context, xseg_arena_stream(arena))
                       ? XSEG_PAGE_OWN_ONLY
                       : XSEG_PAGE_OWN_FIRST;
    return taker;
}
