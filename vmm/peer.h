/* SPDX-License-Identifier: MIT */
/*
 * Peers: the rights of another device on memory that is mapped already.  What is mapped later gets them with the
 * rights of its own device, in one call (xseg_driver_set_access()).
 *
 * Locking: the device memory lock of the device that has the memory.
 */
#ifndef XSEG_VMM_PEER_H
#define XSEG_VMM_PEER_H

#include "vmm/imported.h"
#include "vmm/segment.h"

/* Whether a device is among the peers of a context. */
bool xseg_context_has_peer(const struct xseg_context *owner, const struct xseg_context *peer);

/* Add a peer, so that what is mapped from here on is for it, too.  There must be room. */
void xseg_context_add_peer(struct xseg_context *owner, const struct xseg_context *peer);

/* Remove a peer, which must be known.  What is mapped keeps the right. */
void xseg_context_remove_peer(struct xseg_context *owner, const struct xseg_context *peer);

/*
 * Give a peer the right to read and write all mapped pages of an expandable segment, or take it away.
 *
 * is_allowed: false also takes it away where only some of the pages have it
 * Returns: XSEG_OK; or the driver's error: on giving, the first one, and some pages may have the right; on taking,
 *          the last one, and the other pages have lost it
 * Cost:    one set-access a run of mapped pages (one a page where the driver wants that)
 */
xseg_status xseg_segment_set_peer_access(struct xseg_segment *segment,
                                         const struct xseg_context *peer, bool is_allowed);

/* Give a peer the right to read and write foreign memory, or take it away.  Returns, cost: as xseg_segment_set_peer_access() */
xseg_status xseg_imported_set_peer_access(struct xseg_imported *foreign,
                                          const struct xseg_context *peer, bool is_allowed);

#endif
