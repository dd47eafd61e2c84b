/* SPDX-License-Identifier: MIT */
/*
 * The simulated driver, a library that is loaded when a command first needs it.  Without it, the tool works on the
 * driver of the host.
 *
 * Locking: none; simulator_open() is called before other threads start.
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

/* NULL before simulator_open(). */
extern struct simulator {
#define X(name) __typeof__(xseg_sim_##name) *name;
    SIMULATOR_CALLS(X)
#undef X
} simulator;

/* Load the library.  Later calls have no effect.  Returns false with a message on standard error. */
bool simulator_open(void);

/* Get the path of the library; NULL if it is not loaded. */
const char *simulator_path(void);

#endif
