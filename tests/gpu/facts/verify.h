/* SPDX-License-Identifier: MIT */
/*
 * A child process that verifies facts one at a time, and its parent.
 *
 * The answers survive any failure of the driver in the child, and another child verifies the remaining facts:
 *
 *   VERIFY-1  each answer, and the ID of the next fact, are written immediately;
 *   VERIFY-2  an alarm ends a check that hangs, and the parent has a timeout in case the alarm fails;
 *   VERIFY-3  the child ends after a fact that does not hold, because objects of its check remain and the context may have
 *             a sticky error.
 *
 * The parent never opens the driver.
 */
#ifndef XSEG_TESTS_GPU_FACTS_VERIFY_H
#define XSEG_TESTS_GPU_FACTS_VERIFY_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/gpu/facts/fact.h"

struct verify_options {
    size_t first;        /* the index of the first fact */
    unsigned limit;      /* seconds per fact */
    unsigned open_limit; /* seconds to open the driver */
    double deadline;     /* time of microseconds() after which no check begins; 0: none */
    unsigned seconds;    /* the value from which `deadline` was computed; 0: none */
    /* Called with the outcome of each fact, in order. */
    void (*report)(size_t index, const struct outcome *outcome);
};

struct verify_result {
    char problem[400]; /* the reason why no device can be used; "" if one can be used */
    bool has_leaked;   /* objects remained after the last check; known only on the simulator */
};

/* Verify the facts from `first` on, in as many child processes as necessary. */
void verify_all(const struct verify_options *options, struct verify_result *result);

/* The child: prints answers from `first` on until a fact does not hold; ignores `report` and `seconds`.  Does not return. */
int verify_in_child(const struct verify_options *options);

#endif
