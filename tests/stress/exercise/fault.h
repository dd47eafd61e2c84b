/* SPDX-License-Identifier: MIT */
/*
 * Faults that come and go.  The n-th call fails, of any name or of one, or every n-th; or all calls of
 * one or two names fail until the fault is lifted.  Somebody else takes the memory of a device, or
 * addresses.
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
