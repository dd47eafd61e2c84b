/* SPDX-License-Identifier: MIT */
/*
 * Decay releases idle memory over time, without a stall.
 *
 * A decay pass runs periodically.  It counts idle memory by age (idle.h) and computes a policy of
 * reclaim.h:
 *
 *   - A smooth curve specifies which part of the memory of each age is released, the oldest first.
 *     Nothing is released up to a quarter of idle_ms, so that memory which is reused stays mapped,
 *     and everything after idle_ms.  In between the curve is the smoothstep 3x^2 - 2x^3, as in
 *     jemalloc's decay.
 *   - Decay stops at the floor: keep_mb, or the peak of the bytes in use of the last keep_window_s.
 *   - Above soft_limit_mb, or while the device has less than device_free_min_mb free, the missing
 *     bytes are released at any age.
 *
 * Passes run on the request path, in xseg_trim() with due_only, and in the background thread.  A
 * pass on the request path spends at most a slice of driver time and never waits for a stream, a
 * lock or a capture; the next pass continues.  All passes together stay within reclaim_us_per_s:
 * passes spend a credit that grows with time.  Without decay no clock is read.
 *
 * A pass is O(cached blocks).  The bytes that the curve releases are computed from the histogram of
 * ages alone, and small amounts accumulate in `owed` until they cover a page.
 */
#ifndef XSEG_CORE_DECAY_H
#define XSEG_CORE_DECAY_H

#include <stdatomic.h>

#include "src/core/config/config.h"
#include "xseg/status.h"

struct xseg_device;

#define XSEG_DECAY_WINDOW 16u

/* Peaks of the bytes in use, one for each part of the last keep_window_s.  Guarded by the device
 * memory lock. */
struct xseg_decay_window {
    uint64_t peak[XSEG_DECAY_WINDOW];
    uint64_t part; /* index of the current part since the start of the clock */
};

/* The decay of one device; guarded by the device memory lock. */
struct xseg_decay {
    atomic_uint_fast64_t due; /* clock of the next pass; may be read without the lock */
    uint64_t last_pass;       /* clock of the last pass; 0 before the first */
    uint64_t time;            /* the latest time of the arenas */
    uint64_t owed;            /* bytes that the curve releases but that were not released yet */
    uint64_t credit;          /* nanoseconds of driver time that passes may spend */
    uint64_t page_cost;       /* moving average of nanoseconds per released page */
    struct xseg_decay_window window;
};

/* The time for ages of idle memory, which never decreases.  The caller holds the device memory
 * lock. */
uint64_t xseg_decay_now(struct xseg_device *device);

/* The part of `idle` bytes of idle memory that decay keeps: bytes below the floor or, without
 * idle_ms, bytes within the limits.  The caller holds the device memory lock. */
uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle);

/* Run a pass if one is due and no thread holds the device memory lock: for the request path.  The
 * caller holds no lock. */
void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config);

/* The time between two passes of the background thread, in nanoseconds. */
uint64_t xseg_decay_interval(const struct xseg_config *config);

/*
 * Run a pass in the background thread.  It waits for the device memory lock and spends the driver
 * time that reclaim_us_per_s grants.  The caller holds no lock.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_background_pass(struct xseg_device *device,
                                       const struct xseg_config *config);

/*
 * Release idle memory of any age for other processes, also below the floor.  Does not wait for
 * streams.  The caller holds the device memory lock, and no capture is active.
 *
 * bytes: target; the last page may exceed it
 * Returns: the bytes by which the physical memory of the device has decreased
 */
uint64_t xseg_decay_release(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t bytes);

/*
 * Run a pass now, for xseg_trim() with due_only.  The caller holds no lock.
 *
 * max_ns: limit of the driver time in nanoseconds; at least one page is released
 * released: increased by the bytes by which the physical memory decreases
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_release_due(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t max_ns, uint64_t *released);

#endif
