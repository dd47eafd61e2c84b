/* SPDX-License-Identifier: MIT */
/*
 * Time that is spent in the allocator, added up in spans; what is between them does not count.  What
 * starting and stopping takes is measured once, and taken off for each span.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_STOPWATCH_H
#define TOOLS_STOPWATCH_H

#include <stdint.h>
#include <time.h>

struct stopwatch {
    uint64_t began; /* nanoseconds */
    uint64_t spent; /* by all spans */
    uint64_t spans;
    double empty; /* what a span takes in which nothing is done */
};

void stopwatch_init(struct stopwatch *watch);

/* Nanoseconds in the spans so far. */
double stopwatch_read(const struct stopwatch *watch);

static inline uint64_t stopwatch_now(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void stopwatch_start(struct stopwatch *watch)
{
    watch->began = stopwatch_now();
}

static inline void stopwatch_stop(struct stopwatch *watch)
{
    watch->spent += stopwatch_now() - watch->began;
    watch->spans++;
}

#endif
