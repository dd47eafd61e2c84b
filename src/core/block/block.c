/* SPDX-License-Identifier: MIT */
#include "src/core/block/block.h"

#include "src/core/block/extent.h"

/* The keys of a block: its size if it is cached; and its position if it is cached or a hole, else its address. */
static inline uint64_t sort_bytes(const struct xseg_block *block)
{
    return block->state == XSEG_BLOCK_CACHED ? block->bytes : 0;
}

static inline uint64_t sort_place(const struct xseg_block *block)
{
    const bool has_position =
        block->state == XSEG_BLOCK_CACHED || block->state == XSEG_BLOCK_UNMAPPED;

    return has_position ? xseg_block_position(block) : block->base;
}

static inline bool is_below(const struct xseg_block *block, uint64_t bytes, uint64_t place)
{
    const uint64_t own = sort_bytes(block);

    return own < bytes || (own == bytes && sort_place(block) < place);
}

void xseg_tree_insert_among(struct xseg_block **root, struct xseg_block *block)
{
    const uint64_t bytes = sort_bytes(block), at = sort_place(block), rank = xseg_block_hash(block);
    struct xseg_block **place = root, *rest;

    XSEG_ASSERT(block->bytes > 0);
    while (*place != NULL && xseg_block_hash(*place) > rank)
        place = is_below(*place, bytes, at) ? &(*place)->right : &(*place)->left;
    rest = *place;
    *place = block;

    /* The tree that stood here is divided: blocks below the new one go to its left, the others to its right. */
    struct xseg_block **below = &block->left, **above = &block->right;
    while (rest != NULL) {
        XSEG_ASSERT(rest != block && rest->base != block->base);
        if (is_below(rest, bytes, at)) {
            *below = rest;
            below = &rest->right;
            rest = rest->right;
        } else {
            *above = rest;
            above = &rest->left;
            rest = rest->left;
        }
    }
    *below = *above = NULL;
}

void xseg_tree_remove_from(struct xseg_block **root, struct xseg_block *block)
{
    const uint64_t bytes = sort_bytes(block), at = sort_place(block);
    struct xseg_block **place = root, *left = block->left, *right = block->right;

    while (*place != block) {
        XSEG_ASSERT(*place != NULL);
        place = is_below(*place, bytes, at) ? &(*place)->right : &(*place)->left;
    }
    while (left != NULL && right != NULL) {
        if (xseg_block_hash(left) > xseg_block_hash(right)) {
            *place = left;
            place = &left->right;
            left = left->right;
        } else {
            *place = right;
            place = &right->left;
            right = right->left;
        }
    }
    XSEG_ASSERT(left == NULL || right == NULL);
    *place = left != NULL ? left : right;
    block->left = block->right = NULL;
}

struct xseg_block *xseg_tree_find(struct xseg_block *root, uint64_t bytes, uint64_t place)
{
    struct xseg_block *best = NULL;

    while (root != NULL) {
        if (is_below(root, bytes, place)) {
            root = root->right;
        } else {
            best = root;
            root = root->left;
        }
    }
    return best;
}

struct xseg_block *xseg_tree_next(struct xseg_block *root, const struct xseg_block *block)
{
    return xseg_tree_find(root, sort_bytes(block), sort_place(block) + 1);
}

struct xseg_block *xseg_tree_last(struct xseg_block *root, uint64_t base)
{
    struct xseg_block *best = NULL;

    while (root != NULL) {
        XSEG_ASSERT(root->state != XSEG_BLOCK_CACHED);
        if (root->base > base) {
            root = root->left;
        } else {
            best = root;
            root = root->right;
        }
    }
    return best;
}

struct xseg_block *xseg_tree_first(struct xseg_block *root)
{
    while (root != NULL && root->left != NULL)
        root = root->left;
    return root;
}
