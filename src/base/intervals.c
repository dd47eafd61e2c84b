/* SPDX-License-Identifier: MIT */
#include "src/base/intervals.h"

#include <stddef.h>

#include "src/base/align.h"
#include "src/base/check.h"

/* Whether a node is after a position. */
static bool is_after(const struct xseg_interval *node, uint64_t begin, uint64_t order)
{
    return node->begin != begin ? node->begin > begin : node->order > order;
}

static void update(struct xseg_interval *node)
{
    node->max_end = node->end;
    if (node->left != NULL)
        node->max_end = xseg_max(node->max_end, node->left->max_end);
    if (node->right != NULL)
        node->max_end = xseg_max(node->max_end, node->right->max_end);
}

/* Divide a subtree into the nodes up to a position and those after it. */
static void split(struct xseg_interval *node, uint64_t begin, uint64_t order,
                  struct xseg_interval **low, struct xseg_interval **high)
{
    if (node == NULL) {
        *low = *high = NULL;
    } else if (is_after(node, begin, order)) {
        split(node->left, begin, order, low, &node->left);
        update(node);
        *high = node;
    } else {
        split(node->right, begin, order, &node->right, high);
        update(node);
        *low = node;
    }
}

/* Join two subtrees, of which the first one has the lower positions. */
static struct xseg_interval *join(struct xseg_interval *low, struct xseg_interval *high)
{
    if (low == NULL || high == NULL)
        return low == NULL ? high : low;
    if (low->priority > high->priority) {
        low->right = join(low->right, high);
        update(low);
        return low;
    }
    high->left = join(low, high->left);
    update(high);
    return high;
}

/* A pseudo-random number that depends on the position only (the finalizer of SplitMix64). */
static uint32_t draw(uint64_t begin, uint64_t order)
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
    node->priority = draw(node->begin, node->order);
    while (*at != NULL && (*at)->priority >= node->priority) {
        (*at)->max_end = xseg_max((*at)->max_end, node->end);
        at = is_after(*at, node->begin, node->order) ? &(*at)->left : &(*at)->right;
    }
    split(*at, node->begin, node->order, &node->left, &node->right);
    update(node);
    *at = node;
}

static struct xseg_interval *removed(struct xseg_interval *at, const struct xseg_interval *node)
{
    XSEG_ASSERT(at != NULL);
    if (at == node)
        return join(at->left, at->right);
    if (is_after(at, node->begin, node->order))
        at->left = removed(at->left, node);
    else
        at->right = removed(at->right, node);
    update(at);
    return at;
}

void xseg_intervals_remove(struct xseg_intervals *tree, struct xseg_interval *node)
{
    tree->root = removed(tree->root, node);
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

static struct xseg_interval *next(struct xseg_interval *at, uint64_t begin, uint64_t end,
                                  uint64_t after, uint64_t order)
{
    struct xseg_interval *found;

    if (at == NULL || at->max_end <= begin)
        return NULL;
    if (!is_after(at, after, order))
        return next(at->right, begin, end, after, order);
    found = next(at->left, begin, end, after, order);
    if (found != NULL || at->begin >= end)
        return found;
    return at->end > begin ? at : next(at->right, begin, end, after, order);
}

struct xseg_interval *xseg_intervals_next(const struct xseg_intervals *tree, uint64_t begin,
                                          uint64_t end, uint64_t after, uint64_t order)
{
    return next(tree->root, begin, end, after, order);
}
