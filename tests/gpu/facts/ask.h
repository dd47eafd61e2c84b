/* SPDX-License-Identifier: MIT */
/*
 * One process that asks one fact after the other, and the process that starts it.
 *
 * Whatever a driver does to the process that asks, the answers so far are there, and the facts behind are
 * asked by another process:
 *
 *   ASK-1  each answer is written at once, and so is the id of the fact that is asked next;
 *   ASK-2  an alarm ends a check that hangs, and whoever waits does not wait for ever if even that fails;
 *   ASK-3  after a fact that does not hold, the process ends: what the check had made stays behind, and the
 *          context may have an error that does not go away.
 *
 * The process that starts the others never opens the driver.
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

/* The process that asks: facts from `first` on, until one does not hold. Answers are written to standard output;
 * `report` and `seconds` are ignored. */
int ask_here(const struct asking *asking);

#endif
