/* SPDX-License-Identifier: MIT */
/*
 * Pseudo-random sessions of two services over a week.  They depend only on the seeds and on libm.
 *
 * The rate of sessions follows the hour of the day, is lower at the weekend, and has bursts.  The services have different
 * seeds, so their peaks are independent.  A session has blocks of different sizes from its start to its end.
 */
#ifndef BENCHMARKS_BUDGET_SESSIONS_H
#define BENCHMARKS_BUDGET_SESSIONS_H

#include <stddef.h>
#include <stdint.h>

#define SERVICES   2u
#define BLOCKS_MAX 64u
#define WEEK_HOURS 168.0
#define MIB        (UINT64_C(1) << 20)
#define GIB        (UINT64_C(1) << 30)

#define MILLISECOND_NS UINT64_C(1000000)
#define SECOND_NS      (1000 * MILLISECOND_NS)

struct service {
    const char *name;
    uint64_t seed;         /* not 0 */
    double hourly_rate;    /* sessions per hour, on average over a working day without bursts */
    double peak_hour;      /* hour of the day with the highest rate */
    uint64_t weight_bytes; /* permanent memory */
};

struct session {
    unsigned service;
    uint64_t start_ns, end_ns;
    uint64_t bytes; /* of all blocks */
    unsigned count;
    uint64_t block[BLOCKS_MAX]; /* bytes */
};

/* The start or the end of a session. */
struct event {
    uint64_t time_ns;
    uint32_t session;
    uint32_t is_start;
};

struct week {
    struct session *sessions;
    struct event *events; /* two for each session, in order of time */
    size_t count;         /* sessions */
};

extern const struct service services[SERVICES];

/* Create the first hours of the week; the caller frees both arrays.  Ends the program if host memory is exhausted. */
struct week week_create(double hours);

#endif
