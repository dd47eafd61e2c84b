/* SPDX-License-Identifier: MIT */
/*
 * A process that verifies facts one at a time, and its parent.
 *
 * The answers survive any failure of the driver in the process, and another process verifies the remaining facts:
 *
 *   ASK-1  each answer, and the ID of the next fact, are written immediately;
 *   ASK-2  an alarm ends a check that hangs, and the parent has a timeout in case the alarm fails;
 *   ASK-3  the process ends after a fact that does not hold, because objects of its check remain and the context may have
 *          a sticky error.
 *
 * The parent never opens the driver.
 */
#ifndef XSEG_TESTS_GPU_FACTS_ASK_H
#define XSEG_TESTS_GPU_FACTS_ASK_H

#include <stdbool.h>
#include <stddef.h>

#include "tests/gpu/facts/fact.h"

struct asking {
    size_t first;     /* the index of the first fact */
    unsigned limit;   /* seconds per fact */
    unsigned open;    /* seconds to open the driver */
    double until;     /* time of microseconds() after which no fact is begun; 0: none */
    unsigned seconds; /* from which `until` is computed; 0: none */
    /* The outcome of a fact; called for each, in order. */
    void (*report)(size_t number, const struct outcome *outcome);
};

struct asked {
    char problem[400];   /* why no device can be used; "" if one can */
    bool leaves_nothing; /* as far as can be seen */
};

/* Ask from `first` on, in as many processes as necessary. */
void ask_all(const struct asking *asking, struct asked *asked);

/* The process that asks: prints answers from `first` on, until a fact does not hold; ignores `report` and `seconds`. */
int ask_here(const struct asking *asking);

#endif
