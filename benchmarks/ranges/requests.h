/* SPDX-License-Identifier: MIT */
/*
 * The requests of a service, made up from a seed: the same each time, on every machine that has the same libm.
 *
 * How many come in a second follows the hour of a "day" of 20 minutes, and bursts of some seconds on top of it.  Lengths
 * are log-normal, as those of recorded conversations are.  Each prompt begins with one of a few system prompts.
 */
#ifndef BENCHMARKS_RANGES_REQUESTS_H
#define BENCHMARKS_RANGES_REQUESTS_H

#include <stddef.h>
#include <stdint.h>

#define SYSTEM_PROMPTS 4u
#define LONGEST        8192u /* tokens of a sequence */

struct request {
    uint64_t arrival_ns;
    uint32_t system; /* number of its system prompt */
    uint32_t prompt; /* tokens, with those of the system prompt */
    uint32_t output; /* tokens */
};

/* How the requests of one model come. */
struct traffic {
    uint64_t seed;                   /* not 0 */
    double rate;                     /* requests a second, on average over a day without bursts */
    double noon;                     /* where in the day most come, 0 to 1 */
    double prompt, output;           /* medians, in tokens, without the system prompt */
    uint32_t system[SYSTEM_PROMPTS]; /* tokens of each system prompt */
};

/* The requests that come before a time, in order; the caller frees them.  Ends the programme without host memory. */
struct request *requests_make(const struct traffic *traffic, uint64_t until_ns, size_t *count);

#endif
