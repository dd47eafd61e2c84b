/* SPDX-License-Identifier: MIT */
/*
 * The hit path of an allocation: from a stream's shortcut to a cached block.
 *
 * Each step ends in a call of another step, which compilers make a jump: so a step saves only the registers
 * that it needs itself.  A step that has the arena's lock gives it back, or ends in a step that does.
 *
 *     xseg_hit_alloc               is the stream known, by what rules is it served, is this thread the lock's owner?
 *     |- small, large             best fit in the free index (large.c)
 *     |- after_look                blocks are pending: look at their events, then serve the request
 *     |- from_shared               several threads use the arena: serve the request under the shared lock
 *     `- leave                     no shortcut, or no cached block: by the stream's entry (hit_stream.h), then
 *                                  on the slow path (slow_path.h), which may call the driver
 *
 * The only lock on this path is that of the arena.
 */
#ifndef XSEG_CORE_HIT_ALLOC_H
#define XSEG_CORE_HIT_ALLOC_H

#include "src/core/device/allocator.h"

/* xseg_alloc() of the public header, with an allocator and a place for the address. */
xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out);

#endif
