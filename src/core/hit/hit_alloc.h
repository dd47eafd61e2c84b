/* SPDX-License-Identifier: MIT */
/*
 * The short way of an allocation: from a stream's shortcut to a cached block.
 *
 * Each step ends in a call of another one, which compilers make a jump of: so a step saves only the registers
 * that it needs itself.  A step that has the arena's lock gives it back, or ends in one that does.
 *
 *     xseg_hit_alloc               is the stream known, by what rules is it served, is this thread the lock's owner?
 *     |- small                     which size of cached cell fits best?
 *     |  |- small_from_chunk       the only cell that may have that size: cut it, count it
 *     |  |- small_from_victim    the rest of the cell that was cut last: cut it, count it
 *     |  `- small_generally        several cells, larger ones, wide ones (small.h)
 *     |- large                     best fit in the free index (arena_hit.c)
 *     |- after_look                something is pending: look at it first, then as above
 *     |- from_shared               several threads use the arena: as above, with the lock's long way
 *     `- leave                     no shortcut, or nothing cached: by the stream's entry (hit_stream.h), then
 *                                  in the general way (request.h), which may ask the driver for memory
 *
 * The library has one lock on this way, that of the arena.
 */
#ifndef XSEG_CORE_HIT_ALLOC_H
#define XSEG_CORE_HIT_ALLOC_H

#include "src/core/device/allocator.h"

/* xseg_alloc() of the public header, with an allocator and a place for the address. */
xseg_status xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, size_t bytes,
                           xseg_stream stream, void **out);

#endif
