/* SPDX-License-Identifier: MIT */
/*
 * The costs of driver calls: by size, for single calls and for runs of pages, with an idle and a busy device, of the first and
 * of repeated calls, on one thread and on two.
 *
 * Terms:
 *   cost   a call with a size, or a run of pages in one call or in one call for each page
 *   first  the first such call of the process; it is not a sample
 *   busy   work of PROBE_WORK_NS is queued before the call; the wait for the work after the call is not part of the sample
 *   group  costs that are measured together, because each round makes all their calls
 */
#ifndef TOOLS_PROBE_COSTS_H
#define TOOLS_PROBE_COSTS_H

#include "src/tools/commands/probe/probe_measure.h"

#define PROBE_COSTS 128

/* Why a cost has no samples. */
enum probe_missing {
    PROBE_MISSING_NOTHING, /* it has samples */
    PROBE_MISSING_FIT,     /* the size is not a multiple of the granularity */
    PROBE_MISSING_BATCH,   /* the driver accepts one page per call */
    PROBE_MISSING_MEMORY,
    PROBE_MISSING_TIME,
    PROBE_MISSING_KEPT,   /* the driver did not release memory of a previous group */
    PROBE_MISSING_THREAD, /* the second thread could not be started */
    PROBE_MISSING_CALL    /* a call failed */
};

struct probe_cost {
    const char *call;
    uint64_t bytes; /* of one page; 0: the call has no size */
    unsigned pages, calls, threads;
    uint64_t first;
    bool has_first;
    struct probe_quartiles idle, busy;
    bool waits; /* more than half of the calls waited for the work of a busy device */
    enum probe_missing missing;
};

struct probe_costs {
    struct probe_cost cost[PROBE_COSTS];
    unsigned count;
    bool has_busy;      /* the device could be kept busy */
    bool is_incomplete; /* the time limit was reached */
    uint64_t skipped;   /* the smallest size without enough free memory; 0: none */
};

/*
 * Measure all costs.
 *
 * A size that needs more than half of the free memory has no samples, and neither has a group for which no time remains.  A
 * call that fails is recorded and ends the samples of its group.  If the driver does not release memory, no more memory is
 * allocated.
 *
 * @param seconds  time limit; 0: unlimited, with PROBE_SAMPLES of each call
 * @param on_rows  called after each group with the index of its first cost; may be NULL
 */
void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         unsigned seconds, struct probe_costs *costs,
                         void (*on_rows)(const struct probe_costs *costs, unsigned from,
                                         void *context),
                         void *context);

/* Describe the reason for missing samples.  Returns NULL for PROBE_MISSING_NOTHING. */
const char *probe_missing_text(enum probe_missing missing);

/* Find the cost of one thread with this call and size, or NULL. */
const struct probe_cost *probe_costs_find(const struct probe_costs *costs, const char *call,
                                          uint64_t bytes, unsigned pages, unsigned calls);

#endif
