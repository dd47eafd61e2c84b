/* SPDX-License-Identifier: MIT */
/*
 * From an address to the live block there.
 *
 * An extent that holds no live block may end at any time, so an extent that the page map led to is checked again
 * under its arena's lock.
 */
#ifndef XSEG_CORE_EXTENT_LOCK_H
#define XSEG_CORE_EXTENT_LOCK_H

#include "src/core/block/arena.h"
#include "src/core/block/page_map.h"

/* Whether an address lies in an extent, whose arena's lock is held. */
static inline bool xseg_extent_contains(const struct xseg_extent *extent, uint64_t address)
{
    return address - extent->segment.base < extent->segment.bytes;
}

/* Lock the arena of an address; returns the extent.  NULL, and no arena is locked, if the address is in no segment. */
static inline struct xseg_extent *xseg_extent_lock_at(struct xseg_page_map *page_map,
                                                      uint64_t address) XSEG_UNCHECKED
{
    for (;;) {
        struct xseg_extent *extent = xseg_page_map_find(page_map, address);

        if (__builtin_expect(extent == NULL, 0))
            return NULL;
        struct xseg_arena *arena = extent->arena;
        xseg_arena_lock(arena);
        /* An extent that belongs to its arena and has blocks has not ended. */
        if (__builtin_expect(extent->arena == arena && extent->first != NULL &&
                                 xseg_extent_contains(extent, address),
                             1))
            return extent;
        const bool is_free =
            extent == xseg_page_map_find(page_map, address) && extent->arena == arena;
        xseg_arena_unlock(arena);
        if (is_free)
            return NULL;
    }
}

#endif
