/* SPDX-License-Identifier: MIT */
/* Threads that run the same work concurrently.  The time is from their common start until the last thread has finished. */
#ifndef BENCHMARKS_TEAM_H
#define BENCHMARKS_TEAM_H

#include <stdatomic.h>
#include <stdint.h>

#define TEAM_MAX 64u

struct team {
    unsigned count;
    /* Runs `count` steps in one thread.  The result is ignored. */
    uint64_t (*work)(void *self, uint64_t count);
    void *self[TEAM_MAX]; /* argument of each thread */
    uint64_t steps;
    atomic_uint ready;
};

/* Run `count` steps in each thread of a struct team; a function for measure.steps. */
uint64_t team_run(void *self, uint64_t count);

#endif
