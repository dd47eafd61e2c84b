/* SPDX-License-Identifier: MIT */
/* Calls: CALL and CALL_PLAIN call every function of src/xseg.map, count its results atomically and compare them with
 * the documented statuses. */
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

/* Call a function that returns a status; or one that returns another type. */
#define CALL(name, ...)       (call_answered(CALL_##name, name(__VA_ARGS__)))
#define CALL_PLAIN(name, ...) (call_made(CALL_##name), name(__VA_ARGS__))

/* Count the result; ends the process if the status is not documented, or an error has no message. */
xseg_status call_answered(enum call_function function, xseg_status status);
void call_made(enum call_function function);

uint64_t call_total(void);

void call_print(void);

/* The first function that was never called, or never with success; NULL: none. */
const char *call_missing(bool with_success);

#endif
