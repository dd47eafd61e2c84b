/* SPDX-License-Identifier: MIT */
/*
 * What the calls of a driver cost: each made PROBE_SAMPLES times, with the device idle and busy.
 *
 * Terms:
 *   span   median and quartiles of the samples, in nanoseconds
 *   busy   work of PROBE_WORK_NS is queued before the call and waited for after it, outside the time
 *   waits  after the call in question the work had ended, more often than not
 *   cost   a row: one call by name and size, or a run of pages in one call or as many
 */
#ifndef TOOLS_PROBE_COSTS_H
#define TOOLS_PROBE_COSTS_H

#include "src/tools/probe_device.h"

#define PROBE_SAMPLES 21
#define PROBE_COSTS   64
/* Pages of a run, and their size. */
#define PROBE_RUN_PAGES 10
#define PROBE_RUN_PAGE  ((uint64_t)2 << 20)

struct probe_span {
    uint64_t median, low, high;
    unsigned samples; /* 0: not measured */
};

struct probe_cost {
    const char *call;
    uint64_t bytes; /* of one page; 0 where size does not matter */
    unsigned pages, calls;
    struct probe_span idle, busy;
    bool waits;
};

struct probe_costs {
    struct probe_cost cost[PROBE_COSTS];
    unsigned count;
    bool is_busy;     /* whether the device could be kept busy */
    uint64_t skipped; /* the smallest size that there was no memory for; 0: none */
};

/*
 * Measure.  Sizes that need more than half of the free memory are left out.  A call that fails is
 * noted and ends the samples of its row; the others go on.
 */
void probe_costs_measure(struct probe_driver *driver, const struct probe_device *device,
                         struct probe_costs *costs);

#endif
