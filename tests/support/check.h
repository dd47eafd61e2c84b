/* SPDX-License-Identifier: MIT */
/* Checks of threads and processes without cmocka around them: a failure ends the process. */
#ifndef XSEG_TESTS_CHECK_H
#define XSEG_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "xseg/status.h"

/* End the process unless a condition holds; with the library's last sentence. */
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
