/* SPDX-License-Identifier: MIT */
#include "benchmarks/ranges/requests.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define DAY      1200.0 /* seconds */
#define SWING    0.7    /* amplitude of a day: from 0.3 to 1.7 times the rate */
#define BURST    2.5    /* factor of the rate in a burst */
#define BURST_S  15.0   /* mean length of a burst */
#define CALM_S   75.0   /* mean time between bursts */
#define SHORTEST 16.0
#define PROMPT   5000.0 /* the longest prompt, without the system prompt */
#define OUTPUT   1500.0 /* the longest output */
#define PI       3.14159265358979323846

/* xorshift64* */
static double draw(uint64_t *seed)
{
    *seed ^= *seed >> 12;
    *seed ^= *seed << 25;
    *seed ^= *seed >> 27;
    return (double)(*seed * UINT64_C(0x2545F4914F6CDD1D) >> 11) / 9007199254740992.0;
}

/* Draw from an exponential distribution. */
static double draw_exponential(uint64_t *seed, double mean)
{
    return -mean * log(1.0 - draw(seed));
}

/* Draw a length from a log-normal distribution, limited to [SHORTEST, longest]. */
static uint32_t draw_length(uint64_t *seed, double median, double sigma, double longest)
{
    const double angle = 2 * PI * draw(seed), radius = sqrt(-2 * log(1.0 - draw(seed)));

    return (uint32_t)fmin(fmax(median * exp(sigma * radius * cos(angle)), SHORTEST), longest);
}

/* Each system prompt is half as frequent as the previous one. */
static uint32_t draw_system(uint64_t *seed)
{
    const double value = draw(seed);

    return value < 0.5 ? 0 : value < 0.75 ? 1 : value < 0.875 ? 2 : 3;
}

static struct request draw_request(const struct traffic *traffic, uint64_t *seed, double time)
{
    struct request request = {.arrival_ns = (uint64_t)(time * 1e9), .system = draw_system(seed)};

    request.prompt =
        traffic->system[request.system] + draw_length(seed, traffic->prompt, 0.9, PROMPT);
    request.output = draw_length(seed, traffic->output, 0.8, OUTPUT);
    return request;
}

struct request *requests_create(const struct traffic *traffic, uint64_t until_ns, size_t *count)
{
    const double until = (double)until_ns / 1e9, max_rate = traffic->rate * (1 + SWING) * BURST;
    uint64_t seed = traffic->seed;
    struct request *requests = NULL;
    size_t used = 0, capacity = 0;
    double time = 0, next_change = draw_exponential(&seed, CALM_S);
    int in_burst = 0;

    while ((time += draw_exponential(&seed, 1 / max_rate)) < until) {
        for (; next_change < time;
             next_change += draw_exponential(&seed, in_burst ? BURST_S : CALM_S))
            in_burst = !in_burst;
        const double day_factor = 1 + SWING * cos(2 * PI * (time / DAY - traffic->peak_time));
        if (draw(&seed) * max_rate >= traffic->rate * day_factor * (in_burst ? BURST : 1))
            continue;
        if (used == capacity) {
            capacity = capacity == 0 ? 1024 : 2 * capacity;
            requests = realloc(requests, capacity * sizeof(*requests));
            if (requests == NULL) {
                (void)fprintf(stderr, "out of host memory, requests\n");
                exit(1);
            }
        }
        requests[used++] = draw_request(traffic, &seed, time);
    }
    *count = used;
    return requests;
}
