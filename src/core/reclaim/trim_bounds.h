/* SPDX-License-Identifier: MIT */
/* The trim that follows a change of bounds (bounds.h). */
#ifndef XSEG_CORE_TRIM_BOUNDS_H
#define XSEG_CORE_TRIM_BOUNDS_H

struct xseg_device;

/*
 * Give back what is above page_cache_mb in the page cache, and idle memory above the hard limit as far
 * as no work is queued on it.  No lock is held.
 *
 * Cost: none where nothing is above; else as a trim that does not wait
 */
void xseg_trim_bounds(struct xseg_device *device);

#endif
