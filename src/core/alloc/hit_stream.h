/* SPDX-License-Identifier: MIT */
/*
 * Hits of requests that the stream lookup cache does not cover: the first request of a stream after
 * a change of the conditions, and requests that name a pool.
 *
 * These functions check the conditions of the fast path themselves: no alignment or other option, a
 * known stream, a device that is open and not lost, no route, no active capture. If all are met,
 * the arena is searched with the rules of the configuration; otherwise the slow path (slow_path.h)
 * serves the request. The slow path has the same result, but executes some 500 instructions more.
 *
 * xseg_hit_stream_alloc() adds the stream to the lookup cache (streams.h), so that the next request
 * takes xseg_hit_alloc() (hit.h).
 *
 * Locking: the functions lock the arena that they search, unless stated otherwise.
 */
#ifndef XSEG_CORE_HIT_STREAM_H
#define XSEG_CORE_HIT_STREAM_H

#include "src/core/device/allocator.h"

/*
 * Allocate from the stream's arena of the default pool. Returns false, without an allocation, if
 * the slow path must serve the request.
 *
 * searched:   set to the arena that was searched
 * has_polled: set if pending blocks were polled before the search
 */
bool xseg_hit_stream_alloc(struct xseg_allocator *allocator, int ordinal, uint64_t bytes,
                           xseg_stream stream, void **out, struct xseg_arena **searched,
                           bool *has_polled);

/* Allocate from the stream's arena of a pool, which must not be destroyed during the call. Returns
 * false, without an allocation, if the slow path must serve the request. */
bool xseg_hit_stream_alloc_from_pool(struct xseg_allocator *allocator, struct xseg_pool *pool,
                                     uint64_t bytes, xseg_stream stream, void **out,
                                     struct xseg_arena **searched);

/* xseg_alloc_with(): tries xseg_hit_stream_alloc_from_pool() if the request names only a pool, then
 * takes the slow path. */
xseg_status xseg_hit_stream_request(struct xseg_allocator *allocator,
                                    const struct xseg_request *request, void **out);

/* Allocate from an arena by the rules of a configuration; returns the address, or 0 if no cached
 * block fits. */
uint64_t xseg_hit_stream_alloc_from_arena(const struct xseg_config *config,
                                          struct xseg_arena *arena, uint64_t bytes)
    XSEG_REQUIRES(arena->lock);

#endif
