/* SPDX-License-Identifier: MIT */
/*
 * A free index: the cached blocks of one arena, searchable best fit: smallest size first, and among
 * equal sizes the lowest position (extent.h).
 *
 * Sizes below 1 MiB have a bin each; above, 256 bins an octave, so that a bin holds sizes within
 * 0.4 % of each other.  A bitmap finds the next bin that has anything.  A bin is a list in that order,
 * by `lower` and `higher`: mostly its first block comes and goes, which writes to no other block but the second.
 *
 * Classic segments put hundreds of blocks of one size into a bin.  So that a search does not walk along all of
 * them, one block in sixteen, by a hash of its address, is a *mark*, and the marks form a tree.  The
 * first block is no mark: its `left` is the root of that tree, and its `lower` is the last block.
 *
 * Invariants:
 *   INDEX-1  a bin's bit is set exactly when the bin has a block.
 *   INDEX-2  every block lies in the bin of its size and is cached.
 *   INDEX-3  a bin is in order; each block names the one below it, and the first block names the last.
 *   INDEX-4  the tree of a bin has exactly the marks; the first block is no mark.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_FREE_INDEX_H
#define XSEG_CORE_FREE_INDEX_H

#include "src/base/align.h"
#include "src/base/bitmap.h"
#include "src/core/block/extent.h"

#define XSEG_FREE_INDEX_EXACT   2048u /* bins of 512 bytes below 1 MiB */
#define XSEG_FREE_INDEX_OCTAVES 30u /* 1 MiB up to 1 PiB: addresses have 49 bits, see page_map.h */
#define XSEG_FREE_INDEX_BINS    (XSEG_FREE_INDEX_EXACT + XSEG_FREE_INDEX_OCTAVES * 256u)
#define XSEG_FREE_INDEX_WORDS   ((XSEG_FREE_INDEX_BINS + 63) / 64)

struct xseg_free_index {
    struct xseg_bitmap used;
    uint64_t storage[XSEG_FREE_INDEX_WORDS + (XSEG_FREE_INDEX_WORDS + 63) / 64];
    struct xseg_block *bin[XSEG_FREE_INDEX_BINS];
};

_Static_assert((uint64_t)XSEG_FREE_INDEX_EXACT * 512 == XSEG_MIB, "exact bins end at 1 MiB");
_Static_assert(XSEG_FREE_INDEX_BINS % 64 == 0, "an audit looks at 64 bins at a time");
_Static_assert(XSEG_FREE_INDEX_BINS <= XSEG_BITMAP_MAX, "one bitmap holds a bit for each bin");

/* Initialize a free index, which must be zeroed. */
void xseg_free_index_init(struct xseg_free_index *free_index);

/* The bin of a size; XSEG_FREE_INDEX_BINS or more for sizes that no device has. */
static inline uint32_t xseg_free_index_bin_of(uint64_t bytes)
{
    if (__builtin_expect(bytes < XSEG_MIB, 0))
        return (uint32_t)(bytes >> 9);
    const unsigned octave = xseg_log2_floor(bytes);
    /* The highest bit of the size counts as the octave's first 256 bins. */
    return XSEG_FREE_INDEX_EXACT - 21 * 256 + octave * 256 + (uint32_t)(bytes >> (octave - 8));
}

/* Whether a block comes before (bytes, position). */
static inline bool xseg_free_index_is_below(const struct xseg_block *block, uint64_t bytes,
                                            uint64_t position)
{
    return block->bytes < bytes || (block->bytes == bytes && xseg_block_position(block) < position);
}

/* Whether the hash makes a block a mark, unless it is the first of its bin. */
static inline bool xseg_free_index_is_tree_node(const struct xseg_block *block)
{
    return xseg_block_hash(block) >> 60 == 0;
}

/*
 * The rare cases of the functions below.
 *
 * insert_among: the bin has other blocks
 * remove_among: the block is not the first
 * find_among:   the first block is below (bytes, position), and the last one is not
 */
void xseg_free_index_insert_among(struct xseg_block **bin, struct xseg_block *block);
void xseg_free_index_remove_among(struct xseg_block *first, struct xseg_block *block);
struct xseg_block *xseg_free_index_find_among(struct xseg_block *first, uint64_t bytes,
                                              uint64_t position);

