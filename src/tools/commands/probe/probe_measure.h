/* SPDX-License-Identifier: MIT */
/*
 * Measurement of driver calls.
 *
 * Terms:
 *   step    one driver call or, if its name ends in `each`, one call for each page; its state is a round
 *   round   a chain of steps that ends in the state in which it began
 *   row     the samples of a step; it becomes a cost (probe_costs.h)
 *   share   the part of the remaining time that a measurement may take, in proportion to its weight
 *
 * A failed step leaves its round in a state that probe_round_release() can release.
 *
 * Two threads measure the same chain concurrently, each with its own range, pages and allocations.  Each thread repeats rounds
 * without taking samples until both threads have all samples, so every sample is taken while the other thread makes calls.  The
 * simulator has one clock for all threads, so there the threads take turns and a step costs as much as on one thread.
 *
 * Locking: none, except between these two threads; each thread has its own rows, and they are merged when it has ended.
 */
#ifndef TOOLS_PROBE_MEASURE_H
#define TOOLS_PROBE_MEASURE_H

#include "src/tools/commands/probe/probe_driver.h"

/* --- Time. --- */

struct probe_budget {
    uint64_t deadline;         /* 0: none */
    unsigned weight_remaining; /* of the remaining measurements */
};

struct probe_share {
    uint64_t first_half_end, end, deadline; /* 0: unlimited */
};

void probe_budget_init(struct probe_budget *budget, unsigned seconds, unsigned weight);

/* Get the share of the next measurement. */
struct probe_share probe_budget_share(struct probe_budget *budget, unsigned weight);

/* Get whether the time limit was reached. */
bool probe_budget_is_over(const struct probe_budget *budget);

/* Get whether time remains for another sample.  The first three samples may exceed the share, but not the deadline. */
bool probe_share_has_time(const struct probe_share *share, bool is_second_half, unsigned samples);

/* --- Steps. --- */

#define PROBE_RUN_MAX 128 /* pages */

struct probe_round {
    struct probe_driver *driver;
    const char *purpose;
    uint64_t base, page, handle[PROBE_RUN_MAX];
    unsigned pages, created, mapped;
    uint64_t address; /* of an allocation; 0: none */
    void *event;
};

typedef bool probe_step(struct probe_round *round);

probe_step probe_round_create_page;
probe_step probe_round_map_page;
probe_step probe_round_set_access_run;
probe_step probe_round_set_access_each;
probe_step probe_round_unmap_run;
probe_step probe_round_unmap_each;
probe_step probe_round_release_page;
probe_step probe_round_reserve_range;
probe_step probe_round_unreserve_range;
probe_step probe_round_allocate;
probe_step probe_round_free_allocation;
probe_step probe_round_create_event;
probe_step probe_round_record_event;
probe_step probe_round_query_event;
probe_step probe_round_destroy_event;
probe_step probe_round_query_memory;
probe_step probe_round_wait_for_event;
probe_step probe_round_wait_for_stream;

/* Release the resources of a round.  Returns false if the driver did not release one of them; then no round must follow,
 * because such a driver could run out of memory. */
bool probe_round_release(struct probe_round *round);
bool probe_round_release_range(struct probe_round *round);

/* --- Samples. --- */

#define PROBE_SAMPLES     21
#define PROBE_SAMPLES_MAX 101 /* with a time limit */
#define PROBE_THREADS     2
#define PROBE_STAGES      5 /* of a chain */

struct probe_quartiles {
    uint64_t median, low, high; /* nanoseconds */
    unsigned samples;           /* 0: not measured */
};

/* A step and its driver call. */
struct probe_stage {
    const char *call;
    probe_step *run;
};

struct probe_row {
    uint64_t sample[2][PROBE_THREADS * PROBE_SAMPLES_MAX]; /* idle, busy */
    unsigned samples[2], blocking; /* blocking: samples that waited for a busy device */
    uint64_t first;
    bool has_first;
};

enum probe_sampling { PROBE_FIRST, PROBE_IDLE, PROBE_BUSY };

/* Run a step and measure its time.  Returns whether the step succeeded; a failed step has no sample. */
bool probe_row_measure(struct probe_row *row, struct probe_round *round,
                       enum probe_sampling sampling, probe_step *step);

/* Get the quartiles of the samples with an idle or a busy device.  Sorts the samples. */
struct probe_quartiles probe_row_quartiles(struct probe_row *row, bool is_busy);

/* The chain of both threads. */
struct probe_chain {
    const char *purpose;
    uint64_t page;
    bool has_range; /* the steps need a range of addresses */
    unsigned samples;
    const struct probe_stage *stage;
    unsigned stages;
};

/* Add the samples of both threads to the rows.  Returns false if the second thread cannot be started. */
bool probe_pair_measure(struct probe_driver *driver, const struct probe_chain *chain,
                        const struct probe_share *share, struct probe_row *rows);

#endif
