/* SPDX-License-Identifier: MIT */
/*
 * The ladder: what happens, rung by rung, when a request finds nothing cached.
 *
 *     search, collect garbage by age if a limit wants that, grow: as PyTorch does, while memory lasts
 *     ------------------------------------------------- the driver or a limit says no
 *     finished      blocks whose events are complete by now
 *     ask           observers, with GROWTH let go; when they spare memory, from the top, a few times
 *     small pages   new ones, as few as the request needs; else idle ones of other segments, streams
 *                   and pools whose stream has finished
 *     waiting       the same, after waiting for those streams
 *     borrow        cached blocks of pools that lend
 *     oversize      classic: segments of max_split_size_mb or more of the same arena
 *     pending       blocks that other streams use, after waiting for them
 *     flush         everything idle goes back to the driver
 *     -------------------------------------------------
 *     out of memory, with a sentence that says where the memory is
 *
 * After each rung the cache is searched again.  A rung takes only what the request needs, and serves
 * it or changes nothing but what is cached.  During a capture nothing is waited for or taken away.
 * Only the flush counts as a retry.
 */
#ifndef XSEG_CORE_LADDER_H
#define XSEG_CORE_LADDER_H

#include "src/core/device/device.h"

/*
 * Serve a request that was a miss.  No lock is held.
 *
 * Returns: XSEG_OK and the block, live; XSEG_ERR_NO_MEMORY, XSEG_ERR_LIMIT, XSEG_ERR_NO_ADDRESSES,
 *          XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_ladder_alloc(struct xseg_arena *arena, const struct xseg_need *need,
                              struct xseg_grant *out);

#endif
