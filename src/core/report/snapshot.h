/* SPDX-License-Identifier: MIT */
/*
 * A snapshot: the state of all devices with what led to it, as a file in the format of PyTorch's memory snapshots.
 *
 * Each device is looked at in one piece (heap_copy.h); the devices one after the other.  The file is written with no
 * lock held.  The trace comes last in it: when time or room is short, its beginning is left out, and all else is there.
 *
 * Locking: none may be held; the device memory lock, ARENA and HISTORY are taken inside.
 */
#ifndef XSEG_CORE_SNAPSHOT_SNAPSHOT_H
#define XSEG_CORE_SNAPSHOT_SNAPSHOT_H

#include "src/core/device/allocator.h"

struct xseg_snapshot_plan {
    bool has_history; /* with the events */
    bool asks;        /* the driver may be asked */
    uint64_t
        host_bytes; /* for copies of events, over all devices; 0: what the state leaves of 64 MiB */
    uint64_t max_bytes; /* of the file, about, if it is a regular one; UINT64_MAX: any */
    uint64_t
        deadline_ns; /* of CLOCK_MONOTONIC: a regular file is to be complete by then; UINT64_MAX: whenever */
};

/* The deadline that is so many milliseconds from now; 0: none. */
uint64_t xseg_snapshot_deadline(uint64_t ms);

/*
 * Write a snapshot to a file from its place on.
 *
 * Returns: XSEG_OK; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE without a sentence: *error is the errno
 */
xseg_status xseg_snapshot_write(struct xseg_allocator *allocator,
                                const struct xseg_snapshot_plan *plan, int file, int *error);

/*
 * Write a snapshot to a path.  A regular file is written next to its path and renamed when it is complete; a device or a pipe is
 * written directly.
 *
 * Returns: as xseg_snapshot_write(); after an error there is no new file
 */
xseg_status xseg_snapshot_file_write(struct xseg_allocator *allocator,
                                     const struct xseg_snapshot_plan *plan, const char *path);

#endif
