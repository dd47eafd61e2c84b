/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/pending_unmap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/arena/recorder.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/trim_steps.h"
#include "src/core/reclaim/unmap_batch.h"

void xseg_pending_unmap_init(struct xseg_pending_unmap *pending_unmaps)
{
    memset(pending_unmaps, 0, sizeof(*pending_unmaps));
    xseg_list_init(&pending_unmaps->batches);
    xseg_list_init(&pending_unmaps->streams);
    xseg_list_init(&pending_unmaps->unrecorded);
    xseg_list_init(&pending_unmaps->over);
    xseg_list_init(&pending_unmaps->parked);
    pending_unmaps->free = 1;
}

void xseg_pending_unmap_fini(struct xseg_pending_unmap *pending_unmaps)
{
    XSEG_LIST_FOR_SAFE(node, &pending_unmaps->batches)
    {
        free(XSEG_CONTAINER(node, struct xseg_unmap_batch, link));
    }
    free(pending_unmaps->table);
}

/* A run of granules of one batch, which is claimed. */
struct run {
    struct xseg_extent *extent;
    uint32_t first, count;
};

/* Set what a run is used for.  Takes ARENA. */
static void set_use(const struct run *run, enum xseg_elastic_use use)
{
    struct xseg_arena *arena = run->extent->arena;

    xseg_arena_lock(arena);
    memset(&run->extent->elastic->use[run->first], (int)use, run->count);
    xseg_arena_unlock(arena);
}

/* --- Beginning, and taking back. --- */

static bool has_passed(const struct xseg_unmap_batch *batch)
{
    return atomic_load_explicit(&batch->stream->number, memory_order_acquire) !=
           batch->stream_number;
}

/* Record the event of a batch. */
static xseg_status record(struct xseg_unmap_batch *batch)
{
    struct xseg_pending *pending = xseg_device_of(batch->extent)->pending;

    xseg_pending_lock(pending);
    const xseg_status status =
        xseg_fences_record(&pending->fences, batch->stream->handle, &batch->event);
    xseg_pending_unlock(pending);
    if (status == XSEG_OK)
        xseg_unmap_batch_enlist(xseg_device_of(batch->extent)->pending_unmaps, batch);
    return status;
}

/* Make a batch of no granules, with its event. */
static xseg_status make(struct xseg_extent *extent, struct xseg_known_stream *stream,
                        struct xseg_unmap_batch **out)
{
    struct xseg_device *device = xseg_device_of(extent);
    struct xseg_unmap_batch *batch = calloc(1, sizeof(*batch));
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (batch == NULL || !xseg_unmap_batch_add(device->pending_unmaps, batch)) {
        free(batch);
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, record of a decommit");
    }
    batch->extent = extent;
    batch->stream = stream;
    xseg_list_init(&batch->turn);
    xseg_unmap_batch_enlist(device->pending_unmaps, batch);
    batch->stream_number = atomic_load_explicit(&stream->number, memory_order_relaxed);
    batch->let_go = UINT64_MAX;
    if (!xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context))
        status = record(batch);
    if (status == XSEG_OK)
        *out = batch;
    else
        xseg_unmap_batch_end(device->pending_unmaps, batch);
    return status;
}

/* Let granules that have no batch leave with one that is new. */
static void join(struct xseg_unmap_batch *batch, uint32_t first, uint32_t count)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    batch->first = first;
    batch->count = batch->left = count;
    for (uint32_t at = first; at < first + count; at++) {
        XSEG_ASSERT(elastic->batch[at] == 0);
        elastic->batch[at] = batch->number;
    }
}

xseg_status xseg_pending_unmap_begin(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = NULL;
    const xseg_status status = make(extent, stream, &batch);

    XSEG_ASSERT(count > 0);
    if (status == XSEG_OK)
        join(batch, first, count);
    return status;
}

xseg_status xseg_pending_unmap_again(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = NULL;
    const xseg_status status = make(extent, stream, &batch);

    XSEG_ASSERT(count > 0);
    if (status != XSEG_OK)
        return status;
    xseg_pending_unmap_end(extent, first, count);
    join(batch, first, count);
    return XSEG_OK;
}

static struct xseg_unmap_batch *batch_of(const struct xseg_extent *extent, uint32_t granule)
{
    const struct xseg_pending_unmap *pending_unmaps = xseg_device_of(extent)->pending_unmaps;
    const uint32_t number = extent->elastic->batch[granule];

