/* SPDX-License-Identifier: MIT */
#include "benchmarks/budget/sessions.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define SWING     0.4  /* of a day: from 0.6 to 1.4 times the rate */
#define WEEKEND   0.5  /* factor of the rate on the last two days */
#define BURST     12.0 /* factor of the rate in a burst */
#define BURST_H   0.75 /* mean length of a burst in hours */
#define LULL_H    5.0  /* mean time between bursts in hours */
#define LIFE_LOW  30.0
#define LIFE_HIGH 900.0 /* seconds of a session */
#define SIZE_LOW  256.0
#define SIZE_HIGH 6144.0 /* MiB of a session */
#define PART_LOW  16.0
#define PART_HIGH 512.0 /* MiB of a block */
#define PI        3.14159265358979323846

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
static struct session make(unsigned service, uint64_t *seed, double hour)
{
    struct session session = {.service = service};
    double left = draw_log_uniform(seed, SIZE_LOW, SIZE_HIGH);

    session.begin_ns = (uint64_t)(hour * 3600e3) * MILLISECOND_NS;
    session.end_ns = session.begin_ns +
                     (uint64_t)(draw_log_uniform(seed, LIFE_LOW, LIFE_HIGH) * 1e3) * MILLISECOND_NS;
    while (left > 0) {
        double part = draw_log_uniform(seed, PART_LOW, PART_HIGH);

        if (part + PART_LOW > left || session.count + 1 == BLOCKS_MAX)
            part = left;
        session.block[session.count] = (uint64_t)(part * 1024) << 10;
        session.bytes += session.block[session.count++];
        left -= part;
    }
    return session;
}

static double rate_at(const struct service *service, double hour)
{
    const double day = 1 + SWING * cos(2 * PI * (hour - service->noon) / 24);

    return service->hourly * day * (hour >= 120 ? WEEKEND : 1);
}

static void *grow(void *memory, size_t count, size_t bytes)
{
    memory = realloc(memory, count * bytes);
    if (memory == NULL) {
        (void)fprintf(stderr, "no host memory for sessions\n");
        exit(1);
    }
    return memory;
}

static void add(struct week *week, const struct session *session)
{
    if (week->count % 1024 == 0)
        week->sessions = grow(week->sessions, week->count + 1024, sizeof(*session));
    week->sessions[week->count++] = *session;
}

/* Draw sessions at the highest rate, and drop the ones that exceed the current rate. */
static void add_service(struct week *week, unsigned number, double hours)
{
    const struct service *service = &services[number];
    const double max_rate = service->hourly * (1 + SWING) * BURST;
    uint64_t seed = service->seed;
    double hour = 0, change = draw_exponential(&seed, LULL_H);
    int bursts = 0;

    while ((hour += draw_exponential(&seed, 1 / max_rate)) < hours) {
        for (; change < hour; change += draw_exponential(&seed, bursts ? BURST_H : LULL_H))
            bursts = !bursts;
        if (draw(&seed) * max_rate >= rate_at(service, hour) * (bursts ? BURST : 1))
            continue;
        const struct session session = make(number, &seed, hour);
        add(week, &session);
    }
}

/* At the same time, ends come before begins. */
static int compare(const void *left, const void *right)
{
    const struct event *a = left, *b = right;

    if (a->at_ns != b->at_ns)
        return a->at_ns < b->at_ns ? -1 : 1;
    if (a->is_begin != b->is_begin)
        return a->is_begin < b->is_begin ? -1 : 1;
    return (a->session > b->session) - (a->session < b->session);
}

struct week week_make(double hours)
{
    struct week week = {NULL, NULL, 0};

    for (unsigned i = 0; i < SERVICES; i++)
        add_service(&week, i, hours);
    week.events = grow(NULL, 2 * week.count + 1, sizeof(*week.events));
    for (size_t i = 0; i < week.count; i++) {
        const struct session *session = &week.sessions[i];

        week.events[2 * i] = (struct event){session->begin_ns, (uint32_t)i, 1};
        week.events[2 * i + 1] = (struct event){session->end_ns, (uint32_t)i, 0};
    }
    qsort(week.events, 2 * week.count, sizeof(*week.events), compare);
    return week;
}
