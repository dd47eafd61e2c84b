/* SPDX-License-Identifier: MIT */
/*
 * Out-of-memory failures: the cause of a failed growth, and the error message.
 *
 * A growth fails because a limit denies it or because the driver has no memory.  The check that denies it records the cause
 * in device->oom_cause (xseg_oom_cause_fail()).  If the fallback chain cannot serve the request either, xseg_oom_fail() writes
 * the error message of the request, in three parts:
 *
 *     cause      out of memory on device 0, 2.00 MiB requested
 *     account    where the memory of the device is: allocated, pending free, cached, fragmented, ...
 *     advice     the changes of which each would have served the request, such as a higher limit
 *
 * The account is complete: its parts add up to the physical memory of this allocator.  Advice is computed from the account;
 * a change that would not have been enough by itself is not mentioned.
 *
 * Locking: the caller holds the device memory lock and no other lock, except where a function says otherwise.
 */
#ifndef XSEG_CORE_OOM_H
#define XSEG_CORE_OOM_H

#include "src/core/device/device.h"
#include "src/core/stats/observers.h"

/* Causes of a failed growth. */
enum xseg_oom_cause {
    XSEG_OOM_CAUSE_DRIVER, /* no check: the driver, or the memory function of the pool, had no memory */
    XSEG_OOM_CAUSE_DEVICE,     /* the device has less memory than this process would use */
    XSEG_OOM_CAUSE_HARD_LIMIT, /* hard_limit_mb, or xseg_limits_set() of the device */
    XSEG_OOM_CAUSE_FRACTION,   /* per_process_memory_fraction */
    XSEG_OOM_CAUSE_BUDGET,     /* budget_file: other processes wait for their shares */
    XSEG_OOM_CAUSE_POOL,       /* limit_bytes of the pool */
    XSEG_OOM_CAUSE_REJECTION   /* throw_on_cudamalloc_oom, and no limit */
};

/* Whether a status means that memory, addresses or a limit are exhausted. */
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
 * Write the error message of a request that has failed, and return the status.
 *
 * rejected:   the request was rejected immediately, see throw_on_cudamalloc_oom
 * free_bytes: set to the free memory of the device in the message
 * Cost:       one memory query; O(blocks of the device)
 */
xseg_status xseg_oom_fail(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          xseg_status status, bool rejected, uint64_t *free_bytes);

/*
 * Notify observers of low memory or of a failed request.  No lock is held.
 *
 * attempt: how often the observers were called for this request before
 * Returns: whether an observer answered that the request should be retried
 * Cost:    one memory query if there is such an observer, else none
 */
bool xseg_oom_notify(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, enum xseg_observer_event subject, unsigned attempt);

#endif
