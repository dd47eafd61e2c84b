/* SPDX-License-Identifier: MIT */
/*
 * Figures of devices and pools for those who look from outside (xseg/published.h).
 *
 * They are read without an arena's lock while everything runs: each figure is one that was there, but two of them may be
 * of slightly different moments.  Figures of pools are those of pool_figures.h.
 *
 * Locking: GROWTH is not taken; STATS and REGISTRATIONS are, for moments.
 */
#ifndef XSEG_CORE_PUBLISHED_H
#define XSEG_CORE_PUBLISHED_H

#include "src/core/device/allocator.h"
#include "xseg/published.h"

/* Fill all of a frame but its time.  No lock above STATS is held.  Cost: a look at each arena. */
void xseg_published_fill(struct xseg_allocator *allocator, struct xseg_published_frame *frame);

#endif
