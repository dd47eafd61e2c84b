/* SPDX-License-Identifier: MIT */
/*
 * Fixed-size host records cut from slabs.
 *
 * Taking a record never calls the host allocator: whoever needs records makes a refill first, at a
 * place where it holds no hot lock, and adds it under the lock.  Slabs never move and are never given back before
 * xseg_slab_fini(), so the address of a record stays valid.
 *
 * A record says whose it is, taken or not, from its refill on: who has seen its address may ask that, without
 * a lock, and so learns which lock the rest of it needs.
 *
 * Invariants:
 *   SLAB-1  every record is either on the free list or taken: taken + free = made.
 *   SLAB-2  every record says whose it is.
 *
 * Locking: none of its own; the owner's lock covers every call but xseg_slab_make_refill().
 */
#ifndef XSEG_BASE_SLAB_H
#define XSEG_BASE_SLAB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"
#include "src/base/either.h"

/* Records in one slab: about 48 KiB of block records, so that refills are rare and small. */
#define XSEG_SLAB_RECORDS 512u
/* Slabs of one kind: 2^24 records, far beyond 10^7 blocks.  The directory is mostly untouched. */
#define XSEG_SLAB_SLABS 32768u

/* A record starts with its owner, which is never written again; the user's part follows. */
struct xseg_slab_record {
    void *owner;
};

/* A record that is not taken: behind the owner is the link of the free list. */
struct xseg_slab_idle {
    struct xseg_slab_record record;
    struct xseg_slab_idle *next;
};

struct xseg_slab {
    size_t record_bytes;
    void *owner;
    struct xseg_slab_idle *free;
    uint32_t free_count, made;
    char **directory;           /* [XSEG_SLAB_SLABS] */
    struct xseg_slab_idle none; /* stands for a record that is not put back after all */
};

/*
 * record_bytes is the size of the user's structure, which starts with struct xseg_slab_record.
 * Returns false without host memory.
 */
bool xseg_slab_init(struct xseg_slab *slab, size_t record_bytes, void *owner);
void xseg_slab_fini(struct xseg_slab *slab);

/* Host memory for one slab more, or NULL.  Needs no lock. */
void *xseg_slab_make_refill(const struct xseg_slab *slab);

/* Add a refill, which then belongs to the slab.  Returns false, and frees it, if there are too many
 * slabs. */
bool xseg_slab_refill(struct xseg_slab *slab, void *refill);

/* Take a zeroed record, which must be there: free_count > 0. */
void *xseg_slab_take(struct xseg_slab *slab);

/* The same, but what is in the record behind its owner is left over: the caller sets all of it. */
static inline void *xseg_slab_take_as_is(struct xseg_slab *slab)
{
    struct xseg_slab_idle *idle = slab->free;

    slab->free = idle->next;
    slab->free_count--;
    return idle;
}

/* Put a record back; its contents are gone. */
static inline void xseg_slab_put(struct xseg_slab *slab, void *record)
{
    struct xseg_slab_idle *idle = record;

    XSEG_ASSERT(idle->record.owner == slab->owner);
    idle->next = slab->free;
    slab->free = idle;
    slab->free_count++;
}

/* The same for each of two records if it goes, without a branch: for where nobody can foresee that. */
static inline void xseg_slab_put_both_if(struct xseg_slab *slab, void *first, bool first_goes,
                                         void *second, bool second_goes)
{
    struct xseg_slab_idle *none = &slab->none, *head = slab->free;
    struct xseg_slab_idle *one = xseg_either(first_goes, first, none);
    struct xseg_slab_idle *other = xseg_either(second_goes, second, none);

    one->next = head;
    head = xseg_either(first_goes, first, head);
    other->next = head;
    slab->free = xseg_either(second_goes, second, head);
    slab->free_count += (uint32_t)first_goes + second_goes;
}

/* Host bytes held. */
size_t xseg_slab_bytes(const struct xseg_slab *slab);

bool xseg_slab_audit(const struct xseg_slab *slab, struct xseg_finding *finding);

#endif
