/* SPDX-License-Identifier: MIT */
/*
 * Blocks: the unit of allocation, and the main data structure of this module.
 *
 * A block is a range of addresses inside one segment, and the record that describes it. The blocks
 * of a segment form a doubly linked chain by address, without gaps. The chain belongs to the extent
 * (extent.h), which is a segment as its arena sees it; the arena (arena.h) owns the extents of one
 * pool on one stream.
 *
 *     extent->first
 *       |
 *      [ allocated ][ cached ][ unmapped .... ][ allocated ][ pending ][ cached ][ unmapped ... ]
 *          <-- prev / next: the neighbors by address -->
 *
 * States are those of the public enum xseg_block_state:
 *
 *   allocated   in use by the application.
 *   pending     freed, but events of other streams that used the block have not completed
 *               (pending.h).
 *   cached      free and mapped; an allocation may take the block. Only cached blocks coalesce with
 *               cached neighbors, and unmapped blocks with unmapped ones.
 *   unmapped    addresses of an expandable segment without physical pages.
 *   claimed     reserved by an operation that works without the lock of the arena: a growth, a
 *               trim, or a free that records events. A claimed block is in no index and coalesces
 *               with no other block, so the operation may call the driver. Then it locks the arena
 *               and settles the block, which becomes cached, unmapped or pending.
 *
 * Three indexes lead to blocks:
 *
 *   - The page map (page_map.h) leads from the first address of an allocated or pending block to
 *     its record, lock-free.
 *   - The free index (free_index.h) has the cached blocks in the order of best fit. Two kinds of
 *     cached blocks are not in it, the last remainder and unindexed blocks (best_fit.h).
 *   - The tree of unmapped blocks (tree.h) has them by position (extent.h), because growth maps
 *     memory at the lowest position.
 *
 * A record is one cache line; with records of 96 bytes, traces of 10^4 allocated large blocks were
 * 3 to 9 % slower. To fit, links in trees are 32-bit handles: the records of all arenas are in one
 * reserved range of addresses (page_map.h), and a handle is the distance from its beginning.
 * Members that only some states need share storage. A split gives the new record to the head of a
 * cached block, and coalescing keeps the record of the cached neighbor, so a record may change its
 * base.
 *
 * Invariants; xseg_extent_audit() checks them:
 *   BLK-1  The next block begins where this one ends, and its `prev` is this block.
 *   BLK-2  No two cached blocks are adjacent, and no two unmapped blocks are.
 *   BLK-3  Sizes are multiples of 512 bytes, and not 0.
 *   BLK-4  Allocated, pending and cached blocks are mapped, unmapped ones are not; a claimed block
 *          may be either.
 *   BLK-6  A block with flags is allocated, pending or claimed.
 *
 * Locking: the lock of the arena that owns the extent (rank ARENA). Only `extent` is also read
 * without the lock.
 */
#ifndef XSEG_CORE_BLOCK_H
#define XSEG_CORE_BLOCK_H

#include <stdatomic.h>

#include "src/base/intern.h"
#include "src/base/list.h"
#include "src/base/slab.h"
#include "xseg/allocator.h"

struct xseg_extent;
struct xseg_stream_use;
struct xseg_known_stream;

#define XSEG_BLOCK_OVERSIZE 1u
#define XSEG_BLOCK_FALLBACK 2u

struct xseg_block {
    uint64_t base; /* in a free record, the link of the slab */
    uint64_t bytes;
    /* The requested size, by PyTorch's rules: a cached or unmapped block keeps it, the remainder of
     * a split inherits it, and coalescing keeps that of the block that changes its state. If a part
     * is unmapped, the rest has 0. */
    uint64_t requested;
    /* Also read without the lock, by threads that found the record in the page map. So a free
     * record keeps its last extent. */
    _Atomic(struct xseg_extent *) extent;
    struct xseg_block *prev, *next;
    union {
        struct {
            uint32_t left, right; /* cached, unmapped: handles of children (tree.h) */
        };
        uint32_t link[2]; /* `left`, `right` */
        /* allocated, pending, claimed: uses by other streams */
        struct xseg_stream_use *uses;
        struct xseg_block *chain; /* claimed, without uses: the next block of the claim */
    };
    uint8_t state; /* enum xseg_block_state */
    bool mapped;
    uint8_t flags; /* allocated, pending, claimed: XSEG_BLOCK_* (arena.h) */
    uint8_t spare; /* 0; written together with the three members before it as one word */
    union {
        uint32_t waits; /* pending: number of events that have not completed */
        /* cached: number of searches of the pool before the block was cached */
        uint32_t gc_count_base;
    };
};

