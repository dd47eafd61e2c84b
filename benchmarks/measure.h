/* SPDX-License-Identifier: MIT */
/*
 * Measurement: a warm-up, then batches until their spread is small, and one row of output.
 *
 * A row is one line of tab-separated fields on standard output:
 *
 *     benchmark  case  allocator  unit  median  lower  upper  batches  [note]
 *
 * Lower and upper are the quartiles of the batches.  Units of counted and modeled values contain "counted" or "modeled".
 */
#ifndef BENCHMARKS_MEASURE_H
#define BENCHMARKS_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

struct measure {
    const char *benchmark, *name;
    uint64_t warm_up; /* minimum number of steps before the measurement */
    /* Run `count` steps, and return their time in nanoseconds. */
    uint64_t (*steps)(void *self, uint64_t count);
    void *self;
};

/* Open the allocator under test with the options of the command line: [--config STRING] [--seconds S] [--warm N], S for each
 * case, and at most N steps of warm-up. */
void measure_open(int argc, char **argv, unsigned streams);

/* Measure the nanoseconds of a step, and print the row.  Returns the median. */
double measure_steps(const struct measure *measure);

/* Like measure_steps(), for steps that consist of `events` events: each batch is one step, and the row has the time of an
 * event. */
double measure_events(const struct measure *measure, uint64_t events);

/* Print a row with a value that is not a time.  note: "" for none. */
void measure_print(const char *benchmark, const char *name, const char *unit, double value,
                   const char *note);

/* Whether the device has memory for a case of `bytes`.  If not, prints to standard error that the case is omitted. */
bool measure_fits(const char *benchmark, const char *name, uint64_t bytes);

uint64_t measure_now(void);

#endif
