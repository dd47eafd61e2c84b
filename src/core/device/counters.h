/* SPDX-License-Identifier: MIT */
/*
 * Counters: what a device or a pool holds, without a walk over blocks.
 *
 * Every arena counts its blocks and memory (counts.h), and every pool its reserved memory.  Reading sums over the arenas
 * of the scope, O(arenas), and takes no arena lock.  While other threads allocate and free, values of one scope may be
 * of slightly different moments.
 *
 * Memory counts for the pool to which it belongs.  A block that a pool lends (use_on_oom) is in the sums of struct
 * xseg_counters of that pool; the statistics of the pool leave it out, because the pool's holder did not allocate it.
 *
 * Locking: TABLE for each pool that is visited; statistics of a device take STATS; a reset takes the device memory lock and ARENA.
 */
#ifndef XSEG_CORE_COUNTERS_H
#define XSEG_CORE_COUNTERS_H

#include "src/core/device/device.h"
#include "xseg/stats.h"

/* Bytes.  A pool that is not paused has reserved = allocated + pending + cached.  Blocks of a paused pool are allocated
 * without being reserved. */
struct xseg_counters {
    uint64_t allocated, pending, cached, reserved;
};

struct xseg_counters xseg_counters_of_pool(struct xseg_pool *pool);
struct xseg_counters xseg_counters_of_device(struct xseg_device *device);

/* Read the statistics of a device, or of a pool; members that upper modules count are 0. */
void xseg_counters_read_device(struct xseg_device *device, struct xseg_statistics *out);
void xseg_counters_read_pool(struct xseg_pool *pool, struct xseg_statistics *out);

/* Reset statistics as xseg_stats_reset() specifies.  No lock is held. */
void xseg_counters_reset_device(struct xseg_device *device, unsigned what);
void xseg_counters_reset_pool(struct xseg_pool *pool, unsigned what);

#endif
