/* SPDX-License-Identifier: MIT */
/*
 * An extent: a segment as its arena sees it.  The segment of the floor below, and the chain of blocks
 * that tiles it; in a small arena, also cells.  Where live blocks begin stands in the page map (slot.h).
 *
 * Locking: ARENA of its arena guards blocks; GROWTH the segment.
 */
#ifndef XSEG_CORE_EXTENT_H
#define XSEG_CORE_EXTENT_H

#include "src/base/align.h"
#include "src/base/list.h"
#include "src/core/cache/alloc_times.h"
#include "src/core/cache/block.h"
#include "src/core/cache/large/packing.h"
#include "src/core/cache/small/cells.h"
#include "vmm/segment.h"

struct xseg_arena;

/* What hits look at comes first: classic segments are many, and each line of them is a miss. */
struct xseg_extent {
    /* A lookup may still see a record that is being used anew, so these two are atomic. */
    _Alignas(XSEG_CACHE_LINE) _Atomic(struct xseg_arena *) arena;
    atomic_uint_fast64_t base; /* of the segment, once it is announced */
    struct xseg_block *first;
    bool has_cells; /* its arena has */
    bool oversize;  /* counted as an oversize segment */
    struct xseg_segment segment;
    struct xseg_cells cells;
    struct xseg_block *records; /* with cells: tree of tracts and isolated cells, see tract.h */
    struct xseg_packing_page *pages; /* [granules], NULL while nothing packs; see packing.h */
    struct xseg_list link;           /* in its arena */
    _Atomic(struct xseg_alloc_times *)
        alloc_times; /* NULL while no age is asked for; see alloc_times.h */
};

/* Whether a block is all of its segment. */
static inline bool xseg_block_is_whole(const struct xseg_block *block)
{
    return block->bytes == block->extent->segment.bytes;
}

static inline bool xseg_extent_is_expandable(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment);
}

#endif
