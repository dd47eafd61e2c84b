/* SPDX-License-Identifier: MIT */
/*
 * Committing: memory beneath granules of a range.
 *
 *     1. Claim the granules: no other call works on them.
 *     2. Of empty ones, get pages by the steps below, and map them.
 *     3. Of leaving ones, let the stream wait for the stream that they leave with.
 *     4. Settle: all of them are live; or, after a failure, as they were.
 *
 * The steps of getting pages, of which each is followed by another attempt:
 *
 *     grow          prepared pages, idle ones, new ones
 *     finished      unmap what leaves and has passed
 *     ask           observers, without the device memory lock
 *     steal         idle pages of other ranges and pools; idle memory of other kinds goes back to the driver for new ones
 *     waiting       steal again, after waiting for the streams of that memory
 *     pending       what leaves, and freed blocks that other streams use, after waiting for them
 *     flush         all idle memory goes back to the driver
 *
 * The last four not in a capture, but `steal`, which makes new pages only.  Where the range or its pool is at its own
 * limit, `pending` comes first, and the others only if that has made room there.
 */
#ifndef XSEG_CORE_COMMIT_H
#define XSEG_CORE_COMMIT_H

#include "src/core/range/range.h"

/* What the report of an out-of-memory failure needs. */
struct xseg_commit_oom {
    struct xseg_arena *arena; /* NULL: there was no such failure */
    struct xseg_alloc_params params;
    struct xseg_pool
        *retained; /* or NULL; another thread may release the range before the report */
};

/* As xseg_range_commit() of the public header.  No lock is held.  oom: filled in if memory is missing; the caller reports the
 * failure, then releases the pool. */
xseg_status xseg_commit(struct xseg_range *range, uint64_t offset, uint64_t bytes,
                        xseg_stream stream, struct xseg_commit_oom *oom);

/* Take granules back that leave, or were claimed while they did; none of them has other places.  The caller sets what
 * they are used for.  The device memory lock is held. */
void xseg_commit_retake(const struct xseg_range_run *part);

#endif
