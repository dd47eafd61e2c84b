/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/pending_unmap.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/reclaim.h"

struct xseg_unmap_batch {
    struct xseg_list link;       /* in the list of all batches */
    struct xseg_list queue_link; /* in one queue: enqueue_batch() or queue_retained_batch() */
    struct xseg_extent *extent;
    struct xseg_known_stream *stream;
    /* The stream's ID at creation.  If the entry has another ID, the stream was retired and
     * has completed. */
    uint64_t stream_id;
    xseg_event event;      /* NULL: not recorded yet, or is_complete */
    uint32_t id;           /* index in the table */
    uint32_t first, count; /* granules at creation */
    uint32_t remaining;    /* of these, granules that still belong to the batch */
    bool is_complete;      /* the stream has completed the work before the decommit */
    bool is_unmapping;     /* a thread unmaps granules; it may release the device memory lock */
    bool is_retained;      /* `queue_link` is in the list of the extent */
    uint64_t poll;         /* `polls` at the last poll that visited the batch */
    uint64_t releases; /* count_releases() when the batch was last unmapped; UINT64_MAX: retry */
};

/* --- Batches and their queues. --- */

/* Add a signed number of bytes, modulo 2^64, to the host memory. */
static void add_host_bytes(struct xseg_pending_unmap *unmaps, uint64_t delta)
{
    atomic_fetch_add_explicit(&unmaps->host_bytes, delta, memory_order_relaxed);
}

/* Assign an ID to a batch and add it to the table.  Returns false on host allocation failure. */
static bool add_batch(struct xseg_pending_unmap *unmaps, struct xseg_unmap_batch *batch)
{
    while (unmaps->lowest_free_id < unmaps->capacity &&
           unmaps->table[unmaps->lowest_free_id] != NULL)
        unmaps->lowest_free_id++;
    if (unmaps->lowest_free_id >= unmaps->capacity) {
        const uint32_t capacity = unmaps->capacity == 0 ? 64 : unmaps->capacity * 2;
        struct xseg_unmap_batch **table =
            realloc(unmaps->table, capacity * sizeof(struct xseg_unmap_batch *));

        if (table == NULL)
            return false;
        memset(table + unmaps->capacity, 0,
               (capacity - unmaps->capacity) * sizeof(struct xseg_unmap_batch *));
        add_host_bytes(unmaps, (capacity - unmaps->capacity) * sizeof(*table));
        unmaps->table = table;
        unmaps->capacity = capacity;
    }
    batch->id = unmaps->lowest_free_id++;
    unmaps->table[batch->id] = batch;
    add_host_bytes(unmaps, sizeof(*batch));
    xseg_list_insert(&unmaps->batches, &batch->link);
    return true;
}

/* Remove a batch from its queue. */
static void dequeue_batch(struct xseg_unmap_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    xseg_list_remove(&batch->queue_link);
    if (batch->is_retained && xseg_list_is_empty(&elastic->retained))
        xseg_list_remove(&elastic->retained_link);
    batch->is_retained = false;
    if (xseg_list_is_empty(&batch->stream->batches))
        xseg_list_remove(&batch->stream->batch_link);
}

/*
 * Append a batch to the queue of its state: completed, without an event, or waiting for its stream.
 */
static void enqueue_batch(struct xseg_pending_unmap *unmaps, struct xseg_unmap_batch *batch)
{
    struct xseg_known_stream *stream = batch->stream;

    dequeue_batch(batch);
    if (batch->is_complete) {
        xseg_list_insert(&unmaps->completed, &batch->queue_link);
    } else if (batch->event == NULL) {
        xseg_list_insert(&unmaps->unrecorded, &batch->queue_link);
    } else {
        if (xseg_list_is_empty(&stream->batches))
            xseg_list_insert(&unmaps->streams, &stream->batch_link);
        xseg_list_insert(&stream->batches, &batch->queue_link);
    }
}

