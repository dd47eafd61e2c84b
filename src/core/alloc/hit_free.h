/* SPDX-License-Identifier: MIT */
/*
 * The hit path of a free: from an address to its block, which becomes cached and merges.
 *
 * The steps end in calls of each other, as the steps of hit_alloc.h do.
 *
 *     xseg_hit_free which record does the address lead to, by a start or a slot? Is this thread the
 *     owner
 *     |                            of its arena's lock?
 *     |- by_start with the lock: a live small block begins at the address, so it becomes cached
 *     |- by_slot, by_slot_block    the same for a large block
 *     | `- block_merging either, if it has neighbors: coalesce them, and put the result in the free
 *       index
 *     `- leave                     anything else, or an arena that several threads use: the general path
 *                                  (allocator_free.h), which reports why a free is wrong
 */
#ifndef XSEG_CORE_HIT_FREE_H
#define XSEG_CORE_HIT_FREE_H

#include "src/core/device/allocator.h"

/* xseg_free() of the public header, with an allocator. */
xseg_status xseg_hit_free(struct xseg_allocator *allocator, void *ptr);

#endif
