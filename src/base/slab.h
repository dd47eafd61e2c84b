/* SPDX-License-Identifier: MIT */
/*
 * Fixed-size host records of one kind, cut from batches.
 *
 * A batch is one host allocation.  Taking a record never calls the host allocator: a caller that needs
 * records makes a batch first, at a place where it holds no hot lock, and adds the batch under the lock.  A batch
 * never moves and is not freed before xseg_slab_fini(), so the address of a record stays valid.
 *
 * A record names its owner from the refill on, whether it is taken or not.  A thread that knows the address
 * of a record may read the owner without a lock; the owner tells which lock covers the rest of the record.
 *
 * Invariants:
 *   SLAB-1  every record is either on the free list or taken: taken + free = made.
 *   SLAB-2  every record names the slab's owner.
 *
 * Locking: a slab has no lock; its owner's lock covers every call but xseg_slab_make_batch().
 */
#ifndef XSEG_BASE_SLAB_H
#define XSEG_BASE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/align.h"
#include "src/base/check.h"

/*
 * Records in the first batch, and in a large one.  A batch has as many records as the slab had before, within these
 * bounds: a stream with one block pays for 16 records, and a refill of a busy arena is about 48 KiB.
 */
#define XSEG_SLAB_FIRST 16u
#define XSEG_SLAB_BATCH 512u

/* A record starts with its owner, which is never written again; the user's part follows. */
struct xseg_slab_record {
    void *owner;
};

/* A record that is not taken: the link of the free list follows the owner. */
struct xseg_slab_idle {
    struct xseg_slab_record record;
    struct xseg_slab_idle *next;
};

/* The head of a batch; the records follow. */
struct xseg_slab_batch {
    struct xseg_slab_batch *next;
    uint64_t records;
};

_Static_assert(sizeof(struct xseg_slab_batch) % _Alignof(max_align_t) == 0,
               "the records behind the head of a batch are aligned");
_Static_assert(XSEG_SLAB_FIRST > 0 && XSEG_SLAB_FIRST <= XSEG_SLAB_BATCH, "batches have records");

struct xseg_slab {
    size_t record_bytes;
    void *owner;
    struct xseg_slab_idle *free;
    uint32_t free_count, made;
    struct xseg_slab_batch *batches; /* the newest first */
    uint64_t host_bytes;
    struct xseg_slab_idle
        none; /* where xseg_slab_free_both_if() writes for a record that stays taken */
};

/* record_bytes is the size of the user's structure, which starts with struct xseg_slab_record. */
void xseg_slab_init(struct xseg_slab *slab, size_t record_bytes, void *owner);
void xseg_slab_fini(struct xseg_slab *slab);

/* How many records the next batch should have. */
static inline uint32_t xseg_slab_next_records(const struct xseg_slab *slab)
{
    return (uint32_t)xseg_min(xseg_max(slab->made, XSEG_SLAB_FIRST), XSEG_SLAB_BATCH);
}

/* Host memory for one batch of records of this size, or NULL.  Needs no lock. */
struct xseg_slab_batch *xseg_slab_make_batch(size_t record_bytes, uint32_t records);

/* Add a batch, which then belongs to the slab.  Returns false, and frees it, if there are 2^32 records. */
bool xseg_slab_refill(struct xseg_slab *slab, struct xseg_slab_batch *batch);

/* Take a zeroed record; free_count must not be 0. */
void *xseg_slab_alloc(struct xseg_slab *slab);

/* Take a record with undefined contents behind its owner: the caller sets all of them. */
static inline void *xseg_slab_alloc_uninitialized(struct xseg_slab *slab)
{
    struct xseg_slab_idle *idle = slab->free;

    XSEG_ASSERT(slab->free_count > 0);
    XSEG_ASSERT(idle != NULL && idle->record.owner == slab->owner);
    slab->free = idle->next;
    slab->free_count--;
    return idle;
}

/* Put a record back; its contents are gone. */
static inline void xseg_slab_free(struct xseg_slab *slab, void *record)
{
    struct xseg_slab_idle *idle = record;

    XSEG_ASSERT(idle->record.owner == slab->owner);
    XSEG_ASSERT(slab->free_count < slab->made && idle != slab->free);
    idle->next = slab->free;
    slab->free = idle;
    slab->free_count++;
}

/*
 * Put back each of two records if its flag says so.  There is no branch, because which neighbours of a freed
 * block merge cannot be predicted.
 */
static inline void xseg_slab_free_both_if(struct xseg_slab *slab, void *first, bool first_goes,
                                          void *second, bool second_goes)
{
    struct xseg_slab_idle *none = &slab->none, *head = slab->free;
    struct xseg_slab_idle *one = xseg_select(first_goes, first, none);
    struct xseg_slab_idle *other = xseg_select(second_goes, second, none);

    XSEG_ASSERT(!first_goes || one->record.owner == slab->owner);
    XSEG_ASSERT(!second_goes || other->record.owner == slab->owner);
    XSEG_ASSERT(slab->free_count + first_goes + second_goes <= slab->made);
    XSEG_ASSERT(!first_goes || !second_goes || one != other);
    one->next = head;
    head = xseg_select(first_goes, first, head);
    other->next = head;
    slab->free = xseg_select(second_goes, second, head);
    slab->free_count += (uint32_t)first_goes + second_goes;
}

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_violation *violation);

#endif
