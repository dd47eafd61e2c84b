/* SPDX-License-Identifier: MIT */
/*
 * Notices: observers are told before memory goes from beneath its addresses, and after it came.
 *
 *     claimed, stream idle --> leaving, for each run --> unmapped
 *                                    |
 *                                    +--> did not go after all --> came, with the same generation
 *     mapped, still busy   --> came, for each run    --> cached
 *
 * Whoever is told may call the library, so no lock is held: GROWTH is let go of meanwhile.  What is told
 * of is busy, or in a pool that moves, so nobody else changes it; everything else may be different
 * afterwards, and a capture may have begun, in which nothing goes.
 *
 * While nobody wants to know, each of these is one load.
 *
 * Locking: GROWTH is held by the caller, and no other lock; it is held again on return.
 */
#ifndef XSEG_CORE_NOTICE_H
#define XSEG_CORE_NOTICE_H

#include "src/core/device/device.h"

/* Whether anybody is told. */
bool xseg_notice_is_wanted(const struct xseg_device *device);

/*
 * Claimed blocks, chained through `right`, are about to be unmapped.
 *
 * Returns: whether they may be; else they have been told to stay, and the caller puts them back
 */
bool xseg_notice_leave(struct xseg_device *device, const struct xseg_block *claimed);

/* The bytes [base, base + bytes) of a busy block's extent have come, or stay although they were to go. */
void xseg_notice_come(const struct xseg_extent *extent, uint64_t base, uint64_t bytes);

/* All memory of a pool that moves is about to go, or has come. */
void xseg_notice_pool(struct xseg_pool *pool, bool leaves);

#endif
