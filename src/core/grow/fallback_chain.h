/* SPDX-License-Identifier: MIT */
/*
 * The out-of-memory fallback chain: the steps that serve a request for which no cached block fits.
 *
 *     miss              search under the device memory lock; collect garbage by age, if a limit requires it; grow
 *     ------------------------------------------------- the driver or a limit denies the growth
 *     completed events  free pending blocks whose events have completed
 *     other processes   with a budget: remap and allocate from fallback pools without a wait, then wait for idle memory
 *                       of other processes
 *     observers         call observers without the device memory lock; if one frees memory, search and grow again
 *     remap             new small pages, as few as the request needs; else idle pages of other segments, streams and
 *                       pools whose stream has finished
 *     remap, waiting    the same after waiting for the streams
 *     fallback pools    cached blocks of pools with use_on_oom
 *     oversize          classic segments: release segments of max_split_size_mb or more of the same arena
 *     pending blocks    wait for blocks that other streams use
 *     pool              single pages: release the idle memory of the pool on the stream
 *     remap, waiting    again, with the memory that the step `pending blocks` has freed
 *     release all       release all idle memory of the device
 *     remap             again, with the released memory
 *     search            if memory of the arena was freed since the last search
 *     -------------------------------------------------
 *     out of memory, with an error message that contains an account of the memory
 *
 * The table `steps` in fallback_chain.c has the steps in their order, and for each kind of request the situations in which a
 * step runs.  A step serves the request or fails; a step that fails affects only cached memory.  During a capture no step waits
 * or unmaps memory.  If an observer frees memory and the request still fails, the chain runs again from the observers on, up to
 * XSEG_LOW_MEMORY_CALLS_MAX times.  Only `release all` counts as a retry.
 *
 * A step that can free memory of the arena searches the free lists, unless no memory of the arena has become cached since the
 * last search (xseg_arena_generation()).
 *
 * Devices without pages: the probe at open can succeed although the driver later cannot create or map pages.  A growth that
 * fails for a reason other than memory pressure is attempted XSEG_FALLBACK_ATTEMPTS times; then pages are disabled on the
 * device (xseg_device_makes_pages()), and requests start again with classic segments.  Mapped memory remains in use.  An
 * out-of-memory error of the driver is memory pressure, unless the driver also reports ample free memory and a classic
 * segment serves the request.
 *
 * Devices without addresses: segments without mapped memory release their address ranges; then a classic segment, which
 * needs no more addresses than its bytes, serves the request.
 *
 * Locking: the chain locks the device memory lock, and releases it while it calls observers or waits for other processes.
 */
#ifndef XSEG_CORE_FALLBACK_CHAIN_H
#define XSEG_CORE_FALLBACK_CHAIN_H

#include "src/core/device/device.h"
#include "src/core/stats/observers.h"

/* --- Out-of-memory failures. --- */

/*
 * Out-of-memory failures: the cause of a failed growth, and the error message.
 *
 * A growth fails because a limit denies it or because the driver has no memory.  The check that denies it records the cause
 * in device->oom_cause (xseg_oom_cause_fail()).  If the fallback chain cannot serve the request either, xseg_oom_fail() writes
 * the error message of the request, in three parts:
 *
 *     cause      out of memory on device 0, 2.00 MiB requested
 *     account    the memory of the device by state: allocated, pending free, cached, fragmented, ...
 *     advice     changes each of which alone would have served the request, such as a higher limit
 *
 * The account is complete: its parts add up to the physical memory of this allocator.  Advice is computed from the account;
 * a change that does not suffice by itself is omitted.
 *
 * Locking: the caller holds the device memory lock and no other lock, except where a function says otherwise.
 */

/* Whether a status means that memory or addresses are exhausted, or that a limit is reached. */
static inline bool xseg_oom_cause_is_memory_pressure(xseg_status status)
{
    return status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT ||
           status == XSEG_ERR_NO_ADDRESSES;
}

/* The limit that determined a result of xseg_device_allowance(): the budget, the memory fraction or the hard
 * limit.  Other threads can change the budget at any time, so the result is passed in. */
enum xseg_oom_cause xseg_oom_cause_of_limit(const struct xseg_device *device, uint64_t limit);

/*
 * Record the cause that denies a growth of a pool by `more` bytes, and set the error message.
 *
 * Returns: XSEG_ERR_NO_MEMORY for the device, XSEG_ERR_LIMIT for a limit
 */
xseg_status xseg_oom_cause_fail(struct xseg_pool *pool, enum xseg_oom_cause cause, uint64_t more);

/*
 * Write the error message of a request that has failed, record the failure unless the request was
 * rejected, and return the status.
 *
 * rejected: the request was rejected immediately, see throw_on_cudamalloc_oom
 * Cost:     one memory query; O(blocks of the device)
 */
xseg_status xseg_oom_fail(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          xseg_status status, bool rejected);

/*
 * Notify observers of low memory or of a failed request.  No lock is held.
 *
 * attempt: number of earlier calls of the observers for this request
 * Returns: whether an observer requests a retry
 * Cost:    one memory query if there is such an observer, else none
 */
bool xseg_oom_notify(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, enum xseg_observer_event subject, unsigned attempt);

/* Number of attempts of a growth that fails without memory pressure, before pages are disabled on the device. */
#define XSEG_FALLBACK_ATTEMPTS 3u

/*
 * Serve a request that was a miss.  No lock is held.  The caller reports an out-of-memory failure
 * (xseg_oom_cause_is_memory_pressure()).
 *
 * rejected: set to whether the request was rejected immediately, see throw_on_cudamalloc_oom
 * Returns: XSEG_OK and the block, allocated; XSEG_OK and no block: pages were disabled on the device, and the request must
 *          start again; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER,
 *          XSEG_ERR_DEVICE_LOST, XSEG_ERR_PAUSED
 */
xseg_status xseg_fallback_chain_alloc(const struct xseg_alloc_params *params,
                                      struct xseg_alloc_result *out, bool *rejected);

#endif
