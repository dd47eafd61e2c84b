/* SPDX-License-Identifier: MIT */
/*
 * The slow path of an allocation: every request that the fast path (hit.h, hit_stream.h) does not serve.
 *
 * An entry point, or the fast path when it gives up, fills in one structure of allocation parameters (struct
 * xseg_alloc_params): configuration, requested size, stream, pool, and the arena that the fast path has searched.  The slow
 * path adds the arena and the rounded sizes, and the same structure goes through the fallback chain to growth.  One result
 * (struct xseg_alloc_result) comes back.
 *
 *     fast path --> allocation parameters --> choose the arena     a stream, a pool and an arena are looked up once
 *                                         --> poll pending blocks  unless the fast path did
 *                                         --> search               unless the fast path did
 *                                         --> fallback_chain.h     with the device memory lock: search, grow, reclaim
 *
 * The arena of the fast path is used as it is while no route and no capture can select another pool.  The free lists are
 * searched once without the device memory lock, by the fast path or here, and once under it.  A poll of pending blocks
 * between the two searches can free a block, so it is followed by a search without the lock: that is the only case in which
 * the slow path repeats the search of the fast path.
 *
 * A result with XSEG_OK and without a block means that the state on which the parameters depend has changed during the call
 * (the device makes no pages any more, the pool was paused while the block was zeroed): the request starts again.
 *
 * Locking: the caller holds no lock.
 */
#ifndef XSEG_CORE_SLOW_PATH_H
#define XSEG_CORE_SLOW_PATH_H

#include "src/core/device/device.h"

/*
 * Allocate a block.  The parameters have `config`, `requested`, which is not 0, and `stream`; and where they apply `pool`,
 * `alignment`, `address`, `zeroed`, `arena` and `has_polled`.
 *
 * Returns: XSEG_OK, and *out is the address; the statuses of xseg_alloc_with() and xseg_alloc_at() of the public headers
 */
xseg_status xseg_slow_path_alloc(struct xseg_device *device, struct xseg_alloc_params *params,
                                 void **out);

/* Check a request of xseg_alloc_with() and allocate.  searched: the arena that the fast path has searched, or NULL */
xseg_status xseg_slow_path_alloc_request(struct xseg_allocator *allocator,
                                         const struct xseg_request *request,
                                         struct xseg_arena *searched, void **out);

/* Grow for a request, without allocating the block: serves xseg_prewarm() of the public header.  The parameters have
 * `config`, `requested`, `stream` and `pool`. */
xseg_status xseg_slow_path_prewarm(struct xseg_device *device, struct xseg_alloc_params *params);

/* Query the events of pending blocks, and free the blocks whose events have completed, before a request is served from an
 * arena; in a capture only blocks that its graph allows.  Only called while blocks are pending. */
void xseg_slow_path_poll_pending(struct xseg_arena *arena, const struct xseg_config *config);

/* End an allocation or a free under a configuration that has has_call_epilogue: a decay pass, traces, housekeeping. */
void xseg_slow_path_end_call(struct xseg_device *device, const struct xseg_config *config);

#endif
