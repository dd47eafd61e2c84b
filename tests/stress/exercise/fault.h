/* SPDX-License-Identifier: MIT */
/* Faults that any thread can set and lift.  A fault is a driver call of one or any name that fails, once or repeatedly, or
 * memory or addresses that another process uses. */
#ifndef XSEG_TESTS_EXERCISE_FAULT_H
#define XSEG_TESTS_EXERCISE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Set a fault that is determined by a random number; text: receives a description of the fault. */
void fault_set(uint64_t seed, unsigned devices, char *text, unsigned bytes);

void fault_lift(void);

/* A counter that increases whenever a fault is set or lifted; odd while a fault is set. */
uint64_t fault_epoch(void);

/* Whether no fault can have occurred since the counter had a value. */
bool fault_was_none(uint64_t epoch);

uint64_t fault_count(void);

#endif