/* Return the event of a batch, if any, to the fences. */
static void return_batch_event(struct xseg_unmap_batch *batch)
{
    if (batch->event != NULL)
        xseg_pending_return_event(xseg_device_of(batch->extent)->pending, batch->event);
    batch->event = NULL;
}

static void destroy_batch(struct xseg_pending_unmap *unmaps, struct xseg_unmap_batch *batch)
{
    XSEG_ASSERT(batch->remaining == 0 && unmaps->table[batch->id] == batch);
    return_batch_event(batch);
    dequeue_batch(batch);
    unmaps->table[batch->id] = NULL;
    unmaps->lowest_free_id =
        batch->id < unmaps->lowest_free_id ? batch->id : unmaps->lowest_free_id;
    xseg_list_remove(&batch->link);
    add_host_bytes(unmaps, 0 - sizeof(*batch));
    free(batch);
}

/* The number of pins, exports and holds of an extent's granules that were released so far. */
static uint64_t count_releases(const struct xseg_extent *extent)
{
    return extent->segment.release_count;
}

/* Have the next poll visit a batch. */
static void wake_batch(struct xseg_unmap_batch *batch)
{
    batch->releases = UINT64_MAX;
    if (batch->is_retained)
        enqueue_batch(xseg_device_of(batch->extent)->pending_unmaps, batch);
}

/*
 * Queue a batch, none of whose granules can be unmapped, as retained until a reference of its
 * extent is released.  If a reference was released while observers ran, the batch stays in its
 * queue.
 */
static void queue_retained_batch(struct xseg_pending_unmap *unmaps, struct xseg_unmap_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    if (batch->releases != count_releases(batch->extent))
        return;
    dequeue_batch(batch);
    if (xseg_list_is_empty(&elastic->retained)) {
        xseg_list_insert(&unmaps->retained, &elastic->retained_link);
        elastic->retained_at = batch->releases;
    }
    xseg_list_insert(&elastic->retained, &batch->queue_link);
    batch->is_retained = true;
}

/* Wake the retained batches of extents in which a reference was released. */
static void wake_retained_batches(struct xseg_pending_unmap *unmaps)
{
    XSEG_LIST_FOR_SAFE(node, &unmaps->retained)
    {
        const struct xseg_elastic *elastic =
            XSEG_CONTAINER(node, struct xseg_elastic, retained_link);
        const struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&elastic->retained, struct xseg_unmap_batch, queue_link);

        if (elastic->retained_at != count_releases(batch->extent))
            while (!xseg_list_is_empty(&elastic->retained))
                wake_batch(
                    XSEG_LIST_FIRST(&elastic->retained, struct xseg_unmap_batch, queue_link));
    }
}

void xseg_pending_unmap_init(struct xseg_pending_unmap *unmaps)
{
    memset(unmaps, 0, sizeof(*unmaps));
    xseg_list_init(&unmaps->batches);
    xseg_list_init(&unmaps->streams);
    xseg_list_init(&unmaps->unrecorded);
    xseg_list_init(&unmaps->completed);
    xseg_list_init(&unmaps->retained);
    unmaps->lowest_free_id = 1;
}

void xseg_pending_unmap_fini(struct xseg_pending_unmap *unmaps)
{
    XSEG_LIST_FOR_SAFE(node, &unmaps->batches)
    {
        free(XSEG_CONTAINER(node, struct xseg_unmap_batch, link));
    }
    free(unmaps->table);
}

/* A run of granules of one batch. */
struct run {
    struct xseg_extent *extent;
    uint32_t first, count;
};

/* --- Creation and reuse. --- */

/* Whether the stream of a batch was retired, so that its work has completed. */
static bool is_batch_stream_retired(const struct xseg_unmap_batch *batch)
{
    return atomic_load_explicit(&batch->stream->id, memory_order_acquire) != batch->stream_id;
}

