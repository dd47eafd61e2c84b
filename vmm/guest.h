/* SPDX-License-Identifier: MIT */
/*
 * Guests: pages that are mapped at one more place.
 *
 * A physical page has one *owner*, the place in a segment that gives the page back when its mapping goes.  Any other
 * place where it is mapped is a guest: when the mapping of a guest goes, the page stays.  The floor above knows which
 * places belong together, and moves the ownership before the owner's mapping goes.
 *
 * A guest is one granule long.  What it maps counts as `mapped`, and in `guests`; it counts as stuck memory nowhere.
 *
 * Locking: GROWTH of the device.
 */
#ifndef XSEG_VMM_GUEST_H
#define XSEG_VMM_GUEST_H

#include "vmm/segment.h"

/*
 * Map the pages of the granules [at, at + count) of `from`, each one granule long and with memory, at the holes
 * [first, first + count) of a segment, which may be the same one.  Both have granules of one size.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY, or the driver's error, and nothing is mapped; a page that the driver does not
 *          unmap again is stuck
 * Cost:    one map a page; one set-access (one a page where the driver wants that)
 */
xseg_status xseg_guest_map(struct xseg_segment *segment, uint32_t first, uint32_t count,
                           struct xseg_segment *from, uint32_t at);

/* Let another place own a page that both map: `guest` becomes the owner, and `owner` a guest. */
void xseg_guest_swap(struct xseg_segment *owner, uint32_t page, struct xseg_segment *guest,
                     uint32_t place);

#endif
