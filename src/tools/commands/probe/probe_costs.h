/* SPDX-License-Identifier: MIT */
/*
 * What the calls of a driver cost: by size, alone and in batches, with the device idle and busy, the
 * first time and again, on one thread and on two at once.
 *
 * Terms:
 *   span    median and quartiles of the samples, in nanoseconds
 *   first   the first call of its kind at this size in the process.  It is no sample
 *   busy    work of PROBE_WORK_NS is queued before the call and waited for after it, outside the time
 *   waits   after the call in question the work had ended, more often than not
 *   cost    a row: one call by name and size, or a run of pages in one call or as many
 *   group   rows that are measured together, because each round makes all their calls in turn
 *   share   of the time that is left, what a group may take: by its weight among those to come
 */
#ifndef TOOLS_PROBE_COSTS_H
#define TOOLS_PROBE_COSTS_H

#include "src/tools/commands/probe/probe_device.h"

/* Samples of a row, and how many at most where there is a time to fill. */
#define PROBE_SAMPLES     21
#define PROBE_SAMPLES_MAX 101
#define PROBE_THREADS     2
#define PROBE_COSTS       128

struct probe_span {
    uint64_t median, low, high;
    unsigned samples; /* 0: not measured */
};

/* Why a row has no samples. */
enum probe_missing {
    PROBE_MISSING_NOTHING, /* it has */
    PROBE_MISSING_FIT,     /* the size is no multiple of the granularity */
    PROBE_MISSING_BATCH,   /* the driver takes one page a call */
    PROBE_MISSING_MEMORY,
    PROBE_MISSING_TIME,
    PROBE_MISSING_KEPT,   /* the driver has not taken back what it gave */
    PROBE_MISSING_THREAD, /* a second one could not be started */
    PROBE_MISSING_CALL    /* one failed */
};

struct probe_cost {
    const char *call;
    uint64_t bytes; /* of one page; 0 where size does not matter */
    unsigned pages, calls, threads;
    uint64_t first;
    bool has_first;
    struct probe_span idle, busy;
    bool waits;
    enum probe_missing missing;
};

struct probe_costs {
    struct probe_cost cost[PROBE_COSTS];
    unsigned count;
    bool is_busy;     /* whether the device could be kept busy */
    bool is_short;    /* whether the time was up before all was measured */
    uint64_t skipped; /* the smallest size that there was no memory for; 0: none */
};

/*
 * Measure.
 *
 * A size that needs more than half of the free memory has rows without samples, which say so; so has
 * what the time is not enough for.  A call that fails is noted and ends the samples of its row; the
 * others go on.  A driver that does not take memory back is asked for no more of it.
 *
 * @param seconds  at most; 0: as long as PROBE_SAMPLES take
 * @param on_rows  called as rows are ready, with the first of those that were not yet; may be NULL
 */
void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         unsigned seconds, struct probe_costs *costs,
                         void (*on_rows)(const struct probe_costs *costs, unsigned from,
                                         void *context),
                         void *context);

/* A few words; NULL for nothing. */
const char *probe_missing_text(enum probe_missing missing);

/* The row of this description; NULL if there is none. */
const struct probe_cost *probe_costs_find(const struct probe_costs *costs, const char *call,
                                          uint64_t bytes, unsigned pages, unsigned calls);

#endif