/* Record the event of a batch on its stream. */
static xseg_status record_batch_event(struct xseg_unmap_batch *batch)
{
    struct xseg_pending *pending = xseg_device_of(batch->extent)->pending;

    xseg_biased_lock_lock(&pending->lock);
    const xseg_status status =
        xseg_fences_record(&pending->fences, batch->stream->handle, &batch->event);
    xseg_biased_lock_unlock(&pending->lock);
    if (status == XSEG_OK)
        enqueue_batch(xseg_device_of(batch->extent)->pending_unmaps, batch);
    return status;
}

/* Create a batch without granules, and record its event unless a capture is active. */
static xseg_status create_batch(struct xseg_extent *extent, struct xseg_known_stream *stream,
                                struct xseg_unmap_batch **out)
{
    struct xseg_device *device = xseg_device_of(extent);
    struct xseg_unmap_batch *batch = calloc(1, sizeof(*batch));
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (batch == NULL || !add_batch(device->pending_unmaps, batch)) {
        free(batch);
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, record of a decommit");
    }
    batch->extent = extent;
    batch->stream = stream;
    xseg_list_init(&batch->queue_link);
    enqueue_batch(device->pending_unmaps, batch);
    batch->stream_id = atomic_load_explicit(&stream->id, memory_order_relaxed);
    batch->releases = UINT64_MAX;
    if (!xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context))
        status = record_batch_event(batch);
    if (status == XSEG_OK)
        *out = batch;
    else
        destroy_batch(device->pending_unmaps, batch);
    return status;
}

/* Assign granules that have no batch to a new batch. */
static void assign_granules(struct xseg_unmap_batch *batch, uint32_t first, uint32_t count)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    batch->first = first;
    batch->count = batch->remaining = count;
    for (uint32_t granule = first; granule < first + count; granule++) {
        XSEG_ASSERT(elastic->batch[granule] == 0);
        elastic->batch[granule] = batch->id;
    }
}

xseg_status xseg_pending_unmap_begin(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                     struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = NULL;
    const xseg_status status = create_batch(extent, stream, &batch);

    XSEG_ASSERT(count > 0);
    if (status == XSEG_OK)
        assign_granules(batch, first, count);
    return status;
}

xseg_status xseg_pending_unmap_reassign(struct xseg_extent *extent, uint32_t first, uint32_t count,
                                        struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = NULL;
    const xseg_status status = create_batch(extent, stream, &batch);

    XSEG_ASSERT(count > 0);
    if (status != XSEG_OK)
        return status;
    xseg_pending_unmap_remove(extent, first, count);
    assign_granules(batch, first, count);
    return XSEG_OK;
}

static struct xseg_unmap_batch *find_batch(const struct xseg_extent *extent, uint32_t granule)
{
    const struct xseg_pending_unmap *unmaps = xseg_device_of(extent)->pending_unmaps;
    const uint32_t id = extent->elastic->batch[granule];

    XSEG_ASSERT(id != 0 && id < unmaps->capacity && unmaps->table[id] != NULL);
    return unmaps->table[id];
}

bool xseg_pending_unmap_is_ordered(const struct xseg_extent *extent, uint32_t granule,
                                   const struct xseg_known_stream *stream)
{
    const struct xseg_unmap_batch *batch = find_batch(extent, granule);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return batch->stream == stream || batch->is_complete || is_batch_stream_retired(batch);
}

xseg_status xseg_pending_unmap_order(const struct xseg_extent *extent, uint32_t granule,
                                     struct xseg_known_stream *stream)
{
    struct xseg_unmap_batch *batch = find_batch(extent, granule);
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
        const xseg_status status = record_batch_event(batch);

        if (status != XSEG_OK)
            return status;
    }
    return xseg_driver_stream_wait_event(&device->context, stream->handle, batch->event);
}

