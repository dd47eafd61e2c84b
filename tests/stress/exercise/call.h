/* SPDX-License-Identifier: MIT */
/* Calls of the library: CALL and CALL_PLAIN call a function of src/xseg.map, count its results, and compare each status
 * with the documented ones. */
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

/* Call a function that returns a status, or a function that returns another type. */
#define CALL(name, ...)       (call_returned(CALL_##name, name(__VA_ARGS__)))
#define CALL_PLAIN(name, ...) (call_counted(CALL_##name), name(__VA_ARGS__))

/* Count a result; ends the process if the status is not documented, or an error has no message. */
xseg_status call_returned(enum call_function function, xseg_status status);
void call_counted(enum call_function function);

uint64_t call_total(void);

void call_print(void);

/* The first function that was never called, or never with success; NULL: none. */
const char *call_missing(bool with_success);

#endif