    XSEG_ASSERT(number != 0 && number < pending_unmaps->capacity &&
                pending_unmaps->table[number] != NULL);
    return pending_unmaps->table[number];
}

bool xseg_pending_unmap_is_ordered(const struct xseg_extent *extent, uint32_t granule,
                                   const struct xseg_known_stream *stream)
{
    const struct xseg_unmap_batch *batch = batch_of(extent, granule);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return batch->stream == stream || batch->is_over || has_passed(batch);
}

xseg_status xseg_pending_unmap_order(const struct xseg_extent *extent, uint32_t granule,
                                     struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = batch_of(extent, granule);
    struct xseg_device *device = xseg_device_of(extent);

    if (xseg_pending_unmap_is_ordered(extent, granule, stream))
        return XSEG_OK;
    if (xseg_pending_captures(device->pending))
        return xseg_fail(
            XSEG_ERR_BUSY,
            "granule is pending unmap on another stream during a capture, stream %p on device %d; "
            "pass that stream, or retry after the capture",
            (void *)batch->stream->handle, device->context.ordinal);
    if (batch->event == NULL) {
        const xseg_status status = record(batch);

        if (status != XSEG_OK)
            return status;
    }
    return xseg_driver_stream_wait_event(&device->context, stream->handle, batch->event);
}

void xseg_pending_unmap_wake(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t at = first; at < first + count; at++)
        if (extent->elastic->batch[at] != 0)
            xseg_unmap_batch_wake(batch_of(extent, at));
}

void xseg_pending_unmap_resume(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    const struct run run = {extent, first, count};

    xseg_pending_unmap_wake(extent, first, count);
    set_use(&run, XSEG_ELASTIC_UNMAPPING);
}

void xseg_pending_unmap_end(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    struct xseg_pending_unmap *pending_unmaps = xseg_device_of(extent)->pending_unmaps;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t at = first; at < first + count; at++) {
        struct xseg_unmap_batch *batch = batch_of(extent, at);

        extent->elastic->batch[at] = 0;
        XSEG_ASSERT(batch->left > 0);
        if (--batch->left == 0 && !batch->is_worked)
            xseg_unmap_batch_end(pending_unmaps, batch);
    }
}

/* --- Asking. --- */

/* Ask about the events of a stream's batches, until one is not complete.  An event that cannot be asked about, such as one
 * that was recorded in a capture of which the library was not told, is recorded again.  Returns false where nothing can be
 * asked. */
static bool ask_stream(struct xseg_device *device, struct xseg_driver_poll *questions,
                       struct xseg_known_stream *stream)
{
    while (!xseg_list_is_empty(&stream->batches)) {
        struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&stream->batches, struct xseg_unmap_batch, turn);
        const enum xseg_driver_poll_result answer =
            xseg_driver_poll_event(questions, batch->event, false);

        if (answer == XSEG_DRIVER_POLL_NOT_QUERIED)
            return false;
        if (answer == XSEG_DRIVER_POLL_PENDING)
            break;
        batch->is_over = answer == XSEG_DRIVER_POLL_COMPLETED;
        xseg_fences_return(&device->pending->fences, batch->event);
        batch->event = NULL;
        xseg_unmap_batch_enlist(device->pending_unmaps, batch);
    }
    return true;
}

/* Ask how far all streams have come that memory leaves with. */
static void ask(struct xseg_device *device)
{
    struct xseg_driver_poll questions = {.context = &device->context};

    xseg_pending_lock(device->pending);
    XSEG_LIST_FOR_SAFE(node, &device->pending_unmaps->streams)
    {
        if (!ask_stream(device, &questions, XSEG_CONTAINER(node, struct xseg_known_stream, leaves)))
            break;
    }
    xseg_driver_poll_end(&questions);
    xseg_pending_unlock(device->pending);
}

/* Record the event of a batch that has none yet, or find out that it needs none. */
static void catch_up(struct xseg_device *device, struct xseg_unmap_batch *batch)
{
    bool idle = false;

    batch->is_over = has_passed(batch);
    if (!batch->is_over && xseg_streams_is_open(&device->context, batch->stream) &&
        record(batch) == XSEG_OK)
        return;
    if (!batch->is_over)
        batch->is_over = xseg_trim_is_idle(device, batch->stream, false, &idle) == XSEG_OK && idle;
    if (batch->is_over)
        xseg_unmap_batch_enlist(device->pending_unmaps, batch);
}

