/* SPDX-License-Identifier: MIT */
/*
 * A bump allocator: records of any size from one reserved range of addresses, front to back, never
 * given back.
 *
 * Addresses are reserved at once and get memory as they are needed.  A record is never moved, so a thread
 * that learns of one may read it without a lock, and 32 bits name it: its handle.
 *
 * Invariants:
 *   BUMP-1  first <= used <= open <= bytes, and used is a multiple of XSEG_BUMP_UNIT.
 *
 * Locking: the owner's lock covers xseg_bump_alloc(); everything else takes none.
 */
#ifndef XSEG_BASE_INTERN_H
#define XSEG_BASE_INTERN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"

/* What records are aligned to, and the unit of handles. */
#define XSEG_BUMP_UNIT      ((size_t)8)
#define XSEG_BUMP_MAX_BYTES ((size_t)UINT32_MAX * XSEG_BUMP_UNIT)

struct xseg_bump {
    char *base;
    size_t bytes;         /* that are reserved */
    size_t open;          /* that have memory */
    atomic_size_t used;   /* that are in records; what is before the first has the handle 0 */
    atomic_bool was_full; /* a record did not fit in what is reserved */
};

/* bytes: at most XSEG_BUMP_MAX_BYTES; rounded up to whole pages.  Returns: false without host memory */
bool xseg_bump_init(struct xseg_bump *bump, size_t bytes);
void xseg_bump_fini(struct xseg_bump *bump);

/* A record of zeros.  Returns: NULL if it does not fit in what is reserved, or there is no host memory */
void *xseg_bump_alloc(struct xseg_bump *bump, size_t bytes);

/* What is left for records. */
static inline size_t xseg_bump_remaining(const struct xseg_bump *bump)
{
    return bump->bytes - atomic_load_explicit(&bump->used, memory_order_relaxed);
}

static inline uint32_t xseg_bump_handle(const struct xseg_bump *bump, const void *record)
{
    return (uint32_t)((size_t)((const char *)record - bump->base) / XSEG_BUMP_UNIT);
}

static inline void *xseg_bump_at(const struct xseg_bump *bump, uint32_t handle)
{
    return bump->base + handle * XSEG_BUMP_UNIT;
}

/* Host bytes that are in use, whole pages of them. */
size_t xseg_bump_resident(const struct xseg_bump *bump);

bool xseg_bump_audit(const struct xseg_bump *bump, struct xseg_violation *violation);

/*
 * A hash table of handles (bump.h) to which is only added, and in which threads find without a lock.
 *
 * It knows hashes and handles; the caller compares the records.  When it is half full it is copied into one
 * of twice the size.  The old one stays, for readers that are in it: they may miss what was added
 * since, and have to look again under the lock before they add.
 *
 * Invariants:
 *   TABLE-1  used is the number of slots that are not empty, at most half of them.
 *   TABLE-2  from the slot that a handle's hash names to the handle no slot is empty.
 *
 * Locking: the owner's lock covers xseg_intern_table_reserve() and xseg_intern_table_add(); everything else takes none.  What was
 * written to a record before it was added is seen by who finds it.
 */

#define XSEG_INTERN_TABLE_FIRST 256u

/* A slot is a hash, and below it a handle; 0 is an empty one. */
struct xseg_intern_slots {
    uint32_t mask; /* the number of slots, less 1 */
    _Atomic(uint64_t) slot[];
};

struct xseg_intern_table {
    _Atomic(struct xseg_intern_slots *) slots;
    uint32_t used;
};

/* Where a search stands. */
struct xseg_intern_search {
    const struct xseg_intern_slots *slots;
    uint32_t hash, at;
};

/* Returns: false if the memory has no room */
bool xseg_intern_table_init(struct xseg_intern_table *table, struct xseg_bump *memory);

/* See to it that the next handle can be added.  Returns: false if the table has to grow and the memory has no room */
bool xseg_intern_table_reserve(struct xseg_intern_table *table, struct xseg_bump *memory);

/* Add a handle, not 0.  Returns: false if the table has to grow and the memory has no room */
bool xseg_intern_table_add(struct xseg_intern_table *table, struct xseg_bump *memory, uint32_t hash,
                           uint32_t handle);

static inline struct xseg_intern_search
xseg_intern_table_search(const struct xseg_intern_table *table, uint32_t hash)
{
    struct xseg_intern_search search;

    search.slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    search.hash = hash;
    search.at = hash;
    return search;
}

/* The next handle that was added with this hash; 0 if there is no other. */
static inline uint32_t xseg_intern_table_next(struct xseg_intern_search *search)
{
    for (;;) {
        const uint64_t slot = atomic_load_explicit(
            &search->slots->slot[search->at++ & search->slots->mask], memory_order_acquire);

        if (slot == 0)
            return 0;
        if ((uint32_t)(slot >> 32) == search->hash)
            return (uint32_t)slot;
    }
}

/* Call a function for each handle, in no order. */
void xseg_intern_table_for_each(const struct xseg_intern_table *table,
                                void (*visit)(void *context, uint32_t handle), void *context);

bool xseg_intern_table_audit(const struct xseg_intern_table *table,
                             struct xseg_violation *violation);

#endif
