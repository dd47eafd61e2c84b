/* SPDX-License-Identifier: MIT */
/*
 * Pseudo-random requests of a service.  They depend only on the seed and on libm.
 *
 * The rate follows the hour of a "day" of 20 minutes, with bursts of some seconds.  Lengths are log-normal, like those of
 * recorded conversations.  Each prompt begins with one of four system prompts.
 */
#ifndef BENCHMARKS_RANGES_REQUESTS_H
#define BENCHMARKS_RANGES_REQUESTS_H

#include <stddef.h>
#include <stdint.h>

#define SYSTEM_PROMPTS 4u
#define MAX_TOKENS     8192u /* tokens of a sequence */

struct request {
    uint64_t arrival_ns;
    uint32_t system; /* index of its system prompt */
    uint32_t prompt; /* tokens, including the system prompt */
    uint32_t output; /* tokens */
};

/* Arrival of the requests of one model. */
struct traffic {
    uint64_t seed;                   /* not 0 */
    double rate;                     /* requests per second, on average over a day without bursts */
    double peak_time;                     /* time of the highest rate, as a fraction of the day */
    double prompt, output;           /* medians, in tokens, without the system prompt */
    uint32_t system[SYSTEM_PROMPTS]; /* tokens of each system prompt */
};

/* The requests that arrive before a time, in order; the caller frees them.  Ends the program if host memory is exhausted. */
struct request *requests_create(const struct traffic *traffic, uint64_t until_ns, size_t *count);

#endif
