/* SPDX-License-Identifier: MIT */
/*
 * The simulated driver.  It is a library of its own, opened when a command first needs it: without it
 * the tool works on a machine's own driver.
 *
 * Locking: none; simulator_open() comes before the program's other threads.
 */
#ifndef TOOLS_SIMULATOR_H
#define TOOLS_SIMULATOR_H

#include <stdbool.h>

#include "xseg/sim.h"

/* The functions of xseg/sim.h that the tool calls, without their prefix. */
#define SIMULATOR_CALLS(X) \
    X(advance)             \
    X(clock)               \
    X(driver_time)         \
    X(error_message)       \
    X(finish)              \
    X(finish_all)          \
    X(launch)              \
    X(leaks)               \
    X(reset)

/* NULL until simulator_open(). */
extern struct simulator {
#define X(name) __typeof__(xseg_sim_##name) *name;
    SIMULATOR_CALLS(X)
#undef X
} simulator;

/* Open it; once more does nothing.  On failure says so on standard error. */
bool simulator_open(void);

/* The path of the library; NULL if it is not open. */
const char *simulator_path(void);

#endif
