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
    struct xseg_interval **at = &tree->root;

    XSEG_ASSERT(node->begin < node->end);
    node->priority = compute_priority(node->begin, node->order);
    while (*at != NULL && (*at)->priority >= node->priority) {
        (*at)->max_end = xseg_max((*at)->max_end, node->end);
        at = is_after_position(*at, node->begin, node->order) ? &(*at)->left : &(*at)->right;
    }
    split_subtree(*at, node->begin, node->order, &node->left, &node->right);
    update_max_end(node);
    *at = node;
}

static struct xseg_interval *remove_from_subtree(struct xseg_interval *at,
                                                 const struct xseg_interval *node)
{
    XSEG_ASSERT(at != NULL);
    if (at == node)
        return join_subtrees(at->left, at->right);
    if (is_after_position(at, node->begin, node->order))
        at->left = remove_from_subtree(at->left, node);
    else
        at->right = remove_from_subtree(at->right, node);
    update_max_end(at);
    return at;
}

void xseg_intervals_remove(struct xseg_intervals *tree, struct xseg_interval *node)
{
    tree->root = remove_from_subtree(tree->root, node);
}

struct xseg_interval *xseg_intervals_first(const struct xseg_intervals *tree, uint64_t begin,
                                           uint64_t end)
{
    struct xseg_interval *at = tree->root;

    while (at != NULL && at->max_end > begin) {
        /* If a node of the left subtree ends after `begin`, the first match is there, or no node matches. */
        if (at->left != NULL && at->left->max_end > begin)
            at = at->left;
        else if (at->begin < end && at->end > begin)
            return at;
        else
            at = at->begin < end ? at->right : NULL;
    }
    return NULL;
}

static struct xseg_interval *find_next(struct xseg_interval *at, uint64_t begin, uint64_t end,
                                       uint64_t after, uint64_t order)
{
    struct xseg_interval *found;

    if (at == NULL || at->max_end <= begin)
        return NULL;
    if (!is_after_position(at, after, order))
        return find_next(at->right, begin, end, after, order);
    found = find_next(at->left, begin, end, after, order);
    if (found != NULL || at->begin >= end)
        return found;
    return at->end > begin ? at : find_next(at->right, begin, end, after, order);
}

struct xseg_interval *xseg_intervals_next(const struct xseg_intervals *tree, uint64_t begin,
                                          uint64_t end, uint64_t after, uint64_t order)
{
    return find_next(tree->root, begin, end, after, order);
}
