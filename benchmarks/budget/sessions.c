/* SPDX-License-Identifier: MIT */
#include "benchmarks/budget/sessions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SWING         0.4  /* amplitude of a day: from 0.6 to 1.4 times the rate */
#define WEEKEND       0.5  /* factor of the rate on the last two days */
#define BURST         12.0 /* factor of the rate in a burst */
#define BURST_H       0.75 /* mean length of a burst in hours */
#define CALM_H        5.0  /* mean time between bursts in hours */
#define DURATION_LOW  30.0
#define DURATION_HIGH 900.0 /* seconds of a session */
#define SIZE_LOW      256.0
#define SIZE_HIGH     6144.0 /* MiB of a session */
#define BLOCK_LOW     16.0
#define BLOCK_HIGH    512.0 /* MiB of a block */
#define PI            3.14159265358979323846

const struct service services[SERVICES] = {
    {"text", 0x9E3779B97F4A7C15u, 13, 11, 4 * GIB},
    {"images", 0xD1B54A32D192ED03u, 13, 19, 3 * GIB},
};

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

/* Draw from a log-uniform distribution. */
static double draw_log_uniform(uint64_t *seed, double low, double high)
{
    return low * pow(high / low, draw(seed));
}

/* The last block has the remaining bytes, so that the session has the exact total. */
static struct session draw_session(unsigned service, uint64_t *seed, double hour)
{
    struct session session = {.service = service};
    double remaining = draw_log_uniform(seed, SIZE_LOW, SIZE_HIGH);

    session.start_ns = (uint64_t)(hour * 3600e3) * MILLISECOND_NS;
    session.end_ns =
        session.start_ns +
        (uint64_t)(draw_log_uniform(seed, DURATION_LOW, DURATION_HIGH) * 1e3) * MILLISECOND_NS;
    while (remaining > 0) {
        double block_mib = draw_log_uniform(seed, BLOCK_LOW, BLOCK_HIGH);

        if (block_mib + BLOCK_LOW > remaining || session.count + 1 == BLOCKS_MAX)
            block_mib = remaining;
        session.block[session.count] = (uint64_t)(block_mib * 1024) << 10;
        session.bytes += session.block[session.count++];
        remaining -= block_mib;
    }
    return session;
}

static double rate_at(const struct service *service, double hour)
{
    const double day_factor = 1 + SWING * cos(2 * PI * (hour - service->peak_hour) / 24);

    return service->hourly_rate * day_factor * (hour >= 120 ? WEEKEND : 1);
}

static void *resize_array(void *memory, size_t count, size_t bytes)
{
    memory = realloc(memory, count * bytes);
    if (memory == NULL) {
        (void)fprintf(stderr, "no host memory for sessions\n");
        exit(1);
    }
    return memory;
}

static void add_session(struct week *week, const struct session *session)
{
    if (week->count % 1024 == 0)
        week->sessions = resize_array(week->sessions, week->count + 1024, sizeof(*session));
    week->sessions[week->count++] = *session;
}

/* Draw sessions at the maximum rate, and reject sessions so that the current rate remains. */
static void add_service(struct week *week, unsigned index, double hours)
{
    const struct service *service = &services[index];
    const double max_rate = service->hourly_rate * (1 + SWING) * BURST;
    uint64_t seed = service->seed;
    double hour = 0, next_change = draw_exponential(&seed, CALM_H);
    int in_burst = 0;

    while ((hour += draw_exponential(&seed, 1 / max_rate)) < hours) {
        for (; next_change < hour;
             next_change += draw_exponential(&seed, in_burst ? BURST_H : CALM_H))
            in_burst = !in_burst;
        if (draw(&seed) * max_rate >= rate_at(service, hour) * (in_burst ? BURST : 1))
            continue;
        const struct session session = draw_session(index, &seed, hour);
        add_session(week, &session);
    }
}

/* At the same time, ends precede starts. */
static int compare_events(const void *first, const void *second)
{
    const struct event *a = first, *b = second;

    if (a->time_ns != b->time_ns)
        return a->time_ns < b->time_ns ? -1 : 1;
    if (a->is_start != b->is_start)
        return a->is_start < b->is_start ? -1 : 1;
    return (a->session > b->session) - (a->session < b->session);
}

struct week week_create(double hours)
{
    struct week week = {NULL, NULL, 0};

    for (unsigned i = 0; i < SERVICES; i++)
        add_service(&week, i, hours);
    week.events = resize_array(NULL, 2 * week.count + 1, sizeof(*week.events));
    for (size_t i = 0; i < week.count; i++) {
        const struct session *session = &week.sessions[i];

        week.events[2 * i] = (struct event){session->start_ns, (uint32_t)i, 1};
        week.events[2 * i + 1] = (struct event){session->end_ns, (uint32_t)i, 0};
    }
    qsort(week.events, 2 * week.count, sizeof(*week.events), compare_events);
    return week;
}
