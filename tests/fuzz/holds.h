/* SPDX-License-Identifier: MIT */
/* What has to hold of any input: a fuzzer takes an abort for a find. */
#ifndef TESTS_FUZZ_HOLDS_H
#define TESTS_FUZZ_HOLDS_H

#include <stdio.h>
#include <stdlib.h>

#define HOLDS(condition)                                              \
    do {                                                              \
        if (!(condition)) {                                           \
            (void)fprintf(stderr, "does not hold: %s\n", #condition); \
            abort();                                                  \
        }                                                             \
    } while (0)

#endif
