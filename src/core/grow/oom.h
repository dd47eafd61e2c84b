/* SPDX-License-Identifier: MIT */
/*
 * The error text of an out-of-memory: what was asked for, where the memory is, and what would have helped.
 *
 * Locking: the device memory lock is held by the caller, no other lock, except where a function says otherwise.
 */
#ifndef XSEG_CORE_OOM_H
#define XSEG_CORE_OOM_H

#include "src/core/device/device.h"
#include "src/core/stats/observers.h"

/*
 * Write the error text of a request that is refused, and return the status.
 *
 * rejected:    the request was refused at once, see throw_on_cudamalloc_oom
 * free_bytes:  set to what the device had free, as the text says it
 * Cost:     one question about the device's memory; a walk over all blocks of the device
 */
xseg_status xseg_oom_fail(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                          xseg_status status, bool rejected, uint64_t *free_bytes);

/*
 * Tell observers of a request that is short of memory, or refused.  No lock is held.
 *
 * attempt: how often the request has asked before
 * Returns: whether one of them answered that the request should be tried again
 * Cost:    one question about the device's memory if there is such an observer, else none
 */
bool xseg_oom_notify(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, enum xseg_observers_subject subject, unsigned attempt);

#endif
