/* SPDX-License-Identifier: MIT */
#include "src/core/streams.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of the driver's interface. */
#define LEGACY_HANDLE     ((uintptr_t)1)
#define PER_THREAD_HANDLE ((uintptr_t)2)

void xseg_streams_init(struct xseg_streams *streams, struct xseg_context *context,
                       struct xseg_lock *table_lock)
{
    memset(streams, 0, sizeof(*streams));
    streams->context = context;
    streams->table_lock = table_lock;
}

void xseg_streams_fini(struct xseg_streams *streams)
{
    for (unsigned i = 0; i < XSEG_STREAMS_BUCKETS; i++) {
        struct xseg_known_stream *stream = atomic_load(&streams->bucket[i]), *next;

        for (; stream != NULL; stream = next) {
            next = atomic_load(&stream->next);
            free(stream);
        }
        atomic_store(&streams->bucket[i], NULL);
    }
}

bool xseg_streams_is_per_thread(xseg_stream handle)
{
    return (uintptr_t)handle == PER_THREAD_HANDLE;
}

bool xseg_streams_is_default(xseg_stream handle)
{
    return (uintptr_t)handle <= PER_THREAD_HANDLE;
}

/* By handle; for the per-thread stream, whose handle many share, also by number. */
static struct xseg_known_stream *find(struct xseg_streams *streams, xseg_stream handle,
                                      uint64_t number)
{
    struct xseg_known_stream *stream =
        atomic_load_explicit(&streams->bucket[xseg_streams_bucket(handle)], memory_order_acquire);

    while (stream != NULL && (stream->handle != handle || !xseg_stream_is_there(stream) ||
                              (xseg_streams_is_per_thread(handle) && stream->number != number)))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

/* The entry of a stream that is gone and had the same handle, as that of a new one; or NULL. */
static struct xseg_known_stream *revive(struct xseg_streams *streams, xseg_stream handle,
                                        uint64_t number)
{
    struct xseg_known_stream *stream = atomic_load(&streams->bucket[xseg_streams_bucket(handle)]);

    while (stream != NULL &&
           (stream->handle != handle || atomic_load(&stream->state) != XSEG_STREAM_GONE))
        stream = atomic_load(&stream->next);
    if (stream != NULL) {
        stream->number = number;
        atomic_store(&stream->thread, NULL);
        atomic_store(&stream->state, XSEG_STREAM_THERE);
    }
    return stream;
}

static xseg_status add(struct xseg_streams *streams, xseg_stream handle, uint64_t number,
                       struct xseg_known_stream **out)
{
    _Atomic(struct xseg_known_stream *) *bucket = &streams->bucket[xseg_streams_bucket(handle)];
    struct xseg_known_stream *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory to remember a stream");
    stream->handle = handle;
    stream->ordinal = streams->context->ordinal;
    stream->number = number;
    stream->is_new = true;
    xseg_list_init(&stream->uses);
    xseg_list_init(&stream->waiting);
    atomic_store(&stream->next, atomic_load_explicit(bucket, memory_order_relaxed));
    atomic_store_explicit(bucket, stream, memory_order_release);
    *out = stream;
    return XSEG_OK;
}

static xseg_status get_slowly(struct xseg_streams *streams, xseg_stream handle,
                              struct xseg_known_stream **out)
{
    uint64_t number = 0;
    xseg_status status;

    xseg_lock_take(streams->table_lock);
    status = xseg_driver_stream_id(streams->context, handle, &number);
    if (status != XSEG_OK) {
        xseg_fail_add(": %p is no stream of device %d", (void *)handle, streams->context->ordinal);
    } else {
        struct xseg_known_stream *stream = find(streams, handle, number);

        if (stream == NULL)
            stream = revive(streams, handle, number);
        if (stream != NULL)
            *out = stream;
        else
            status = add(streams, handle, number, out);
    }
    xseg_lock_give(streams->table_lock);
    return status;
}

struct xseg_known_stream *xseg_streams_find(struct xseg_streams *streams, xseg_stream handle)
{
    return find(streams, (uintptr_t)handle == LEGACY_HANDLE ? NULL : handle, 0);
}

void xseg_streams_visit(struct xseg_streams *streams,
                        void (*visit)(void *self, struct xseg_known_stream *stream), void *self)
{
    for (unsigned i = 0; i < XSEG_STREAMS_BUCKETS; i++) {
        struct xseg_known_stream *stream =
            atomic_load_explicit(&streams->bucket[i], memory_order_acquire);

        for (; stream != NULL; stream = atomic_load(&stream->next))
            visit(self, stream);
    }
}

xseg_status xseg_streams_get(struct xseg_streams *streams, xseg_stream handle,
                             struct xseg_known_stream **out)
{
    if ((uintptr_t)handle == LEGACY_HANDLE)
        handle = NULL;
    if (__builtin_expect(!xseg_streams_is_per_thread(handle), 1)) {
        struct xseg_known_stream *stream = find(streams, handle, 0);

        if (__builtin_expect(stream != NULL, 1)) {
            *out = stream;
            return XSEG_OK;
        }
    }
    return get_slowly(streams, handle, out);
}

/* Its address is different in each thread. */
static _Thread_local char this_thread;

void xseg_streams_claim(struct xseg_known_stream *stream)
{
    atomic_store_explicit(&stream->thread, &this_thread, memory_order_relaxed);
}

bool xseg_streams_is_claimed(const struct xseg_known_stream *stream)
{
    return atomic_load_explicit(&stream->thread, memory_order_relaxed) == &this_thread;
}

bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream)
{
    struct xseg_capture_info info;
    bool can_name = false;

    return xseg_stream_is_there(stream) &&
           xseg_streams_can_name(context, stream, &can_name) == XSEG_OK && can_name &&
           xseg_driver_capture_info(context, stream->handle, &info) == XSEG_OK && info.id == 0 &&
           !info.is_invalid;
}

xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can)
{
    uint64_t number = stream->number;
    xseg_status status = XSEG_OK;

    if (xseg_streams_is_per_thread(stream->handle))
        status = xseg_driver_stream_id(context, stream->handle, &number);
    *can = number == stream->number;
    return status;
}
