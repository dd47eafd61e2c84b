/* SPDX-License-Identifier: MIT */
/*
 * Memory over time, for a picture: at most TIMELINE_ROWS rows of event number, requested, allocated
 * and reserved bytes, separated by tabs.
 *
 * Each row stands for a run of events and shows the highest value of each column in it, so that no
 * peak is lost.  Comment lines begin with `#`: the names of the columns, and `# mark EVENT LABEL`
 * where the trace has a mark.
 *
 * Locking: none; it belongs to one replay.
 */
#ifndef TOOLS_TIMELINE_H
#define TOOLS_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define TIMELINE_ROWS 2000

struct timeline {
    FILE *file;     /* NULL: nobody wants one */
    uint64_t run;   /* events in a row */
    uint64_t count; /* events in the row that is being filled */
    uint64_t event; /* events so far */
    uint64_t high[3];
};

/* `file` stays the caller's. */
void timeline_init(struct timeline *timeline, FILE *file, uint64_t events);

void timeline_add(struct timeline *timeline, uint64_t requested, uint64_t allocated,
                  uint64_t reserved);
void timeline_mark(struct timeline *timeline, const char *label);

/* Write the last row.  Returns whether everything was written. */
bool timeline_fini(struct timeline *timeline);

#endif