void xseg_pending_unmap_requeue(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t granule = first; granule < first + count; granule++)
        if (extent->elastic->batch[granule] != 0)
            wake_batch(find_batch(extent, granule));
}

void xseg_pending_unmap_resume(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    xseg_pending_unmap_requeue(extent, first, count);
    xseg_elastic_set_use(extent, first, count, XSEG_ELASTIC_UNMAPPING);
}

void xseg_pending_unmap_remove(struct xseg_extent *extent, uint32_t first, uint32_t count)
{
    struct xseg_pending_unmap *unmaps = xseg_device_of(extent)->pending_unmaps;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (uint32_t granule = first; granule < first + count; granule++) {
        struct xseg_unmap_batch *batch = find_batch(extent, granule);

        extent->elastic->batch[granule] = 0;
        XSEG_ASSERT(batch->remaining > 0);
        if (--batch->remaining == 0 && !batch->is_unmapping)
            destroy_batch(unmaps, batch);
    }
}

/* --- Polling. --- */

/*
 * Query the events of a stream's batches in order, up to the first that is not complete.  An event
 * that cannot be queried, such as one that was recorded in a capture without a notification, is
 * recorded again.  Returns false if the driver accepts no queries.
 */
static bool poll_stream_batches(struct xseg_device *device, struct xseg_driver_poll *queries,
                                struct xseg_known_stream *stream)
{
    while (!xseg_list_is_empty(&stream->batches)) {
        struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&stream->batches, struct xseg_unmap_batch, queue_link);
        const enum xseg_driver_poll_result result =
            xseg_driver_poll_event(queries, batch->event, false);

        if (result == XSEG_DRIVER_POLL_NOT_QUERIED)
            return false;
        if (result == XSEG_DRIVER_POLL_PENDING)
            break;
        batch->is_complete = result == XSEG_DRIVER_POLL_COMPLETED;
        xseg_fences_return(&device->pending->fences, batch->event);
        batch->event = NULL;
        enqueue_batch(device->pending_unmaps, batch);
    }
    return true;
}

/* Query the events of the batches of all streams. */
static void poll_batch_events(struct xseg_device *device)
{
    struct xseg_driver_poll queries = {.context = &device->context};

    xseg_biased_lock_lock(&device->pending->lock);
    XSEG_LIST_FOR_SAFE(node, &device->pending_unmaps->streams)
    {
        if (!poll_stream_batches(device, &queries,
                                 XSEG_CONTAINER(node, struct xseg_known_stream, batch_link)))
            break;
    }
    xseg_driver_poll_end(&queries);
    xseg_biased_lock_unlock(&device->pending->lock);
}

/* Record the event of a batch that has none, or mark the batch complete if its stream is idle. */
static void record_missing_event(struct xseg_device *device, struct xseg_unmap_batch *batch)
{
    bool idle = false;

    batch->is_complete = is_batch_stream_retired(batch);
    if (!batch->is_complete && xseg_streams_accepts_work(&device->context, batch->stream) &&
        record_batch_event(batch) == XSEG_OK)
        return;
    if (!batch->is_complete)
        batch->is_complete =
            xseg_reclaim_check_stream(device, batch->stream, false, &idle) == XSEG_OK && idle;
    if (batch->is_complete)
        enqueue_batch(device->pending_unmaps, batch);
}

/* Whether a batch exists and the driver may be called. */
static bool can_poll(const struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return !xseg_list_is_empty(&device->pending_unmaps->batches) &&
           !xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context);
}

void xseg_pending_unmap_query(struct xseg_device *device)
{
    if (!can_poll(device))
        return;
    XSEG_LIST_FOR_SAFE(node, &device->pending_unmaps->unrecorded)
    {
        record_missing_event(device, XSEG_CONTAINER(node, struct xseg_unmap_batch, queue_link));
    }
    poll_batch_events(device);
}

/* --- Unmapping. --- */

