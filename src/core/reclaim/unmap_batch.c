/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/unmap_batch.h"

#include <stdlib.h>
#include <string.h>

#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"

/* Count host memory that was taken, or given back: then `more` is negative. */
static void note_host_bytes(struct xseg_pending_unmap *pending_unmaps, uint64_t more)
{
    atomic_fetch_add_explicit(&pending_unmaps->host_bytes, more, memory_order_relaxed);
}

bool xseg_unmap_batch_add(struct xseg_pending_unmap *pending_unmaps, struct xseg_unmap_batch *batch)
{
    while (pending_unmaps->free < pending_unmaps->capacity &&
           pending_unmaps->table[pending_unmaps->free] != NULL)
        pending_unmaps->free++;
    if (pending_unmaps->free >= pending_unmaps->capacity) {
        const uint32_t capacity = pending_unmaps->capacity == 0 ? 64 : pending_unmaps->capacity * 2;
        struct xseg_unmap_batch **table =
            realloc(pending_unmaps->table, capacity * sizeof(struct xseg_unmap_batch *));

        if (table == NULL)
            return false;
        memset(table + pending_unmaps->capacity, 0,
               (capacity - pending_unmaps->capacity) * sizeof(struct xseg_unmap_batch *));
        note_host_bytes(pending_unmaps, (capacity - pending_unmaps->capacity) * sizeof(*table));
        pending_unmaps->table = table;
        pending_unmaps->capacity = capacity;
    }
    batch->number = pending_unmaps->free++;
    pending_unmaps->table[batch->number] = batch;
    note_host_bytes(pending_unmaps, sizeof(*batch));
    xseg_list_insert(&pending_unmaps->batches, &batch->link);
    return true;
}

/* Take a batch out of its line. */
static void step_out(struct xseg_unmap_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    xseg_list_remove(&batch->turn);
    if (batch->is_parked && xseg_list_is_empty(&elastic->parked))
        xseg_list_remove(&elastic->parked_link);
    batch->is_parked = false;
    if (xseg_list_is_empty(&batch->stream->batches))
        xseg_list_remove(&batch->stream->leaves);
}

void xseg_unmap_batch_enlist(struct xseg_pending_unmap *pending_unmaps,
                             struct xseg_unmap_batch *batch)
{
    struct xseg_known_stream *stream = batch->stream;

    step_out(batch);
    if (batch->is_over) {
        xseg_list_insert(&pending_unmaps->over, &batch->turn);
    } else if (batch->event == NULL) {
        xseg_list_insert(&pending_unmaps->unrecorded, &batch->turn);
    } else {
        if (xseg_list_is_empty(&stream->batches))
            xseg_list_insert(&pending_unmaps->streams, &stream->leaves);
        xseg_list_insert(&stream->batches, &batch->turn);
    }
}

/* Give the event of a batch back, if there is one. */
static void put_event(struct xseg_unmap_batch *batch)
{
    if (batch->event != NULL)
        xseg_pending_return_event(xseg_device_of(batch->extent)->pending, batch->event);
    batch->event = NULL;
}

void xseg_unmap_batch_end(struct xseg_pending_unmap *pending_unmaps, struct xseg_unmap_batch *batch)
{
    XSEG_ASSERT(batch->left == 0 && pending_unmaps->table[batch->number] == batch);
    put_event(batch);
    step_out(batch);
    pending_unmaps->table[batch->number] = NULL;
    pending_unmaps->free =
        batch->number < pending_unmaps->free ? batch->number : pending_unmaps->free;
    xseg_list_remove(&batch->link);
    note_host_bytes(pending_unmaps, 0 - sizeof(*batch));
    free(batch);
}

uint64_t xseg_unmap_batch_released(const struct xseg_extent *extent)
{
    return extent->segment.release_count;
}

void xseg_unmap_batch_wake(struct xseg_unmap_batch *batch)
{
    batch->let_go = UINT64_MAX;
    if (batch->is_parked)
        xseg_unmap_batch_enlist(xseg_device_of(batch->extent)->pending_unmaps, batch);
}

void xseg_unmap_batch_park(struct xseg_pending_unmap *pending_unmaps,
                           struct xseg_unmap_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    if (batch->let_go != xseg_unmap_batch_released(batch->extent))
        return;
    step_out(batch);
    if (xseg_list_is_empty(&elastic->parked)) {
        xseg_list_insert(&pending_unmaps->parked, &elastic->parked_link);
        elastic->parked_at = batch->let_go;
    }
    xseg_list_insert(&elastic->parked, &batch->turn);
    batch->is_parked = true;
}

void xseg_unmap_batch_wake_all(struct xseg_pending_unmap *pending_unmaps)
{
    XSEG_LIST_FOR_SAFE(node, &pending_unmaps->parked)
    {
        const struct xseg_elastic *elastic = XSEG_CONTAINER(node, struct xseg_elastic, parked_link);
        const struct xseg_unmap_batch *batch =
            XSEG_LIST_FIRST(&elastic->parked, struct xseg_unmap_batch, turn);

        if (elastic->parked_at != xseg_unmap_batch_released(batch->extent))
            while (!xseg_list_is_empty(&elastic->parked))
                xseg_unmap_batch_wake(
                    XSEG_LIST_FIRST(&elastic->parked, struct xseg_unmap_batch, turn));
    }
}
