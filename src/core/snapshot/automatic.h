/* SPDX-License-Identifier: MIT */
/*
 * Snapshots that the library writes without a call of the user's: of a refused request (oom.h), at a signal
 * (signalled.h).
 *
 * They go into one folder, that of the key oom_snapshot, else of the variable XSEG_OOM_SNAPSHOT, within the bounds of
 * oom_snapshot_ms and oom_snapshot_mb.  The driver is not asked.
 *
 * Locking: none may be held.
 */
#ifndef XSEG_CORE_SNAPSHOT_AUTOMATIC_H
#define XSEG_CORE_SNAPSHOT_AUTOMATIC_H

#include "src/core/device/allocator.h"

/* Room for the path of a file in the folder. */
#define XSEG_AUTOMATIC_PATH_BYTES (XSEG_CONFIG_PATH_BYTES + 64)

/* The folder, or NULL. */
const char *xseg_automatic_folder(const struct xseg_config *config);

/* Why a snapshot is written, for the log: "REASON: where the memory is says PATH", "no snapshot WHAT_FOR: WHY". */
struct xseg_automatic_occasion {
    const char *reason, *what_for;
};

/* Write a snapshot to a path, and log the path, or why there is no snapshot.  errno and the calling thread's error text
 * stay. */
void xseg_automatic_write(struct xseg_allocator *allocator, const char *path,
                          const struct xseg_automatic_occasion *occasion);

#endif
