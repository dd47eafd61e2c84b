/* SPDX-License-Identifier: MIT */
/*
 * Slots and starts: which live or pending block begins at an address.
 *
 * A GiB of addresses has a slot for each MiB. Large blocks are larger than that, and a block that
 * is alone in its segment may be smaller, so no two of them begin in the same MiB. Small blocks may
 * begin at any multiple of 512 bytes, so each 512 bytes have a start, in tables for 2 MiB of
 * addresses (page_map.h).
 *
 * Invariants; xseg_extent_audit() checks them:
 *   START-1  the slot or start of a live or pending block leads to it.
 *   START-2 a slot or start that leads to a block leads to one that begins there, and is live,
 *   pending or busy.
 *
 * Locking: that of the arena whose memory lies there. Reading needs no lock. A slot or start leads
 * to a record whose extent names an arena; records and extents stay until the allocator closes.
 * Both may be reused while a thread reads them. So the thread locks the arena, and then checks that
 * the slot or start still leads to the record, and that record to that arena: then both belong to
 * the arena, and do not change.
 */
#ifndef XSEG_CORE_SLOT_H
#define XSEG_CORE_SLOT_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "src/core/block/extent.h"

#define XSEG_SLOT_SLOTS 1024u /* in a GiB */
#define XSEG_SLOT_SHIFT 20u

#define XSEG_STARTS_UNIT_SHIFT 21u /* of the addresses that a table of starts describes */
#define XSEG_START_SHIFT       9u
#define XSEG_STARTS            (1u << (XSEG_STARTS_UNIT_SHIFT - XSEG_START_SHIFT)) /* in a table */

/* The longest expandable extent of small blocks. */
#define XSEG_STARTS_MAX ((uint64_t)512 << 30)

/* A block, or 0. */
typedef atomic_uintptr_t xseg_slot;

/* The handle of a block, or 0. */
typedef atomic_uint_least32_t xseg_start;

_Static_assert((uint64_t)XSEG_SLOT_SLOTS << XSEG_SLOT_SHIFT == XSEG_GIB, "slots tile a GiB");
_Static_assert(sizeof(xseg_start) == 4,
               "a table of starts takes 0.8 % of the memory that it describes");

static inline uint32_t xseg_start_read(const xseg_start *start)
{
    return atomic_load_explicit(start, memory_order_acquire);
}

static inline void xseg_start_set(xseg_start *start, uint32_t handle)
{
    XSEG_ASSERT(start != NULL && (handle == 0 || xseg_start_read(start) == 0));
    atomic_store_explicit(start, handle, memory_order_release);
}

/* The arena that a record belongs to that was found without a lock. */
static inline struct xseg_arena *xseg_slot_arena_of(const struct xseg_block *block)
{
    return atomic_load_explicit(&xseg_block_extent(block)->arena, memory_order_relaxed);
}

/* Whether a start that led to a block of an arena, before that was locked, still does. */
static inline bool xseg_start_is_still(const xseg_start *start, uint32_t handle,
                                       const struct xseg_block *block,
                                       const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_start_read(start) == handle && xseg_slot_arena_of(block) == arena,
                            1);
}

static inline uintptr_t xseg_slot_read(const xseg_slot *slot)
{
    return atomic_load_explicit(slot, memory_order_acquire);
}

static inline struct xseg_block *xseg_slot_block(uintptr_t what)
{
    XSEG_ASSERT(what != 0);
    return (struct xseg_block *)what; /* NOLINT(performance-no-int-to-ptr) */
}

/* The arena whose lock guards a slot that is not empty. */
static inline struct xseg_arena *xseg_slot_arena(uintptr_t what)
{
    return xseg_slot_arena_of(xseg_slot_block(what));
}

/* Whether a slot that led to a block of an arena, before that was locked, still does. */
static inline bool xseg_slot_is_still(const xseg_slot *slot, uintptr_t what,
                                      const struct xseg_arena *arena)
{
    return __builtin_expect(xseg_slot_read(slot) == what && xseg_slot_arena(what) == arena, 1);
}

static inline void xseg_slot_set(xseg_slot *slot, uintptr_t what)
{
    XSEG_ASSERT(slot != NULL);
    atomic_store_explicit(slot, what, memory_order_release);
}

/* Note that a block begins in a slot, which is empty. */
static inline void xseg_slot_add(xseg_slot *slot, struct xseg_block *block)
{
    XSEG_ASSERT(slot != NULL && xseg_slot_read(slot) == 0);
    XSEG_ASSERT(block != NULL);
    xseg_slot_set(slot, (uintptr_t)block);
}

/* Note that a block does not begin in a slot any more. */
static inline void xseg_slot_remove(xseg_slot *slot)
{
    XSEG_ASSERT(slot != NULL);
    atomic_store_explicit(slot, 0, memory_order_relaxed);
}

/* The block that begins in a slot, if it belongs to an arena, whose lock is held; else NULL.
 * slot: NULL if there is no slot */
static inline struct xseg_block *xseg_slot_block_of(const xseg_slot *slot,
                                                    const struct xseg_arena *arena)
{
    const uintptr_t what = slot == NULL ? 0 : xseg_slot_read(slot);

    return what == 0 || xseg_slot_arena(what) != arena ? NULL : xseg_slot_block(what);
}

#endif
