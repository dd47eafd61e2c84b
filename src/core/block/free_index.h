/* SPDX-License-Identifier: MIT */
/*
 * The free index: the cached blocks of one arena in the order of best fit, which is size, then
 * position (block.h).
 *
 * Each size below 1 MiB has a bin. Above that, each octave has 256 bins, so the sizes of a bin are
 * within 0.4 % of each other. A bitmap leads to the next bin that is not empty.
 *
 * A bin is a treap. Most requests take the first block of a bin, and many freed blocks
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
#include "src/core/block/block.h"

/* --- Trees. --- */

/*
 * Treaps of blocks, ordered by size and position or by position alone (block.h), and linked by
 * handles.
 *
 * The arena's tree of unmapped blocks and the bins of the free index are treaps.
 * Insertion, removal and search are O(log n) in the number of blocks, on average.
 *
 * The priority of a block is a hash of its handle. So a search reads a record only to compare it,
 * and the root of two joined trees is known without reading either record. The direction of a
 * search is unpredictable, so the functions select links by index instead of by a branch: one
 * mispredicted branch costs as much as three levels of the tree.
 *
 * Locking: the caller holds the lock of the arena whose blocks are in the tree.
 */

__extension__ typedef unsigned __int128 xseg_tree_key128;

/* A position in the order of a tree: that of a block, or the bound of a search. */
struct xseg_tree_key {
    bool by_size;     /* by size, then by position; else by position alone */
    bool is_position; /* `position` is that of the bound itself (block.h) */
    uint64_t bytes;   /* by size */
    /* Unless `is_position`: the position of the first byte of an extent, and an address in the
     * extent. */
    uint64_t position, base;
};

/* The priority of a block. There are two multiplications, because with one the hashes of handles at
 * some regular distances are in the order of the handles. */
static inline uint32_t xseg_tree_priority(uint32_t handle)
{
    const uint32_t product = handle * UINT32_C(0x9E3779B1);

    return product * (product >> 16);
}

/* The key of a block in a tree by size or by position alone. */
static inline struct xseg_tree_key xseg_tree_key_of(const struct xseg_block *block, bool by_size)
{
    return (struct xseg_tree_key){.by_size = by_size,
                                  .bytes = block->bytes,
                                  .position = xseg_block_extent(block)->position,
                                  .base = block->base};
}

/* Whether a block precedes a key. */
static inline bool xseg_tree_precedes(const struct xseg_block *block,
                                      const struct xseg_tree_key *key)
{
    const uint64_t position = xseg_block_extent(block)->position;

    if (key->by_size && block->bytes != key->bytes)
        return block->bytes < key->bytes;
    if (key->is_position)
        return xseg_block_position(block) < key->position;
    /* One comparison of 128 bits, without a branch. */
    return ((xseg_tree_key128)position << 64 | block->base) <
           ((xseg_tree_key128)key->position << 64 | key->base);
}

/* Split a tree: *low has the blocks that precede the key, *high the others. */
static inline void xseg_tree_split(char *records, uint32_t root, const struct xseg_tree_key *key,
                                   uint32_t *low, uint32_t *high)
{
    uint32_t *link[2] = {high, low};

    while (root != 0) {
        struct xseg_block *block = xseg_block_at(records, root);
        const bool is_before = xseg_tree_precedes(block, key);

        *link[is_before] = root;
        link[is_before] = &block->link[is_before];
        root = block->link[is_before];
    }
    *link[0] = *link[1] = 0;
}

/* Join two trees; all blocks of the first must precede all blocks of the second. Returns the
 * root. */
static inline uint32_t xseg_tree_join(char *records, uint32_t low, uint32_t high)
{
    uint32_t tree[2] = {low, high}, root = 0, *link = &root;

    while (tree[0] != 0 && tree[1] != 0) {
        const bool is_high = xseg_tree_priority(tree[0]) <= xseg_tree_priority(tree[1]);
        struct xseg_block *block = xseg_block_at(records, tree[is_high]);

        *link = tree[is_high];
        link = &block->link[!is_high];
        tree[is_high] = *link;
    }
    *link = tree[0] | tree[1];
    return root;
}

