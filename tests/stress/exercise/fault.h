/* SPDX-License-Identifier: MIT */
/* Faults that any thread can set and lift.  The n-th call or every n-th call fails, of any name or of one name, or all
 * calls of one or two names fail; or another process uses the memory or the addresses of a device. */
#ifndef XSEG_TESTS_EXERCISE_FAULT_H
#define XSEG_TESTS_EXERCISE_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Set a fault that is determined by `draw`; `text` receives its name. */
void fault_set(uint64_t draw, unsigned devices, char *text, unsigned bytes);

void fault_lift(void);

/* A counter that rises whenever a fault is set or lifted; odd while a fault is set. */
uint64_t fault_epoch(void);

/* Whether no fault can have occurred since then. */
bool fault_was_none(uint64_t epoch);

uint64_t fault_count(void);

#endif
