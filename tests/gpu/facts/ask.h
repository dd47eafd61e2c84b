/* SPDX-License-Identifier: MIT */
/* One process that asks facts in sequence, and the process that starts it and never opens the driver.  Each answer is written
 * immediately, an alarm ends a check that hangs, and the process ends after a fact that does not hold, because the context may
 * have a sticky error; another process asks the remaining facts. */
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
