/* SPDX-License-Identifier: MIT */
/*
 * Hits: the shortest way from a door to a block and back.
 *
 * Most calls are plain: a request without wishes, on a stream that is known, for the default pool, while
 * no capture and no route is on the device, and the block is there.  What makes a call
 * anything else is looked at here once, in a few words; then it takes the general way (device.h,
 * allocator.h), which comes to the same result for plain calls as well.  The general way takes some
 * 500 instructions more.
 */
#ifndef XSEG_CORE_HIT_H
#define XSEG_CORE_HIT_H

#include "src/core/allocator.h"

/* Serve a plain request from what is cached; false, and nothing has changed, if that cannot be done. */
bool xseg_hit_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                    xseg_stream stream, void **out);

/* Free a block that nothing else uses; false, and nothing has changed, if that cannot be done. */
bool xseg_hit_free(struct xseg_allocator *allocator, const void *pointer);

#endif
