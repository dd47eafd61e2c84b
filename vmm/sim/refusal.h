/* SPDX-License-Identifier: MIT */
/*
 * Error messages of the functions of sim.h, for xseg_sim_error_message(), and lines on standard error.
 *
 *     operation: what failed, value; what to do
 *
 * The operation is the function or the environment variable.  Bytes that are not printable ASCII are shown as \xNN.
 *
 * Locking: none; each thread has its own.
 */
#ifndef XSEG_SIM_REFUSAL_H
#define XSEG_SIM_REFUSAL_H

#include "xseg/sim.h"

/** Store the message of a failure for the calling thread.  Returns: the status. */
xseg_status sim_refuse(xseg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Write a line to standard error. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
