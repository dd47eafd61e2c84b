/* SPDX-License-Identifier: MIT */
/*
 * Why a function of sim.h refused: the sentence behind xseg_sim_error_message(), and lines on standard error.
 * Bytes that are not printable ASCII, which only text of others has, are shown as \xNN.
 *
 * Locking: none; each thread has its own.
 */
#ifndef XSEG_SIM_REFUSAL_H
#define XSEG_SIM_REFUSAL_H

#include "xseg/sim.h"

/** Note the sentence of a failure.  Returns: the status. */
xseg_status sim_refuse(xseg_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/** Write a line to standard error. */
void sim_say(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
