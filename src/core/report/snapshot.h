/* SPDX-License-Identifier: MIT */
/*
 * Memory snapshot: the blocks of all devices and the events that led to them, as a file that
 * PyTorch's memory viewer opens.
 *
 * A snapshot has two phases.  The first phase copies the open devices one after the other.  Blocks,
 * reasons and the positions of the event rings are copied under the locks (heap_copy.h), events
 * without them (device_history.h).  The second phase writes the file from the copies with no lock
 * held, so a slow disk delays no request.
 *
 * Three limits bound a snapshot.  If a limit is reached, the oldest events are omitted, and the
 * file contains their number.
 *
 *   host memory  limits the copies of events.
 *   file size    limits a regular file, approximately.
 *   deadline     limits the time to write a regular file.
 *
 * The traces are written near the end of the file.  While they are written, the rate so far
 * predicts how many entries fit into the remaining time and size.  If fewer fit than the attempt
 * has, the file is truncated to the start of the traces, and another attempt writes fewer entries.
 * The segments are always complete.
 *
 * A snapshot of an out-of-memory failure is written before the failed call returns, to the folder
 * of the key oom_snapshot or, without it, of the variable XSEG_OOM_SNAPSHOT.  The keys
 * oom_snapshot_ms and oom_snapshot_mb bound it, and an allocator writes at most XSEG_OOM_SNAPSHOTS
 * files.  It makes no driver call and does not change the result of the failed call.  While one
 * thread writes such a snapshot, failures of other threads write none and do not wait.
 *
 * Locking: the caller holds no lock; the device memory lock, ARENA and HISTORY are acquired inside.
 */
#ifndef XSEG_CORE_SNAPSHOT_H
#define XSEG_CORE_SNAPSHOT_H

#include <stddef.h>

#include "src/core/block/arena.h"
#include "src/core/device/device.h"

struct xseg_snapshot_params {
    bool include_events;
    bool may_query_driver;
    uint64_t max_host_bytes; /* for events of all devices; 0: the default, see snapshot.c */
    uint64_t max_file_bytes; /* UINT64_MAX: unlimited */
    uint64_t deadline_ns;    /* CLOCK_MONOTONIC; UINT64_MAX: none */
};

/* The deadline in a number of milliseconds from now; 0: no deadline. */
uint64_t xseg_snapshot_deadline(uint64_t ms);

/*
 * Write a snapshot to a path.  A regular file is written next to its path and renamed when it is
 * complete; a device or a pipe is written directly.
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY, XSEG_ERR_FILE; after an error there is no new file
 */
xseg_status xseg_snapshot_write_file(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_params *params, const char *path);

/* --- Snapshots of out-of-memory failures. --- */

#define XSEG_OOM_SNAPSHOTS 3u

struct xseg_oom_snapshots {
    atomic_bool is_writing;
    atomic_uint written; /* number of attempts so far */
};

void xseg_oom_snapshots_init(struct xseg_oom_snapshots *snapshots);

/*
 * Report an out-of-memory failure: write a snapshot, then notify observers.
 *
 * rejected: the request was rejected immediately (throw_on_cudamalloc_oom): no snapshot, and
 *           `on_rejected` is called
 */
void xseg_oom_report(struct xseg_arena *arena, const struct xseg_alloc_params *params,
                     xseg_status status, bool rejected);

/*
 * Write the path `FOLDER/oom-rankR-pidP-N.pickle`.  The rank is that of RANK, SLURM_PROCID or
 * LOCAL_RANK; it is omitted if none of them is a number.
 *
 * Returns: the length of the path, which was truncated if it is not below `bytes`
 */
size_t xseg_oom_snapshots_path(char *path, size_t bytes, const char *folder, unsigned number);

#endif
