/* SPDX-License-Identifier: MIT */
#include "src/base/slab.h"

#include <stdlib.h>
#include <string.h>

/* Record `i` of a batch. */
static void *record_at(struct xseg_slab_batch *batch, size_t record_bytes, uint64_t i)
{
    XSEG_ASSERT(i < batch->records);
    return (char *)batch->first + i * record_bytes;
}

static size_t batch_bytes(size_t record_bytes, uint64_t records)
{
    return sizeof(struct xseg_slab_batch) + records * record_bytes;
}

void xseg_slab_init(struct xseg_slab *slab, size_t record_bytes)
{
    XSEG_ASSERT(record_bytes >= sizeof(struct xseg_slab_free_record));
    XSEG_ASSERT(record_bytes % _Alignof(struct xseg_slab_free_record) == 0);
    memset(slab, 0, sizeof(*slab));
    slab->record_bytes = record_bytes;
}

void xseg_slab_fini(struct xseg_slab *slab)
{
    while (slab->batches != NULL) {
        struct xseg_slab_batch *batch = slab->batches;

        slab->batches = batch->next;
        free(batch);
    }
    memset(slab, 0, sizeof(*slab));
}

struct xseg_slab_batch *xseg_slab_create_batch(size_t record_bytes, uint32_t records)
{
    struct xseg_slab_batch *batch = malloc(batch_bytes(record_bytes, records));

    XSEG_ASSERT(records > 0 && records <= XSEG_SLAB_MAX_BATCH);
    if (batch != NULL) {
        batch->first = batch + 1;
        batch->records = records;
    }
    return batch;
}

struct xseg_slab_batch *xseg_slab_create_batch_at(void *first, uint32_t records)
{
    struct xseg_slab_batch *batch = malloc(sizeof(*batch));

    XSEG_ASSERT(records > 0 && records <= XSEG_SLAB_MAX_BATCH);
    if (batch != NULL) {
        batch->first = first;
        batch->records = records;
    }
    return batch;
}

bool xseg_slab_refill(struct xseg_slab *slab, struct xseg_slab_batch *batch)
{
    if (batch->records > UINT32_MAX - slab->total) {
        free(batch);
        return false;
    }
    XSEG_ASSERT(batch->records > 0);
    batch->next = slab->batches;
    slab->batches = batch;
    slab->total += (uint32_t)batch->records;
    slab->host_bytes += batch_bytes(slab->record_bytes, batch->records);
    /* Reverse order, so that records are allocated in the order of their addresses. */
    for (uint64_t i = batch->records; i-- > 0;)
        xseg_slab_free(slab, record_at(batch, slab->record_bytes, i));
    XSEG_ASSERT(slab->free_count >= batch->records);
    return true;
}

void *xseg_slab_alloc(struct xseg_slab *slab)
{
    XSEG_ASSERT(slab->free_count > 0);
    void *record = xseg_slab_alloc_uninitialized(slab);

    memset(record, 0, slab->record_bytes);
    return record;
}

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_violation *violation)
{
    uint64_t total = 0;
    uint32_t count = 0;

    for (const struct xseg_slab_free_record *link = slab->free; link != NULL; link = link->next)
        count++;
    for (struct xseg_slab_batch *batch = slab->batches; batch != NULL; batch = batch->next)
        total += batch->records;
    XSEG_INVARIANT(violation, "SLAB-1", total == slab->total,
                   "batches have %llu records, total is %u", (unsigned long long)total,
                   slab->total);
    XSEG_INVARIANT(violation, "SLAB-1", count == slab->free_count && count <= slab->total,
                   "free list has %u records, free_count is %u of %u", count, slab->free_count,
                   slab->total);
    return true;
}
