/* SPDX-License-Identifier: MIT */
/*
 * Garbage collection by age: garbage_collection_threshold.
 *
 * While per_process_memory_fraction sets a limit, and more than that part of it is taken, an
 * allocation that has to grow first gives old cached memory of the default large pool back, until no
 * more than that part is taken.  Classic segments go whole, of expandable ones whole pages.
 *
 * The age of a cached block is how often the pool's large arenas were searched since it was cached.
 * In each round those go that are at least as old as the average (PyTorch's rule).
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_GARBAGE_H
#define XSEG_CORE_GARBAGE_H

#include "src/core/device/device.h"

/*
 * Collect for a request that is about to grow.  Nothing happens during a capture.
 *
 * Cost: waits for the streams whose memory goes
 */
void xseg_garbage_collect(struct xseg_device *device, const struct xseg_config *config);

#endif
