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
 * In small arenas live and cached blocks have no records, see cells.h; the chain is that of tract.h.
 *
 * The records also carry the links of the tree that holds them: cached blocks by size, then
 * position (some of them, see free_index.h); holes by position (extent.h), others by address.  A tree is a treap whose priorities are a hash
 * of the address, so its shape does not depend on the order of insertion.
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

#include "src/base/list.h"
#include "src/base/slab.h"
#include "xseg/allocator.h"

struct xseg_extent;
struct xseg_stream_use;
struct xseg_known_stream;

#define XSEG_BLOCK_OVERSIZE 1u
#define XSEG_BLOCK_FALLBACK 2u

struct xseg_block {
    struct xseg_slab_record record; /* its owner is the arena */
    uint8_t state;                  /* enum xseg_block_state */
    bool mapped;
    uint8_t flags; /* live, pending and busy: XSEG_BLOCK_OVERSIZE, XSEG_BLOCK_FALLBACK; flags.h */
    uint8_t spare; /* 0: written with the three before it as one word */
    union {
        uint32_t waits; /* pending: events that the block waits for */
        uint32_t
            gc_count_base; /* cached: searches of the pool before the block came in the free index */
    };
    uint64_t base, bytes;
    /* The requested size, by PyTorch's rules.  A cached or unmapped block keeps it.  The remainder of a split inherits it.
     * Coalescing keeps that of the block that changes its state.  When a part is unmapped, the rest has 0. */
    uint64_t requested;
    struct xseg_extent *extent;
    struct xseg_block *prev, *next;
    struct xseg_block *left, *right; /* in a tree */
    union {
        struct xseg_stream_use *uses; /* streams beside its own that use the block */
        struct xseg_block *lower;     /* in the free index: the one before it in its bin */
    };
    union {
        struct xseg_block *ended;  /* busy: the next one whose uses have ended */
        struct xseg_block *higher; /* in the free index: the one after it in its bin */
    };
};

/* A use of a block by another stream than its own, see pending.h. */
struct xseg_stream_use {
    struct xseg_slab_record record;
    bool outside, captured;       /* noted while the stream was not being captured; while it was */
    bool is_shared;               /* the event is the last one of a retired stream */
    struct xseg_stream_use *next; /* of the same block */
    struct xseg_known_stream *stream;
    uint64_t number; /* of that stream; once another stream has its entry, the use is over */
    struct xseg_block *block;
    xseg_event event;      /* once freed */
    struct xseg_list link; /* in the stream's queue, once freed */
};

_Static_assert(offsetof(struct xseg_block, record) == 0 &&
                   offsetof(struct xseg_stream_use, record) == 0,
               "a slab finds the owner of a record at its beginning");

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
    rest->extent = block->extent;
    rest->prev = block;
    rest->next = block->next;
    rest->left = rest->right = NULL;
    rest->uses = NULL;
    rest->ended = NULL;
    if (rest->next != NULL)
        rest->next->prev = rest;
    block->next = rest;
    block->bytes = bytes;
    XSEG_ASSERT(rest->next == NULL || rest->next->base == xseg_block_end(rest));
    return rest;
}

/* A hash of the address.  There are two multiplications, because with one the hashes of addresses at some regular
 * distances (61 times 4 MiB) are in the order of the addresses. */
static inline uint64_t xseg_block_hash(const struct xseg_block *block)
{
    const uint64_t product = (block->base >> 9) * UINT64_C(0x9E3779B97F4A7C15);

    return product * (product >> 32);
}

/* --- Trees.  The root is a pointer, NULL when empty. --- */

void xseg_tree_insert_among(struct xseg_block **root, struct xseg_block *block);
void xseg_tree_remove_from(struct xseg_block **root, struct xseg_block *block);

/* Insert a block that is in no tree.  Many trees have one block, or none. */
static inline void xseg_tree_insert(struct xseg_block **root, struct xseg_block *block)
{
    XSEG_ASSERT(*root != block);
    if (*root == NULL) {
        block->left = block->right = NULL;
        *root = block;
    } else {
        xseg_tree_insert_among(root, block);
    }
}

/* Remove a block, which must be in the tree. */
static inline void xseg_tree_remove(struct xseg_block **root, struct xseg_block *block)
{
    XSEG_ASSERT(*root != NULL);
    if (*root == block && block->left == NULL && block->right == NULL)
        *root = NULL;
    else
        xseg_tree_remove_from(root, block);
}

/* The first block that is not below (bytes, place).  bytes: 0 in a tree of other blocks than cached ones; place: a position
 * in a tree of cached blocks or holes, else an address */
struct xseg_block *xseg_tree_find(struct xseg_block *root, uint64_t bytes, uint64_t place);

/* The block after this one in its tree, or NULL. */
struct xseg_block *xseg_tree_next(struct xseg_block *root, const struct xseg_block *block);

/* The last block of a tree by address that does not begin above `base`, or NULL. */
struct xseg_block *xseg_tree_last(struct xseg_block *root, uint64_t base);

/* The first block, or NULL. */
struct xseg_block *xseg_tree_first(struct xseg_block *root);

#endif
