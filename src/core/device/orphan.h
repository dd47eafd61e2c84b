/* SPDX-License-Identifier: MIT */
/*
 * Orphans: segments of pools that have ended, all of whose memory is cached.
 *
 * They belong to pools of the device's own, one for the driver's memory and one for that of users'
 * functions, in an arena for each stream and kind.  Nothing is served from there; trims, decay and steals
 * take memory as from any retired pool.  The segment says whose it was (`owner`).
 *
 * An orphan has no tables for addresses behind its last page, and ends with that page.
 *
 * Locking: GROWTH.
 */
#ifndef XSEG_CORE_ORPHAN_H
#define XSEG_CORE_ORPHAN_H

#include "src/core/device/pool.h"

/* Whether all memory of an arena is cached, and nobody works on it.  GROWTH is held. */
bool xseg_orphan_can_adopt(struct xseg_arena *arena);

/*
 * Adopt the segments of an arena for which that holds.
 *
 * Returns: false without host memory; what was adopted stays so
 */
bool xseg_orphan_adopt(struct xseg_arena *arena);

#endif
