/* SPDX-License-Identifier: MIT */
/*
 * Away: the pages of a segment whose pool is paused.  Their addresses and lengths stay; their memory
 * goes, and comes back beneath the same addresses.
 *
 *     MAPPED --leave--> AWAY, with its memory --drop--> AWAY, without
 *        ^                 |                               | supply
 *        |               enter                             v
 *        |                 v                             FRESH
 *      arrive <-- AWAY_MAPPED, FRESH_MAPPED <--enter-------+
 *
 * Several segments leave or come back as one: each step is made for all of them, and what was done
 * before a failure is undone by a step in the other direction.  Until `drop` nothing is lost, because
 * each page still has its memory, and what it contains.
 *
 * When the undo fails, too, a page stays where it is in this picture, with its memory, and the next
 * attempt starts from there.
 *
 * Locking: GROWTH of the device.
 */
#ifndef XSEG_VMM_EVICTED_H
#define XSEG_VMM_EVICTED_H

#include "vmm/segment.h"

/*
 * Unmap every mapped page; its memory is kept.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages are evicted
 * Cost:    one unmap a run of pages (one a page where the driver wants that)
 */
xseg_status xseg_evicted_leave(struct xseg_segment *segment);

/*
 * Give the memory of the pages that are evicted back to the driver.
 *
 * Cost: one release a page; what the driver refuses is a leftover
 */
void xseg_evicted_drop(struct xseg_segment *segment);

/*
 * Get new memory for the pages that are evicted and have none.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, and some pages may have it
 * Cost:    one create for each page that is not idle
 */
xseg_status xseg_evicted_supply(struct xseg_segment *segment);

/*
 * Map the pages that are evicted and have memory, and let the device use them.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages may be mapped
 * Cost:    one map a page, one set-access a run
 */
xseg_status xseg_evicted_enter(struct xseg_segment *segment);

/* The pages that are mapped are back. */
void xseg_evicted_arrive(struct xseg_segment *segment);

/*
 * Undo supply and enter: pages are unmapped again, and new memory goes.
 *
 * Returns: the first error; what was refused stays mapped, and has its memory
 */
xseg_status xseg_evicted_withdraw(struct xseg_segment *segment);

/* Pages that do not come back are unmapped like others (xseg_segment_unmap()). */

/* Bytes of all pages that are evicted, and of those without memory. */
uint64_t xseg_evicted_bytes(const struct xseg_segment *segment);
uint64_t xseg_evicted_missing(const struct xseg_segment *segment);

/* The next run of pages from `first` on that are all away, or all mapped: how many granules it has; 0
 * if there is none. */
uint32_t xseg_evicted_run(const struct xseg_segment *segment, uint32_t *first, bool *evicted);

#endif
