/* SPDX-License-Identifier: MIT */
#include "src/core/departure.h"

#include "src/base/error.h"
#include "src/core/allocator.h"

/* --- Leaving. --- */

/* A stream must not go while it takes part in a capture, or while one that began on it goes on. */
static xseg_status expect_no_capture(struct xseg_device *device,
                                     const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    xseg_status status = XSEG_OK;
    bool captured = xseg_routes_begin_on(&device->routes, stream);

    /* Also in one that the library was not told of, whose event would never complete. */
    if (!captured) {
        status = xseg_driver_capture_info(&device->context, stream->handle, &info);
        captured = status == XSEG_OK && (info.id != 0 || info.is_invalid);
    }
    if (captured)
        return xseg_fail(XSEG_ERR_BUSY, "stream %p is being captured: end the capture first",
                         (void *)stream->handle);
    return status;
}

static xseg_status leave(struct xseg_device *device, struct xseg_known_stream *stream)
{
    int mode = 0;
    xseg_status status = expect_no_capture(device, stream);

    if (status == XSEG_OK)
        status = xseg_driver_relax(&device->context, &mode);
    if (status != XSEG_OK)
        return status;
    status = xseg_fences_record(&device->pending.fences, stream->handle, &stream->last);
    xseg_driver_unrelax(&device->context, mode);
    if (status != XSEG_OK)
        return status;
    atomic_fetch_add(&device->streams.leaving, 1);
    atomic_store_explicit(&stream->state, XSEG_STREAM_LEAVING, memory_order_release);
    return XSEG_OK;
}

xseg_status xseg_departure_begin(struct xseg_device *device, xseg_stream handle)
{
    struct xseg_known_stream *stream = xseg_streams_find(&device->streams, handle);
    xseg_status status = XSEG_OK;

    if (stream == NULL)
        return XSEG_OK;
    /* Whoever asks or waits for the stream right now holds one of these: that comes to an end first. */
    xseg_lock_take(&device->growth_lock);
    xseg_pending_lock(&device->pending);
    if (xseg_stream_is_there(stream) && xseg_context_is_lost(&device->context))
        atomic_store(&stream->state, XSEG_STREAM_GONE);
    else if (xseg_stream_is_there(stream))
        status = leave(device, stream);
    xseg_pending_unlock(&device->pending);
    xseg_lock_give(&device->growth_lock);
    if (!xseg_stream_is_there(stream))
        xseg_shortcuts_drop(&device->allocator->shortcuts, stream);
    return status;
}

/* --- Gone. --- */

/* The last event is not needed any more.  PENDING is held. */
static void note_gone(struct xseg_device *device, struct xseg_known_stream *stream)
{
    xseg_fences_put(&device->pending.fences, stream->last);
    stream->last = NULL;
    atomic_fetch_sub(&device->streams.leaving, 1);
    atomic_fetch_add(&device->streams.gone, 1);
    atomic_store_explicit(&stream->state, XSEG_STREAM_GONE, memory_order_release);
}

/* Uses in its queue share the event, so it is kept until they have come back. */
static void look(void *self, struct xseg_known_stream *stream)
{
    struct xseg_device *device = self;
    bool done = false;

    if (atomic_load(&stream->state) == XSEG_STREAM_LEAVING && xseg_list_is_empty(&stream->uses) &&
        xseg_driver_event_done(&device->context, stream->last, &done) == XSEG_OK && done)
        note_gone(device, stream);
}

/* Look which leaving streams have passed. */
static void look_at_all(struct xseg_device *device)
{
    int mode = 0;

    if (atomic_load_explicit(&device->streams.leaving, memory_order_relaxed) == 0)
        return;
    xseg_pending_poll(&device->pending);
    xseg_pending_lock(&device->pending);
    if (!xseg_pending_captures(&device->pending) &&
        xseg_driver_relax(&device->context, &mode) == XSEG_OK) {
        xseg_streams_visit(&device->streams, look, device);
        xseg_driver_unrelax(&device->context, mode);
    }
    xseg_pending_unlock(&device->pending);
}

static xseg_status ask(struct xseg_context *context, xseg_event event, bool *done)
{
    int mode = 0;
    xseg_status status = xseg_driver_relax(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_event_done(context, event, done);
    xseg_driver_unrelax(context, mode);
    return status;
}

xseg_status xseg_departure_is_over(struct xseg_device *device, struct xseg_known_stream *stream,
                                   bool wait, bool *over)
{
    xseg_status status = XSEG_OK;
    xseg_event event;

    xseg_pending_lock(&device->pending);
    event = stream->last;
    xseg_pending_unlock(&device->pending);
    *over = event == NULL;
    if (*over)
        return XSEG_OK;
    /* Another thread may find that it has passed, and record the event anew: that only makes the
     * answer later. */
    status =
        wait ? xseg_driver_event_wait(&device->context, event) : ask(&device->context, event, over);
    *over = status == XSEG_OK && (wait || *over);
    return status;
}

static void forget(void *self, struct xseg_known_stream *stream)
{
    if (atomic_load(&stream->state) == XSEG_STREAM_LEAVING)
        note_gone(self, stream);
}

void xseg_departure_end(struct xseg_device *device)
{
    xseg_pending_lock(&device->pending);
    xseg_streams_visit(&device->streams, forget, device);
    xseg_pending_unlock(&device->pending);
}

/* --- Handing over. --- */

struct heir {
    struct xseg_device *device;
    struct xseg_known_stream *stream;
};

static void hand_over(void *self, struct xseg_arena *arena)
{
    const struct heir *heir = self;
    const struct xseg_known_stream *before = xseg_arena_stream(arena);

    if (atomic_load(&before->state) != XSEG_STREAM_GONE)
        return;
    xseg_arena_lock(arena);
    xseg_lock_take(&heir->device->table_lock);
    /* Its handle may have come again meanwhile, which is noted under this lock. */
    if (atomic_load(&before->state) == XSEG_STREAM_GONE &&
        xseg_pool_find_arena(arena->pool, heir->stream, arena->is_small) == NULL)
        xseg_pool_hand_over(arena, heir->stream);
    xseg_lock_give(&heir->device->table_lock);
    xseg_arena_unlock(arena);
}

xseg_status xseg_departure_get(struct xseg_device *device, xseg_stream handle,
                               struct xseg_known_stream **out)
{
    struct heir heir = {device, NULL};

    if (!xseg_streams_is_per_thread(handle)) {
        *out = xseg_streams_find(&device->streams, handle);
        if (__builtin_expect(*out != NULL, 1))
            return XSEG_OK;
    }
    look_at_all(device);
    const xseg_status status = xseg_streams_get(&device->streams, handle, out);
    if (status != XSEG_OK || atomic_load(&device->streams.gone) == 0 ||
        !atomic_exchange(&(*out)->is_new, false))
        return status;
    heir.stream = *out;
    xseg_lock_take(&device->growth_lock);
    xseg_device_visit_arenas(device, hand_over, &heir);
    xseg_lock_give(&device->growth_lock);
    return XSEG_OK;
}