/* Insert a block that is in no tree.
 * key: of the block */
static inline void xseg_tree_insert(char *records, uint32_t *root, struct xseg_block *block,
                                    const struct xseg_tree_key *key)
{
    const uint32_t handle = xseg_block_handle(records, block);
    const uint32_t priority = xseg_tree_priority(handle);
    uint32_t *link = root;

    while (*link != 0 && xseg_tree_priority(*link) > priority) {
        struct xseg_block *ancestor = xseg_block_at(records, *link);

        XSEG_ASSERT(ancestor != block && ancestor->base != block->base);
        link = &ancestor->link[xseg_tree_precedes(ancestor, key)];
    }
    const uint32_t subtree = *link;
    *link = handle;
    xseg_tree_split(records, subtree, key, &block->left, &block->right);
}

/* Remove a block, which must be in the tree. */
static inline void xseg_tree_remove(char *records, uint32_t *root, struct xseg_block *block,
                                    const struct xseg_tree_key *key)
{
    const uint32_t handle = xseg_block_handle(records, block);
    uint32_t *link = root;

    while (*link != handle) {
        struct xseg_block *ancestor = xseg_block_at(records, *link);

        link = &ancestor->link[xseg_tree_precedes(ancestor, key)];
    }
    *link = xseg_tree_join(records, block->left, block->right);
    block->uses = NULL; /* shares its storage with the links */
}

/* The first block that does not precede a key, or NULL. */
static inline struct xseg_block *xseg_tree_lower_bound(char *records, uint32_t root,
                                                       const struct xseg_tree_key *key)
{
    struct xseg_block *best = NULL;

    while (root != 0) {
        struct xseg_block *block = xseg_block_at(records, root);
        const bool is_before = xseg_tree_precedes(block, key);

        best = is_before ? best : block;
        root = block->link[is_before];
    }
    return best;
}

/* The block after this one in a tree by position, or NULL. */
static inline struct xseg_block *xseg_tree_next(char *records, uint32_t root,
                                                const struct xseg_block *block)
{
    struct xseg_tree_key key = xseg_tree_key_of(block, false);

    key.base++;
    return xseg_tree_lower_bound(records, root, &key);
}

/* The first block, or NULL. */
static inline struct xseg_block *xseg_tree_first(char *records, uint32_t root)
{
    struct xseg_block *first = NULL;

    for (; root != 0; root = first->left)
        first = xseg_block_at(records, root);
    return first;
}

/* The number of blocks. O(n); for audits and tests. */
static inline uint64_t xseg_tree_count(char *records, uint32_t root)
{
    uint64_t count = 0;

    while (root != 0) {
        const struct xseg_block *block = xseg_block_at(records, root);

        count += 1 + xseg_tree_count(records, block->left);
        root = block->right;
    }
    return count;
}

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

/* The first block that does not precede (bytes, position), or NULL. */
static inline struct xseg_block *
xseg_free_index_lower_bound(const struct xseg_free_index *free_index, uint64_t bytes,
                            uint64_t position)
{
    const uint32_t bin = xseg_free_index_bin_of(bytes);

    if (bin >= XSEG_FREE_INDEX_BINS)
        return NULL;
    if (free_index->bin[bin] != 0) {
        struct xseg_block *block = xseg_block_at(free_index->records, free_index->bin[bin]);

        if (xseg_free_index_precedes(block, bytes, position))
            block = xseg_free_index_find_in_bin(free_index, bin, bytes, position);
        if (block != NULL)
            return block;
    }
    const uint32_t next = xseg_bitmap_next(&free_index->used, bin + 1);
    return next == XSEG_BITMAP_NONE ? NULL
                                    : xseg_block_at(free_index->records, free_index->bin[next]);
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
               : xseg_block_at(free_index->records, free_index->bin[next]);
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
