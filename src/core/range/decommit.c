/* SPDX-License-Identifier: MIT */
/*
 * State changes of granules that create no page: decommit, recommit, hold, unhold and alias.
 *
 * A decommit records an event on its stream and unmaps nothing (pending_unmap.h).  A hold keeps the
 * page of a granule mapped after a decommit, for a graph that was captured with the granule.  The
 * unhold names the stream of the graph's last launch, and the granule gets a further batch on that
 * stream.
 *
 * Locking: the public calls lock the device memory; the helpers expect it locked.
 */
#include <inttypes.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/pending_unmap.h"
#include "vmm/alias.h"

/* --- Decommit and recommit. --- */

/* Decrease the counts of committed mappings for the pages of a run.  Returns the bytes of the pages
 * that no committed granule maps any longer. */
static uint64_t count_decommitted(const struct xseg_range_run *run)
{
    const struct xseg_segment *segment = &run->extent->segment;
    uint64_t pages = 0;

    for (uint32_t granule = run->first; granule < run->first + run->count; granule++) {
        struct xseg_alias_record *record = xseg_alias_record(segment, granule);

        pages += record == NULL || --record->count.committed == 0;
    }
    return pages * segment->granule_bytes;
}

static void count_recommitted(const struct xseg_range_run *run)
{
    for (uint32_t granule = run->first; granule < run->first + run->count; granule++) {
        struct xseg_alias_record *record = xseg_alias_record(&run->extent->segment, granule);

        XSEG_ASSERT(record == NULL ||
                    (record->count.committed == 0 && record->count.mappings == 1));
        if (record != NULL)
            record->count.committed = 1;
    }
}

void xseg_range_settle_decommit(const struct xseg_range_run *run)
{
    struct xseg_elastic *elastic = run->extent->elastic;
    struct xseg_arena *arena = run->extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t pending_bytes = count_decommitted(run);
    xseg_biased_lock_lock(&arena->lock);
    memset(&elastic->use[run->first], XSEG_ELASTIC_UNMAPPING, run->count);
    elastic->allocated -= run->count;
    elastic->pending_unmaps += run->count;
    if (pending_bytes != 0)
        xseg_counts_mark_pending(&arena->counts, 0, pending_bytes);
    xseg_biased_lock_unlock(&arena->lock);
}

void xseg_range_recommit_run(const struct xseg_range_run *run)
{
    struct xseg_elastic *elastic = run->extent->elastic;
    struct xseg_arena *arena = run->extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_pending_unmap_remove(run->extent, run->first, run->count);
    count_recommitted(run);
    xseg_biased_lock_lock(&arena->lock);
    elastic->pending_unmaps -= run->count;
    elastic->allocated += run->count;
    xseg_counts_alloc_pending_bytes(&arena->counts, xseg_range_bytes(run));
    xseg_biased_lock_unlock(&arena->lock);
    run->state->recommits += run->count;
}

static xseg_status decommit_run(const struct xseg_range_run *run, struct xseg_known_stream *stream)
{
    xseg_status status = xseg_pool_check_running(run->state->pool);
    uint32_t granule = 0;

    if (status != XSEG_OK || run->count == 0)
        return status;
    if (!xseg_range_all_have_use(run, XSEG_ELASTIC_ALLOCATED, &granule))
        return xseg_range_fail_use(run, granule, "only committed granules can be decommitted");
    status = xseg_pending_unmap_begin(run->extent, run->first, run->count, stream);
    if (status == XSEG_OK)
        xseg_range_settle_decommit(run);
    return status;
}

typedef xseg_status run_change(const struct xseg_range_run *run, struct xseg_known_stream *stream);

/* Apply a change to a run in the order of a stream, then poll the batches of the device. */
static xseg_status change_run(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                              xseg_stream handle, run_change *change)
{
    struct xseg_device *device = range->device;
    struct xseg_known_stream *stream = NULL;
    struct xseg_range_run run;
    xseg_status status = xseg_stream_retirement_get(device, handle, &stream);

    if (status != XSEG_OK)
        return status;
    xseg_mutex_lock(&device->memory_lock);
    status = xseg_range_find_run(range, offset, bytes, &run);
    if (status == XSEG_OK)
        status = change(&run, stream);
    if (status == XSEG_OK)
        xseg_pending_unmap_poll(device, false);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_ranges_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                 xseg_stream stream)
{
    return change_run(range, offset, bytes, stream, decommit_run);
}

/* --- Holds. --- */

xseg_status xseg_ranges_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run run = {0};

    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_range_find_run(range, offset, bytes, &run);
    if (status == XSEG_OK)
        status = xseg_range_check_claims(&run);
    for (uint32_t granule = run.first; status == XSEG_OK && granule < run.first + run.count;
         granule++)
        if (run.state->elastic.holds[granule] == UINT32_MAX)
            status = xseg_fail(XSEG_ERR_BUSY,
                               "hold count of a granule is at its maximum, "
                               "%" PRIu32 "; release a hold with xseg_range_unhold()",
                               UINT32_MAX);
    for (uint32_t granule = run.first; status == XSEG_OK && granule < run.first + run.count;
         granule++)
        run.state->elastic.holds[granule]++;
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

