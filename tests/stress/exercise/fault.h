/* SPDX-License-Identifier: MIT */
/*
 * Faults that come and go: the n-th call of any name or of one, every n-th, all of one or two names until
 * they are lifted, a device whose memory somebody else has taken, addresses that are gone.
 *
 * Threads: any.
 */
#ifndef XSEG_TESTS_EXERCISE_FAULT_H
#define XSEG_TESTS_EXERCISE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Set one; what it is follows from the number.  `text` gets its name. */
void fault_set(uint64_t draw, unsigned devices, char *text, unsigned bytes);

/* Take all of them back. */
void fault_lift(void);

/* A number that rises whenever a fault is set or lifted; odd while any may strike. */
uint64_t fault_epoch(void);

/* Whether none can have struck since then. */
bool fault_was_none(uint64_t epoch);

/* How many were set so far. */
uint64_t fault_count(void);

#endif
