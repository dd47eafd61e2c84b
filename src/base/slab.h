/* SPDX-License-Identifier: MIT */
/*
 * A slab: an allocator of fixed-size host records of one kind.
 *
 * Records are carved from batches; each batch is one host allocation.  Allocating a record never calls the host allocator,
 * because it happens under a hot-path lock.  A caller whose slab is empty releases the lock, creates a batch, locks again,
 * and adds the batch.  Free records form a singly linked list, so allocation and free are O(1).  The record that was freed
 * last is allocated first, because its cache line is probably present.
 *
 * A batch never moves, and it is not freed before xseg_slab_fini(), so a record's address remains valid.  Each record
 * starts with a pointer to its owner, which is written when the batch is added and never again.  A thread that has the
 * address of a record can therefore read the owner without a lock, even if the record is concurrently freed; the owner
 * determines the lock that guards the rest of the record.
 *
 * Invariants:
 *   SLAB-1  every record is either in the free list or allocated: allocated + free = total.
 *   SLAB-2  every record has the slab's owner.
 *
 * Locking: the owner's lock covers every call except xseg_slab_make_batch().
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
#define XSEG_SLAB_FIRST 16u
#define XSEG_SLAB_BATCH 512u

/* The header of a record; the caller's members follow. */
struct xseg_slab_record {
    void *owner;
};

/* A free record: the link of the free list follows the header. */
struct xseg_slab_free_record {
    struct xseg_slab_record record;
    struct xseg_slab_free_record *next;
};

/* The header of a batch; the records follow. */
struct xseg_slab_batch {
    struct xseg_slab_batch *next;
    uint64_t records;
};

_Static_assert(sizeof(struct xseg_slab_batch) % _Alignof(max_align_t) == 0,
               "the records after the header of a batch are aligned");
_Static_assert(XSEG_SLAB_FIRST > 0 && XSEG_SLAB_FIRST <= XSEG_SLAB_BATCH, "batches have records");

struct xseg_slab {
    size_t record_bytes;
    void *owner;
    struct xseg_slab_free_record *free;
    uint32_t free_count, total;
    struct xseg_slab_batch *batches; /* newest first */
    uint64_t host_bytes;
    struct xseg_slab_free_record
        unused; /* written by xseg_slab_free_both_if() in place of a record that remains allocated */
};

/* record_bytes: the size of the caller's structure, which starts with struct xseg_slab_record. */
void xseg_slab_init(struct xseg_slab *slab, size_t record_bytes, void *owner);
void xseg_slab_fini(struct xseg_slab *slab);

/* The number of records that the next batch should have. */
static inline uint32_t xseg_slab_next_records(const struct xseg_slab *slab)
{
    return (uint32_t)xseg_min(xseg_max(slab->total, XSEG_SLAB_FIRST), XSEG_SLAB_BATCH);
}

/* Allocate a batch of records; NULL if out of host memory.  No lock is needed. */
struct xseg_slab_batch *xseg_slab_make_batch(size_t record_bytes, uint32_t records);

/* Add a batch; ownership passes to the slab.  Returns false, and frees the batch, if the slab would exceed 2^32 records. */
bool xseg_slab_refill(struct xseg_slab *slab, struct xseg_slab_batch *batch);

/* Allocate a zeroed record; free_count must not be 0. */
void *xseg_slab_alloc(struct xseg_slab *slab);

/* Allocate a record whose members after the header are undefined: the caller sets all of them. */
static inline void *xseg_slab_alloc_uninitialized(struct xseg_slab *slab)
{
    struct xseg_slab_free_record *idle = slab->free;

    XSEG_ASSERT(slab->free_count > 0);
    XSEG_ASSERT(idle != NULL && idle->record.owner == slab->owner);
    slab->free = idle->next;
    slab->free_count--;
    return idle;
}

/* Free a record. */
static inline void xseg_slab_free(struct xseg_slab *slab, void *record)
{
    struct xseg_slab_free_record *idle = record;

    XSEG_ASSERT(idle->record.owner == slab->owner);
    XSEG_ASSERT(slab->free_count < slab->total && idle != slab->free);
    idle->next = slab->free;
    slab->free = idle;
    slab->free_count++;
}

/*
 * Free each of two records if its flag is set, without a branch: whether the neighbors of a freed block coalesce with it is
 * unpredictable.
 */
static inline void xseg_slab_free_both_if(struct xseg_slab *slab, void *first, bool frees_first,
                                          void *second, bool frees_second)
{
    struct xseg_slab_free_record *unused = &slab->unused, *head = slab->free;
    struct xseg_slab_free_record *one = xseg_select(frees_first, first, unused);
    struct xseg_slab_free_record *other = xseg_select(frees_second, second, unused);

    XSEG_ASSERT(!frees_first || one->record.owner == slab->owner);
    XSEG_ASSERT(!frees_second || other->record.owner == slab->owner);
    XSEG_ASSERT(slab->free_count + frees_first + frees_second <= slab->total);
    XSEG_ASSERT(!frees_first || !frees_second || one != other);
    one->next = head;
    head = xseg_select(frees_first, first, head);
    other->next = head;
    slab->free = xseg_select(frees_second, second, head);
    slab->free_count += (uint32_t)frees_first + frees_second;
}

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_violation *violation);

#endif
