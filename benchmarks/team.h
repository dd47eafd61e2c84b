/* SPDX-License-Identifier: MIT */
/*
 * Threads that do the same at the same time.
 *
 * All start together; the time is from then until the last has finished, so it is what the slowest
 * takes.
 */
#ifndef BENCHMARKS_TEAM_H
#define BENCHMARKS_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#define TEAM_MOST 64u

struct team {
    unsigned count;
    /* What one of them does, `number` from 0 on: so many steps.  What it returns is not looked at. */
    uint64_t (*work)(void *self, uint64_t count);
    void *self[TEAM_MOST];
    uint64_t steps;
    atomic_uint ready;
};

/* Each does so many steps; as measure.steps, with a struct team. */
uint64_t team_run(void *self, uint64_t count);

#endif
