/* SPDX-License-Identifier: MIT */
/*
 * Garbage collection by age: garbage_collection_threshold.
 *
 * garbage_collection_threshold is a part of the limit that per_process_memory_fraction sets.  While more
 * than that part is taken, an allocation that has to grow first gives back old cached memory of the large
 * arenas of the default pool.  Classic segments go whole; of expandable segments whole pages go.
 *
 * The age of a cached block is how often the pool's large arenas were searched since it was cached.
 * In each round the blocks go that are at least as old as the average (PyTorch's rule).
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_GARBAGE_H
#define XSEG_CORE_GARBAGE_H

#include "src/core/device/device.h"

/*
 * Collect garbage for a request that is about to grow.  Nothing happens during a capture.
 *
 * Cost: waits for the streams whose memory goes
 */
void xseg_garbage_collect(struct xseg_device *device, const struct xseg_config *config);

#endif