static bool is_granule_held(const struct xseg_extent *extent, uint32_t granule)
{
    return extent->elastic->holds[granule] != 0 ||
           xseg_segment_is_retained(&extent->segment, granule, 1);
}

static bool can_unmap_granule(const struct xseg_unmap_batch *batch, uint32_t granule)
{
    const struct xseg_elastic *elastic = batch->extent->elastic;

    return elastic->batch[granule] == batch->id &&
           elastic->use[granule] == XSEG_ELASTIC_UNMAPPING &&
           xseg_segment_is_mapped(&batch->extent->segment, granule) &&
           !is_granule_held(batch->extent, granule);
}

/* Find the next run of a batch, from a granule on, that can be unmapped; a run of 0 granules if
 * there is none. */
static struct run find_unmappable_run(const struct xseg_unmap_batch *batch, uint32_t from)
{
    const uint32_t end = batch->first + batch->count;
    struct run run = {batch->extent, from, 0};

    while (run.first < end && !can_unmap_granule(batch, run.first))
        run.first++;
    while (run.first + run.count < end && can_unmap_granule(batch, run.first + run.count))
        run.count++;
    return run;
}

static uint64_t run_base(const struct run *run)
{
    const struct xseg_segment *segment = &run->extent->segment;

    return segment->base + run->first * segment->granule_bytes;
}

/* Account for a run that was unmapped.  released_bytes: bytes of the pages whose last mapping was
 * unmapped */
static void count_unmapped_run(const struct run *run, uint64_t released_bytes)
{
    struct xseg_extent *extent = run->extent;
    struct xseg_arena *arena = extent->arena;
    const uint64_t bytes = run->count * extent->segment.granule_bytes;

    xseg_pending_unmap_remove(extent, run->first, run->count);
    xseg_biased_lock_lock(&arena->lock);
    memset(&extent->elastic->use[run->first], XSEG_ELASTIC_EMPTY, run->count);
    extent->elastic->pending_unmaps -= run->count;
    xseg_elastic_set_bytes(extent->elastic,
                           (extent->elastic->allocated + extent->elastic->pending_unmaps) *
                                   extent->segment.granule_bytes -
                               extent->segment.alias_bytes,
                           extent->elastic->committing, &arena->device->unused_quota);
    if (released_bytes != 0) {
        xseg_counts_end_pending(&arena->counts, 0, released_bytes, released_bytes);
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, released_bytes);
    }
    if (released_bytes != 0 && xseg_recorder_is_enabled(arena))
        xseg_recorder_segment(extent, XSEG_HISTORY_SEGMENT_UNMAP, run_base(run), bytes);
    xseg_biased_lock_unlock(&arena->lock);
    if (released_bytes != 0)
        xseg_pool_record_shrink(arena, released_bytes);
}

/* Unmap a run.  Returns whether all granules were unmapped. */
static bool unmap_run(struct run run, bool keep)
{
    struct xseg_segment *segment = &run.extent->segment;
    uint32_t unmapped = 0;

    xseg_elastic_set_use(run.extent, run.first, run.count, XSEG_ELASTIC_CLAIMED);
    if (!xseg_notify_unmap_bytes(run.extent, run_base(&run), run.count * segment->granule_bytes)) {
        xseg_elastic_set_use(run.extent, run.first, run.count, XSEG_ELASTIC_UNMAPPING);
        return false;
    }
    const uint64_t unmapped_before = segment->unmapped_bytes;
    (void)xseg_segment_unmap(segment, run.first, run.count, keep, &unmapped);
    const struct run released_run = {run.extent, run.first, unmapped};
    const struct run remainder = {run.extent, run.first + unmapped, run.count - unmapped};
    if (unmapped != 0)
        count_unmapped_run(&released_run, segment->unmapped_bytes - unmapped_before);
    if (remainder.count == 0)
        return true;
    xseg_elastic_set_use(remainder.extent, remainder.first, remainder.count,
                         XSEG_ELASTIC_UNMAPPING);
    xseg_notify_map(run.extent, run_base(&remainder), remainder.count * segment->granule_bytes);
    return false;
}

