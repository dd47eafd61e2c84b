/* SPDX-License-Identifier: MIT */
#include "src/base/intervals.h"

#include <stddef.h>

#include "src/base/align.h"
#include "src/base/check.h"

static bool is_after_position(const struct xseg_interval *node, uint64_t begin, uint64_t order)
{
    return node->begin != begin ? node->begin > begin : node->order > order;
}

static void update_max_end(struct xseg_interval *node)
{
    node->max_end = node->end;
    if (node->left != NULL)
        node->max_end = xseg_max(node->max_end, node->left->max_end);
    if (node->right != NULL)
        node->max_end = xseg_max(node->max_end, node->right->max_end);
}

/* Split a subtree into the nodes up to a position and the nodes after it. */
static void split_subtree(struct xseg_interval *node, uint64_t begin, uint64_t order,
                          struct xseg_interval **low, struct xseg_interval **high)
{
    if (node == NULL) {
        *low = *high = NULL;
    } else if (is_after_position(node, begin, order)) {
        split_subtree(node->left, begin, order, low, &node->left);
        update_max_end(node);
        *high = node;
    } else {
        split_subtree(node->right, begin, order, &node->right, high);
        update_max_end(node);
        *low = node;
    }
}

/* Join two subtrees; all positions of the first are below those of the second. */
static struct xseg_interval *join_subtrees(struct xseg_interval *low, struct xseg_interval *high)
{
    if (low == NULL || high == NULL)
        return low == NULL ? high : low;
    if (low->priority > high->priority) {
        low->right = join_subtrees(low->right, high);
        update_max_end(low);
        return low;
    }
    high->left = join_subtrees(low, high->left);
    update_max_end(high);
    return high;
}

/* A pseudo-random priority that depends only on the position (the finalizer of SplitMix64). */
static uint32_t compute_priority(uint64_t begin, uint64_t order)
{
    uint64_t bits = begin ^ (order * 0x9e3779b97f4a7c15u);

    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(bits >> 32);
}

void xseg_intervals_insert(struct xseg_intervals *tree, struct xseg_interval *node)
{
    struct xseg_interval **link = &tree->root;

    XSEG_ASSERT(node->begin < node->end);
    node->priority = compute_priority(node->begin, node->order);
    while (*link != NULL && (*link)->priority >= node->priority) {
        (*link)->max_end = xseg_max((*link)->max_end, node->end);
        link =
            is_after_position(*link, node->begin, node->order) ? &(*link)->left : &(*link)->right;
    }
    split_subtree(*link, node->begin, node->order, &node->left, &node->right);
    update_max_end(node);
    *link = node;
}

static struct xseg_interval *remove_from_subtree(struct xseg_interval *root,
                                                 const struct xseg_interval *node)
{
    XSEG_ASSERT(root != NULL);
    if (root == node)
        return join_subtrees(root->left, root->right);
    if (is_after_position(root, node->begin, node->order))
        root->left = remove_from_subtree(root->left, node);
    else
        root->right = remove_from_subtree(root->right, node);
    update_max_end(root);
    return root;
}

void xseg_intervals_remove(struct xseg_intervals *tree, struct xseg_interval *node)
{
    tree->root = remove_from_subtree(tree->root, node);
}

struct xseg_interval *xseg_intervals_first(const struct xseg_intervals *tree, uint64_t begin,
                                           uint64_t end)
{
    struct xseg_interval *node = tree->root;

    while (node != NULL && node->max_end > begin) {
        /* If a node of the left subtree ends after `begin`, the first match is there, or no node matches. */
        if (node->left != NULL && node->left->max_end > begin)
            node = node->left;
        else if (node->begin < end && node->end > begin)
            return node;
        else
            node = node->begin < end ? node->right : NULL;
    }
    return NULL;
}

static struct xseg_interval *find_next(struct xseg_interval *root, uint64_t begin, uint64_t end,
                                       uint64_t after_begin, uint64_t after_order)
{
    struct xseg_interval *found;

    if (root == NULL || root->max_end <= begin)
        return NULL;
    if (!is_after_position(root, after_begin, after_order))
        return find_next(root->right, begin, end, after_begin, after_order);
    found = find_next(root->left, begin, end, after_begin, after_order);
    if (found != NULL || root->begin >= end)
        return found;
    return root->end > begin ? root : find_next(root->right, begin, end, after_begin, after_order);
}

struct xseg_interval *xseg_intervals_next(const struct xseg_intervals *tree, uint64_t begin,
                                          uint64_t end, uint64_t after_begin, uint64_t after_order)
{
    return find_next(tree->root, begin, end, after_begin, after_order);
}
