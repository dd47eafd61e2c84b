/* SPDX-License-Identifier: MIT */
/*
 * Evicted pages: the pages of a segment whose pool is paused.  Their addresses and lengths stay; their memory
 * goes, and memory comes back at the same addresses.  In the picture, states have the names of segment.h.
 *
 *     MAPPED --leave--> AWAY, with its memory --drop--> AWAY, without
 *        ^                 |                               | supply
 *        |               enter                             v
 *        |                 v                             FRESH
 *      arrive <-- AWAY_MAPPED, FRESH_MAPPED <--enter-------+
 *
 * Several segments leave or come back together: each step is made for all of them, and after a failure a step
 * in the other direction undoes the steps made before.  Until `drop` each page still has its memory with its
 * contents.
 *
 * If the undo fails, too, a page keeps its state in this picture, with its memory, and the next attempt starts
 * from there.
 *
 * An aliased page (alias.h) is evicted at each of its granules.  Its memory is released once, when all of them are AWAY, and
 * supplied once: the other granules become FRESH with it.  Sums and runs visit such a page at one of its granules, which
 * xseg_evicted_select_aliases() selects.
 *
 * Locking: the device memory lock of the device.
 */
#ifndef XSEG_VMM_EVICTED_H
#define XSEG_VMM_EVICTED_H

#include "vmm/segment.h"

/* Choose the granules at which aliased pages are visited: for all segments of a pool, before its pages are evicted. */
void xseg_evicted_select_aliases(struct xseg_segment *segment);

/*
 * Unmap every mapped page; the page keeps its memory.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages are evicted
 * Cost:    one unmap a run of pages (one a page where the driver wants that)
 */
xseg_status xseg_evicted_unmap(struct xseg_segment *segment);

/*
 * Give the memory of evicted pages back to the driver.
 *
 * Cost: one release a page; memory that the driver refuses is a leftover
 */
void xseg_evicted_release(struct xseg_segment *segment);

/*
 * Get new memory for evicted pages without memory.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, and some pages may have memory
 * Cost:    one create for each page that is not idle
 */
xseg_status xseg_evicted_create(struct xseg_segment *segment);

/*
 * Map evicted pages that have memory, and let the device use them.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages may be mapped
 * Cost:    one map a page, one set-access a run
 */
xseg_status xseg_evicted_map(struct xseg_segment *segment);

/* Make pages that are mapped on their way back usable: they are MAPPED again. */
void xseg_evicted_finish(struct xseg_segment *segment);

/*
 * Undo supply and enter: unmap the pages again, and release their new memory.
 *
 * Returns: the first error; pages that the driver refused to unmap stay mapped, with their memory
 */
xseg_status xseg_evicted_roll_back(struct xseg_segment *segment);

/* Evicted pages that do not come back are taken away with xseg_segment_unmap(), as other pages. */

/* Bytes of all pages that are evicted, and of those without memory. */
uint64_t xseg_evicted_bytes(const struct xseg_segment *segment);
uint64_t xseg_evicted_unbacked_bytes(const struct xseg_segment *segment);

/* Find the next run of pages from *first on that are all evicted, or all mapped, and visited there: returns its granules, 0
 * if there is none. */
uint32_t xseg_evicted_next_run(const struct xseg_segment *segment, uint32_t *first, bool *evicted);

#endif
