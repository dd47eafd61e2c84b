/* SPDX-License-Identifier: MIT */
/*
 * The ladder: the steps, called rungs, that serve a request which no cached block fits.
 *
 *     as PyTorch    search; collect garbage by age, if a limit asks for it; grow
 *     ------------------------------------------------- the driver or a limit refuses
 *     finished      take back blocks whose events are complete by now
 *     processes     with a budget: steal and borrow without a wait, then wait for what other processes leave idle
 *     ask           observers, without the device memory lock; when they spare memory, start again, a few times
 *     small pages   new ones, as few as the request needs; else idle ones of other segments, streams
 *                   and pools whose stream has finished
 *     waiting       steal small pages after waiting for those streams
 *     borrow        cached blocks of pools that lend
 *     oversize      classic: free segments of max_split_size_mb or more of the same arena
 *     pending       blocks that other streams use, after waiting for them
 *     flush         all idle memory goes back to the driver
 *     -------------------------------------------------
 *     out of memory, with a sentence that says where the memory is
 *
 * The arrays in fallback_chain.c say which rungs are climbed in which situation; most end with another search of the
 * cache.  A rung takes only the memory that the request needs, and either serves the request or changes only
 * what is cached.  During a capture no rung waits or takes memory away.  Only the flush counts as a retry.
 */
#ifndef XSEG_CORE_FALLBACK_CHAIN_H
#define XSEG_CORE_FALLBACK_CHAIN_H

#include "src/core/device/device.h"

/*
 * Serve a request that was a miss.  No lock is held.  The caller reports an out-of-memory failure (xseg_oom_cause_is_memory_pressure()).
 *
 * rejected: set to whether the request was rejected immediately, see throw_on_cudamalloc_oom
 * Returns: XSEG_OK and the block, live; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES,
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_fallback_chain_alloc(struct xseg_arena *arena,
                                      const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out, bool *rejected);

#endif