/* Assign a batch on a stream to each granule that is pending unmap and whose last hold is released.
 * After a failure all holds remain. */
static xseg_status add_unhold_batches(const struct xseg_range_run *run,
                                      struct xseg_known_stream *stream)
{
    const struct xseg_elastic *elastic = run->extent->elastic;
    const uint32_t end = run->first + run->count;

    for (uint32_t first = run->first, granule; first < end; first = granule + 1) {
        xseg_status status = XSEG_OK;

        for (granule = first; status == XSEG_OK && granule < end && elastic->holds[granule] == 1 &&
                              elastic->use[granule] == XSEG_ELASTIC_UNMAPPING;)
            status = xseg_pending_unmap_order(run->extent, granule++, stream);
        if (status == XSEG_OK && granule != first)
            status = xseg_pending_unmap_reassign(run->extent, first, granule - first, stream);
        if (status != XSEG_OK)
            return status;
    }
    return XSEG_OK;
}

static xseg_status unhold_run(const struct xseg_range_run *run, struct xseg_known_stream *stream)
{
    uint32_t *holds = run->extent->elastic->holds;
    xseg_status status = xseg_range_check_claims(run);

    if (status != XSEG_OK)
        return status;
    for (uint32_t granule = run->first; granule < run->first + run->count; granule++)
        if (holds[granule] == 0)
            return xseg_fail(XSEG_ERR_ARGUMENT,
                             "granule is not held, offset %" PRIu64
                             "; match each call to one xseg_range_hold()",
                             granule * run->extent->segment.granule_bytes);
    status = add_unhold_batches(run, stream);
    if (status != XSEG_OK)
        return status;
    for (uint32_t granule = run->first; granule < run->first + run->count; granule++)
        holds[granule]--;
    xseg_pending_unmap_requeue(run->extent, run->first, run->count);
    return XSEG_OK;
}

xseg_status xseg_ranges_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                               xseg_stream stream)
{
    return change_run(range, offset, bytes, stream, unhold_run);
}

/* --- Aliases. --- */

static xseg_status check_alias(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    const struct xseg_segment *target = &to->extent->segment, *source = &from->extent->segment;
    uint32_t granule = 0;

    if (target->page_bytes != source->page_bytes)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "ranges have different page sizes, %" PRIu64 " and %" PRIu64
                         " bytes; reserve both with one page size",
                         target->page_bytes, source->page_bytes);
    if (to->state->pool != from->state->pool)
        return xseg_fail(XSEG_ERR_ARGUMENT,
                         "ranges belong to different pools, %s and %s; "
                         "reserve both with one pool",
                         xseg_pool_label(to->state->pool), xseg_pool_label(from->state->pool));
    if (!xseg_range_all_have_use(from, XSEG_ELASTIC_ALLOCATED, &granule))
        return xseg_range_fail_use(from, granule, "only committed granules can be aliased");
    return xseg_range_all_have_use(to, XSEG_ELASTIC_EMPTY, &granule)
               ? XSEG_OK
               : xseg_range_fail_use(to, granule, "only unmapped granules can map aliased pages");
}

static xseg_status map_aliases(const struct xseg_range_run *to, const struct xseg_range_run *from)
{
    struct xseg_arena *arena = to->extent->arena;
    struct xseg_segment *segment = &to->extent->segment;
    /* A page in unknown state may still be mapped, so unmap it first. */
    xseg_status status = xseg_segment_retry_unknown(segment, to->first, to->count);

    if (status == XSEG_OK)
        status = xseg_alias_map(segment, to->first, to->count, &from->extent->segment, from->first);
    if (status != XSEG_OK)
        return status;
    /* Observers run without the lock, so the granules are claimed until they have returned. */
    xseg_biased_lock_lock(&arena->lock);
    memset(&to->extent->elastic->use[to->first], XSEG_ELASTIC_CLAIMED, to->count);
    to->extent->elastic->allocated += to->count;
    xseg_biased_lock_unlock(&arena->lock);
    xseg_notify_map(to->extent, xseg_range_base(to), xseg_range_bytes(to));
    xseg_elastic_set_use(to->extent, to->first, to->count, XSEG_ELASTIC_ALLOCATED);
    return XSEG_OK;
}

xseg_status xseg_ranges_alias(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                              struct xseg_range *from, uint64_t from_offset)
{
    struct xseg_device *device = range->device;
    struct xseg_range_run to, source;

    if (from->device != device)
        return xseg_fail(
            XSEG_ERR_ARGUMENT,
            "ranges belong to different devices or allocators, device %d and device %d; "
            "reserve both with one pool",
            device->context.ordinal, from->device->context.ordinal);
    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = xseg_range_find_run(range, offset, bytes, &to);
    if (status == XSEG_OK)
        status = xseg_range_find_run(from, from_offset, bytes, &source);
    if (status == XSEG_OK && xseg_context_is_lost(&device->context))
        status = xseg_driver_fail_lost(&device->context);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(to.state->pool);
    if (status == XSEG_OK)
        status = xseg_pool_check_running(source.state->pool);
    if (status == XSEG_OK && bytes != 0)
        status = check_alias(&to, &source);
    if (status == XSEG_OK && bytes != 0)
        status = map_aliases(&to, &source);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}