/* Whether there is anything to ask, or to take away, and the driver may be called for it. */
static bool can_look(const struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return xseg_pending_unmap_is_any(device->pending_unmaps) &&
           !xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context);
}

void xseg_pending_unmap_query(struct xseg_device *device)
{
    if (!can_look(device))
        return;
    XSEG_LIST_FOR_SAFE(node, &device->pending_unmaps->unrecorded)
    {
        catch_up(device, XSEG_CONTAINER(node, struct xseg_unmap_batch, turn));
    }
    ask(device);
}

/* --- Taking away. --- */

static bool is_held(const struct xseg_extent *extent, uint32_t granule)
{
    return extent->elastic->holds[granule] != 0 ||
           xseg_segment_is_retained(&extent->segment, granule, 1);
}

static bool may_go(const struct xseg_unmap_batch *batch, uint32_t granule)
{
    const struct xseg_elastic *elastic = batch->extent->elastic;

    return elastic->batch[granule] == batch->number &&
           elastic->use[granule] == XSEG_ELASTIC_UNMAPPING &&
           xseg_segment_is_mapped(&batch->extent->segment, granule) &&
           !is_held(batch->extent, granule);
}

/* Find the next run of a batch from a granule on that may go; one of no granules if there is none. */
static struct run next_run(const struct xseg_unmap_batch *batch, uint32_t from)
{
    const uint32_t end = batch->first + batch->count;
    struct run run = {batch->extent, from, 0};

    while (run.first < end && !may_go(batch, run.first))
        run.first++;
    while (run.first + run.count < end && may_go(batch, run.first + run.count))
        run.count++;
    return run;
}

static uint64_t base_of(const struct run *run)
{
    const struct xseg_segment *segment = &run->extent->segment;

    return segment->base + run->first * segment->granule_bytes;
}

/* Count a run that was unmapped.  own: bytes of the pages whose last mapping that was */
static void settle(const struct run *run, uint64_t own)
{
    struct xseg_extent *extent = run->extent;
    struct xseg_arena *arena = extent->arena;
    const uint64_t bytes = run->count * extent->segment.granule_bytes;

    xseg_pending_unmap_end(extent, run->first, run->count);
    xseg_arena_lock(arena);
    memset(&extent->elastic->use[run->first], XSEG_ELASTIC_EMPTY, run->count);
    extent->elastic->pending_unmaps -= run->count;
    xseg_elastic_set_bytes(extent->elastic,
                           (extent->elastic->live + extent->elastic->pending_unmaps) *
                                   extent->segment.granule_bytes -
                               extent->segment.alias_bytes,
                           extent->elastic->coming, &arena->device->promised);
    if (own != 0) {
        xseg_counts_end_pending(&arena->counts, 0, own, own);
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, own);
    }
    if (own != 0 && xseg_recorder_is_enabled(arena))
        xseg_recorder_segment(extent, XSEG_HISTORY_SEGMENT_UNMAP, base_of(run), bytes);
    xseg_arena_unlock(arena);
    if (own != 0)
        xseg_pool_record_shrink(arena, own);
}

/* Take the memory of a run away; returns whether all of it has gone. */
static bool take(struct run run, bool keep)
{
    struct xseg_segment *segment = &run.extent->segment;
    uint32_t done = 0;

    set_use(&run, XSEG_ELASTIC_CLAIMED);
    if (!xseg_notify_unmap_bytes(run.extent, base_of(&run), run.count * segment->granule_bytes)) {
        set_use(&run, XSEG_ELASTIC_UNMAPPING);
        return false;
    }
    const uint64_t unmapped = segment->unmapped_bytes;
    (void)xseg_segment_unmap(segment, run.first, run.count, keep, &done);
    const struct run gone = {run.extent, run.first, done};
    const struct run rest = {run.extent, run.first + done, run.count - done};
    if (done != 0)
        settle(&gone, segment->unmapped_bytes - unmapped);
    if (rest.count == 0)
        return true;
    set_use(&rest, XSEG_ELASTIC_UNMAPPING);
    xseg_notify_map(run.extent, base_of(&rest), rest.count * segment->granule_bytes);
    return false;
}

