/* SPDX-License-Identifier: MIT */
/* Assertions for all inputs: a fuzzer reports an abort as a finding. */
#ifndef TESTS_FUZZ_HOLDS_H
#define TESTS_FUZZ_HOLDS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HOLDS(condition)                                              \
    do {                                                              \
        if (!(condition)) {                                           \
            (void)fprintf(stderr, "does not hold: %s\n", #condition); \
            abort();                                                  \
        }                                                             \
    } while (0)

#endif
