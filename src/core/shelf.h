/* SPDX-License-Identifier: MIT */
/*
 * A shelf: the cached blocks of one arena, searchable best fit: smallest size first, and among
 * equal sizes the lowest address.
 *
 * Sizes below 1 MiB have a bin each; above, 256 bins an octave, so that a bin holds sizes within
 * 0.4 % of each other.  A bitmap finds the next bin that has anything; a bin is a small tree.
 *
 * Invariants:
 *   SHELF-1  a bin's bit is set exactly when the bin has a block.
 *   SHELF-2  every block lies in the bin of its size and is cached.
 *
 * Locking: the arena's.
 */
#ifndef XSEG_CORE_SHELF_H
#define XSEG_CORE_SHELF_H

#include "src/base/align.h"
#include "src/base/bits.h"
#include "src/core/block.h"

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

/* The block must be cached and on no shelf. */
static inline void xseg_shelf_insert(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = xseg_shelf_bin_of(block->bytes);

    XSEG_ASSERT(block->state == XSEG_BLOCK_CACHED && bin < XSEG_SHELF_BINS);
    if (shelf->bin[bin] == NULL)
        xseg_bits_add(&shelf->filled, bin);
    xseg_tree_insert(&shelf->bin[bin], block);
}

/* The block must be on this shelf. */
static inline void xseg_shelf_remove(struct xseg_shelf *shelf, struct xseg_block *block)
{
    const uint32_t bin = xseg_shelf_bin_of(block->bytes);

    xseg_tree_remove(&shelf->bin[bin], block);
    if (shelf->bin[bin] == NULL)
        xseg_bits_remove(&shelf->filled, bin);
}

/* The first block in a bin above this one. */
static inline struct xseg_block *xseg_shelf_first_above(const struct xseg_shelf *shelf,
                                                        uint32_t bin)
{
    const uint32_t next = xseg_bits_next(&shelf->filled, bin + 1);

    return next == XSEG_BITS_NONE ? NULL : xseg_tree_first(shelf->bin[next]);
}

/* The first block that is not below (bytes, base), or NULL. */
static inline struct xseg_block *xseg_shelf_from(const struct xseg_shelf *shelf, uint64_t bytes,
                                                 uint64_t base)
{
    const uint32_t bin = xseg_shelf_bin_of(bytes);

    if (bin >= XSEG_SHELF_BINS)
        return NULL;
    struct xseg_block *root = shelf->bin[bin];
    struct xseg_block *block = root == NULL ? NULL : xseg_tree_find(root, bytes, base);

    return block != NULL ? block : xseg_shelf_first_above(shelf, bin);
}

/* The best fit for `bytes`, or NULL.  It stays on the shelf.  Mostly the bin of the size is empty, and
 * the next one has one block. */
static inline struct xseg_block *xseg_shelf_find(const struct xseg_shelf *shelf, uint64_t bytes)
{
    const uint32_t bin = xseg_shelf_bin_of(bytes);
    const uint32_t next = xseg_bits_next(&shelf->filled, bin);

    if (next == XSEG_BITS_NONE)
        return NULL;
    if (next == bin)
        return xseg_shelf_from(shelf, bytes, 0);
    struct xseg_block *root = shelf->bin[next];
    return root->left == NULL ? root : xseg_tree_first(root);
}

/* The block that comes after this one by size and address, or NULL. */
static inline struct xseg_block *xseg_shelf_next(const struct xseg_shelf *shelf,
                                                 const struct xseg_block *block)
{
    return xseg_shelf_from(shelf, block->bytes, block->base + 1);
}

bool xseg_shelf_audit(const struct xseg_shelf *shelf, struct xseg_finding *finding);

#endif
