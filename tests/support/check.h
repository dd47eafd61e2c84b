/* SPDX-License-Identifier: MIT */
/* Checks for threads and processes outside cmocka: a failure aborts the process. */
#ifndef XSEG_TESTS_CHECK_H
#define XSEG_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "xseg/status.h"

/* Abort unless a condition holds, with the last error message. */
#define CHECK(cond)                                                                     \
    do {                                                                                \
        if (!(cond)) {                                                                  \
            char text_[512] = "";                                                       \
            (void)xseg_error_message(text_, sizeof(text_));                             \
            (void)fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #cond, text_); \
            abort();                                                                    \
        }                                                                               \
    } while (0)

#endif
