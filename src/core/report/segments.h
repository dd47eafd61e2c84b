/* SPDX-License-Identifier: MIT */
/*
 * The segments of a snapshot: the runs of a picture with their blocks, as PyTorch writes them.
 *
 * Locking: none; it belongs to one thread.  The user's hook is called, with no lock held.
 */
#ifndef XSEG_CORE_SNAPSHOT_SEGMENTS_H
#define XSEG_CORE_SNAPSHOT_SEGMENTS_H

#include "src/core/report/heap_copy.h"
#include "src/core/report/naming.h"
#include "src/core/report/stacks.h"

/* Write the runs of a device, as items of a list: those that are away, or those that are there. */
void xseg_snapshot_segments_write(struct xseg_pickle_writer *pickle,
                                  struct xseg_snapshot_stacks *stacks,
                                  struct xseg_snapshot_naming *naming,
                                  const struct xseg_heap_copy *snapshot, int device, bool away);

#endif
