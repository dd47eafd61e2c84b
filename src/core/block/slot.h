/* SPDX-License-Identifier: MIT */
/*
 * Slots: which live or pending block begins at an address.
 *
 * A GiB of addresses is cut into slots of 1 MiB.  Large blocks are larger than that, and a block that is
 * alone in its segment may be smaller, so no two of them begin in the same slot.  Where the GiB has a
 * leaf (page_map.h), the slot of a MiB that lies in an extent with cells leads to the extent, whose cells say
 * which block begins there.
 *
 * Invariants; xseg_extent_audit() checks them:
 *   START-1  the slot of a live or pending block leads to it.
 *   START-2  a slot that leads to a block leads to one that begins in it, and is live, pending or busy.
 *
 * Locking: that of the arena whose memory lies there.  Reading needs no lock.  A slot leads to a record that names
 * its arena (slab.h, extent.h), and records stay until the allocator closes.  A slot that still leads to that
 * record under the arena's lock belongs to the arena, and does not change.
 */
#ifndef XSEG_CORE_SLOT_H
#define XSEG_CORE_SLOT_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "src/core/block/extent.h"

#define XSEG_SLOT_SLOTS 1024u /* in a GiB */
#define XSEG_SLOT_SHIFT 20u

/* A slot: a block; or an extent with cells, and 1; or nothing, 0. */
typedef atomic_uintptr_t xseg_slot;

_Static_assert((uint64_t)XSEG_SLOT_SLOTS << XSEG_SLOT_SHIFT == XSEG_GIB, "slots tile a GiB");
_Static_assert(_Alignof(struct xseg_block) > 1 && _Alignof(struct xseg_extent) > 1,
               "the lowest bit of a slot is free");

static inline uintptr_t xseg_slot_read(const xseg_slot *slot)
{
    return atomic_load_explicit(slot, memory_order_acquire);
}

/* Whether a slot is unchanged since it was read without the lock that guards it, which is held now. */
static inline bool xseg_slot_is_still(const xseg_slot *slot, uintptr_t what)
{
    return __builtin_expect(atomic_load_explicit(slot, memory_order_relaxed) == what, 1);
}

static inline bool xseg_slot_is_extent(uintptr_t what)
{
    return (what & 1) != 0;
}

static inline struct xseg_extent *xseg_slot_extent(uintptr_t what)
{
    XSEG_ASSERT(xseg_slot_is_extent(what));
    return (struct xseg_extent *)(what - 1);
}

static inline struct xseg_block *xseg_slot_block(uintptr_t what)
{
    XSEG_ASSERT(what != 0 && !xseg_slot_is_extent(what));
    return (struct xseg_block *)what; /* NOLINT(performance-no-int-to-ptr) */
}

/* The arena whose lock guards a slot that is not empty. */
static inline struct xseg_arena *xseg_slot_arena(uintptr_t what)
{
    return xseg_slot_is_extent(what) ? xseg_slot_extent(what)->arena
                                     : xseg_slot_block(what)->record.owner;
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
    XSEG_ASSERT(block != NULL && !xseg_slot_is_extent((uintptr_t)block));
    xseg_slot_set(slot, (uintptr_t)block);
}

/* Note that a block does not begin in a slot any more. */
static inline void xseg_slot_remove(xseg_slot *slot)
{
    XSEG_ASSERT(slot != NULL && !xseg_slot_is_extent(xseg_slot_read(slot)));
    atomic_store_explicit(slot, 0, memory_order_relaxed);
}

/* The block that begins in a slot, if it belongs to an arena, whose lock is held; else NULL.
 * slot: NULL if there is no slot */
static inline struct xseg_block *xseg_slot_block_of(const xseg_slot *slot,
                                                    const struct xseg_arena *arena)
{
    const uintptr_t what = slot == NULL ? 0 : xseg_slot_read(slot);

    return what == 0 || xseg_slot_is_extent(what) || xseg_slot_arena(what) != arena
               ? NULL
               : xseg_slot_block(what);
}

#endif