_Static_assert(sizeof(struct xseg_block) == 64, "a record is one cache line");

/* A use of a block by a stream other than its own (pending.h). */
struct xseg_stream_use {
    bool outside, captured;       /* recorded outside a capture of the stream; during one */
    bool is_shared;               /* the event is the last one of a retired stream */
    struct xseg_stream_use *next; /* of the same block */
    struct xseg_known_stream *stream;
    uint64_t stream_id; /* ID of that stream; if the entry has another ID, the use has ended */
    struct xseg_block *block;
    xseg_event event;      /* recorded when the block is freed */
    struct xseg_list link; /* in the stream's queue, after the free */
};

static inline uint64_t xseg_block_end(const struct xseg_block *block)
{
    return block->base + block->bytes;
}

/* Whether the segment has other blocks. One unpredictable branch instead of two. */
static inline bool xseg_block_is_split(const struct xseg_block *block)
{
    return ((uintptr_t)block->prev | (uintptr_t)block->next) != 0;
}

/* Whether an unmapped block follows. */
static inline bool xseg_block_can_grow(const struct xseg_block *block)
{
    return block->next != NULL && !block->next->mapped;
}

/* block->extent with relaxed order, for the fast path. */
static inline struct xseg_extent *xseg_block_extent(const struct xseg_block *block)
{
    return atomic_load_explicit(&block->extent, memory_order_relaxed);
}

static inline void xseg_block_set_extent(struct xseg_block *block, struct xseg_extent *extent)
{
    atomic_store_explicit(&block->extent, extent, memory_order_relaxed);
}

/*
 * Split a block; returns the new block, which follows it. Members are assigned one by one: for an
 * assignment of the whole record, compilers choose an instruction that takes as long as the rest of
 * a hit.
 */
static inline struct xseg_block *xseg_block_split(struct xseg_slab *slab, struct xseg_block *block,
                                                  uint64_t bytes, uint64_t rest_bytes,
                                                  uint8_t state, bool mapped)
{
    struct xseg_block *rest = xseg_slab_alloc_uninitialized(slab);

    XSEG_ASSERT(rest != block && bytes > 0 && rest_bytes > 0);
    XSEG_ASSERT(bytes + rest_bytes == block->bytes);
    rest->state = state;
    rest->mapped = mapped;
    rest->flags = 0;
    rest->spare = 0;
    rest->gc_count_base = 0;
    rest->base = block->base + bytes;
    rest->bytes = rest_bytes;
    rest->requested = block->requested;
    xseg_block_set_extent(rest, xseg_block_extent(block));
    rest->prev = block;
    rest->next = block->next;
    rest->uses = NULL;
    if (rest->next != NULL)
        rest->next->prev = rest;
    block->next = rest;
    block->bytes = bytes;
    XSEG_ASSERT(rest->next == NULL || rest->next->base == xseg_block_end(rest));
    return rest;
}

/* --- Handles.  0: no block. --- */

static inline uint32_t xseg_block_handle(const char *records, const struct xseg_block *block)
{
    XSEG_ASSERT((const char *)block > records);
    return (uint32_t)((size_t)((const char *)block - records) / XSEG_BUMP_UNIT);
}

/* The block of a handle that is not 0. */
static inline struct xseg_block *xseg_block_at(char *records, uint32_t handle)
{
    XSEG_ASSERT(handle != 0);
    return (struct xseg_block *)(void *)(records + (size_t)handle * XSEG_BUMP_UNIT);
}

#endif