/* Take the memory of a batch away that may go. */
static void work(struct xseg_device *device, struct xseg_unmap_batch *batch, bool keep)
{
    /* What leaves is in the way of a pause, until it has gone. */
    XSEG_ASSERT(batch->extent->arena->pool->state != XSEG_POOL_PAUSED);
    batch->is_worked = true;
    batch->let_go = xseg_unmap_batch_released(batch->extent);
    for (uint32_t at = batch->first;;) {
        const struct run run = next_run(batch, at);

        if (run.count == 0)
            break;
        at = run.first + run.count;
        /* What the driver refuses is tried again by the next look. */
        if (!take(run, keep)) {
            batch->let_go = UINT64_MAX;
            break;
        }
    }
    batch->is_worked = false;
    if (batch->left == 0)
        xseg_unmap_batch_end(device->pending_unmaps, batch);
    else
        xseg_unmap_batch_park(device->pending_unmaps, batch);
}

/* The next batch with memory that may go.  What has been looked at goes behind the others, so that each batch is looked at
 * once in a look. */
static struct xseg_unmap_batch *next_due(struct xseg_pending_unmap *pending_unmaps)
{
    while (!xseg_list_is_empty(&pending_unmaps->over)) {
        struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&pending_unmaps->over, struct xseg_unmap_batch, turn);

        if (batch->look == pending_unmaps->look)
            return NULL;
        batch->look = pending_unmaps->look;
        xseg_unmap_batch_enlist(pending_unmaps, batch);
        if (!batch->is_worked && batch->let_go != xseg_unmap_batch_released(batch->extent))
            return batch;
    }
    return NULL;
}

void xseg_pending_unmap_poll(struct xseg_device *device, bool keep)
{
    struct xseg_pending_unmap *pending_unmaps = device->pending_unmaps;
    const uint64_t cache = xseg_allocator_config(device->allocator)->page_cache_bytes;
    struct xseg_unmap_batch *batch;

    if (!can_look(device))
        return;
    pending_unmaps->look++;
    xseg_unmap_batch_wake_all(pending_unmaps);
    xseg_pending_unmap_query(device);
    while (!xseg_pending_captures(device->pending) && (batch = next_due(pending_unmaps)) != NULL)
        work(device, batch, keep || cache != 0);
    if (!keep)
        xseg_page_cache_shrink_unprepared(&device->page_cache, cache);
}

/* Wait for the stream of a batch. */
static xseg_status wait(struct xseg_device *device, const struct xseg_unmap_batch *batch)
{
    bool idle = false;

    if (batch->is_over)
        return XSEG_OK;
    if (batch->event != NULL)
        return xseg_driver_event_synchronize(&device->context, batch->event);
    return has_passed(batch) ? XSEG_OK : xseg_trim_is_idle(device, batch->stream, true, &idle);
}

xseg_status xseg_pending_unmap_wait_for(const struct xseg_extent *extent, uint32_t granule)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return wait(xseg_device_of(extent), batch_of(extent, granule));
}

xseg_status xseg_pending_unmap_wait(struct xseg_device *device, bool keep)
{
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!xseg_pending_unmap_is_any(device->pending_unmaps) ||
        xseg_pending_captures(device->pending))
        return XSEG_OK;
    XSEG_LIST_FOR(node, &device->pending_unmaps->batches)
    {
        if (status == XSEG_OK)
            status = wait(device, XSEG_CONTAINER(node, struct xseg_unmap_batch, link));
    }
    xseg_pending_unmap_poll(device, keep);
    return status;
}

bool xseg_pending_unmap_stream(const struct xseg_device *device, uint64_t address, xseg_stream *out)
{
    const struct xseg_extent *extent = xseg_page_map_find(device->page_map, address);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (extent == NULL || extent->elastic == NULL)
        return false;
    const struct xseg_segment *segment = &extent->segment;
    const uint32_t granule = (uint32_t)((address - segment->base) / segment->granule_bytes);
    if (extent->elastic->batch[granule] == 0)
        return false;
    const struct xseg_unmap_batch *batch = batch_of(extent, granule);
    *out = batch->stream->handle;
    return !has_passed(batch);
}
