/* SPDX-License-Identifier: MIT */
/*
 * The hit path of a free: from an address to its block, which becomes cached and merges.
 *
 * The steps end in calls of each other, as the steps of hit_alloc.h do.
 *
 *     xseg_hit_free                what begins at the address: an extent with cells, or a slot?  Is this thread the
 *     |                            lock's owner?
 *     |- at_victim                 a cell that ends where the victim begins: the victim grows
 *     |- cell                      a live cell without cached neighbours: put it in the bins
 *     |  |- cell_merging           a live cell with cached neighbours: merge it (small_free.c)
 *     |  `- cell_generally         a long cell, or notes to make (small_free.c); or no live cell
 *     |- block                     a large block: put it in the free index
 *     |  `- block_merging          a large block with neighbours: merge it
 *     `- leave                     anything else, or an arena that several threads use: the general path
 *                                  (allocator_free.h), which knows why a free is wrong
 */
#ifndef XSEG_CORE_HIT_FREE_H
#define XSEG_CORE_HIT_FREE_H

#include "src/core/device/allocator.h"

/* xseg_free() of the public header, with an allocator. */
xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr);

#endif
