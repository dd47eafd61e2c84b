/* SPDX-License-Identifier: MIT */
/*
 * Pause: the physical memory of a pool goes, its addresses and blocks stay; and comes back.
 *
 *     RUNS --> MOVES: nothing is handed out any more      --> PAUSED --> MOVES --> RUNS
 *              streams asked, contents saved, all pages       new pages mapped,
 *              unmapped, then all of their memory given up    contents loaded
 *
 * A page keeps its memory until all of them are unmapped, so that every failure up to there is undone
 * by mapping them again.  GROWTH is let go of while contents are copied: others grow and trim
 * meanwhile, but the pages of the pool are left alone by everyone, since it MOVES.
 *
 * In a paused pool blocks are as ever for the host: they are freed, and merge.  Bytes that are evicted
 * are not reserved (ARENA-4).
 *
 * Locking: GROWTH guards the state of a pool; ARENA `is_paused` and `away` of each arena.
 */
#ifndef XSEG_CORE_PAUSE_H
#define XSEG_CORE_PAUSE_H

#include "src/core/device/device.h"

/* As xseg_pool_pause() and xseg_pool_resume() of the public header.  No lock is held. */
xseg_status xseg_pause_begin(struct xseg_pool *pool, enum xseg_keep keep, const char *path);
xseg_status xseg_pause_end(struct xseg_pool *pool);

#endif
