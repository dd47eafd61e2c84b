/* SPDX-License-Identifier: MIT */
/*
 * Counters: memory and blocks of a device or a pool, without a walk over blocks.
 *
 * Every arena counts its blocks and memory (counts.h), and every pool its reserved memory.  A read
 * sums over the arenas of the scope, O(arenas), without an arena lock.  While other threads
 * allocate and free, the values of one read may belong to slightly different moments.
 *
 * Memory counts for the pool to which it belongs.  A block that serves the default pool as a
 * fallback (use_on_oom) is included in struct xseg_counters of its pool.  It is not included in the
 * statistics of the pool, because the holder of the pool did not allocate it.
 *
 * Locking: a visit of pools locks TABLE, statistics of a device lock STATS, and a reset locks the
 * device memory lock and ARENA.
 */
#ifndef XSEG_CORE_COUNTERS_H
#define XSEG_CORE_COUNTERS_H

#include "src/core/device/device.h"
#include "xseg/stats.h"

/* Bytes.  A pool that is not paused has reserved = allocated + pending + cached.  Blocks of a
 * paused pool are allocated without being reserved. */
struct xseg_counters {
    uint64_t allocated, pending, cached, reserved;
};

struct xseg_counters xseg_counters_of_pool(struct xseg_pool *pool);
struct xseg_counters xseg_counters_of_device(struct xseg_device *device);

/* Read the statistics of a device or a pool.  Members that modules above count are 0. */
void xseg_counters_read_device(struct xseg_device *device, struct xseg_statistics *out);
void xseg_counters_read_pool(struct xseg_pool *pool, struct xseg_statistics *out);

/* Reset statistics as xseg_stats_reset() specifies.  No lock is held. */
void xseg_counters_reset_device(struct xseg_device *device, unsigned what);
void xseg_counters_reset_pool(struct xseg_pool *pool, unsigned what);

#endif
