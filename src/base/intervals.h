/* SPDX-License-Identifier: MIT */
/*
 * An interval tree: finds all intervals that overlap another one.
 *
 * An augmented treap, ordered by (begin, order): each node stores the largest end of its subtree.  The owner embeds the
 * nodes and provides the lock.  Insertion, removal and each step of a search are O(log n) in the number of intervals.
 */
#ifndef XSEG_BASE_INTERVALS_H
#define XSEG_BASE_INTERVALS_H

#include <stdbool.h>
#include <stdint.h>

struct xseg_interval {
    uint64_t begin, end; /* begin < end */
    uint64_t order;      /* unique among intervals with the same begin */
    /* Owned by the tree. */
    uint64_t max_end; /* of the subtree */
    uint32_t priority;
    struct xseg_interval *left, *right;
};

struct xseg_intervals {
    struct xseg_interval *root; /* NULL: empty */
};

void xseg_intervals_insert(struct xseg_intervals *tree, struct xseg_interval *node);
void xseg_intervals_remove(struct xseg_intervals *tree, struct xseg_interval *node);

/* Find the first interval that overlaps [begin, end); NULL if there is none. */
struct xseg_interval *xseg_intervals_first(const struct xseg_intervals *tree, uint64_t begin,
                                           uint64_t end);

/* Find the first overlapping interval after the position (after_begin, after_order).  The interval at that position may have
 * been removed. */
struct xseg_interval *xseg_intervals_next(const struct xseg_intervals *tree, uint64_t begin,
                                          uint64_t end, uint64_t after_begin, uint64_t after_order);

#endif
