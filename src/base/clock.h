/* SPDX-License-Identifier: MIT */
/*
 * The clock of decay and of block ages: monotonic, in nanoseconds since an arbitrary start.
 *
 * The user can provide a clock.  A hit reads it only if ages of blocks are recorded or memory decays.
 */
#ifndef XSEG_BASE_CLOCK_H
#define XSEG_BASE_CLOCK_H

#include <stdint.h>

/* Times are in nanoseconds. */
#define XSEG_MILLISECOND UINT64_C(1000000)
#define XSEG_SECOND      UINT64_C(1000000000)

/* read: the user's clock; NULL: CLOCK_MONOTONIC */
struct xseg_clock {
    uint64_t (*read)(void *context);
    void *context;
};

/* Precise to a few milliseconds, and cheaper than the fine clock. */
uint64_t xseg_clock_coarse(const struct xseg_clock *clock);

/* Precise enough to measure a driver call. */
uint64_t xseg_clock_fine(const struct xseg_clock *clock);

/* CLOCK_MONOTONIC, also if the application supplies a clock: for timeouts, and for times that processes share. */
uint64_t xseg_clock_system(void);

#endif
