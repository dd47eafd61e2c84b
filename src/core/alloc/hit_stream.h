/* SPDX-License-Identifier: MIT */
/*
 * The path of an allocation that has no shortcut: by the stream's entry, or by the pool that a request names.
 *
 * Most calls are plain: a request without wishes, on a stream that is known, for the default pool, while no capture
 * and no route is on the device, and the block is there.  So is a request that names a pool, if nothing is pending.
 * This path tests a few words to see that a call is plain; all other calls take the slow path (slow_path.h).  That
 * path gives the same result for plain calls, in some 500 instructions more.
 *
 * A stream whose request is plain is given its shortcut (streams.h), so that its next request takes the hit path
 * (hit_alloc.h).
 */
#ifndef XSEG_CORE_HIT_STREAM_H
#define XSEG_CORE_HIT_STREAM_H

#include "src/core/device/allocator.h"

/*
 * Serve a plain request from what is cached.
 *
 * searched:   set to the arena that has no block for the request
 * has_polled: set if pending blocks were polled before the search
 * Returns:    false, and nothing has changed, if that cannot be done
 */
bool xseg_hit_stream_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                           xseg_stream stream, void **out, struct xseg_arena **searched,
                           bool *has_polled);

/* Serve a request that names a pool, which must not end meanwhile, and has no other wish.  Returns false, and nothing
 * has changed, if that cannot be done. */
bool xseg_hit_stream_alloc_in(struct xseg_allocator *allocator, struct xseg_pool *pool,
                              uint64_t bytes, xseg_stream stream, void **out,
                              struct xseg_arena **searched);

/* xseg_alloc_with(): xseg_hit_stream_alloc_in() if the request names a pool, else the slow path. */
xseg_status xseg_hit_stream_request(struct xseg_allocator *allocator,
                                    const struct xseg_request *request, void **out);

/* Serve a plain request from an arena by the rules of a configuration: the address, or 0. */
uint64_t xseg_hit_stream_serve(const struct xseg_config *config, struct xseg_arena *arena,
                               uint64_t bytes) XSEG_REQUIRES(arena->lock);

#endif
