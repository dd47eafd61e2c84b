/* SPDX-License-Identifier: MIT */
/*
 * Snapshots: all memory of the allocator and its history, in PyTorch's format.
 *
 *     if (xseg_snapshot(allocator, "snapshot.pickle", NULL) != XSEG_OK)
 *         return 1; // xseg_error_message() returns the reason of the system.
 *
 * The file is a pickle as torch.cuda.memory._dump_snapshot() writes it.  `python -m torch.cuda._memory_viz`, PyTorch's
 * memory visualizer and `xseg replay` read it.  Data without a place in PyTorch's format is under the key `xseg`
 * (docs/snapshots.md).
 *
 * The file contains the recorded events (history.h).  Unless the key history is `all`, it contains segments and blocks
 * only.
 */
#ifndef XSEG_SNAPSHOT_H
#define XSEG_SNAPSHOT_H

#include "xseg/history.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of xseg_snapshot().  Initialize with XSEG_SNAPSHOT_OPTIONS_INIT. */
struct xseg_snapshot_options {
    size_t struct_size;  /* sizeof(struct xseg_snapshot_options) */
    bool without_events; /* write segments and blocks only */
    uint64_t
        host_bytes;  /* host memory for copies of events, 64 bytes each; 0: see xseg_snapshot() */
    uint32_t max_ms; /* time limit in milliseconds; 0: none */
};
/* clang-format off */
#define XSEG_SNAPSHOT_OPTIONS_INIT {sizeof(struct xseg_snapshot_options), false, 0, 0}
/* clang-format on */

/**
 * Write a snapshot.
 *
 * Function names, files and lines of new stack frames are looked up first, in at most half of max_ms.  The source is
 * the symbol table and the debug information of the module, if libdw.so.1 is installed and the file has the same build
 * ID.  The blocks of a device are those of one moment, at which its events end; each device has its own moment.
 *
 * Events that exceed host_bytes or max_ms are omitted, the oldest first; the file contains their number.  By default
 * events get the rest of 64 MiB that blocks and pages leave, plus 64 bytes for each live block above 10^5.
 *
 * @param path     path of the file.  It is written under a temporary name in the same directory and renamed when it is
 *                 complete.  Devices, pipes and /dev/stdout are written directly, and max_ms omits no events.
 * @param options  NULL for the defaults.
 *
 * @return XSEG_ERR_FILE  the file could not be written; an earlier file is unchanged.
 * Cost: a stream query for each stream with idle memory, and cuMemGetInfo with device_free_min_mb.  O(blocks), during
 *       which hits and misses on the device wait.  Host memory: 40 bytes per block, 200 bytes per page, and host_bytes.
 *       Without max_ms the lookup of stack frames takes up to seconds, and host memory of the size of the debug
 *       information, which is also read from the system's directory of build IDs.
 */
XSEG_API xseg_status xseg_snapshot(struct xseg_allocator *allocator, const char *path,
                                   const struct xseg_snapshot_options *options);

#ifdef __cplusplus
}
#endif

#endif
