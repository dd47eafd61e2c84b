/* SPDX-License-Identifier: MIT */
/*
 * Places: where one page of a range is mapped, when that is more than one granule.
 *
 *     granules of ranges of a device    A <--> C <--> F <--> A ...   a ring, each place next to a younger one
 *                                     owner  guest  guest
 *
 * All places are in ranges of one pool.  The page is counted where its owner is (vmm/guest.h).  If a place of the page is
 * live, its owner is.  So a live owner that is decommitted passes the page on to the next live place, and an owner whose
 * mapping is removed passes it on to the next place: the pool is charged until the last mapping is removed.
 * A place with no other has no links, and is its owner.
 *
 * A page whose pool is paused is evicted with all its places.
 *
 * Invariants:
 *   PLACE-1  links of neighbours agree, all mapped places of a ring map one page, and one place is its owner.
 *   PLACE-2  the owner is live if any place is.
 *
 * Locking: GROWTH; ARENA is taken inside.
 */
#ifndef XSEG_CORE_PLACES_H
#define XSEG_CORE_PLACES_H

#include "src/core/device/device.h"

/* Have the table of places of an extent.  False without host memory. */
bool xseg_places_prepare(struct xseg_extent *extent);

/*
 * Add a place that maps the page of another one as a guest; it is the youngest.  Both have tables.
 *
 * Cost: a step for each place that is younger than `from`, unless `from` is the owner
 */
void xseg_places_add(struct xseg_extent *extent, uint32_t granule, struct xseg_extent *from,
                     uint32_t at);

/* Bytes of the pages of a run that are counted there. */
uint64_t xseg_places_own(const struct xseg_extent *extent, uint32_t first, uint32_t count);

/* Live places of a run are about to leave: pages go to live places elsewhere. */
void xseg_places_leave(struct xseg_extent *extent, uint32_t first, uint32_t count);

/*
 * Let the evicted guests of an extent have the pages of their owners.
 *
 * Returns: XSEG_OK; the driver's error
 */
xseg_status xseg_places_rejoin(struct xseg_extent *extent);

/* The mappings of a run are about to go, from the first on: pages go to places elsewhere, else to the last one. */
void xseg_places_pass_on(struct xseg_extent *extent, uint32_t first, uint32_t count);

/* The mappings of a run have gone. */
void xseg_places_forget(struct xseg_extent *extent, uint32_t first, uint32_t count);

bool xseg_places_audit(const struct xseg_extent *extent, struct xseg_finding *finding);

#endif
