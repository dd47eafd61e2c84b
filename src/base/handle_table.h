/* SPDX-License-Identifier: MIT */
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
 * Locking: the owner's lock covers xseg_handle_table_reserve() and xseg_handle_table_add(); everything else takes none.  What was
 * written to a record before it was added is seen by who finds it.
 */
#ifndef XSEG_BASE_HANDLE_TABLE_H
#define XSEG_BASE_HANDLE_TABLE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "src/base/bump.h"
#include "src/base/check.h"

#define XSEG_HANDLE_TABLE_FIRST 256u

/* A slot is a hash, and below it a handle; 0 is an empty one. */
struct xseg_handle_slots {
    uint32_t mask; /* the number of slots, less 1 */
    _Atomic(uint64_t) slot[];
};

struct xseg_handle_table {
    _Atomic(struct xseg_handle_slots *) slots;
    uint32_t used;
};

/* Where a search stands. */
struct xseg_handle_search {
    const struct xseg_handle_slots *slots;
    uint32_t hash, at;
};

/* Returns: false if the memory has no room */
bool xseg_handle_table_init(struct xseg_handle_table *table, struct xseg_bump *memory);

/* See to it that the next handle can be added.  Returns: false if the table has to grow and the memory has no room */
bool xseg_handle_table_reserve(struct xseg_handle_table *table, struct xseg_bump *memory);

/* Add a handle, not 0.  Returns: false if the table has to grow and the memory has no room */
bool xseg_handle_table_add(struct xseg_handle_table *table, struct xseg_bump *memory, uint32_t hash,
                           uint32_t handle);

static inline struct xseg_handle_search
xseg_handle_table_search(const struct xseg_handle_table *table, uint32_t hash)
{
    struct xseg_handle_search search;

    search.slots = atomic_load_explicit(&table->slots, memory_order_acquire);
    search.hash = hash;
    search.at = hash;
    return search;
}

/* The next handle that was added with this hash; 0 if there is no other. */
static inline uint32_t xseg_handle_table_next(struct xseg_handle_search *search)
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
void xseg_handle_table_visit(const struct xseg_handle_table *table,
                             void (*visit)(void *context, uint32_t handle), void *context);

bool xseg_handle_table_audit(const struct xseg_handle_table *table, struct xseg_finding *finding);

#endif
