/* SPDX-License-Identifier: MIT */
/*
 * The sentence of an out-of-memory: what was asked, where the memory is, and what would have helped.
 *
 * Locking: GROWTH is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_SHORTAGE_H
#define XSEG_CORE_SHORTAGE_H

#include "src/core/device.h"

/*
 * Note the sentence of a request that is refused, and give the status back.  The text of the failure
 * that was noted last goes into it as the reason.
 *
 * Cost: one question about the device's memory
 */
xseg_status xseg_shortage_fail(struct xseg_arena *arena, const struct xseg_need *need,
                               xseg_status status);

#endif
