/* SPDX-License-Identifier: MIT */
/*
 * A shelf: the cached blocks of one arena, searchable best fit: smallest size first, and among
 * equal sizes the lowest address.
 *
 * Sizes below 1 MiB have a bin each; above, 256 bins an octave, so that a bin holds sizes within
 * 0.4 % of each other.  A bitmap finds the next bin that has anything.  A bin is a list in that order,
 * by `lower` and `higher`: mostly its first block comes and goes, which touches no other but the second.
 *
 * Classic segments put hundreds of blocks of one size into a bin.  So that nobody walks along all of
 * them, those whose address has a certain hash, one in sixteen, are its *marks*, and form a tree.  The
 * first block is no mark: its `left` is the root of that tree, and its `lower` is the last block.
 *
 * Invariants:
 *   SHELF-1  a bin's bit is set exactly when the bin has a block.
 *   SHELF-2  every block lies in the bin of its size and is cached.
 *   SHELF-3  a bin is in order; each block names the one below it, and the first one the last.
 *   SHELF-4  the tree of a bin has exactly the marks, of which the first block is none.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_SHELF_H
#define XSEG_CORE_SHELF_H

#include "src/base/align.h"
#include "src/base/bits.h"
#include "src/core/cache/block.h"

#define XSEG_SHELF_EXACT   2048u /* bins of 512 bytes below 1 MiB */
#define XSEG_SHELF_OCTAVES 30u   /* 1 MiB up to 1 PiB: addresses have 49 bits, see lookup.h */
#define XSEG_SHELF_BINS    (XSEG_SHELF_EXACT + XSEG_SHELF_OCTAVES * 256u)
#define XSEG_SHELF_WORDS   ((XSEG_SHELF_BINS + 63) / 64)

struct xseg_shelf {
    struct xseg_bits filled;
    uint64_t storage[XSEG_SHELF_WORDS + (XSEG_SHELF_WORDS + 63) / 64];
    struct xseg_block *bin[XSEG_SHELF_BINS];
};

/* The shelf must be zeroed. */
void xseg_shelf_init(struct xseg_shelf *shelf);

/* The bin of a size; of sizes that no device has, one that is not there. */
static inline uint32_t xseg_shelf_bin_of(uint64_t bytes)
{
    if (__builtin_expect(bytes < XSEG_MIB, 0))
        return (uint32_t)(bytes >> 9);
    const unsigned octave = xseg_log2_floor(bytes);
    /* The highest bit of the size counts as the octave's first 256 bins. */
    return XSEG_SHELF_EXACT - 21 * 256 + octave * 256 + (uint32_t)(bytes >> (octave - 8));
}

/* Whether a block comes before (bytes, base). */
static inline bool xseg_shelf_is_below(const struct xseg_block *block, uint64_t bytes,
                                       uint64_t base)
{
    return block->bytes < bytes || (block->bytes == bytes && block->base < base);
}

/* Whether a block is a mark while it is not the first of its bin. */
static inline bool xseg_shelf_is_mark(const struct xseg_block *block)
{
    return xseg_block_hash(block) >> 60 == 0;
}

/* The same as below where the bin has others; remove: where the block is not the first; find: where the
 * first block is below (bytes, base), and the last one is not. */
void xseg_shelf_insert_among(struct xseg_block **bin, struct xseg_block *block);
void xseg_shelf_remove_among(struct xseg_block *first, struct xseg_block *block);
struct xseg_block *xseg_shelf_find_among(struct xseg_block *first, uint64_t bytes, uint64_t base);

/* The block must be cached and on no shelf. */
static inline void xseg_shelf_insert(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = xseg_shelf_bin_of(block->bytes);

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && bin < XSEG_SHELF_BINS);
    if (shelf->bin[bin] != NULL) {
        xseg_shelf_insert_among(&shelf->bin[bin], block);
        return;
    }
    xseg_bits_add(&shelf->filled, bin);
    block->left = block->higher = NULL;
    block->lower = block;
    shelf->bin[bin] = block;
}

/* The block must be on this shelf. */
static inline void xseg_shelf_remove(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = xseg_shelf_bin_of(block->bytes);
    struct xseg_block *first = shelf->bin[bin], *second = block->higher;

    if (first != block) {
        xseg_shelf_remove_among(first, block);
    } else {
        shelf->bin[bin] = second;
        if (second == NULL) {
            xseg_bits_remove(&shelf->filled, bin);
        } else {
            if (block->left != NULL && xseg_shelf_is_mark(second))
                xseg_tree_remove(&block->left, second);
            second->left = block->left;
            second->lower = block->lower;
        }
    }
    /* What the links were kept in place of. */
    block->uses = NULL;
    block->ended = NULL;
}

/* The first block in a bin above this one. */
static inline struct xseg_block *xseg_shelf_first_above(const struct xseg_shelf *shelf,
                                                        uint32_t bin)
{
    const uint32_t next = xseg_bits_next(&shelf->filled, bin + 1);

    return next == XSEG_BITS_NONE ? NULL : shelf->bin[next];
}

/* The first block that is not below (bytes, base), or NULL. */
static inline struct xseg_block *xseg_shelf_from(const struct xseg_shelf *shelf, uint64_t bytes,
                                                 uint64_t base)
{
    const uint32_t bin = xseg_shelf_bin_of(bytes);

    if (bin >= XSEG_SHELF_BINS)
        return NULL;
    struct xseg_block *first = shelf->bin[bin];
    if (first != NULL) {
        if (!xseg_shelf_is_below(first, bytes, base))
            return first;
        if (!xseg_shelf_is_below(first->lower, bytes, base))
            return xseg_shelf_find_among(first, bytes, base);
    }
    return xseg_shelf_first_above(shelf, bin);
}

/* The best fit for `bytes`, or NULL.  It stays on the shelf. */
static inline struct xseg_block *xseg_shelf_find(const struct xseg_shelf *shelf, uint64_t bytes)
{
    const uint32_t bin = xseg_shelf_bin_of(bytes);
    const uint32_t next = xseg_bits_next(&shelf->filled, bin);

    if (next == XSEG_BITS_NONE)
        return NULL;
    return next == bin ? xseg_shelf_from(shelf, bytes, 0) : shelf->bin[next];
}

/* The block that comes after this one, which is on this shelf, or NULL. */
static inline struct xseg_block *xseg_shelf_next(const struct xseg_shelf *shelf,
                                                 const struct xseg_block *block)
{
    return block->higher != NULL ? block->higher
                                 : xseg_shelf_first_above(shelf, xseg_shelf_bin_of(block->bytes));
}

bool xseg_shelf_audit(const struct xseg_shelf *shelf, struct xseg_finding *finding);

#endif
