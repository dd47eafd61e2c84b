/* SPDX-License-Identifier: MIT */
/*
 * Statistics of a private pool, as long as it is held or has memory.
 *
 * A pool that has ended has left its cached memory to the orphans, which name it: then what is reserved is all
 * that is known.  A pool that tells of its end (`gone`) does not end before its memory is back.
 */
#ifndef XSEG_CORE_POOL_STATS_H
#define XSEG_CORE_POOL_STATS_H

#include "src/core/device/pool.h"
#include "xseg/stats.h"

/* Read the statistics of a pool; false if it has ended and has no memory.  No lock above ARENA is held. */
bool xseg_pool_stats_read(struct xseg_pool *pool, struct xseg_statistics *out);

/* Reset what xseg_stats_reset() says; false as above.  A pool that has ended has nothing to reset.  No lock is
 * held. */
bool xseg_pool_stats_reset(struct xseg_pool *pool, unsigned what);

/* The statistics of a body that no other pool gets meanwhile. */
void xseg_pool_stats_read_body(struct xseg_pool_body *body, struct xseg_statistics *out);

#endif
