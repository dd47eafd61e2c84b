/* SPDX-License-Identifier: MIT */
/*
 * Snapshots: all memory of the allocator and what led to it, in a file that PyTorch's tools read.
 *
 * The format is that of torch.cuda.memory._dump_snapshot(): a pickle, which python -m torch.cuda._memory_viz, PyTorch's
 * page for snapshots and `xseg replay` read.  What PyTorch does not know is under one more key, `xseg`
 * (docs/snapshots.md).
 *
 * The events in it are those that history has (history.h); with the key history other than all there are segments and
 * blocks alone.
 */
#ifndef XSEG_SNAPSHOT_H
#define XSEG_SNAPSHOT_H

#include "xseg/history.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What to write.  Start from XSEG_SNAPSHOT_OPTIONS_INIT. */
struct xseg_snapshot_options {
    size_t struct_bytes; /* sizeof(struct xseg_snapshot_options) */
    bool without_events; /* segments and blocks alone */
    /* Host memory for copies of events, which are 64 bytes each; what does not fit is left out, the oldest first, and
     * counted in the file.  0: so much that all that the snapshot takes is 64 MiB, and 64 bytes for each live block above
     * 10^5; blocks and pages come first. */
    uint64_t host_bytes;
    /* The file is to be complete after so many milliseconds: the oldest events are left out for that, and counted.
     * 0: whenever. */
    uint32_t most_ms;
};
/* clang-format off */
#define XSEG_SNAPSHOT_OPTIONS_INIT {sizeof(struct xseg_snapshot_options), false, 0, 0}
/* clang-format on */

/**
 * Write a snapshot.
 *
 * Names of the frames of call stacks are looked up first, each once: xseg_history_find_sources().  With most_ms that takes
 * at most half of the time.  Other threads go on meanwhile.  The blocks of a device are those of one moment, and its
 * events end there; each device has a moment of its own.
 *
 * @param path     of the file, which is written beside it and takes its place when it is complete; a device, a
 *                 pipe and standard output (such as /dev/stdout) are written into, whole
 * @param options  NULL for all defaults
 *
 * Returns: XSEG_OK; XSEG_ERR_ARGUMENT; XSEG_ERR_HOST_MEMORY; XSEG_ERR_FILE: the sentence has the system's reason, and
 *          there is no new file; XSEG_ERR_FORKED
 * Cost:    a stream query for each stream with idle memory; cuMemGetInfo with device_free_min_mb.  A walk over all
 *          blocks, for which hits on the device wait; misses wait for the walk, not for the file.  40 bytes of
 *          host memory for each block, 200 for each page, and what host_bytes says
 */
XSEG_API XSEG_NODISCARD xseg_status xseg_snapshot(struct xseg_allocator *allocator,
                                                  const char *path,
                                                  const struct xseg_snapshot_options *options);

#ifdef __cplusplus
}
#endif

#endif
