/* SPDX-License-Identifier: MIT */
#include "src/core/streams.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"

/* CU_STREAM_LEGACY and CU_STREAM_PER_THREAD of the driver's interface. */
#define LEGACY_HANDLE     ((uintptr_t)1)
#define PER_THREAD_HANDLE ((uintptr_t)2)
/* CU_STREAM_CAPTURE_MODE_RELAXED */
#define RELAXED 2

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

static bool is_per_thread(xseg_stream handle)
{
    return (uintptr_t)handle == PER_THREAD_HANDLE;
}

static unsigned bucket_of(xseg_stream handle)
{
    return (unsigned)(((uintptr_t)handle >> 4) * UINT64_C(0x9E3779B97F4A7C15) >> 58);
}

/* By handle; for the per-thread stream, whose handle many share, also by number. */
static struct xseg_known_stream *find(struct xseg_streams *streams, xseg_stream handle,
                                      uint64_t number)
{
    struct xseg_known_stream *stream =
        atomic_load_explicit(&streams->bucket[bucket_of(handle)], memory_order_acquire);

    while (stream != NULL &&
           (stream->handle != handle || (is_per_thread(handle) && stream->number != number)))
        stream = atomic_load_explicit(&stream->next, memory_order_acquire);
    return stream;
}

static xseg_status add(struct xseg_streams *streams, xseg_stream handle, uint64_t number,
                       struct xseg_known_stream **out)
{
    _Atomic(struct xseg_known_stream *) *bucket = &streams->bucket[bucket_of(handle)];
    struct xseg_known_stream *stream = calloc(1, sizeof(*stream));

    if (stream == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory to remember a stream");
    stream->handle = handle;
    stream->number = number;
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

        if (stream != NULL)
            *out = stream;
        else
            status = add(streams, handle, number, out);
    }
    xseg_lock_give(streams->table_lock);
    return status;
}

xseg_status xseg_streams_get(struct xseg_streams *streams, xseg_stream handle,
                             struct xseg_known_stream **out)
{
    if ((uintptr_t)handle == LEGACY_HANDLE)
        handle = NULL;
    if (__builtin_expect(!is_per_thread(handle), 1)) {
        struct xseg_known_stream *stream = find(streams, handle, 0);

        if (__builtin_expect(stream != NULL, 1)) {
            *out = stream;
            return XSEG_OK;
        }
    }
    return get_slowly(streams, handle, out);
}

bool xseg_streams_is_open(struct xseg_context *context, const struct xseg_known_stream *stream)
{
    bool can_name = false, captured = true;

    return xseg_streams_can_name(context, stream, &can_name) == XSEG_OK && can_name &&
           xseg_driver_stream_captured(context, stream->handle, &captured) == XSEG_OK && !captured;
}

xseg_status xseg_streams_wait(struct xseg_context *context, const struct xseg_known_stream *stream)
{
    int mode = RELAXED;
    xseg_status status = xseg_driver_exchange_mode(context, &mode);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_stream_wait(context, stream->handle);
    /* The mode is the caller's: a refusal is tried once more. */
    if (xseg_driver_exchange_mode(context, &mode) != XSEG_OK)
        (void)xseg_driver_exchange_mode(context, &mode);
    return status;
}

xseg_status xseg_streams_can_name(struct xseg_context *context,
                                  const struct xseg_known_stream *stream, bool *can)
{
    uint64_t number = stream->number;
    xseg_status status = XSEG_OK;

    if (is_per_thread(stream->handle))
        status = xseg_driver_stream_id(context, stream->handle, &number);
    *can = number == stream->number;
    return status;
}
