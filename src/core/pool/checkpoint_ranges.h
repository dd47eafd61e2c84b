/* SPDX-License-Identifier: MIT */
/*
 * What is committed of the ranges of a pool: the part of a checkpoint that is about ranges.
 *
 *     granule        0     1     2     3     4     5     6
 *     checkpoint   [live][live][    ][    ][live][    ][    ]
 *     now          [live][leav][live][leav][live][    ][live]
 *                     |     |     |     |     |           |
 *                  stays  taken leaves stays stays     leaves
 *                         back         as it is
 *
 * A range is told from others by its handle, which no other range has, before or after its release.  Ranges that were
 * reserved since are not in the checkpoint, and so no granule of theirs is.
 *
 * A restore takes back what leaves, and gets no memory: a granule that has lost its memory cannot be restored.  What is
 * committed since then is decommitted in the order of the default stream, as blocks are freed that are live since then.
 *
 * Locking: the device memory lock is held by the caller.
 */
#ifndef XSEG_CORE_CHECKPOINT_RANGES_H
#define XSEG_CORE_CHECKPOINT_RANGES_H

#include "src/core/device/device.h"

struct xseg_checkpoint_ranges;

/*
 * List the committed granules of a pool's ranges.
 *
 * out:     to be freed with xseg_checkpoint_ranges_free()
 * Returns: XSEG_OK; XSEG_ERR_BUSY (another call works on a granule); XSEG_ERR_HOST_MEMORY
 */
xseg_status xseg_checkpoint_ranges_take(const struct xseg_pool *pool,
                                        struct xseg_checkpoint_ranges **out);
void xseg_checkpoint_ranges_free(struct xseg_checkpoint_ranges *saved);

/*
 * Begin a restore: everything that can fail.  Until xseg_checkpoint_ranges_finish(), the device memory lock must not be let go.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY (memory is gone, or its stream has not passed); XSEG_ERR_HOST_MEMORY,
 *          XSEG_ERR_DRIVER; and nothing has changed
 * Cost:    an event query for each stream that memory leaves with, where one has not passed as far as is known; an event
 *          record for each run of granules that is to be decommitted
 */
xseg_status xseg_checkpoint_ranges_begin(const struct xseg_checkpoint_ranges *saved,
                                         const struct xseg_pool *pool);

/* Fail with XSEG_ERR_BUSY because memory of a checkpoint has been released. */
xseg_status xseg_checkpoint_fail_released(const struct xseg_pool *pool, uint64_t address);

/* Finish a restore.  If anything was decommitted, memory that may go then goes, as after a decommit; the device memory lock is let go
 * meanwhile, where observers are told (notify.h). */
void xseg_checkpoint_ranges_finish(const struct xseg_checkpoint_ranges *saved,
                                   const struct xseg_pool *pool);

#endif
