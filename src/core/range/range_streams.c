/* SPDX-License-Identifier: MIT */
#include "src/core/range/range_streams.h"

#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/mutex.h"

static uint64_t number_of(const struct xseg_known_stream *stream)
{
    return atomic_load_explicit(&stream->number, memory_order_acquire);
}

/* Drop the streams that have passed. */
static void prune(struct xseg_range_streams *streams)
{
    size_t left = 0;

    for (size_t i = 0; i < streams->count; i++)
        if (number_of(streams->kept[i].stream) == streams->kept[i].number)
            streams->kept[left++] = streams->kept[i];
    streams->count = left;
}

static bool has_room(struct xseg_range_streams *streams)
{
    const size_t before = atomic_load_explicit(&streams->capacity, memory_order_relaxed);

    if (streams->count == before)
        prune(streams);
    if (streams->count < before)
        return true;
    const size_t capacity = before == 0 ? 4 : 2 * before;
    struct xseg_range_stream *kept = realloc(streams->kept, capacity * sizeof(*kept));

    if (kept == NULL)
        return false;
    streams->kept = kept;
    atomic_store_explicit(&streams->capacity, capacity, memory_order_relaxed);
    return true;
}

bool xseg_range_streams_add(struct xseg_range_streams *streams, struct xseg_known_stream *stream)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = streams->count; i-- > 0;)
        if (streams->kept[i].stream == stream && streams->kept[i].number == number_of(stream))
            return true;
    if (!has_room(streams))
        return false;
    streams->kept[streams->count++] = (struct xseg_range_stream){stream, number_of(stream)};
    return true;
}

void xseg_range_streams_query(const struct xseg_range_streams *streams)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (size_t i = 0; i < streams->count; i++)
        if (number_of(streams->kept[i].stream) == streams->kept[i].number)
            streams->kept[i].stream->is_queried = true;
}

void xseg_range_streams_fini(struct xseg_range_streams *streams)
{
    free(streams->kept);
}
