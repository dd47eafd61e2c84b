/* SPDX-License-Identifier: MIT */
#include "src/core/range/decommit.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/range/aliases.h"
#include "src/core/reclaim/pending_unmap.h"

void xseg_decommit_settle(const struct xseg_range_run *run)
{
    struct xseg_elastic *elastic = run->extent->elastic;
    struct xseg_arena *arena = run->extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t unused = xseg_aliases_end_use(run);
    xseg_arena_lock(arena);
    memset(&elastic->use[run->first], XSEG_ELASTIC_UNMAPPING, run->count);
    elastic->live -= run->count;
    elastic->pending_unmaps += run->count;
    if (unused != 0)
        xseg_counts_mark_pending(&arena->counts, 0, unused);
    xseg_arena_unlock(arena);
}

/* Let live granules leave.  The device memory lock is held. */
static xseg_status decommit(const struct xseg_range_run *run, struct xseg_known_stream *stream)
{
    xseg_status status = xseg_pool_check_running(run->body->pool);
    uint32_t at = 0;

    if (status != XSEG_OK || run->count == 0)
        return status;
    if (!xseg_range_is_all(run, XSEG_ELASTIC_ALLOCATED, &at))
        return xseg_range_fail_use(run, at, "only committed granules can be decommitted");
    status = xseg_pending_unmap_begin(run->extent, run->first, run->count, stream);
    if (status == XSEG_OK)
        xseg_decommit_settle(run);
    return status;
}

/* What a call does with granules and a stream.  The device memory lock is held. */
typedef xseg_status step(const struct xseg_range_run *run, struct xseg_known_stream *stream);

/* Find the granules and the stream that a call names, do what it does, and look at what leaves. */
static xseg_status call(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                        xseg_stream handle, step *do_it)
{
    struct xseg_device *device = range->device;
    struct xseg_known_stream *stream = NULL;
    struct xseg_range_run run;
    xseg_status status = xseg_stream_retirement_get(device, handle, &stream);

    if (status != XSEG_OK)
        return status;
    xseg_mutex_lock(&device->growth_lock);
    status = xseg_range_find(range, offset, bytes, &run);
    if (status == XSEG_OK)
        status = do_it(&run, stream);
    if (status == XSEG_OK)
        xseg_pending_unmap_poll(device, false);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                          xseg_stream stream)
{
    return call(range, offset, bytes, stream, decommit);
}

/* --- Holds. --- */

xseg_status xseg_decommit_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run run = {0};

    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = xseg_range_find(range, offset, bytes, &run);
    if (status == XSEG_OK)
        status = xseg_range_check_claims(&run);
    for (uint32_t at = run.first; status == XSEG_OK && at < run.first + run.count; at++)
        if (run.body->elastic.holds[at] == UINT32_MAX)
            status = xseg_fail(XSEG_ERR_BUSY,
                               "hold count of a granule is at its maximum, "
                               "%" PRIu32 "; release a hold with xseg_range_unhold()",
                               UINT32_MAX);
    for (uint32_t at = run.first; status == XSEG_OK && at < run.first + run.count; at++)
        run.body->elastic.holds[at]++;
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

/* Let the granules that this lets go of, and that leave, leave with a stream as well.  Granules are let go of only once
 * this has succeeded for all.  The device memory lock is held. */
static xseg_status leave_again(const struct xseg_range_run *run, struct xseg_known_stream *stream)
{
    const struct xseg_elastic *elastic = run->extent->elastic;
    const uint32_t end = run->first + run->count;

    for (uint32_t first = run->first, at; first < end; first = at + 1) {
        xseg_status status = XSEG_OK;

        for (at = first; status == XSEG_OK && at < end && elastic->holds[at] == 1 &&
                         elastic->use[at] == XSEG_ELASTIC_UNMAPPING;)
            status = xseg_pending_unmap_order(run->extent, at++, stream);
        if (status == XSEG_OK && at != first)
            status = xseg_pending_unmap_again(run->extent, first, at - first, stream);
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

static xseg_status let_go(const struct xseg_range_run *run, struct xseg_known_stream *stream)
{
    uint32_t *holds = run->extent->elastic->holds;
    xseg_status status = xseg_range_check_claims(run);

    if (status != XSEG_OK)
        return status;
    for (uint32_t at = run->first; at < run->first + run->count; at++)
        if (holds[at] == 0)
            return xseg_fail(XSEG_ERR_ARGUMENT,
                             "granule is not held, offset %" PRIu64
                             "; match each call to one xseg_range_hold()",
                             at * run->extent->segment.granule_bytes);
    status = leave_again(run, stream);
    if (status != XSEG_OK)
        return status;
    for (uint32_t at = run->first; at < run->first + run->count; at++)
        holds[at]--;
    xseg_pending_unmap_wake(run->extent, run->first, run->count);
    return XSEG_OK;
}

xseg_status xseg_decommit_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                 xseg_stream stream)
{
    return call(range, offset, bytes, stream, let_go);
}
