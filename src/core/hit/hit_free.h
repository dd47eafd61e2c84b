/* SPDX-License-Identifier: MIT */
/*
 * The short way of a free: from an address to its block, which becomes cached and merges.
 *
 * The steps end in calls of each other, as those of hit_alloc.h do.
 *
 *     xseg_hit_free                what begins at the address: an extent with cells, or a slot?  Is this thread the
 *     |                            lock's owner?
 *     |- at_victim               a cell that ends where the victim begins: the victim grows
 *     |- cell                      is one live there, and is nothing cached beside it?  Then it is put in the bins
 *     |  `- cell_generally         it merges (small_free.c), or is no live cell
 *     |- block                     a large block: it is put in the free index
 *     |  `- block_merging          it merges
 *     `- leave                     anything else, or an arena that several threads use: in the general way
 *                                  (allocator.h), which knows why a free is wrong
 */
#ifndef XSEG_CORE_HIT_FREE_H
#define XSEG_CORE_HIT_FREE_H

#include "src/core/device/allocator.h"

/* xseg_free() of the public header, with an allocator. */
xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr);

#endif
