/* SPDX-License-Identifier: MIT */
/*
 * A picture: all blocks of a device at one moment, and where the history ends at that moment.
 *
 * The device memory lock is held meanwhile, so no memory comes, goes or moves.  All arenas are copied under their locks, held together,
 * and their rings are cut there: what the rings have had up to the cut leads to exactly the blocks that were copied.
 *
 * Terms:
 *   run   memory without a hole that lies in one segment: what PyTorch's snapshots call a segment
 *   away  the run's memory has gone, since its pool is paused; its blocks keep their addresses
 *
 * Locking: the device memory lock is held while a picture is taken, ARENA of all arenas is taken inside.  A picture belongs to one thread.
 */
#ifndef XSEG_CORE_BLOCK_SNAPSHOT_H
#define XSEG_CORE_BLOCK_SNAPSHOT_H

#include "src/base/intern.h"
#include "src/core/report/device_history.h"
#include "src/core/report/explain.h"

struct xseg_block_snapshot_block {
    uint64_t base, bytes;
    uint64_t requested;            /* requested size, see block.h */
    uint32_t stack, frames, label; /* of its origin; 0: not known */
    uint8_t state;                 /* XSEG_BLOCK_ALLOCATED, _PENDING or _CACHED */
};

struct xseg_block_snapshot_run {
    uint64_t base, bytes;
    const struct xseg_block_snapshot_block *blocks; /* [count], by address; they tile the run */
    uint32_t count;
    uint32_t pool; /* its number, as in history; 0: the default pool */
    uint64_t stream;
    bool is_small, is_expandable, is_away;
};

struct xseg_block_snapshot {
    struct xseg_bump blocks;               /* struct xseg_block_snapshot_block */
    struct xseg_bump runs;                 /* struct xseg_block_snapshot_run */
    struct xseg_block_snapshot_run **list; /* [count], by address */
    size_t count;
    uint64_t live_blocks;
    struct xseg_history_ends ends;
    /* The segment that the walk visits, and the run to which its next block may belong; or NULL. */
    const struct xseg_extent *extent;
    struct xseg_block_snapshot_run *run;
};

/*
 * Take a picture of a device.  The device memory lock is held.
 *
 * picture:    filled in, also on failure; the caller ends it with xseg_block_snapshot_fini()
 * explaining: begun; the same walk counts its parts
 *
 * Returns: XSEG_OK, XSEG_ERR_HOST_MEMORY
 * Cost:    no driver call; one walk over all blocks, for which hits wait
 */
xseg_status xseg_block_snapshot_take(struct xseg_device *device,
                                     struct xseg_block_snapshot *snapshot,
                                     struct xseg_explaining *explaining);

/* What it takes of host memory. */
uint64_t xseg_block_snapshot_host_bytes(const struct xseg_block_snapshot *snapshot);

void xseg_block_snapshot_fini(struct xseg_block_snapshot *snapshot);

#endif
