/* SPDX-License-Identifier: MIT */
/*
 * How a programme measures: warm up, then batch after batch until the spread is small, and one row.
 *
 * A row is one line of tab-separated fields on standard output:
 *
 *     question  case  subject  unit  median  lower  upper  batches  [note]
 *
 * Lower and upper are the quartiles of the batches.  What is counted or modelled, not measured, is a
 * row whose unit says so.
 */
#ifndef BENCHMARKS_MEASURE_H
#define BENCHMARKS_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

/* What one measurement repeats. */
struct measure {
    const char *question, *name;
    uint64_t warm; /* steps to warm up with, at least */
    /* Do so many steps, and return the nanoseconds that they took. */
    uint64_t (*steps)(void *self, uint64_t count);
    void *self;
};

/* Open the subject as the command line says: [--config STRING] [--seconds S] [--warm N], S for each
 * case, and no more than N steps to warm up, where nobody looks at the times. */
void measure_open(int argc, char **argv, unsigned streams);

/* Measure nanoseconds a step, and print the row.  Returns the median. */
double measure_steps(const struct measure *measure);

/* As measure_steps(), where steps are a whole and cannot be cut: each batch is one call with count 1,
 * which does `parts` of what is counted. */
double measure_whole(const struct measure *measure, uint64_t parts);

/* Print one row of a figure that was not timed. */
void measure_say(const char *question, const char *name, const char *unit, double value);
/* The same with a note for the reader; "": none. */
void measure_say_with(const char *question, const char *name, const char *unit, double value,
                      const char *note);

/* Whether the device has memory for a case that takes so many bytes; where it has not, that is said on
 * standard error, and the case is left out. */
bool measure_fits(const char *question, const char *name, uint64_t bytes);

uint64_t measure_now(void);

#endif
