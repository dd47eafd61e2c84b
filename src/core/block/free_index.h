/* SPDX-License-Identifier: MIT */
/*
 * The free index: the cached blocks of one arena in the order of best fit, which is size, then
 * position (extent.h).
 *
 * Each size below 1 MiB has a bin. Above that, each octave has 256 bins, so the sizes of a bin are
 * within 0.4 % of each other. A bitmap leads to the next bin that is not empty.
 *
 * A bin is a treap (tree.h). Most requests take the first block of a bin, and many freed blocks
 * become the first. So the links of the path from the root to the first block are reversed: the bin
 * has the handle of the first block, and `left` of a block on that path has the handle of its
 * parent.
 *
 *     bin -> A -left-> C -left-> F       F is the root, A the first block
 *                      |         |
 *                      right     right   subtrees with ordinary links
 *
 * Insertion and removal of the first block are O(1) on average, and O(log n) in the number of
 * blocks of the bin elsewhere.
 *
 * Invariants; xseg_free_index_audit() checks them:
 *   INDEX-1  The bit of a bin is set exactly if the bin has a block.
 *   INDEX-2  Every block is in the bin of its size, and is cached.
 *   INDEX-3  The blocks of a bin are in order.
 *   INDEX-4  No block has a higher priority than its parent.
 *
 * Locking: the caller holds the lock of the arena.
 */
#ifndef XSEG_CORE_FREE_INDEX_H
#define XSEG_CORE_FREE_INDEX_H

#include "src/base/align.h"
#include "src/base/bitmap.h"
#include "src/core/block/extent.h"

#define XSEG_FREE_INDEX_EXACT   2048u /* bins of 512 bytes below 1 MiB */
#define XSEG_FREE_INDEX_OCTAVES 30u   /* 1 MiB up to 1 PiB; addresses have 49 bits */
#define XSEG_FREE_INDEX_BINS    (XSEG_FREE_INDEX_EXACT + XSEG_FREE_INDEX_OCTAVES * 256u)
#define XSEG_FREE_INDEX_WORDS   ((XSEG_FREE_INDEX_BINS + 63) / 64)

struct xseg_free_index {
    struct xseg_bitmap used;
    char *records; /* the base of block handles */
    uint64_t storage[XSEG_FREE_INDEX_WORDS + (XSEG_FREE_INDEX_WORDS + 63) / 64];
    uint32_t bin[XSEG_FREE_INDEX_BINS]; /* the handle of its first block, or 0 */
};

_Static_assert((uint64_t)XSEG_FREE_INDEX_EXACT * 512 == XSEG_MIB, "exact bins end at 1 MiB");
_Static_assert(XSEG_FREE_INDEX_BINS % 64 == 0, "an audit visits 64 bins at a time");
_Static_assert(XSEG_FREE_INDEX_BINS <= XSEG_BITMAP_MAX, "one bitmap holds a bit for each bin");

/* Initialize a free index, which must be zeroed. */
void xseg_free_index_init(struct xseg_free_index *free_index, char *records);

/* The bin of a size; XSEG_FREE_INDEX_BINS or more for a size that no device has. */
static inline uint32_t xseg_free_index_bin_of(uint64_t bytes)
{
    if (bytes < XSEG_MIB)
        return (uint32_t)(bytes >> 9);
    const unsigned octave = xseg_log2_floor(bytes);
    /* The highest bit of the shifted size adds 256, so the constant subtracts one octave more. */
    return XSEG_FREE_INDEX_EXACT - 21 * 256 + octave * 256 + (uint32_t)(bytes >> (octave - 8));
}

/* Whether a block precedes (bytes, position). */
static inline bool xseg_free_index_precedes(const struct xseg_block *block, uint64_t bytes,
                                            uint64_t position)
{
    return block->bytes < bytes || (block->bytes == bytes && xseg_block_position(block) < position);
}

/*
 * The less frequent cases of the functions below.
 *
 * insert_into_bin  the bin has other blocks
 * remove_from_bin  the block is not the first of its bin, or has a right subtree
 * find_in_bin      the first block of the bin precedes (bytes, position); returns NULL if all
 *                  blocks do
 */
