/* SPDX-License-Identifier: MIT */
/*
 * Evicted pages: the pages of a segment whose pool is paused.  Addresses and lengths remain.
 * Memory is released, and a resume maps memory to the same addresses again.
 *
 *     MAPPED --unmap--> EVICTED, with memory --release--> EVICTED, without memory
 *        ^                 |                               | create
 *        |                map                              v
 *        |                 v                             FRESH
 *     finish <-- EVICTED_MAPPED, FRESH_MAPPED <---map------+
 *
 * A pause unmaps the pages of all segments of a pool, then releases their memory.  A resume creates
 * memory, maps it and finishes.  Each step is performed for all segments before the next step.  A
 * failed pause rolls back by a map and a finish, a failed resume by xseg_evicted_roll_back().
 * Until the release each page still has its memory and contents.  If a roll-back also fails, each
 * page keeps its state and memory, and the next attempt continues from this state.
 *
 * An aliased page (alias.h) is evicted at each of its granules.  Its memory is released once, when
 * all granules are EVICTED, and created once, which makes the other granules FRESH as well.  Sums
 * and runs visit such a page at one granule, which xseg_evicted_select_aliases() selects.
 *
 * Evicted pages of a pool that is never resumed are removed by xseg_segment_unmap().
 *
 * Locking: the device memory lock.
 */
#ifndef XSEG_VMM_EVICTED_H
#define XSEG_VMM_EVICTED_H

#include "vmm/segment.h"

/* Select the granules at which aliased pages are visited.  Call this function for all segments of a
 * pool before their pages are evicted. */
void xseg_evicted_select_aliases(struct xseg_segment *segment);

/*
 * Unmap every mapped page; the pages keep their memory.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages are evicted
 * Cost:    one unmap per run of pages (one per page if the driver does not batch)
 */
xseg_status xseg_evicted_unmap(struct xseg_segment *segment);

/*
 * Release the memory of evicted pages; memory that the driver does not release becomes unreleased.
 *
 * Cost: one release per page
 */
void xseg_evicted_release(struct xseg_segment *segment);

/*
 * Acquire memory for evicted pages without memory: idle pages of the same pool, or new ones.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_DRIVER, and some pages may have memory
 * Cost:    one create per page that is not in the page cache
 */
xseg_status xseg_evicted_create(struct xseg_segment *segment);

/*
 * Map evicted pages that have memory, and set their access rights.
 *
 * Returns: XSEG_OK; or the driver's error, and some pages may be mapped
 * Cost:    one map per page, one set-access per run
 */
xseg_status xseg_evicted_map(struct xseg_segment *segment);

/* Change the pages that xseg_evicted_map() mapped to state MAPPED. */
void xseg_evicted_finish(struct xseg_segment *segment);

/*
 * Roll back xseg_evicted_create() and xseg_evicted_map(): unmap the pages, and release new memory.
 *
 * Returns: the first error; pages that the driver did not unmap keep their memory and state
 */
xseg_status xseg_evicted_roll_back(struct xseg_segment *segment);

/* Bytes of all evicted pages, and of those without memory. */
uint64_t xseg_evicted_bytes(const struct xseg_segment *segment);
uint64_t xseg_evicted_unbacked_bytes(const struct xseg_segment *segment);

/* Find the next run of visited pages from *first on that are all evicted or all mapped.  Returns
 * the number of its granules, 0 if there is none. */
uint32_t xseg_evicted_next_run(const struct xseg_segment *segment, uint32_t *first, bool *evicted);

#endif
