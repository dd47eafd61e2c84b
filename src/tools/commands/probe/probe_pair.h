/* SPDX-License-Identifier: MIT */
/*
 * A chain of steps on two threads at once, each on a range, pages and allocations of its own.
 *
 * Each thread goes on with rounds that nobody times until both have all their samples, so every sample is
 * taken while the other thread makes calls, too.
 *
 * The simulator has one clock for all threads, on which the other thread's calls pass, too.  So there the
 * threads take turns, step by step, and a step costs what it costs alone: it models no waiting for each
 * other.
 *
 * Locking: inside.
 */
#ifndef TOOLS_PROBE_PAIR_H
#define TOOLS_PROBE_PAIR_H

#include "src/tools/commands/probe/probe_budget.h"
#include "src/tools/commands/probe/probe_sample.h"

/* What both threads do. */
struct probe_chain {
    const char *doing;
    uint64_t page;
    bool has_range; /* the steps need addresses */
    unsigned samples;
    const struct probe_stage *stage;
    unsigned stages;
};

/*
 * Measure.  The samples of both threads are added to the rows.  Returns: false if no second thread could be
 * started; then there are none.
 */
bool probe_pair_measure(struct probe_driver *driver, const struct probe_chain *chain,
                        const struct probe_share *share, struct probe_row *rows);

#endif
