/* SPDX-License-Identifier: MIT */
#include "xseg/stream.h"

#include "src/core/front/allocator_free.h"
#include "src/core/front/allocator_open.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/entry.h"

xseg_status xseg_record_stream(struct xseg_allocator *allocator, void *ptr, xseg_stream stream)
{
    XSEG_ENTRY_CHECK(allocator);
    xseg_history_gather(&allocator->history);
    return ptr == NULL ? XSEG_OK : xseg_allocator_use(allocator, ptr, stream);
}

xseg_status xseg_free_after(struct xseg_allocator *allocator, void *ptr, const xseg_event *events,
                            size_t count)
{
    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(events != NULL || count == 0, "events is NULL, count %zu", count);
    return ptr == NULL ? XSEG_OK : xseg_allocator_free_after(allocator, ptr, events, count);
}

xseg_status xseg_stream_synchronized(struct xseg_allocator *allocator, int ordinal,
                                     xseg_stream stream)
{
    struct xseg_known_stream *known = NULL;
    struct xseg_device *device = NULL;

    XSEG_ENTRY(allocator);
    xseg_status status = xseg_allocator_device(allocator, ordinal, &device);
    if (status == XSEG_OK && xseg_streams_is_per_thread(stream))
        status = xseg_streams_get(&device->streams, stream, &known);
    else if (status == XSEG_OK)
        known = xseg_streams_find(&device->streams, stream);
    if (status == XSEG_OK && known != NULL)
        xseg_pending_passed(device->pending, known);
    return status;
}

xseg_status xseg_stream_retire(struct xseg_allocator *allocator, int ordinal, xseg_stream stream)
{
    struct xseg_device *device = NULL;

    XSEG_ENTRY(allocator);
    XSEG_ENTRY_REQUIRE(!xseg_streams_is_default(stream),
                       "stream is a default stream, %p; default streams are never destroyed",
                       (void *)stream);
    const xseg_status status = xseg_allocator_device(allocator, ordinal, &device);
    return status == XSEG_OK ? xseg_stream_retirement_begin(device, stream) : status;
}
