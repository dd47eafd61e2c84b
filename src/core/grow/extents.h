/* SPDX-License-Identifier: MIT */
/*
 * Extents: the records of new segments, and announcing these, so that their addresses lead to them.
 *
 * Locking: the device memory lock is held by the caller, no other lock.
 */
#ifndef XSEG_CORE_EXTENTS_H
#define XSEG_CORE_EXTENTS_H

#include "src/core/device/device.h"

/* Take a record for a segment of an arena; NULL without host memory, with an error text. */
struct xseg_extent *xseg_extents_take(struct xseg_arena *arena);

/* Put a record back whose segment has not come about. */
void xseg_extents_put(struct xseg_extent *extent);

/*
 * Announce an extent as one busy block: give it tables and the next positions of its device (extent.h), and add it to the
 * page map and to its arena's list.  On failure the segment ends and the record is spare again.
 *
 * cover: its memory is mapped
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_extents_announce(struct xseg_extent *extent, bool cover);

/*
 * Give an extent the next positions of its device again, before memory is mapped in an extent that is one hole.  PyTorch
 * destroys a segment that has lost all of its memory, and registers a new one.  The device memory lock and ARENA are held.
 */
void xseg_extents_register_again(struct xseg_extent *extent);

/* Announce a new expandable segment, which is one hole, and count its addresses.  status: of reserving them */
xseg_status xseg_extents_announce_reserved(struct xseg_extent *extent, xseg_status status);

/*
 * Reserve and announce an elastic extent (elastic.h), whose tables are there already.
 *
 * Returns: XSEG_OK; XSEG_ERR_NO_ADDRESSES, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER
 * Cost:    one reserve
 */
xseg_status xseg_extents_reserve_elastic(struct xseg_arena *arena,
                                         const struct xseg_segment_reservation *wanted,
                                         struct xseg_elastic *elastic, struct xseg_extent **out);

#endif
