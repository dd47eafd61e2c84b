/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/stopwatch.h"

#include <stdlib.h>

#define TRIALS 2000
#define USUAL  1900 /* those without the longest, in which the processor did something else */

static int compare(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;

    return (a > b) - (a < b);
}

void stopwatch_init(struct stopwatch *watch)
{
    uint64_t trials[TRIALS], sum = 0;

    for (unsigned i = 0; i < TRIALS; i++) {
        *watch = (struct stopwatch){0};
        stopwatch_start(watch);
        stopwatch_stop(watch);
        trials[i] = watch->spent;
    }
    qsort(trials, TRIALS, sizeof(trials[0]), compare);
    for (unsigned i = 0; i < USUAL; i++)
        sum += trials[i];
    *watch = (struct stopwatch){.empty = (double)sum / USUAL};
}

double stopwatch_read(const struct stopwatch *watch)
{
    const double time = (double)watch->spent - (double)watch->spans * watch->empty;

    return time > 0 ? time : 0;
}
