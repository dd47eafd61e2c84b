/* SPDX-License-Identifier: MIT */
/*
 * The report of an out-of-memory failure, after the failure has returned from the fallback chain or from a commit: a memory
 * snapshot, and the notification of observers.
 *
 * The folder of the snapshot is that of the key oom_snapshot or, without it, of the variable XSEG_OOM_SNAPSHOT.  The keys
 * oom_snapshot_ms and oom_snapshot_mb limit the time and the size; an allocator writes at most XSEG_OOM_SNAPSHOTS files.  The
 * snapshot is written before the failed call returns and does not change its result.  It makes no driver call.  While a thread
 * writes a snapshot, failures of other threads write none and do not wait.
 *
 * Locking: the caller holds no lock.
 */
#ifndef XSEG_CORE_SNAPSHOT_OOM_H
#define XSEG_CORE_SNAPSHOT_OOM_H

#include <stddef.h>

#include "src/core/arena/arena.h"
#include "src/core/device/allocator.h"

#define XSEG_OOM_SNAPSHOTS 3u

struct xseg_oom_snapshots {
    atomic_bool is_writing;
    atomic_uint written; /* number of attempts so far */
};

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots);

/*
 * Write a snapshot, then notify observers.  The caller holds no lock.
 *
 * rejected: the request was rejected immediately (throw_on_cudamalloc_oom): no snapshot, and `on_rejected` is called
 */
void xseg_oom_report(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, bool rejected);

/*
 * Write the path `FOLDER/oom-rankR-pidP-N.pickle`.  The rank is that of RANK, SLURM_PROCID or LOCAL_RANK; it is omitted if none
 * of them is a number.
 *
 * Returns: the length of the path, which was truncated if it is not below `bytes`
 */
size_t xseg_oom_snapshots_path(char *path, size_t bytes, const char *folder, unsigned number);

#endif
