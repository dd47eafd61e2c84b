/* SPDX-License-Identifier: MIT */
#include "src/core/pending/pending.h"

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/device.h"

/* --- Start of a retirement. --- */

/* Fail if a stream is being captured, or if a capture that began on it is active. */
static xseg_status check_stream_not_captured(struct xseg_device *device,
                                             const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    xseg_status status = XSEG_OK;
    bool captured = xseg_routes_captures_on(&device->routes, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    /* Captures without a notification count as well: an event in such a capture never completes. */
    if (!captured) {
        status = xseg_driver_capture_info(&device->context, stream->handle, &info);
        captured = status == XSEG_OK && (info.id != 0 || info.is_invalid);
    }
    if (captured)
        return xseg_fail(XSEG_ERR_BUSY, "stream is being captured, %p; end the capture first",
                         (void *)stream->handle);
    return status;
}

static xseg_status retire_stream(struct xseg_device *device, struct xseg_known_stream *stream)
{
    int mode = 0;
    xseg_status status = check_stream_not_captured(device, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(stream->retire_event == NULL);
    if (status == XSEG_OK)
        status = xseg_driver_relax_capture_mode(&device->context, &mode);
    if (status != XSEG_OK)
        return status;
    status = xseg_fences_record(&device->pending->fences, stream->handle, &stream->retire_event);
    xseg_driver_restore_capture_mode(&device->context, mode);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(stream->retire_event != NULL);
    xseg_streams_mark_retiring(&device->streams, stream);
    return XSEG_OK;
}

xseg_status xseg_stream_retirement_begin(struct xseg_device *device, xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_find(&device->streams, handle);
    xseg_status status = XSEG_OK;

    if (stream == NULL)
        return XSEG_OK;
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    /* A thread that queries or synchronizes the stream holds one of these locks, so the retirement
     * begins after its query. */
    xseg_mutex_lock(&device->memory_lock);
    xseg_biased_lock_lock(&device->pending->lock);
    if (xseg_stream_is_known(stream) && xseg_context_is_lost(&device->context))
        xseg_streams_mark_retired(&device->streams, stream);
    else if (xseg_stream_is_known(stream))
        status = retire_stream(device, stream);
    /* Before the unlock: another thread may complete the retirement and reuse the entry for another handle. */
    if (!xseg_stream_is_known(stream))
        xseg_stream_cache_drop(&device->allocator->stream_cache, stream);
    xseg_biased_lock_unlock(&device->pending->lock);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

/* --- End of a retirement. --- */

/* Maximum number of retiring streams that are queried per new stream.  The number is above 1, so
 * that the list shrinks even if the application retires a stream for each new one. */
#define MAX_RETIREMENTS_POLLED 16u

/* Mark a stream as retired, and return its last event.  The caller holds PENDING. */
static void finish_retirement(struct xseg_device *device, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(stream->retire_event != NULL);
    xseg_fences_return(&device->pending->fences, stream->retire_event);
    stream->retire_event = NULL;
    xseg_streams_mark_retired(&device->streams, stream);
}

/* Whether the last event of a retiring stream has completed and no use in its queue shares it. */
static bool is_last_event_complete(struct xseg_device *device,
                                   const struct xseg_known_stream *stream)
{
    bool completed = false;

    XSEG_ASSERT(stream->retire_event != NULL);
    return xseg_list_is_empty(&stream->uses) &&
           xseg_driver_event_query(&device->context, stream->retire_event, &completed) == XSEG_OK &&
           completed;
}

/* Query the first retiring streams.  A stream with queued work moves to the end of the list. */
static void poll_retiring_streams(struct xseg_device *device)
{
    struct xseg_list *retiring = &device->streams.retiring;
    unsigned remaining =
        atomic_load_explicit(&device->streams.retiring_count, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    for (remaining = remaining < MAX_RETIREMENTS_POLLED ? remaining : MAX_RETIREMENTS_POLLED;
         remaining > 0; remaining--) {
        XSEG_ASSERT(!xseg_list_is_empty(retiring));
        struct xseg_known_stream *stream =
            XSEG_LIST_FIRST(retiring, struct xseg_known_stream, retire_link);

        if (is_last_event_complete(device, stream)) {
            finish_retirement(device, stream);
        } else {
            xseg_list_remove(&stream->retire_link);
            xseg_list_insert(retiring, &stream->retire_link);
        }
    }
}

/* Finish the retirement of streams whose work has completed. */
static void poll_retirements(struct xseg_device *device)
{
    int mode = 0;

    if (atomic_load_explicit(&device->streams.retiring_count, memory_order_relaxed) == 0)
        return;
    xseg_pending_poll(device->pending);
    xseg_biased_lock_lock(&device->pending->lock);
    if (!xseg_pending_captures(device->pending) &&
        xseg_driver_relax_capture_mode(&device->context, &mode) == XSEG_OK) {
        poll_retiring_streams(device);
        xseg_driver_restore_capture_mode(&device->context, mode);
    }
    xseg_biased_lock_unlock(&device->pending->lock);
}

static xseg_status query_last_event(struct xseg_context *context, xseg_event event, bool *completed)
{
    int mode = 0;
    xseg_status status = xseg_driver_relax_capture_mode(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_event_query(context, event, completed);
    xseg_driver_restore_capture_mode(context, mode);
    return status;
}

xseg_status xseg_stream_retirement_check(struct xseg_device *device,
                                         struct xseg_known_stream *stream, bool wait,
                                         bool *completed)
{
    xseg_status status = XSEG_OK;
    xseg_event event;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    xseg_biased_lock_lock(&device->pending->lock);
    event = stream->retire_event;
    xseg_biased_lock_unlock(&device->pending->lock);
    *completed = event == NULL;
    if (*completed)
        return XSEG_OK;
    /* Another thread may finish the retirement and record the event again.  Then the result is only
     * delayed. */
    status = wait ? xseg_driver_event_synchronize(&device->context, event)
                  : query_last_event(&device->context, event, completed);
    *completed = status == XSEG_OK && (wait || *completed);
    return status;
}

void xseg_stream_retirement_finish_all(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_biased_lock_lock(&device->pending->lock);
    XSEG_LIST_FOR_SAFE(node, &device->streams.retiring)
    {
        finish_retirement(device, XSEG_CONTAINER(node, struct xseg_known_stream, retire_link));
    }
    xseg_biased_lock_unlock(&device->pending->lock);
}

xseg_status xseg_stream_retirement_get(struct xseg_device *device, xseg_stream handle,
                                       struct xseg_known_stream **out)
{
    if (!xseg_streams_is_per_thread(handle)) {
        *out = xseg_streams_find(&device->streams, handle);
        if (__builtin_expect(*out != NULL, 1))
            return XSEG_OK;
    }
    poll_retirements(device);
    return xseg_streams_find_or_add(&device->streams, handle, out);
}