/* Insert a block, which must be cached and in no free index. */
static inline void xseg_free_index_insert(struct xseg_free_index *free_index,
                                          struct xseg_block *block)
{
    const uint32_t bin = xseg_free_index_bin_of(block->bytes);

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && bin < XSEG_FREE_INDEX_BINS);
    XSEG_ASSERT(block->bytes > 0 && free_index->bin[bin] != block);
    if (free_index->bin[bin] != NULL) {
        xseg_free_index_insert_among(&free_index->bin[bin], block);
        return;
    }
    xseg_bitmap_set(&free_index->used, bin);
    block->left = block->higher = NULL;
    block->lower = block;
    free_index->bin[bin] = block;
    XSEG_ASSERT(xseg_bitmap_test(&free_index->used, bin));
}

/* Remove a block, which must be in this free index. */
static inline void xseg_free_index_remove(struct xseg_free_index *free_index,
                                          struct xseg_block *block)
{
    const uint32_t bin = xseg_free_index_bin_of(block->bytes);
    struct xseg_block *first = free_index->bin[bin], *second = block->higher;

    XSEG_ASSERT(first != NULL && xseg_bitmap_test(&free_index->used, bin));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED);
    if (first != block) {
        xseg_free_index_remove_among(first, block);
    } else {
        free_index->bin[bin] = second;
        if (second == NULL) {
            XSEG_ASSERT(block->left == NULL && block->lower == block);
            xseg_bitmap_clear(&free_index->used, bin);
        } else {
            XSEG_ASSERT(second->lower == block);
            if (block->left != NULL && xseg_free_index_is_tree_node(second))
                xseg_tree_remove(&block->left, second);
            second->left = block->left;
            second->lower = block->lower;
        }
    }
    /* The members that share their place with the links. */
    block->uses = NULL;
    block->ended = NULL;
}

/* The first block in a bin above this one. */
static inline struct xseg_block *
xseg_free_index_first_above(const struct xseg_free_index *free_index, uint32_t bin)
{
    const uint32_t next = xseg_bitmap_next(&free_index->used, bin + 1);

    XSEG_ASSERT(next == XSEG_BITMAP_NONE || free_index->bin[next] != NULL);
    return next == XSEG_BITMAP_NONE ? NULL : free_index->bin[next];
}

/* The first block that is not below (bytes, position), or NULL. */
static inline struct xseg_block *xseg_free_index_from(const struct xseg_free_index *free_index,
                                                      uint64_t bytes, uint64_t position)
{
    const uint32_t bin = xseg_free_index_bin_of(bytes);

    if (bin >= XSEG_FREE_INDEX_BINS)
        return NULL;
    struct xseg_block *first = free_index->bin[bin];
    if (first != NULL) {
        if (!xseg_free_index_is_below(first, bytes, position))
            return first;
        if (!xseg_free_index_is_below(first->lower, bytes, position))
            return xseg_free_index_find_among(first, bytes, position);
    }
    return xseg_free_index_first_above(free_index, bin);
}

/* The best fit for `bytes`, or NULL.  The block stays in the free index. */
static inline struct xseg_block *xseg_free_index_find(const struct xseg_free_index *free_index,
                                                      uint64_t bytes)
{
    const uint32_t bin = xseg_free_index_bin_of(bytes);
    const uint32_t next = xseg_bitmap_next(&free_index->used, bin);

    if (next == XSEG_BITMAP_NONE)
        return NULL;
    XSEG_ASSERT(free_index->bin[next] != NULL);
    return next == bin ? xseg_free_index_from(free_index, bytes, 0) : free_index->bin[next];
}

/* The block that comes after one of this free index, or NULL. */
static inline struct xseg_block *xseg_free_index_next(const struct xseg_free_index *free_index,
                                                      const struct xseg_block *block)
{
    return block->higher != NULL
               ? block->higher
               : xseg_free_index_first_above(free_index, xseg_free_index_bin_of(block->bytes));
}

bool xseg_free_index_audit(const struct xseg_free_index *free_index,
                           struct xseg_violation *violation);

#endif
