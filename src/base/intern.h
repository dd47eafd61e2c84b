/* SPDX-License-Identifier: MIT */
/*
 * An intern store: values that are stored once, never move, and are looked up without a lock.
 *
 * It has two parts.  A *bump allocator* carves records of any size from one reserved range of host addresses and never
 * frees them.  All addresses are reserved first and committed as they are needed.  A record never moves, so a thread that has
 * its address reads it without a lock, and a 32-bit *handle*, the offset in units of XSEG_BUMP_UNIT, identifies it.
 *
 * An *intern table* maps hashes to handles.  It contains neither keys nor records: the caller iterates over the handles of a
 * hash and compares the records.  Slots of 64 bits contain hash and handle, and 0 is an empty slot; probing is linear.  A
 * table that is half full is copied into a table of twice the size.  The old slots remain valid for concurrent readers, which
 * may miss later insertions, so a caller that finds nothing searches again under the lock before it inserts.
 *
 * Stacks, frames, strings and module sets (stack_depot.h, modules.h), and labels (history) are stored this way.
 *
 * Invariants:
 *   BUMP-1   XSEG_BUMP_UNIT <= used <= committed <= reserved, and used is a multiple of XSEG_BUMP_UNIT.  Before the first
 *            record, committed is 0.
 *   TABLE-1  `used` is the number of slots that are not empty, at most half of all.
 *   TABLE-2  no slot is empty between the slot that a hash selects and the slot of a handle with this hash.
 *
 * Locking: the owner's lock covers xseg_bump_alloc(), xseg_intern_table_reserve(), xseg_intern_table_add() and
 * xseg_intern_string(); all other functions are lock-free.  A thread that finds a handle sees the stores to the record
 * before it was added.
 */
#ifndef XSEG_BASE_INTERN_H
#define XSEG_BASE_INTERN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"

/* --- The bump allocator. --- */

/* The alignment of records, and the unit of handles. */
#define XSEG_BUMP_UNIT      ((size_t)8)
#define XSEG_BUMP_MAX_BYTES ((size_t)UINT32_MAX * XSEG_BUMP_UNIT)

struct xseg_bump {
    char *base;
    size_t reserved;      /* bytes of addresses */
    size_t committed;     /* bytes that are readable and writable */
    atomic_size_t used;   /* bytes of records; the unit before the first record is never a handle */
    atomic_bool was_full; /* a record did not fit in the reserved addresses */
    bool uses_huge_pages;
};

/* bytes: at most XSEG_BUMP_MAX_BYTES; rounded up to whole pages.  Returns false if out of host memory. */
bool xseg_bump_init(struct xseg_bump *bump, size_t bytes);
void xseg_bump_fini(struct xseg_bump *bump);

/* Let the kernel use huge pages for the addresses that are committed from now on, after the first 2 MiB.  For records that
 * are accessed in random order, so that most accesses would miss the TLB. */
void xseg_bump_use_huge_pages(struct xseg_bump *bump);

/* Allocate a zeroed record.  Returns NULL if the reserved addresses are full, or out of host memory. */
void *xseg_bump_alloc(struct xseg_bump *bump, size_t bytes);

/* The bytes that remain for records. */
static inline size_t xseg_bump_remaining(const struct xseg_bump *bump)
{
    return bump->reserved - atomic_load_explicit(&bump->used, memory_order_relaxed);
}

static inline uint32_t xseg_bump_handle(const struct xseg_bump *bump, const void *record)
{
    return (uint32_t)((size_t)((const char *)record - bump->base) / XSEG_BUMP_UNIT);
}

static inline void *xseg_bump_at(const struct xseg_bump *bump, uint32_t handle)
{
    return bump->base + handle * XSEG_BUMP_UNIT;
}

/* The host bytes in use, in whole pages. */
size_t xseg_bump_resident(const struct xseg_bump *bump);

bool xseg_bump_audit(const struct xseg_bump *bump, struct xseg_violation *violation);

/* --- The intern table. --- */

#define XSEG_INTERN_TABLE_FIRST 256u /* slots of a new table */

/* The slots: a hash in the upper half, a handle in the lower half. */
struct xseg_intern_slots {
    uint32_t mask; /* number of slots - 1 */
    _Atomic(uint64_t) slot[];
};

struct xseg_intern_table {
    _Atomic(struct xseg_intern_slots *) slots;
    uint32_t used;
};

/* The state of a search. */
struct xseg_intern_search {
    const struct xseg_intern_slots *slots;
    uint32_t hash, next; /* next: unmasked index of a slot */
};

/* Returns false if the memory is full. */
bool xseg_intern_table_init(struct xseg_intern_table *table, struct xseg_bump *memory);

/* Make sure that the next insertion succeeds.  Returns false if the table has to grow and the memory is full. */
bool xseg_intern_table_reserve(struct xseg_intern_table *table, struct xseg_bump *memory);

/* Add a nonzero handle.  Returns false if the table has to grow and the memory is full. */
bool xseg_intern_table_add(struct xseg_intern_table *table, struct xseg_bump *memory, uint32_t hash,
                           uint32_t handle);

static inline struct xseg_intern_search
xseg_intern_table_search(const struct xseg_intern_table *table, uint32_t hash)
{
    struct xseg_intern_search search;

    search.slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    search.hash = hash;
    search.next = hash;
    return search;
}

/* The next handle that was added with the hash; 0 if there are no more. */
static inline uint32_t xseg_intern_table_next(struct xseg_intern_search *search)
{
    for (;;) {
        const uint64_t slot = atomic_load_explicit(
            &search->slots->slot[search->next++ & search->slots->mask], memory_order_acquire);

        if (slot == 0)
            return 0;
        if ((uint32_t)(slot >> 32) == search->hash)
            return (uint32_t)slot;
    }
}

/* Call a function for each handle, in unspecified order. */
void xseg_intern_table_for_each(const struct xseg_intern_table *table,
                                void (*visit)(void *context, uint32_t handle), void *context);

/* The handle of a string of `length` bytes, which is copied and terminated if it is new; 0 if the memory is full. */
uint32_t xseg_intern_string(struct xseg_intern_table *table, struct xseg_bump *memory,
                            const char *string, size_t length);

bool xseg_intern_table_audit(const struct xseg_intern_table *table,
                             struct xseg_violation *violation);

#endif
