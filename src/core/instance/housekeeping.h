/* SPDX-License-Identifier: MIT */
/*
 * Deferred housekeeping: work that slow-path calls and the background thread run at their end, never a hit.
 *
 * Locking: the caller holds no lock.  errno and the error text of the calling thread are preserved.
 */
#ifndef XSEG_CORE_HOUSEKEEPING_H
#define XSEG_CORE_HOUSEKEEPING_H

#include "src/core/device/allocator.h"
#include "src/core/report/memory_stats.h"

/* Publish statistics that changed since they were published last, if the key publish is set. */
static inline void xseg_housekeeping_run(struct xseg_allocator *allocator)
{
    if (__builtin_expect(xseg_allocator_config(allocator)->publish, 0))
        xseg_publisher_run(allocator);
}

/* End a call that may have mapped or unmapped memory: notify observers with `on_trace`, then run the housekeeping. */
static inline void xseg_housekeeping_end_call(struct xseg_allocator *allocator)
{
    xseg_allocator_deliver(allocator);
    xseg_housekeeping_run(allocator);
}

#endif
