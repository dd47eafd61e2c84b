/* SPDX-License-Identifier: MIT */
/*
 * The sentence of an out-of-memory: what was asked, where the memory is, and what would have helped.
 *
 * Locking: GROWTH is held by the caller, no other lock, except where a function says otherwise.
 */
#ifndef XSEG_CORE_SHORTAGE_H
#define XSEG_CORE_SHORTAGE_H

#include "src/core/device/device.h"
#include "src/core/stats/observers.h"

/*
 * Note the sentence of a request that is refused, and give the status back.
 *
 * rejected: it was refused at once, see throw_on_cudamalloc_oom
 * Cost:     one question about the device's memory; a walk over all blocks of the device
 */
xseg_status xseg_shortage_fail(struct xseg_arena *arena, const struct xseg_need *need,
                               xseg_status status, bool rejected);

/*
 * Tell observers of a request that is short of memory, or refused.  No lock is held.
 *
 * attempt: how often the request has asked before
 * Returns: whether any of them answered that it should be tried again
 * Cost:    one question about the device's memory if anybody wants to know, else none
 */
bool xseg_shortage_tell(struct xseg_arena *arena, const struct xseg_need *need, xseg_status status,
                        enum xseg_observers_subject subject, unsigned attempt);

#endif
