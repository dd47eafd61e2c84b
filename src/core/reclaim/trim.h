/* SPDX-License-Identifier: MIT */
/*
 * Trim: the policies of reclaim.h that release cached memory immediately, on a call of the
 * application, for a limit, or for a request that is about to fail.  decay.h has the policies that
 * release memory over time.
 *
 * A trim of a device first completes pending blocks and pending unmaps, by a poll or a wait,
 * retries failed driver calls, discards paused pools that cannot be resumed, and releases the page
 * cache.  Then one reclaim releases the selected memory.  Finally all memory that is still reserved
 * in the scope is counted by the reason why it was kept, so that the result explains itself.
 * Without `wait` a trim never waits for a stream.
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
    bool retained_pools;                    /* include pools with holders: the device closes */
    uint64_t target_bytes;                  /* stop once the scope has no more reserved bytes */
    uint64_t idle_ms; /* only memory that has been idle for this time; 0: any */
};

/*
 * Trim a device.  The caller holds the device memory lock and no other lock.
 *
 * done: the results are added
 * Returns: XSEG_OK; XSEG_ERR_DRIVER if a stream could not be queried or waited for;
 *          XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trim_result *done);

/*
 * Release all idle memory of a device before a request is retried.  The caller holds the device
 * memory lock and no other lock.
 *
 * wait: wait for pending blocks and streams
 * Returns: XSEG_OK, also if a stream could not be queried or waited for: the memory of other
 *          streams is released; XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_trim_all(struct xseg_device *device, bool wait);

/*
 * Apply changed limits: release the page cache above page_cache_mb and, down to the hard limit,
 * idle memory without queued work.  The caller holds no lock.
 *
 * Cost: no driver call within the limits; else as a trim that does not wait
 */
void xseg_trim_to_limits(struct xseg_device *device);

/*
 * Free cached classic segments of an arena of at least `min` bytes: the smallest segment with
 * `needed` bytes, else the largest segments that have `needed` bytes together (PyTorch's rule for
 * max_split_size_mb).  cuMemFree waits for the device.  The caller holds the device memory lock and
 * no other lock.
 *
 * Returns: whether `needed` bytes were freed; if not, no memory was freed
 */
bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t min, uint64_t needed);

/*
 * Collect garbage by age for a request that is about to grow.  The threshold is the part
 * garbage_collection_threshold of the limit that per_process_memory_fraction sets.  While more is
 * reserved, old cached memory of the large arenas of the default pool is released, but not during a
 * capture.  The caller holds the device memory lock and no other lock.
 *
 * The age of a cached block is how often these arenas were searched since the block was cached.
 * Each round releases the blocks that are at least as old as the average (PyTorch's rule).
 *
 * Cost: waits for the streams whose memory is unmapped
 */
void xseg_trim_garbage(struct xseg_device *device, const struct xseg_config *config);

#endif
