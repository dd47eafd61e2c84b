/* SPDX-License-Identifier: MIT */
/*
 * A slab: an allocator of fixed-size host records of one kind.
 *
 * Records are carved from batches; each batch is one host allocation.  Allocating a record never calls the host allocator,
 * because it happens under a hot-path lock.  A caller whose slab is empty releases the lock, creates a batch, locks again,
 * and adds the batch.  Free records form a singly linked list, so allocation and free are O(1).  The record that was freed
 * last is allocated first, because it is probably in the CPU cache.
 *
 * A batch never moves, and it is not freed before xseg_slab_fini(), so a record's address remains valid.  The memory of its
 * records either follows the header of the batch, or belongs to the caller and outlives the slab.  A free record has the
 * link of the free list in its first eight bytes; the other bytes keep their contents until the record is allocated again.
 *
 * Invariants:
 *   SLAB-1  every record is either in the free list or allocated: allocated + free = total.
 *
 * Locking: the owner's lock covers every call except those that create a batch.
 */
#ifndef XSEG_BASE_SLAB_H
#define XSEG_BASE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/align.h"
#include "src/base/check.h"

/*
 * Records of the smallest and the largest batch.  A batch has as many records as the slab has already, within these limits:
 * a stream with one block needs 16 records, and a batch of a busy arena has about 48 KiB.
 */
#define XSEG_SLAB_MIN_BATCH 16u
#define XSEG_SLAB_MAX_BATCH 512u

/* A free record. */
struct xseg_slab_free_record {
    struct xseg_slab_free_record *next;
};

/* The header of a batch. */
struct xseg_slab_batch {
    _Alignas(max_align_t) struct xseg_slab_batch *next;
    void *first; /* record */
    uint64_t records;
};

_Static_assert(sizeof(struct xseg_slab_batch) % _Alignof(max_align_t) == 0,
               "the records after the header of a batch are aligned");
_Static_assert(XSEG_SLAB_MIN_BATCH > 0 && XSEG_SLAB_MIN_BATCH <= XSEG_SLAB_MAX_BATCH,
               "batches have records");

struct xseg_slab {
    size_t record_bytes;
    struct xseg_slab_free_record *free;
    uint32_t free_count, total;
    struct xseg_slab_batch *batches; /* newest first */
    uint64_t host_bytes;
};

/* record_bytes: the size of the caller's structure. */
void xseg_slab_init(struct xseg_slab *slab, size_t record_bytes);
void xseg_slab_fini(struct xseg_slab *slab);

/* The number of records that the next batch should have. */
static inline uint32_t xseg_slab_next_records(const struct xseg_slab *slab)
{
    return (uint32_t)xseg_min(xseg_max(slab->total, XSEG_SLAB_MIN_BATCH), XSEG_SLAB_MAX_BATCH);
}

/* Allocate a batch of records; NULL if out of host memory.  No lock is needed. */
struct xseg_slab_batch *xseg_slab_create_batch(size_t record_bytes, uint32_t records);

/* Create a batch of records in memory of the caller, which outlives the slab; NULL if out of host memory.  No lock is
 * needed. */
struct xseg_slab_batch *xseg_slab_create_batch_at(void *first, uint32_t records);

/* Add a batch; ownership passes to the slab.  Returns false, and frees the batch, if the slab would exceed 2^32 records. */
bool xseg_slab_refill(struct xseg_slab *slab, struct xseg_slab_batch *batch);

/* Allocate a zeroed record; free_count must not be 0. */
void *xseg_slab_alloc(struct xseg_slab *slab);

/* Allocate a record whose contents are undefined: the caller sets all members. */
static inline void *xseg_slab_alloc_uninitialized(struct xseg_slab *slab)
{
    struct xseg_slab_free_record *record = slab->free;

    XSEG_ASSERT(slab->free_count > 0);
    XSEG_ASSERT(record != NULL);
    slab->free = record->next;
    slab->free_count--;
    return record;
}

/* Free a record; its first eight bytes are overwritten. */
static inline void xseg_slab_free(struct xseg_slab *slab, void *record)
{
    struct xseg_slab_free_record *free_record = record;

    XSEG_ASSERT(slab->free_count < slab->total && free_record != slab->free);
    free_record->next = slab->free;
    slab->free = free_record;
    slab->free_count++;
}

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_violation *violation);

#endif
