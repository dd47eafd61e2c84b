/* SPDX-License-Identifier: MIT */
/*
 * The file of a snapshot: it is written beside its place, and takes its place when it is complete.  A device or a pipe is
 * written into.
 *
 * Locking: as snapshot.h.
 */
#ifndef XSEG_CORE_SNAPSHOT_FILE_H
#define XSEG_CORE_SNAPSHOT_FILE_H

#include "src/core/snapshot/snapshot.h"

/*
 * Write a snapshot to a path.
 *
 * Returns: as xseg_snapshot_write(); after an error there is no new file
 */
xseg_status xseg_snapshot_file_write(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_plan *plan, const char *path);

#endif
