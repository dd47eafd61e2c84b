/* SPDX-License-Identifier: MIT */
/*
 * Orphans: segments of pools that have ended, all of whose memory is cached.
 *
 * Orphans belong to two pools of the device's own, one for the driver's memory and one for memory of
 * users' functions, with an arena for each stream and kind.  These pools serve no request; trims, decay
 * and steals take memory from them as from any retired pool.  A segment names its former pool (`owner`).
 *
 * An orphan has no tables for addresses behind its last page, and ends with that page.
 *
 * Locking: GROWTH.
 */
#ifndef XSEG_CORE_ORPHAN_H
#define XSEG_CORE_ORPHAN_H

#include "src/core/device/pool.h"

/* Whether all memory of an arena is cached, and no thread works on it.  GROWTH is held. */
bool xseg_orphan_can_adopt(struct xseg_arena *arena);

/*
 * Adopt the segments of an arena that can be adopted.  GROWTH is held.
 *
 * Returns: false without host memory; segments adopted by then stay adopted
 */
bool xseg_orphan_adopt(struct xseg_arena *arena);

#endif