/* Unmap the granules of a batch that can be unmapped.  keep: their pages become idle pages */
static void unmap_batch(struct xseg_device *device, struct xseg_unmap_batch *batch, bool keep)
{
    /* A pool with granules that are pending unmap cannot be paused. */
    XSEG_ASSERT(batch->extent->arena->pool->state != XSEG_POOL_PAUSED);
    batch->is_unmapping = true;
    batch->releases = count_releases(batch->extent);
    for (uint32_t next_granule = batch->first;;) {
        const struct run run = find_unmappable_run(batch, next_granule);

        if (run.count == 0)
            break;
        next_granule = run.first + run.count;
        /* The next poll retries granules that the driver did not unmap. */
        if (!unmap_run(run, keep)) {
            batch->releases = UINT64_MAX;
            break;
        }
    }
    batch->is_unmapping = false;
    if (batch->remaining == 0)
        destroy_batch(device->pending_unmaps, batch);
    else
        queue_retained_batch(device->pending_unmaps, batch);
}

/* The next completed batch to unmap.  A visited batch moves to the end of the queue, so that a poll
 * visits each batch once. */
static struct xseg_unmap_batch *next_due_batch(struct xseg_pending_unmap *unmaps)
{
    while (!xseg_list_is_empty(&unmaps->completed)) {
        struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&unmaps->completed, struct xseg_unmap_batch, queue_link);

        if (batch->poll == unmaps->polls)
            return NULL;
        batch->poll = unmaps->polls;
        enqueue_batch(unmaps, batch);
        if (!batch->is_unmapping && batch->releases != count_releases(batch->extent))
            return batch;
    }
    return NULL;
}

void xseg_pending_unmap_poll(struct xseg_device *device, bool keep)
{
    struct xseg_pending_unmap *unmaps = device->pending_unmaps;
    const uint64_t cache_bytes = xseg_allocator_config(device->allocator)->page_cache_bytes;
    struct xseg_unmap_batch *batch;

    if (!can_poll(device))
        return;
    unmaps->polls++;
    wake_retained_batches(unmaps);
    xseg_pending_unmap_query(device);
    while (!xseg_pending_captures(device->pending) && (batch = next_due_batch(unmaps)) != NULL)
        unmap_batch(device, batch, keep || cache_bytes != 0);
    if (!keep)
        xseg_page_cache_shrink_unprepared(&device->page_cache, cache_bytes);
}

/* Wait until the stream has completed the work before a batch. */
static xseg_status wait_for_batch(struct xseg_device *device, const struct xseg_unmap_batch *batch)
{
    bool idle = false;

    if (batch->is_complete)
        return XSEG_OK;
    if (batch->event != NULL)
        return xseg_driver_event_synchronize(&device->context, batch->event);
    return is_batch_stream_retired(batch)
               ? XSEG_OK
               : xseg_reclaim_check_stream(device, batch->stream, true, &idle);
}

xseg_status xseg_pending_unmap_wait_for(const struct xseg_extent *extent, uint32_t granule)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return wait_for_batch(xseg_device_of(extent), find_batch(extent, granule));
}

xseg_status xseg_pending_unmap_wait(struct xseg_device *device, bool keep)
{
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_list_is_empty(&device->pending_unmaps->batches) ||
        xseg_pending_captures(device->pending))
        return XSEG_OK;
    XSEG_LIST_FOR(node, &device->pending_unmaps->batches)
    {
        if (status == XSEG_OK)
            status = wait_for_batch(device, XSEG_CONTAINER(node, struct xseg_unmap_batch, link));
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
    const struct xseg_unmap_batch *batch = find_batch(extent, granule);
    *out = batch->stream->handle;
    return !is_batch_stream_retired(batch);
}
