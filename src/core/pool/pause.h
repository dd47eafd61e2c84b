/* SPDX-License-Identifier: MIT */
/*
 * Pause and resume: release the physical memory of a pool, and map new memory at the same
 * addresses.  Virtual addresses, blocks and ranges of the pool stay.
 *
 *     RUNNING --> TRANSITION --------------------------> PAUSED --> TRANSITION ------> RUNNING
 *                 close the arenas: no allocation                   create new pages
 *                 check for blockers                                map them
 *                 save contents, notify observers                   load contents
 *                 unmap all pages, then release all                 open the arenas
 *
 * A page keeps its physical memory until all pages of the pool are unmapped (vmm/evicted.h).  A
 * failure before that is rolled back by mapping the pages again, so a pause that fails changes
 * nothing.  A resume that fails releases the new pages, and the pool stays paused with its saved
 * contents.
 *
 * Blockers are reasons why the physical memory cannot be released:
 *   - work is queued on a stream of the pool, or on a stream that uses one of its allocated blocks;
 *   - freed blocks wait for other streams, or granules of ranges are pending unmap;
 *   - the default pool uses a block of the pool (use_on_oom);
 *   - pages are pinned or exported;
 *   - another thread has claimed a block;
 *   - the pool has classic segments.
 * A pause checks for blockers a second time after it has released the device memory lock.
 *
 * The host side of blocks works as usual in a paused pool: blocks are freed and coalesced.  Evicted
 * bytes do not count as reserved (ARENA-4).
 *
 * Locking: the device memory lock guards `state` and `contents` of a pool; the arena lock guards
 * `is_paused` and `evicted` of an arena.  The device memory lock is released while contents are
 * copied, while observers run, and while a resume requests memory from other processes.  During
 * that time other threads grow and trim other pools; no thread maps or unmaps pages of a pool in
 * state TRANSITION.
 */
#ifndef XSEG_CORE_PAUSE_H
#define XSEG_CORE_PAUSE_H

#include "src/core/device/device.h"

/* Implementations of xseg_pool_pause() and xseg_pool_resume().  No lock is held. */
xseg_status xseg_pause_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path);
xseg_status xseg_resume_pool(struct xseg_pool *pool);

/* Fail with XSEG_ERR_BUSY because the default pool uses a block of a pool. */
xseg_status xseg_pause_fail_fallback(const struct xseg_pool *pool, uint64_t base, uint64_t bytes);

#endif
