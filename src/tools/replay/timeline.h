/* SPDX-License-Identifier: MIT */
/*
 * Memory over time as a table of at most TIMELINE_ROWS rows with columns separated by tabs, to be plotted.
 *
 * Without a trace clock, a row covers a number of events: event number, requested, allocated and reserved bytes.
 * With a clock, a row covers a time span.  Its columns are microseconds since the first `@`, the same bytes, bytes of
 * reserved addresses and of host memory, and objects of the driver.  The last three must not grow without bound.
 * Each column is the maximum of its row, except for host memory and objects, which are expensive to query: their values
 * are those at the end of the row.  Lines that begin with `#` are comments: the names of the columns, and without a clock
 * `# mark EVENT LABEL` for each mark of the trace.
 *
 * Locking: none; one replay uses a timeline.
 */
#ifndef TOOLS_TIMELINE_H
#define TOOLS_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "src/tools/trace/xtrace.h"
#include "xseg/xseg.h"

#define TIMELINE_ROWS    2000
#define TIMELINE_COLUMNS 6

struct timeline {
    FILE *file;          /* NULL: no timeline is written */
    bool has_clock;      /* rows cover time spans */
    uint64_t row_length; /* events or microseconds per row */
    uint64_t count;      /* events in the current row */
    uint64_t position;   /* events or microseconds so far */
    uint64_t maxima[TIMELINE_COLUMNS];
};

/* `file` remains the caller's. */
void timeline_init(struct timeline *timeline, FILE *file, const struct xtrace *trace);

/* Without a clock: add the memory after an event, or a mark. */
void timeline_add(struct timeline *timeline, const struct xseg_statistics *stats);
void timeline_mark(struct timeline *timeline, const char *label);

/* With a clock: add memory that did not change until this time.  `stats` may end before host_bytes. */
void timeline_until(struct timeline *timeline, uint64_t microseconds,
                    struct xseg_allocator *allocator, const struct xseg_statistics *stats);

/* Write the last row.  Returns whether all writes succeeded. */
bool timeline_fini(struct timeline *timeline);

#endif
