/* SPDX-License-Identifier: MIT */
/*
 * A block: a run of addresses inside one segment, and the record that describes it.
 *
 *     extent->first
 *       |
 *      [ live ][ cached ][ hole ........ ][ live ][ pending ][ cached ][ hole ... ]
 *          <-- prev / next: the neighbours by address, without gaps -->
 *
 * States are those of the public enum xseg_block_state.  BUSY is a block that a growth or a trim
 * has claimed, or a free that is recording events.  A busy block is in no tree and in no free index, and merges
 * with no other block; the driver works on it without a lock.
 *
 * A record is one cache line. The links of trees and free lists are handles of 32 bits: records of
 * all arenas are in one reserved range of addresses (page_map.h), so a handle is the distance from
 * its beginning.
 *
 * A cached block is in the free index of its arena (free_index.h), an unmapped one in the tree of
 * holes by position (extent.h).  Both are treaps whose priorities are a hash of the handle.
 *
 * Invariants of a chain of blocks; xseg_extent_audit() checks them:
 *   BLK-1  next starts where this one ends, and points back.
 *   BLK-2  no two cached blocks are adjacent, nor two holes.
 *   BLK-3  sizes are multiples of 512 bytes, and not 0.
 *   BLK-4  exactly live, pending and cached blocks are mapped; a busy one may be either.
 *   BLK-6  a block with flags is live, pending or busy.
 *
 * Locking: ARENA of the arena that the extent belongs to.
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
    uint64_t base; /* of a record that is not in use, the link of the slab is here */
    uint64_t bytes;
    /* The requested size, by PyTorch's rules.  A cached or unmapped block keeps it.  The remainder of a split inherits it.
     * Coalescing keeps that of the block that changes its state.  When a part is unmapped, the rest has 0. */
    uint64_t requested;
    /* Read without the lock by a thread that found the record through a slot (slot.h); so a record
     * that is not in use keeps its last extent. */
    _Atomic(struct xseg_extent *) extent;
    struct xseg_block *prev, *next;
    union {
        struct {
            uint32_t left, right; /* cached, unmapped: handles, in a tree (tree.h) */
        };
        uint32_t link[2]; /* the same two */
        /* Allocated, pending, claimed: other streams that use the block. */
        struct xseg_stream_use *uses;
        struct xseg_block *chain; /* claimed, without uses: the next one of its claimer's list */
    };
    uint8_t state; /* enum xseg_block_state */
    bool mapped;
    uint8_t flags; /* live, pending and busy: XSEG_BLOCK_OVERSIZE, XSEG_BLOCK_FALLBACK; flags.h */
    uint8_t spare; /* 0: written with the three before it as one word */
    union {
        uint32_t waits; /* pending: events that the block waits for */
        uint32_t
            gc_count_base; /* cached: searches of the pool before the block came in the free index */
    };
};

_Static_assert(sizeof(struct xseg_block) == 64, "a record is one cache line");

/* A use of a block by another stream than its own, see pending.h. */
struct xseg_stream_use {
    bool outside, captured;       /* noted while the stream was not being captured; while it was */
    bool is_shared;               /* the event is the last one of a retired stream */
    struct xseg_stream_use *next; /* of the same block */
    struct xseg_known_stream *stream;
    uint64_t number; /* of that stream; once another stream has its entry, the use is over */
    struct xseg_block *block;
    xseg_event event;      /* once freed */
    struct xseg_list link; /* in the stream's queue, once freed */
};

static inline uint64_t xseg_block_end(const struct xseg_block *block)
{
    return block->base + block->bytes;
}

/* Whether the block is part of a divided segment: one test instead of two, since neither can be predicted. */
static inline bool xseg_block_is_split(const struct xseg_block *block)
{
    return ((uintptr_t)block->prev | (uintptr_t)block->next) != 0;
}

/* Whether the block ends where memory can still be mapped. */
static inline bool xseg_block_can_grow(const struct xseg_block *block)
{
    return block->next != NULL && !block->next->mapped;
}

/* block->extent without an ordering, for code that runs with each allocation or free. */
static inline struct xseg_extent *xseg_block_extent(const struct xseg_block *block)
{
    return atomic_load_explicit(&block->extent, memory_order_relaxed);
}

static inline void xseg_block_set_extent(struct xseg_block *block, struct xseg_extent *extent)
{
    atomic_store_explicit(&block->extent, extent, memory_order_relaxed);
}

/*
 * Cut a block in two parts of these sizes; returns the new block behind.  Every member is set on its own: for an assignment
 * of the whole record compilers choose an instruction that takes as long as the rest of a hit.
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

/* The block of a handle, which is not 0. */
static inline struct xseg_block *xseg_block_at(char *records, uint32_t handle)
{
    XSEG_ASSERT(handle != 0);
    return (struct xseg_block *)(void *)(records + (size_t)handle * XSEG_BUMP_UNIT);
}

/* The priority of a block in its treap: a hash of the handle. There are two multiplications,
 * because with one the hashes of handles at some regular distances are in the order of the handles.
 * */
static inline uint32_t xseg_block_priority(uint32_t handle)
{
    const uint32_t product = handle * UINT32_C(0x9E3779B1);

    return product * (product >> 16);
}

#endif
