/* SPDX-License-Identifier: MIT */
/*
 * Decay: idle memory goes back to the driver by itself, without a stall.
 *
 * From time to time a *look* counts idle memory by age (idle.h) and gives some of it back:
 *
 *   - A smooth curve says which part of the memory of each age goes, the oldest first.  Nothing
 *     goes up to a quarter of idle_ms, so that memory which is used again and again stays, and
 *     everything goes after idle_ms.  In between the curve is the smoothstep 3x^2 - 2x^3, as in
 *     jemalloc's decay.
 *   - Decay stops at the floor: keep_mb, or the peak of the bytes in use of the last keep_window_s.
 *   - Above soft_limit_mb, or while the device has less than device_free_min_mb free, the missing
 *     bytes go at any age.
 *
 * Looks are made by the calls that the user makes anyway, by xseg_tick(), and by the background
 * thread.  On a call of the user a look ends after a slice of time, and all looks together stay within
 * reclaim_us_per_s; the next look continues.  A look of a user's call waits for no stream, lock or
 * capture.  While decay is off it reads no clock.
 */
#ifndef XSEG_CORE_DECAY_H
#define XSEG_CORE_DECAY_H

#include <stdatomic.h>

#include "src/core/config/config.h"
#include "xseg/status.h"

struct xseg_device;

#define XSEG_DECAY_WINDOW 16u

/* Peaks of the bytes in use, one for each part of the last keep_window_s.  Guarded by GROWTH. */
struct xseg_decay_window {
    uint64_t peak[XSEG_DECAY_WINDOW];
    uint64_t part; /* number of the current part since the clock's start */
};

/* The decay of one device; guarded by GROWTH. */
struct xseg_decay {
    atomic_uint_fast64_t due; /* clock of the next look; may be read without the lock */
    uint64_t looked;          /* clock of the last look; 0 before the first */
    uint64_t time;            /* the latest time that arenas have been told */
    uint64_t owed;            /* bytes that the curve lets go, too few for a page so far */
    uint64_t credit;          /* nanoseconds that the driver may be kept busy */
    uint64_t page_cost;       /* what a page has cost lately, in nanoseconds */
    struct xseg_decay_window window;
};

/* The time for a look at idle memory: it never goes back, whichever clock is read.  GROWTH is held. */
uint64_t xseg_decay_now(struct xseg_device *device);

/*
 * How many of `idle` bytes of idle memory neither time nor a limit takes: what the floor keeps, or, without
 * idle_ms, what is within the limits.  GROWTH is held.
 */
uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle);

/* Make a look if one is due and no thread holds GROWTH: for the request path.  No lock is held. */
void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config);

/* How long the thread of background.h may sleep between two looks, in nanoseconds. */
uint64_t xseg_decay_interval(const struct xseg_config *config);

/*
 * Make a look for the background thread: wait for GROWTH, and spend what reclaim_us_per_s grants.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_turn(struct xseg_device *device, const struct xseg_config *config);

/*
 * Give idle memory back that is needed elsewhere, of any age, below the floor as well, without a wait.  GROWTH is held, and
 * no capture is under way.
 *
 * bytes: the last page may exceed them
 * Returns: the bytes that the device has less
 */
uint64_t xseg_decay_give(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t bytes);

/*
 * Make a look now, for xseg_tick().  No lock is held.
 *
 * budget: nanoseconds that the look may keep the driver busy; at least one page goes
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_tick(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t budget);

#endif
