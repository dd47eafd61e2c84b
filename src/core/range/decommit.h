/* SPDX-License-Identifier: MIT */
/*
 * Decommitting: memory of a range is given up in the order of a stream (pending_unmap.h); and holds, over which it stays.
 *
 * Locking: the device memory lock is taken, or held where a function says so.
 */
#ifndef XSEG_CORE_DECOMMIT_H
#define XSEG_CORE_DECOMMIT_H

#include "src/core/range/range.h"

/* As xseg_range_decommit(), xseg_range_hold() and xseg_range_unhold() of the public header.  No lock is held. */
xseg_status xseg_decommit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                          xseg_stream stream);
xseg_status xseg_decommit_hold(struct xseg_range *range, uint64_t offset, uint64_t bytes);
xseg_status xseg_decommit_unhold(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                                 xseg_stream stream);

/* Count live granules as leaving, which have got their batch by xseg_pending_unmap_begin().  The device memory lock is held. */
void xseg_decommit_settle(const struct xseg_range_run *run);

#endif
