/* SPDX-License-Identifier: MIT */
/* The trim that follows a change of bounds (bounds.h). */
#ifndef XSEG_CORE_TRIM_BOUNDS_H
#define XSEG_CORE_TRIM_BOUNDS_H

struct xseg_device;

/*
 * Give back the page cache above page_cache_mb, and memory above the hard limit that is idle and has no queued
 * work.  No lock is held.
 *
 * Cost: none within these limits; else as a trim that does not wait
 */
void xseg_trim_bounds(struct xseg_device *device);

#endif
