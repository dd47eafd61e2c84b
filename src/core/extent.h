/* SPDX-License-Identifier: MIT */
/*
 * An extent: a segment as its arena sees it.  The segment of the floor below, the chain of blocks
 * that tiles it, and the table of live starts.
 *
 * Locking: ARENA of its arena guards blocks and starts; GROWTH the segment.
 */
#ifndef XSEG_CORE_EXTENT_H
#define XSEG_CORE_EXTENT_H

#include "src/base/list.h"
#include "src/core/block.h"
#include "src/core/starts.h"
#include "vmm/segment.h"

struct xseg_arena;

struct xseg_extent {
    struct xseg_list link; /* in its arena */
    /* A look-up may still see a record that is being used anew, so these two are atomic. */
    _Atomic(struct xseg_arena *) arena;
    atomic_uint_fast64_t base; /* of the segment, once it is announced */
    struct xseg_segment segment;
    struct xseg_starts starts;
    struct xseg_block *first;
    bool oversize; /* counted as an oversize segment */
};

static inline bool xseg_extent_is_expandable(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment);
}

/* The live or pending block whose first byte is at `address`, which lies in the extent; or NULL. */
struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent,
                                        const struct xseg_slab *blocks, uint64_t address);

/* The block that covers `address`, which lies in the extent. */
struct xseg_block *xseg_extent_block_over(const struct xseg_extent *extent,
                                          const struct xseg_slab *blocks, uint64_t address);

bool xseg_extent_audit(const struct xseg_extent *extent, struct xseg_finding *finding);

#endif
