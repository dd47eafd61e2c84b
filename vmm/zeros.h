/* SPDX-License-Identifier: MIT */
/*
 * Zeros: one page of zeros that is mapped at every hole of a segment, so that a stray read there is no fault.
 *
 * A hole is *covered* where the page is mapped, else *bare*.  It has to be bare before memory is mapped there, and is bare
 * for a moment after memory has gone: the driver has no call that puts one mapping in the place of another.  A hole also
 * stays bare where the driver refuses the page, until the next one is covered.
 *
 * The page is no page of the segment's: it counts neither as mapped nor as stuck.
 *
 * Invariant, which xseg_segment_audit() checks:
 *   ZEROS-1  a granule that is covered is a hole.
 *
 * Locking: GROWTH of the device.
 */
#ifndef XSEG_VMM_ZEROS_H
#define XSEG_VMM_ZEROS_H

#include "vmm/segment.h"

/*
 * Make the page, and cover a segment that has no memory.
 *
 * stream: on which the page is filled, and which is waited for
 * reads:  the device is to read the page, and not to write; xseg_context_try_read_only() has succeeded
 * Returns: XSEG_OK; XSEG_ERR_NO_MEMORY, XSEG_ERR_HOST_MEMORY, XSEG_ERR_DRIVER, and there are no zeros
 * Cost:    one create, fill and wait; one map a granule; two set-accesses (one a granule where the driver wants that)
 */
xseg_status xseg_zeros_open(struct xseg_segment *segment, xseg_stream stream, bool reads);

/*
 * Uncover the holes [first, first + count).
 *
 * Returns: XSEG_OK; or the driver's error, and some may be bare
 * Cost:    one unmap a run (one a granule where the driver wants that)
 */
xseg_status xseg_zeros_uncover(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Cover the holes among [first, first + count), and those that were refused before.  What the driver refuses stays bare.
 * Cost: one map a hole, one set-access a run (one a hole where the driver wants that) */
void xseg_zeros_cover(struct xseg_segment *segment, uint32_t first, uint32_t count);

/* Uncover all holes, and give the page up.  What the driver does not take back is a leftover. */
void xseg_zeros_close(struct xseg_segment *segment);

/* Whether a granule is covered. */
bool xseg_zeros_is_covered(const struct xseg_segment *segment, uint32_t granule);

/* Whether the device can only read the page. */
bool xseg_zeros_are_read_only(const struct xseg_segment *segment);

/* Bytes of the page; 0 of a segment without zeros. */
uint64_t xseg_zeros_bytes(const struct xseg_segment *segment);

/* Free the host memory, as the driver's side is lost. */
void xseg_zeros_abandon(struct xseg_segment *segment);

#endif
