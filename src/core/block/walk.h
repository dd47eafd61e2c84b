/* SPDX-License-Identifier: MIT */
/*
 * The walk: every block and unmapped range of an extent or an arena, by value and by address within an extent.  The reader
 * does not depend on how an arena stores its blocks.
 *
 *     XSEG_WALK(part, extent)
 *         bytes += part.state == XSEG_BLOCK_ALLOCATED ? part.bytes : 0;
 *
 * Explain, snapshots and the out-of-memory report walk whole devices (xseg_device_walk(), heap_copy.h).
 *
 * Locking: ARENA of the extent's arena is held from the first part to the last.
 */
#ifndef XSEG_CORE_WALK_H
#define XSEG_CORE_WALK_H

#include "src/core/block/arena.h"

/* The state of one block when the walk came to it. */
struct xseg_part {
    const struct xseg_extent *extent; /* NULL: the walk is over */
    uint64_t base, bytes;
    uint64_t requested; /* requested size, see block.h; 0 of an unmapped range */
    enum xseg_block_state state;
    bool has_uses;    /* the block is live, and other streams use it, or did */
    bool is_fallback; /* live, pending or busy: the default pool holds the block, see flags.h */
    const struct xseg_block *record;
};

/* The first block of an extent, and the one behind a block. */
struct xseg_part xseg_walk_first(const struct xseg_extent *extent);
struct xseg_part xseg_walk_next(const struct xseg_part *part);

/* The block that covers an address, which lies in the extent. */
struct xseg_part xseg_walk_at(const struct xseg_extent *extent, uint64_t address);

#define XSEG_WALK(part, extent_)                                                  \
    for (struct xseg_part part = xseg_walk_first(extent_); (part).extent != NULL; \
         (part) = xseg_walk_next(&(part)))

/* Is called for each part of a walk. */
typedef void xseg_walk_visitor(void *self, const struct xseg_part *part);

/* Visit all extents of an arena. */
void xseg_walk_arena(const struct xseg_arena *arena, xseg_walk_visitor *visit, void *self);

static inline uint64_t xseg_part_end(const struct xseg_part *part)
{
    XSEG_ASSERT(part->extent != NULL);
    return part->base + part->bytes;
}

/* Whether the block is all of its segment. */
static inline bool xseg_part_is_whole(const struct xseg_part *part)
{
    return part->bytes == part->extent->segment.bytes;
}

#endif
