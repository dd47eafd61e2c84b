/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/leaving_batch.h"

#include <stdlib.h>
#include <string.h>

#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"

/* Count host memory that was taken, or given back: then `more` is negative. */
static void note_host_bytes(struct xseg_leaving *leaving, uint64_t more)
{
    atomic_fetch_add_explicit(&leaving->host_bytes, more, memory_order_relaxed);
}

bool xseg_leaving_batch_add(struct xseg_leaving *leaving, struct xseg_leaving_batch *batch)
{
    while (leaving->free < leaving->capacity && leaving->table[leaving->free] != NULL)
        leaving->free++;
    if (leaving->free >= leaving->capacity) {
        const uint32_t capacity = leaving->capacity == 0 ? 64 : leaving->capacity * 2;
        struct xseg_leaving_batch **table =
            realloc(leaving->table, capacity * sizeof(struct xseg_leaving_batch *));

        if (table == NULL)
            return false;
        memset(table + leaving->capacity, 0,
               (capacity - leaving->capacity) * sizeof(struct xseg_leaving_batch *));
        note_host_bytes(leaving, (capacity - leaving->capacity) * sizeof(*table));
        leaving->table = table;
        leaving->capacity = capacity;
    }
    batch->number = leaving->free++;
    leaving->table[batch->number] = batch;
    note_host_bytes(leaving, sizeof(*batch));
    xseg_list_insert(&leaving->batches, &batch->link);
    return true;
}

/* Take a batch out of its line. */
static void step_out(struct xseg_leaving_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    xseg_list_remove(&batch->turn);
    if (batch->is_parked && xseg_list_is_empty(&elastic->parked))
        xseg_list_remove(&elastic->parked_link);
    batch->is_parked = false;
    if (xseg_list_is_empty(&batch->stream->batches))
        xseg_list_remove(&batch->stream->leaves);
}

void xseg_leaving_batch_enlist(struct xseg_leaving *leaving, struct xseg_leaving_batch *batch)
{
    struct xseg_known_stream *stream = batch->stream;

    step_out(batch);
    if (batch->is_over) {
        xseg_list_insert(&leaving->over, &batch->turn);
    } else if (batch->event == NULL) {
        xseg_list_insert(&leaving->unrecorded, &batch->turn);
    } else {
        if (xseg_list_is_empty(&stream->batches))
            xseg_list_insert(&leaving->streams, &stream->leaves);
        xseg_list_insert(&stream->batches, &batch->turn);
    }
}

/* Give the event of a batch back, if there is one. */
static void put_event(struct xseg_leaving_batch *batch)
{
    if (batch->event != NULL)
        xseg_pending_put_event(xseg_device_of(batch->extent)->pending, batch->event);
    batch->event = NULL;
}

void xseg_leaving_batch_end(struct xseg_leaving *leaving, struct xseg_leaving_batch *batch)
{
    XSEG_ASSERT(batch->left == 0 && leaving->table[batch->number] == batch);
    put_event(batch);
    step_out(batch);
    leaving->table[batch->number] = NULL;
    leaving->free = batch->number < leaving->free ? batch->number : leaving->free;
    xseg_list_remove(&batch->link);
    note_host_bytes(leaving, 0 - sizeof(*batch));
    free(batch);
}

uint64_t xseg_leaving_batch_released(const struct xseg_extent *extent)
{
    return extent->segment.let_go;
}

void xseg_leaving_batch_wake(struct xseg_leaving_batch *batch)
{
    batch->let_go = UINT64_MAX;
    if (batch->is_parked)
        xseg_leaving_batch_enlist(xseg_device_of(batch->extent)->leaving, batch);
}

void xseg_leaving_batch_park(struct xseg_leaving *leaving, struct xseg_leaving_batch *batch)
{
    struct xseg_elastic *elastic = batch->extent->elastic;

    if (batch->let_go != xseg_leaving_batch_released(batch->extent))
        return;
    step_out(batch);
    if (xseg_list_is_empty(&elastic->parked)) {
        xseg_list_insert(&leaving->parked, &elastic->parked_link);
        elastic->parked_at = batch->let_go;
    }
    xseg_list_insert(&elastic->parked, &batch->turn);
    batch->is_parked = true;
}

void xseg_leaving_batch_wake_all(struct xseg_leaving *leaving)
{
    XSEG_LIST_FOR_SAFE(node, &leaving->parked)
    {
        const struct xseg_elastic *elastic = XSEG_CONTAINER(node, struct xseg_elastic, parked_link);
        const struct xseg_leaving_batch *batch =
            XSEG_LIST_FIRST(&elastic->parked, struct xseg_leaving_batch, turn);

        if (elastic->parked_at != xseg_leaving_batch_released(batch->extent))
            while (!xseg_list_is_empty(&elastic->parked))
                xseg_leaving_batch_wake(
                    XSEG_LIST_FIRST(&elastic->parked, struct xseg_leaving_batch, turn));
    }
}
