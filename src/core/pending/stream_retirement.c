/* SPDX-License-Identifier: MIT */
#include "src/core/pending/stream_retirement.h"

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"

/* --- Leaving. --- */

/* Fail if a stream takes part in a capture, or if a capture that began on it goes on. */
static xseg_status expect_no_capture(struct xseg_device *device,
                                     const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    xseg_status status = XSEG_OK;
    bool captured = xseg_routes_begin_on(&device->routes, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    /* A capture that the library was not told of counts, too: an event in it would never
     * complete. */
    if (!captured) {
        status = xseg_driver_capture_info(&device->context, stream->handle, &info);
        captured = status == XSEG_OK && (info.id != 0 || info.is_invalid);
    }
    if (captured)
        return xseg_fail(XSEG_ERR_BUSY, "stream is being captured, %p; end the capture first",
                         (void *)stream->handle);
    return status;
}

static xseg_status leave(struct xseg_device *device, struct xseg_known_stream *stream)
{
    int mode = 0;
    xseg_status status = expect_no_capture(device, stream);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(stream->last == NULL);
    if (status == XSEG_OK)
        status = xseg_driver_relax_capture_mode(&device->context, &mode);
    if (status != XSEG_OK)
        return status;
    status = xseg_fences_record(&device->pending->fences, stream->handle, &stream->last);
    xseg_driver_restore_capture_mode(&device->context, mode);
    if (status != XSEG_OK)
        return status;
    XSEG_ASSERT(stream->last != NULL);
    xseg_streams_mark_retiring(&device->streams, stream);
    return XSEG_OK;
}

xseg_status xseg_stream_retirement_begin(struct xseg_device *device, xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_find(&device->streams, handle);
    xseg_status status = XSEG_OK;

    if (stream == NULL)
        return XSEG_OK;
    /* A thread that queries or waits for the stream holds one of these locks, so it finishes
     * first. */
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->growth_lock);
    xseg_pending_lock(device->pending);
    if (xseg_stream_is_known(stream) && xseg_context_is_lost(&device->context))
        xseg_streams_mark_retired(&device->streams, stream);
    else if (xseg_stream_is_known(stream))
        status = leave(device, stream);
    xseg_pending_unlock(device->pending);
    xseg_mutex_unlock(&device->growth_lock);
    if (!xseg_stream_is_known(stream))
        xseg_stream_cache_drop(&device->allocator->stream_cache, stream);
    return status;
}

/* --- Gone. --- */

/* Number of leaving streams queried when a new stream is met: more than leave in between, so
 * that none waits long for its query. */
#define ASKED 16u

/* Give back the last event of a stream, which is gone.  PENDING is held. */
static void note_gone(struct xseg_device *device, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(stream->last != NULL);
    xseg_fences_return(&device->pending->fences, stream->last);
    stream->last = NULL;
    xseg_streams_mark_retired(&device->streams, stream);
}

/* Whether a leaving stream has passed.  Uses in its queue share its last event, so that is kept
 * until they have ended. */
static bool has_passed(struct xseg_device *device, const struct xseg_known_stream *stream)
{
    bool done = false;

    XSEG_ASSERT(stream->last != NULL);
    return xseg_list_is_empty(&stream->uses) &&
           xseg_driver_event_query(&device->context, stream->last, &done) == XSEG_OK && done;
}

/* Query the first of the leaving streams; a stream that still works goes to the end of the list. */
static void ask_first(struct xseg_device *device)
{
    struct xseg_list *pending_unmaps = &device->streams.pending_unmaps;
    unsigned left = atomic_load_explicit(&device->streams.leaving_count, memory_order_relaxed);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    for (left = left < ASKED ? left : ASKED; left > 0; left--) {
        XSEG_ASSERT(!xseg_list_is_empty(pending_unmaps));
        struct xseg_known_stream *stream =
            XSEG_LIST_FIRST(pending_unmaps, struct xseg_known_stream, going);

        if (has_passed(device, stream)) {
            note_gone(device, stream);
        } else {
            xseg_list_remove(&stream->going);
            xseg_list_insert(pending_unmaps, &stream->going);
        }
    }
}

/* Find out which leaving streams have passed. */
static void look(struct xseg_device *device)
{
    int mode = 0;

    if (atomic_load_explicit(&device->streams.leaving_count, memory_order_relaxed) == 0)
        return;
    xseg_pending_poll(device->pending);
    xseg_pending_lock(device->pending);
    if (!xseg_pending_captures(device->pending) &&
        xseg_driver_relax_capture_mode(&device->context, &mode) == XSEG_OK) {
        ask_first(device);
        xseg_driver_restore_capture_mode(&device->context, mode);
    }
    xseg_pending_unlock(device->pending);
}

static xseg_status ask(struct xseg_context *context, xseg_event event, bool *done)
{
    int mode = 0;
    xseg_status status = xseg_driver_relax_capture_mode(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_event_query(context, event, done);
    xseg_driver_restore_capture_mode(context, mode);
    return status;
}

xseg_status xseg_stream_retirement_is_over(struct xseg_device *device,
                                           struct xseg_known_stream *stream, bool wait, bool *over)
{
    xseg_status status = XSEG_OK;
    xseg_event event;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    xseg_pending_lock(device->pending);
    event = stream->last;
    xseg_pending_unlock(device->pending);
    *over = event == NULL;
    if (*over)
        return XSEG_OK;
    /* Another thread may find that the stream has passed, and record the event again: then the
     * answer only comes later. */
    status = wait ? xseg_driver_event_synchronize(&device->context, event)
                  : ask(&device->context, event, over);
    *over = status == XSEG_OK && (wait || *over);
    return status;
}

void xseg_stream_retirement_end(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_pending_lock(device->pending);
    XSEG_LIST_FOR_SAFE(node, &device->streams.pending_unmaps)
    {
        note_gone(device, XSEG_CONTAINER(node, struct xseg_known_stream, going));
    }
    xseg_pending_unlock(device->pending);
}

xseg_status xseg_stream_retirement_get(struct xseg_device *device, xseg_stream handle,
                                       struct xseg_known_stream **out)
{
    if (!xseg_streams_is_per_thread(handle)) {
        *out = xseg_streams_find(&device->streams, handle);
        if (__builtin_expect(*out != NULL, 1))
            return XSEG_OK;
    }
    look(device);
    return xseg_streams_get(&device->streams, handle, out);
}
