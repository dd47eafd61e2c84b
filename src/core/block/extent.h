/* SPDX-License-Identifier: MIT */
/*
 * An extent: a segment as its arena sees it, with the chain of blocks that covers its addresses
 * without gaps (block.h).
 *
 * The segment (vmm/segment.h) describes the memory: the reserved range, or the allocation of a
 * classic segment, and the state of each granule.  The extent adds what an allocator needs: the
 * arena that owns the memory, the first block of the chain, and the position of the segment among
 * all segments of the device.
 *
 * Lookup.  The page map (page_map.h) leads from an address to the extent, and from the first
 * address of an allocated or pending block to its record: through a start per 512 bytes in an
 * extent of small blocks, through a slot per MiB in an extent of large blocks (page_map.h).
 * xseg_extent_block_over() finds the block that covers any other address.  It begins at the nearest
 * start or slot below the address and follows the chain.
 *
 * Enumeration.  A block view is a copy of one block's description, so a reader does not depend on
 * how an arena stores its blocks.  An elastic extent (elastic.h) has a single claimed block.  Its
 * views are the runs of granules with the same use.
 *
 *     XSEG_EXTENT_FOR_EACH(view, extent)
 *         bytes += view.state == XSEG_BLOCK_ALLOCATED ? view.bytes : 0;
 *
 * Explain, snapshots and the out-of-memory report enumerate the blocks of whole devices
 * (xseg_device_walk(), heap_copy.h).
 *
 * Invariants, which xseg_extent_audit() checks in addition to those of the chain (block.h):
 *   START-1  the start or slot of an allocated or pending block leads to its record.
 *   START-2  every start or slot leads to no block, or to an allocated, pending or claimed block
 *            that begins there.
 *
 * Locking: the arena lock of the extent's arena guards the blocks and is held from the first view
 * to the last.  The device memory lock guards the segment.
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

/* Members that the fast path reads come first: a process has many classic segments, and each cache
 * line of one is a miss. */
struct xseg_extent {
    /* A lookup may read a record that is being reused, so `arena` and `base` are atomic. */
    _Alignas(XSEG_CACHE_LINE) _Atomic(struct xseg_arena *) arena;
    atomic_uint_fast64_t base; /* of the segment, once the extent is published */
    struct xseg_block *first;
    bool has_starts;   /* starts lead to its blocks (page_map.h), as in its arena */
    bool oversize;     /* counted as an oversize segment */
    uint64_t position; /* of the segment's first byte; see xseg_extent_position() */
    struct xseg_segment segment;
    struct xseg_list link; /* in its arena */
    uint32_t
        registered; /* registrations that retain its addresses; guarded by the device memory lock */
    struct xseg_elastic *elastic;           /* of an elastic extent, see elastic.h; else NULL */
    _Atomic(struct xseg_origins *) origins; /* NULL before the first one, see origins.h */
};

/* The description of one block, or of one run of granules of an elastic extent. */
struct xseg_block_view {
    const struct xseg_extent *extent; /* NULL: past the last block */
    uint64_t base, bytes;
    uint64_t requested; /* requested size, see block.h; 0 for an unmapped range */
    enum xseg_block_state state;
    bool has_uses;    /* the block is allocated and has uses of other streams */
    bool is_fallback; /* the block has XSEG_BLOCK_FALLBACK (arena.h) */
    const struct xseg_block *record;
};

/*
 * The position of an address of a segment: its place among all addresses of the device, in units of
 * 512 bytes, when segments are ordered by registration.  Of equal blocks the one at the lowest
 * position serves a request, which is PyTorch's rule: processes that make the same requests choose
 * the same blocks, whatever addresses the driver returns.  Growth, too, maps memory at the lowest
 * position.
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

/* Whether an address is in an extent, whose arena's lock is held. */
static inline bool xseg_extent_contains(const struct xseg_extent *extent, uint64_t address)
{
    return address - extent->segment.base < extent->segment.bytes;
}

/* Initialize an extent before it is published.  Returns false if its blocks are small and the
 * segment exceeds XSEG_STARTS_MAX. */
bool xseg_extent_init(struct xseg_extent *extent);

/* Free the tables of an extent whose blocks are no longer used. */
void xseg_extent_fini(struct xseg_extent *extent);

/* Allocate the tables of the page map for offsets [begin, end) before memory is mapped there.  The
 * caller holds the device memory lock and no other lock.  Returns false on host allocation
 * failure. */
bool xseg_extent_cover(struct xseg_extent *extent, uint64_t begin, uint64_t end);

/* Host bytes of the tables. */
uint64_t xseg_extent_host_bytes(const struct xseg_extent *extent);

/* The allocated or pending block whose first byte is at `address`, which is in the extent; or
 * NULL. */
struct xseg_block *xseg_extent_block_at(const struct xseg_extent *extent, uint64_t address);

/* The block that covers `address`, which is in the extent. */
struct xseg_block *xseg_extent_block_over(const struct xseg_extent *extent, uint64_t address);

bool xseg_extent_audit(const struct xseg_extent *extent, struct xseg_violation *violation);

/* --- Enumeration. --- */

/* The first block of an extent, and the block after another one by address. */
struct xseg_block_view xseg_extent_first_view(const struct xseg_extent *extent);
struct xseg_block_view xseg_extent_next_view(const struct xseg_block_view *view);

/* The block that covers an address, which is in the extent. */
struct xseg_block_view xseg_extent_view_at(const struct xseg_extent *extent, uint64_t address);

#define XSEG_EXTENT_FOR_EACH(view, extent_)                                                    \
    for (struct xseg_block_view view = xseg_extent_first_view(extent_); (view).extent != NULL; \
         (view) = xseg_extent_next_view(&(view)))

/* Called for each block of an enumeration. */
typedef void xseg_block_visitor(void *self, const struct xseg_block_view *view);

/* Visit every block of an arena. */
void xseg_arena_for_each_block(const struct xseg_arena *arena, xseg_block_visitor *visit,
                               void *self);

static inline uint64_t xseg_block_view_end(const struct xseg_block_view *view)
{
    XSEG_ASSERT(view->extent != NULL);
    return view->base + view->bytes;
}

#endif