void xseg_free_index_insert_into_bin(char *records, uint32_t *bin, struct xseg_block *block);
void xseg_free_index_remove_from_bin(char *records, uint32_t *bin, struct xseg_block *block);
struct xseg_block *xseg_free_index_find_in_bin(const struct xseg_free_index *free_index,
                                               uint32_t bin, uint64_t bytes, uint64_t position);

/* Insert a block, which must be cached and in no free index. */
static inline void xseg_free_index_insert(struct xseg_free_index *free_index,
                                          struct xseg_block *block)
{
    const uint32_t bin = xseg_free_index_bin_of(block->bytes);
    char *records = free_index->records;

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && bin < XSEG_FREE_INDEX_BINS);
    XSEG_ASSERT(block->bytes > 0 && free_index->bin[bin] != xseg_block_handle(records, block));
    if (free_index->bin[bin] != 0) {
        xseg_free_index_insert_into_bin(records, &free_index->bin[bin], block);
        return;
    }
    xseg_bitmap_set(&free_index->used, bin);
    block->left = block->right = 0;
    free_index->bin[bin] = xseg_block_handle(records, block);
}

/* Remove a block, which must be in this free index. */
static inline void xseg_free_index_remove(struct xseg_free_index *free_index,
                                          struct xseg_block *block)
{
    const uint32_t bin = xseg_free_index_bin_of(block->bytes);
    const uint32_t handle = xseg_block_handle(free_index->records, block);

    XSEG_ASSERT(free_index->bin[bin] != 0 && xseg_bitmap_test(&free_index->used, bin));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    if (free_index->bin[bin] != handle || block->right != 0) {
        xseg_free_index_remove_from_bin(free_index->records, &free_index->bin[bin], block);
    } else {
        free_index->bin[bin] = block->left;
        if (block->left == 0)
            xseg_bitmap_clear(&free_index->used, bin);
    }
    block->uses = NULL; /* shares its storage with the links */
}

/* The first block of a bin that is not empty. */
static inline struct xseg_block *xseg_free_index_first(const struct xseg_free_index *free_index,
                                                       uint32_t bin)
{
    return xseg_block_at(free_index->records, free_index->bin[bin]);
}

/* The first block of the next bin that is not empty, or NULL. */
static inline struct xseg_block *
xseg_free_index_first_above(const struct xseg_free_index *free_index, uint32_t bin)
{
    const uint32_t next = xseg_bitmap_next(&free_index->used, bin + 1);

    return next == XSEG_BITMAP_NONE ? NULL : xseg_free_index_first(free_index, next);
}

/* The first block that does not precede (bytes, position), or NULL. */
static inline struct xseg_block *
xseg_free_index_lower_bound(const struct xseg_free_index *free_index, uint64_t bytes,
                            uint64_t position)
{
    const uint32_t bin = xseg_free_index_bin_of(bytes);

    if (bin >= XSEG_FREE_INDEX_BINS)
        return NULL;
    if (free_index->bin[bin] != 0) {
        struct xseg_block *block = xseg_free_index_first(free_index, bin);

        if (xseg_free_index_precedes(block, bytes, position))
            block = xseg_free_index_find_in_bin(free_index, bin, bytes, position);
        if (block != NULL)
            return block;
    }
    return xseg_free_index_first_above(free_index, bin);
}

/* The best fit for `bytes`, a multiple of 512, or NULL. The block remains in the free index. */
static inline struct xseg_block *xseg_free_index_find(const struct xseg_free_index *free_index,
                                                      uint64_t bytes)
{
    const uint32_t bin = xseg_free_index_bin_of(bytes);
    const uint32_t next = xseg_bitmap_next(&free_index->used, bin);

    if (next == XSEG_BITMAP_NONE)
        return NULL;
    return next == bin && bin >= XSEG_FREE_INDEX_EXACT
               ? xseg_free_index_lower_bound(free_index, bytes, 0)
               : xseg_free_index_first(free_index, next);
}

/* The successor of a block of this free index, or NULL. */
static inline struct xseg_block *xseg_free_index_next(const struct xseg_free_index *free_index,
                                                      const struct xseg_block *block)
{
    return xseg_free_index_lower_bound(free_index, block->bytes, xseg_block_position(block) + 1);
}

/* The number of blocks. O(n); for audits and tests. */
uint64_t xseg_free_index_count(const struct xseg_free_index *free_index);

bool xseg_free_index_audit(const struct xseg_free_index *free_index,
                           struct xseg_violation *violation);

#endif
