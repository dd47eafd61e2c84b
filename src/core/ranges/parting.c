/* SPDX-License-Identifier: MIT */
#include "src/core/ranges/parting.h"

#include <inttypes.h>

#include "src/base/error.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/leaving.h"

/* Find such a granule from one on. */
static bool find(const struct xseg_range_run *run, uint32_t *at)
{
    const uint32_t *batch = run->extent->elastic->batch;

    for (; *at < run->first + run->count; ++*at)
        if (batch[*at] != 0 && xseg_elastic_is_shared(run->extent->elastic, *at))
            return true;
    return false;
}

bool xseg_parting_is_needed(const struct xseg_range_run *run)
{
    uint32_t at = run->first;

    return find(run, &at);
}

xseg_status xseg_parting_wait(const struct xseg_range_run *run)
{
    struct xseg_device *device = xseg_device_of(run->extent);
    uint32_t at = run->first;

    if (xseg_pending_captures(device->pending))
        return XSEG_OK;
    xseg_leaving_ask(device);
    for (; find(run, &at); at++) {
        const xseg_status status = xseg_leaving_wait_for(run->extent, at);

        if (status != XSEG_OK)
            return status;
    }
    xseg_leaving_look(device, false);
    return XSEG_OK;
}

xseg_status xseg_parting_check(const struct xseg_range_run *run)
{
    uint32_t at = run->first;

    if (!find(run, &at))
        return XSEG_OK;
    return xseg_fail(
        XSEG_ERR_BUSY,
        "the granule at offset %" PRIu64
        " still has a page that is shared: it goes after a capture, and once it is not "
        "held, pinned or exported any more",
        at * run->extent->segment.granule_bytes);
}
