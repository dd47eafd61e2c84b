/* SPDX-License-Identifier: MIT */
/*
 * Decay: idle memory goes back to the driver by itself, without a stall.
 *
 * From time to time a *look* counts what is idle by age (idle.h) and lets some of it go:
 *
 *   - of each age, as much as a smooth curve says: none up to a quarter of idle_ms, so that what is
 *     used again and again stays, all after idle_ms; the oldest first.  In between it is the smoothstep
 *     3x^2 - 2x^3, which jemalloc's decay goes by, too;
 *   - never below the floor: keep_mb, or what was in use at some time of the last keep_window_s;
 *   - above soft_limit_mb, or while the device has less than device_free_min_mb free, as much as is
 *     missing, whatever its age.
 *
 * Looks are made by the calls that the user makes anyway, by xseg_tick(), and by the background
 * thread.  On a call of the user a look ends after a slice of time, and all looks together stay within
 * reclaim_us_per_s; what is left is due at the next one.  Nobody waits: for a stream, for a lock, or
 * for a capture.  While nothing decays it reads no clock.
 */
#ifndef XSEG_CORE_DECAY_H
#define XSEG_CORE_DECAY_H

#include <stdatomic.h>

#include "src/core/config/config.h"
#include "xseg/status.h"

struct xseg_device;

#define XSEG_DECAY_WINDOW 16u

/* What was in use, as a peak for each part of the last keep_window_s.  Guarded by GROWTH. */
struct xseg_decay_window {
    uint64_t peak[XSEG_DECAY_WINDOW];
    uint64_t part; /* number of the current part since the clock's start */
};

/* One device's; guarded by GROWTH. */
struct xseg_decay {
    atomic_uint_fast64_t due; /* clock of the next look; may be read without the lock */
    uint64_t looked;          /* clock of the last one; 0 before the first */
    uint64_t time;            /* the latest that arenas have been told */
    uint64_t owed;            /* bytes that the curve let go and no page was small enough for */
    uint64_t credit;          /* nanoseconds that the driver may be kept busy */
    uint64_t page_cost;       /* what a page has cost lately, in nanoseconds */
    struct xseg_decay_window window;
};

/* The time for a look at idle memory: it never goes back, whichever clock is read.  GROWTH is held. */
uint64_t xseg_decay_now(struct xseg_device *device);

/*
 * Of so much idle memory, what neither time nor a limit takes: what the floor keeps, or, without
 * idle_ms, what is within the limits.  GROWTH is held.
 */
uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle);

/* A look if one is due and nobody holds GROWTH: for the request path.  No lock is held. */
void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config);

/* How long the thread of background.h may sleep between two looks, in nanoseconds. */
uint64_t xseg_decay_interval(const struct xseg_config *config);

/*
 * A look of the background thread: it waits for GROWTH, and spends what reclaim_us_per_s has brought in.
 *
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_turn(struct xseg_device *device, const struct xseg_config *config);

/*
 * A look now.  No lock is held.
 *
 * budget: nanoseconds that it may keep the driver busy; at least one page goes
 * Returns: XSEG_OK, XSEG_ERR_DEVICE_LOST
 */
xseg_status xseg_decay_tick(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t budget);

#endif
