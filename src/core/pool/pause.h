/* SPDX-License-Identifier: MIT */
/*
 * Pause: the physical memory of a pool is given up and comes back; its addresses and blocks stay.
 *
 *     RUNS --> MOVES: nothing is handed out any more      --> PAUSED --> MOVES --> RUNS
 *              streams asked, contents saved, all pages       new pages mapped,
 *              unmapped, then all of their memory given up    contents loaded
 *
 * Each page keeps its memory until all pages are unmapped, so that a failure before that is undone by
 * mapping the pages again.  The device memory lock is released while contents are copied, and while a resume asks other processes for
 * memory.  Other threads grow and trim meanwhile, but no thread touches the pages of a pool in state MOVES.
 *
 * In a paused pool the host side of blocks works as usual: blocks are freed, and merge.  Evicted bytes
 * are not counted as reserved (ARENA-4).
 *
 * Locking: the device memory lock guards the state of a pool; ARENA guards `is_paused` and `evicted` of each arena.
 */
#ifndef XSEG_CORE_PAUSE_H
#define XSEG_CORE_PAUSE_H

#include "src/core/device/device.h"

/* As xseg_pool_pause() and xseg_pool_resume() of the public header.  No lock is held. */
xseg_status xseg_pause_begin(struct xseg_pool *pool, enum xseg_keep keep, const char *path);
xseg_status xseg_pause_end(struct xseg_pool *pool);

#endif
