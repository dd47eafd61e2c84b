/* SPDX-License-Identifier: MIT */
/*
 * Treaps of blocks, ordered by size and position or by position alone (extent.h), and linked by
 * handles.
 *
 * The arena's tree of unmapped blocks and the bins of the free index (free_index.h) are treaps.
 * Insertion, removal and search are O(log n) in the number of blocks, on average.
 *
 * The priority of a block is a hash of its handle. So a search reads a record only to compare it,
 * and the root of two joined trees is known without reading either record. The direction of a
 * search is unpredictable, so the functions select links by index instead of by a branch: one
 * mispredicted branch costs as much as three levels of the tree.
 *
 * Locking: the caller holds the lock of the arena whose blocks are in the tree.
 */
#ifndef XSEG_CORE_TREE_H
#define XSEG_CORE_TREE_H

#include "src/core/block/extent.h"

__extension__ typedef unsigned __int128 xseg_tree_key128;

/* A position in the order of a tree: that of a block, or the bound of a search. */
struct xseg_tree_key {
    bool by_size;     /* by size, then by position; else by position alone */
    bool is_position; /* `position` is that of the bound itself (extent.h) */
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
        struct xseg_block *at = xseg_block_at(records, *link);

        XSEG_ASSERT(at != block && at->base != block->base);
        link = &at->link[xseg_tree_precedes(at, key)];
    }
    const uint32_t rest = *link;
    *link = handle;
    xseg_tree_split(records, rest, key, &block->left, &block->right);
}

/* Remove a block, which must be in the tree. */
static inline void xseg_tree_remove(char *records, uint32_t *root, struct xseg_block *block,
                                    const struct xseg_tree_key *key)
{
    const uint32_t handle = xseg_block_handle(records, block);
    uint32_t *link = root;

    while (*link != handle) {
        struct xseg_block *at = xseg_block_at(records, *link);

        link = &at->link[xseg_tree_precedes(at, key)];
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

#endif
