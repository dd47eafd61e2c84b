/* SPDX-License-Identifier: MIT */
/*
 * The time that decay goes by, in nanoseconds from any start; it never goes back.
 *
 * It is read for metrics, when the driver reports free memory, while something decays, and where ages of blocks are
 * recorded; otherwise never on a hit.
 */
#ifndef XSEG_BASE_CLOCK_H
#define XSEG_BASE_CLOCK_H

#include <stdint.h>

/* read may be NULL: then the system's monotonic clock is read. */
struct xseg_clock {
    uint64_t (*read)(void *self);
    void *self;
};

/* Accurate to a few milliseconds, and cheap: no system call. */
uint64_t xseg_clock_coarse(const struct xseg_clock *clock);

/* Accurate enough to time a driver call. */
uint64_t xseg_clock_fine(const struct xseg_clock *clock);

/* The system's monotonic clock, whatever clock the user has given: for time that other processes share, or that a caller
 * waits. */
uint64_t xseg_clock_system(void);

#endif
