/* SPDX-License-Identifier: MIT */
/*
 * Starts: which live or pending block begins at an address.
 *
 * A GiB of addresses is cut into slots of 1 MiB.  Large blocks are larger than that, and a block that is
 * alone in its segment may be smaller, so no two of them begin in the same slot.  Where the GiB has a
 * leaf (page_map.h), a MiB that lies in an extent with cells leads to the extent: its cells say the rest.
 *
 * Invariants; xseg_extent_audit() checks them:
 *   START-1  the slot of a live or pending block leads to it.
 *   START-2  a slot that leads to a block leads to one that begins in it, and is live, pending or busy.
 *
 * Locking: that of the arena whose memory lies there.  Reading needs none.  What a slot leads to says whose
 * it is (slab.h, extent.h), and that is there until the allocator closes: under that arena's lock, a slot that
 * still leads there is the arena's, and does not change.
 */
#ifndef XSEG_CORE_SLOT_H
#define XSEG_CORE_SLOT_H

#include <stdatomic.h>

#include "src/base/check.h"
#include "src/core/cache/extent.h"

#define XSEG_SLOT_SLOTS 1024u /* in a GiB */
#define XSEG_SLOT_SHIFT 20u

/* A slot: a block; or an extent with cells, and 1; or nothing, 0. */
typedef atomic_uintptr_t xseg_slot;

static inline uintptr_t xseg_slot_read(const xseg_slot *start)
{
    return atomic_load_explicit(start, memory_order_acquire);
}

/* Whether a slot leads to where it did when it was read, now that the lock is held that this is under. */
static inline bool xseg_slot_is_still(const xseg_slot *start, uintptr_t what)
{
    return __builtin_expect(atomic_load_explicit(start, memory_order_relaxed) == what, 1);
}

static inline bool xseg_slot_is_extent(uintptr_t what)
{
    return (what & 1) != 0;
}

static inline struct xseg_extent *xseg_slot_extent(uintptr_t what)
{
    return (struct xseg_extent *)(what - 1);
}

static inline struct xseg_block *xseg_slot_block(uintptr_t what)
{
    return (struct xseg_block *)what; /* NOLINT(performance-no-int-to-ptr) */
}

/* Whose lock a slot that leads somewhere is under. */
static inline struct xseg_arena *xseg_slot_arena(uintptr_t what)
{
    return xseg_slot_is_extent(what) ? xseg_slot_extent(what)->arena
                                     : xseg_slot_block(what)->record.owner;
}

static inline void xseg_slot_set(xseg_slot *start, uintptr_t what)
{
    atomic_store_explicit(start, what, memory_order_release);
}

/* A block begins where nothing else does. */
static inline void xseg_slot_add(xseg_slot *start, struct xseg_block *block)
{
    XSEG_ASSERT(xseg_slot_read(start) == 0);
    xseg_slot_set(start, (uintptr_t)block);
}

/* What began in a slot does so no longer. */
static inline void xseg_slot_remove(xseg_slot *start)
{
    atomic_store_explicit(start, 0, memory_order_relaxed);
}

/* The block that begins in a slot (NULL: there is no slot), if it is that of an arena, whose lock is held;
 * else NULL. */
static inline struct xseg_block *xseg_slot_block_of(const xseg_slot *start,
                                                    const struct xseg_arena *arena)
{
    const uintptr_t what = start == NULL ? 0 : xseg_slot_read(start);

    return what == 0 || xseg_slot_is_extent(what) || xseg_slot_arena(what) != arena
               ? NULL
               : xseg_slot_block(what);
}

#endif
