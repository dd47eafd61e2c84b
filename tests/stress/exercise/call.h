/* SPDX-License-Identifier: MIT */
/*
 * Calls: every function of src/xseg.map is called by CALL or CALL_PLAIN, which count what it answered and
 * hold the answer to the statuses that its header documents.
 *
 * Locking: none; the counts are atomic.
 */
#ifndef XSEG_TESTS_EXERCISE_CALL_H
#define XSEG_TESTS_EXERCISE_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "xseg/xseg.h"

enum call_function {
#define CALL_NAME(name) CALL_##name,
#include "tests/exercise_calls.inc"
#undef CALL_NAME
    CALL_COUNT
};

/* Call a function that returns a status; one that returns something else. */
#define CALL(name, ...)       (call_answered(CALL_##name, name(__VA_ARGS__)))
#define CALL_PLAIN(name, ...) (call_made(CALL_##name), name(__VA_ARGS__))

/* Count; the process ends where the status is not documented, or an error has no sentence. */
xseg_status call_answered(enum call_function function, xseg_status status);
void call_made(enum call_function function);

/* How often all functions were called so far. */
uint64_t call_total(void);

/* Print a line a function: what it answered, and how often. */
void call_print(void);

/* The first function that was never called, or never with success; NULL: there is none. */
const char *call_missing(bool with_success);

#endif
