/* SPDX-License-Identifier: MIT */
/*
 * Memory over time, for a picture: at most TIMELINE_ROWS rows, separated by tabs.
 *
 * Without a clock a row stands for a run of events: event number, requested, allocated and reserved
 * bytes.  With a clock it stands for a stretch of time: microseconds since the first `@`, and the same
 * bytes.  Then follows what must not grow without end: bytes of reserved addresses, of host memory, and
 * objects of the driver.  Each row shows the highest value of each column, so that no peak is lost; of host memory and
 * objects, which take longer to find out, it shows those at its end.
 * Comment lines begin with `#`: the names of the columns, and, without a clock, `# mark EVENT LABEL`
 * where the trace has a mark.
 *
 * Locking: none; it belongs to one replay.
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
    FILE *file;     /* NULL: nobody wants one */
    bool has_clock; /* rows are stretches of time */
    uint64_t run;   /* events or microseconds in a row */
    uint64_t count; /* events in the row that is being filled */
    uint64_t at;    /* events or microseconds so far */
    uint64_t high[TIMELINE_COLUMNS];
};

/* `file` stays the caller's. */
void timeline_init(struct timeline *timeline, FILE *file, const struct xtrace *trace);

/* Without a clock: after each event, and at marks. */
void timeline_add(struct timeline *timeline, const struct xseg_statistics *stats);
void timeline_mark(struct timeline *timeline, const char *label);

/* With one: up to this time memory was as it is now.  `stats` may end before the host bytes. */
void timeline_until(struct timeline *timeline, uint64_t microseconds,
                    struct xseg_allocator *allocator, const struct xseg_statistics *stats);

/* Write the last row.  Returns whether everything was written. */
bool timeline_fini(struct timeline *timeline);

#endif
