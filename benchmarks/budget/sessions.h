/* SPDX-License-Identifier: MIT */
/*
 * The sessions of two services over a week, made up from a seed: the same each time, on every machine that has the same
 * libm.
 *
 * How many sessions begin in an hour follows the hour of the day, less at the weekend, and bursts with lulls between.  Each
 * service has a seed of its own, so that the peaks of one say nothing about those of the other.  A session has blocks of
 * mixed sizes from its beginning to its end.
 */
#ifndef BENCHMARKS_BUDGET_SESSIONS_H
#define BENCHMARKS_BUDGET_SESSIONS_H

#include <stddef.h>
#include <stdint.h>

#define SERVICES    2u
#define BLOCKS_MOST 64u
#define WEEK_HOURS  168.0
#define MIB         (UINT64_C(1) << 20)
#define GIB         (UINT64_C(1) << 30)

#define MILLISECOND_NS UINT64_C(1000000)
#define SECOND_NS      (1000 * MILLISECOND_NS)

struct service {
    const char *name;
    uint64_t seed;         /* not 0 */
    double hourly;         /* sessions an hour, on average over a working day without bursts */
    double noon;           /* hour of the day at which most come */
    uint64_t weight_bytes; /* that it has all the week */
};

struct session {
    unsigned service;
    uint64_t begin_ns, end_ns;
    uint64_t bytes; /* of all blocks */
    unsigned count;
    uint64_t block[BLOCKS_MOST]; /* bytes */
};

/* Everything that happens, in the order in which it does. */
struct happening {
    uint64_t at_ns;
    uint32_t session;
    uint32_t is_begin;
};

struct week {
    struct session *sessions;
    struct happening *happenings; /* two of each session */
    size_t count;                 /* sessions */
};

extern const struct service services[SERVICES];

/* The first hours of the week; the caller frees both fields.  Ends the programme without host memory. */
struct week week_make(double hours);

#endif
