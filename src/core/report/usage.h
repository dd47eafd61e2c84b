/* SPDX-License-Identifier: MIT */
/*
 * Memory usage of a device and its pools, from the counters (counters.h), in the structures of
 * xseg/published.h.
 *
 * Metrics and `xseg top` read memory usage here, so they report the same of a device and of a
 * pool.  No driver call and no arena lock: while other threads allocate, values may be of slightly
 * different moments.
 *
 * A device has a bounded number of rows: the default pool; guarded blocks, if there were any; its
 * oldest private pools, the oldest first; one row for its other private pools; one for retired
 * pools that have cached memory only.
 *
 * Locking: TABLE for each pool, and REGISTRATIONS once memory was registered.
 */
#ifndef XSEG_CORE_USAGE_H
#define XSEG_CORE_USAGE_H

#include "src/base/published.h"
#include "src/core/device/allocator.h"

/* Rows of a device that are not the row of one private pool. */
#define XSEG_USAGE_COMMON 4u

/* Private pools of a device with a row each in metrics; the highest value of `own`. */
#define XSEG_USAGE_OWN 128u

/*
 * Read a device and its pools.
 *
 * rows:     receives the rows of the pools; [own + XSEG_USAGE_COMMON]
 * own:      private pools with a row each
 * privates: NULL, or receives the number of private pools
 * Returns:  the number of rows
 * Cost:     O(pools + arenas); no host allocation
 */
uint32_t xseg_usage_read(struct xseg_device *device, struct xseg_published_device *out,
                         struct xseg_published_pool *rows, uint32_t own, uint64_t *privates);

#endif
