/* SPDX-License-Identifier: MIT */
/*
 * Samples of a row while it is measured, and the stages of a chain.
 *
 * Locking: none; each thread has its own rows, and rows are pooled when it has ended.
 */
#ifndef TOOLS_PROBE_SAMPLE_H
#define TOOLS_PROBE_SAMPLE_H

#include "src/tools/commands/probe/probe_costs.h"
#include "src/tools/commands/probe/probe_round.h"

#define PROBE_STAGES 5

/* A step of a round, and which call it makes. */
struct probe_stage {
    const char *call;
    probe_step *take;
};

struct probe_row {
    uint64_t sample[2][PROBE_THREADS * PROBE_SAMPLES_MAX]; /* idle, busy */
    unsigned samples[2], waits;
    uint64_t first;
    bool has_first;
};

/* What a sample is taken for. */
enum probe_sampling { PROBE_FIRST, PROBE_IDLE, PROBE_BUSY };

/* Take a step and its time.  Returns whether it went well; only then there is a sample. */
bool probe_row_take(struct probe_row *row, struct probe_round *round, enum probe_sampling how,
                    probe_step *take);

/* Add the samples of another row. */
void probe_row_add(struct probe_row *row, const struct probe_row *other);

/* What the samples say. */
void probe_row_end(struct probe_row *row, struct probe_cost *cost);

#endif
