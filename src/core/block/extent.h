/* SPDX-License-Identifier: MIT */
/*
 * An extent: a segment as its arena sees it.  It has the segment of the floor below, and the chain of blocks
 * that tiles it.  The page map knows where live blocks begin.
 *
 * Locking: ARENA of its arena guards blocks; the device memory lock the segment.
 */
#ifndef XSEG_CORE_EXTENT_H
#define XSEG_CORE_EXTENT_H

#include "src/base/align.h"
#include "src/base/list.h"
#include "src/core/block/block.h"
#include "vmm/segment.h"

struct xseg_arena;
struct xseg_elastic;
struct xseg_origins;

/* Members that hits read come first: classic segments are many, and each cache line of one is a miss. */
struct xseg_extent {
    /* A lookup may read a record that is being reused, so `arena` and `base` are atomic. */
    _Alignas(XSEG_CACHE_LINE) _Atomic(struct xseg_arena *) arena;
    atomic_uint_fast64_t base; /* of the segment, once it is announced */
    struct xseg_block *first;
    bool has_starts;   /* its blocks are found through starts (slot.h), as its arena's */
    bool oversize;     /* counted as an oversize segment */
    uint64_t position; /* of the segment's first byte; see xseg_extent_position() */
    struct xseg_segment segment;
    struct xseg_list link; /* in its arena */
    uint32_t
        registered; /* registrations that hold its addresses; guarded by the device memory lock */
    struct xseg_elastic *elastic;           /* of an elastic extent, see elastic.h; else NULL */
    _Atomic(struct xseg_origins *) origins; /* NULL while none is noted; see origins.h */
};

/*
 * The position of an address of a segment: its place among all addresses of the device, in units of 512 bytes, when
 * segments are ordered by registration.  Of equal blocks the one at the lowest position serves a request, which is
 * PyTorch's rule: processes that make the same requests choose the same blocks, whatever addresses the driver returns.
 * Memory is mapped at the lowest position, too.
 */
static inline uint64_t xseg_extent_position(const struct xseg_extent *extent, uint64_t address)
{
    /* `base` is in the cache line of `position`, which segment.base is not. */
    const uint64_t base = atomic_load_explicit(&extent->base, memory_order_relaxed);

    XSEG_ASSERT(base == extent->segment.base && address - base <= extent->segment.bytes);
    return extent->position + ((address - base) >> 9);
}

static inline uint64_t xseg_block_position(const struct xseg_block *block)
{
    return xseg_extent_position(xseg_block_extent(block), block->base);
}

/* Whether a block is all of its segment. */
static inline bool xseg_block_is_whole(const struct xseg_block *block)
{
    const struct xseg_extent *extent = xseg_block_extent(block);

    XSEG_ASSERT(extent != NULL && block->bytes <= extent->segment.bytes);
    return block->bytes == extent->segment.bytes;
}

static inline bool xseg_extent_is_expandable(const struct xseg_extent *extent)
{
    return xseg_segment_is_expandable(&extent->segment);
}

#endif
