/* SPDX-License-Identifier: MIT */
/*
 * Trim: the policies of reclaim.h that release cached memory at once, for a call of the user, a limit, or a request.
 * decay.h has those that release memory over time.
 */
#ifndef XSEG_CORE_TRIM_H
#define XSEG_CORE_TRIM_H

#include "src/core/device/device.h"
#include "xseg/reclaim.h"

/* The scope and the options of a trim. */
struct xseg_trim_plan {
    const struct xseg_known_stream *stream; /* NULL: any */
    const struct xseg_pool *pool;           /* NULL: any */
    bool wait;                              /* for pending blocks and streams */
    bool held_pools;                        /* also retained pools: the device closes */
    uint64_t leave;                         /* bytes that stay reserved in these arenas */
    uint64_t idle_ms;                       /* only memory that has been idle for this time */
};

/*
 * Trim a device.  The caller holds the device memory lock and no other lock.
 *
 * done: added to, not set
 * Returns: XSEG_OK; XSEG_ERR_DRIVER if a stream could not be queried or waited for; XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trim_result *done);

/*
 * Release all idle memory of a device before a request is retried.  The caller holds the device memory lock and no other
 * lock.
 *
 * wait: wait for pending blocks and streams
 * Returns: XSEG_OK, also if a stream could not be queried or waited for: the memory of other streams is released;
 *          XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_all(struct xseg_device *device, bool wait);

/*
 * After a change of limits (device_limits.h), release the page cache above page_cache_mb and, down to the hard limit, memory that
 * is idle and has no queued work.  The caller holds no lock.
 *
 * Cost: none within these limits; else as a trim that does not wait
 */
void xseg_trim_to_limits(struct xseg_device *device);

/*
 * Free cached classic segments of an arena, each of `least` bytes or more: the smallest one with `wanted` bytes; else the
 * largest ones that have `wanted` bytes together (PyTorch's rule for max_split_size_mb).  cuMemFree waits for the device by
 * itself.  The caller holds the device memory lock and no other lock.
 *
 * Returns: whether `wanted` bytes were freed; else no memory was
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t min, uint64_t wanted);

/*
 * Collect garbage by age for a request that is about to grow.  The threshold is the part garbage_collection_threshold of the
 * limit that per_process_memory_fraction sets.  While more is reserved, old cached memory of the large arenas of the default
 * pool is released, but not during a capture.  The caller holds the device memory lock and no other lock.
 *
 * The age of a cached block is how often these arenas were searched since the block was cached.  Each round releases the
 * blocks that are at least as old as the average (PyTorch's rule).
 *
 * Cost: waits for the streams whose memory is unmapped
 */
void xseg_trim_garbage(struct xseg_device *device, const struct xseg_config *config);

#endif
