/* SPDX-License-Identifier: MIT */
/*
 * Trees of blocks: treaps in the order of sizes and positions (extent.h), linked by handles.
 *
 * The priority of a block is a hash of its handle. So the way down to a place reads a record only
 * to compare it, and which of two subtrees comes first is known without reading either. Which way a
 * search goes cannot be predicted, so the functions choose links by index instead of by branch:
 * each branch that is predicted wrong takes as long as three steps down.
 *
 * Locking: that of the arena whose blocks are in the tree.
 */
#ifndef XSEG_CORE_TREE_H
#define XSEG_CORE_TREE_H

#include "src/core/block/extent.h"

__extension__ typedef unsigned __int128 xseg_tree_place;

/* Where a block or a search is in the order of a tree. */
struct xseg_tree_key {
    bool by_size;     /* by size, then by position; else by position alone */
    bool is_position; /* `position` is that of the place itself (extent.h) */
    uint64_t bytes;   /* by size */
    /* Unless `is_position`: the position of the first byte of an extent, and the address of the
     * place in the extent. */
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

/* Whether a block comes before a key. */
static inline bool xseg_tree_is_below(const struct xseg_block *block,
                                      const struct xseg_tree_key *key)
{
    const uint64_t position = xseg_block_extent(block)->position;

    if (key->by_size && block->bytes != key->bytes)
        return block->bytes < key->bytes;
    if (key->is_position)
        return xseg_block_position(block) < key->position;
    /* One comparison of 128 bits, without a branch. */
    return ((xseg_tree_place)position << 64 | block->base) <
           ((xseg_tree_place)key->position << 64 | key->base);
}

/* Divide a tree: blocks below the key go to *low, the others to *high. */
static inline void xseg_tree_split(char *records, uint32_t root, const struct xseg_tree_key *key,
                                   uint32_t *low, uint32_t *high)
{
    uint32_t *place[2] = {high, low};

    while (root != 0) {
        struct xseg_block *block = xseg_block_at(records, root);
        const bool is_below = xseg_tree_is_below(block, key);

        *place[is_below] = root;
        place[is_below] = &block->link[is_below];
        root = block->link[is_below];
    }
    *place[0] = *place[1] = 0;
}

/* The tree of two trees, of which all blocks of the first are below all of the second. */
static inline uint32_t xseg_tree_join(char *records, uint32_t low, uint32_t high)
{
    uint32_t tree[2] = {low, high}, root = 0, *place = &root;

    while (tree[0] != 0 && tree[1] != 0) {
        const bool is_high = xseg_tree_priority(tree[0]) <= xseg_tree_priority(tree[1]);
        struct xseg_block *block = xseg_block_at(records, tree[is_high]);

        *place = tree[is_high];
        place = &block->link[!is_high];
        tree[is_high] = *place;
    }
    *place = tree[0] | tree[1];
    return root;
}

/* Insert a block that is in no tree.
 * key: of the block */
static inline void xseg_tree_insert(char *records, uint32_t *root, struct xseg_block *block,
                                    const struct xseg_tree_key *key)
{
    const uint32_t handle = xseg_block_handle(records, block);
    const uint32_t priority = xseg_tree_priority(handle);
    uint32_t *place = root;

    while (*place != 0 && xseg_tree_priority(*place) > priority) {
        struct xseg_block *at = xseg_block_at(records, *place);

        XSEG_ASSERT(at != block && at->base != block->base);
        place = &at->link[xseg_tree_is_below(at, key)];
    }
    const uint32_t rest = *place;
    *place = handle;
    xseg_tree_split(records, rest, key, &block->left, &block->right);
}

/* Remove a block, which must be in the tree. */
static inline void xseg_tree_remove(char *records, uint32_t *root, struct xseg_block *block,
                                    const struct xseg_tree_key *key)
{
    const uint32_t handle = xseg_block_handle(records, block);
    uint32_t *place = root;

    while (*place != handle) {
        struct xseg_block *at = xseg_block_at(records, *place);

        place = &at->link[xseg_tree_is_below(at, key)];
    }
    *place = xseg_tree_join(records, block->left, block->right);
    block->uses = NULL; /* a member that shares its place with the links */
}

/* The first block that is not below a key, or NULL. */
static inline struct xseg_block *xseg_tree_find(char *records, uint32_t root,
                                                const struct xseg_tree_key *key)
{
    struct xseg_block *best = NULL;

    while (root != 0) {
        struct xseg_block *block = xseg_block_at(records, root);
        const bool is_below = xseg_tree_is_below(block, key);

        best = is_below ? best : block;
        root = block->link[is_below];
    }
    return best;
}

/* The block after this one in a tree by position, or NULL. */
static inline struct xseg_block *xseg_tree_next(char *records, uint32_t root,
                                                const struct xseg_block *block)
{
    struct xseg_tree_key key = xseg_tree_key_of(block, false);

    key.base++;
    return xseg_tree_find(records, root, &key);
}

/* The first block, or NULL. */
static inline struct xseg_block *xseg_tree_first(char *records, uint32_t root)
{
    struct xseg_block *first = NULL;

    for (; root != 0; root = first->left)
        first = xseg_block_at(records, root);
    return first;
}

/* Number of blocks. */
uint64_t xseg_tree_count(char *records, uint32_t root);

#endif
