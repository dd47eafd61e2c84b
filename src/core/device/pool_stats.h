/* SPDX-License-Identifier: MIT */
/*
 * Statistics of a private pool.
 */
#ifndef XSEG_CORE_POOL_STATS_H
#define XSEG_CORE_POOL_STATS_H

#include "src/core/device/pool.h"
#include "xseg/stats.h"

/* Read the statistics of a pool.  No lock above ARENA is held. */
void xseg_pool_stats_read(struct xseg_pool *pool, struct xseg_statistics *out);

/* Reset what xseg_stats_reset() specifies.  No lock is held. */
void xseg_pool_stats_reset(struct xseg_pool *pool, unsigned what);

#endif
