/* SPDX-License-Identifier: MIT */
/*
 * The table of `xseg top`: a row for each device of each process that publishes, and below it rows of its pools; or a row
 * that says why a process cannot be shown.
 *
 * Locking: none.
 */
#ifndef TOOLS_TOP_TABLE_H
#define TOOLS_TOP_TABLE_H

#include <jansson.h>

#include "src/tools/commands/top/publishers.h"

/* What rows are in order of, the largest first; in the order of the words of --sort. */
enum top_by {
    TOP_BY_RESERVED,
    TOP_BY_LIVE,
    TOP_BY_PENDING,
    TOP_BY_CACHED,
    TOP_BY_PEAK,
    TOP_BY_REGISTERED,
    TOP_BY_OOMS,
    TOP_BY_REJECTED,
    TOP_BY_PID, /* the smallest first */
    TOP_BYS
};

#define TOP_LINE 256 /* room for a line, with its terminator */

struct top_row {
    const struct publisher *publisher;
    const struct xseg_published_device *device; /* NULL: the process has a problem, or no device */
    const struct xseg_published_pool *pool;     /* NULL: the row of the device */
};

struct top_table {
    struct top_row *rows;
    size_t count;
    size_t processes, devices;
};

/*
 * Put the rows in order.  A device with the default pool alone has no rows of pools.
 *
 * publishers: stay the caller's, and until top_table_fini()
 * Returns: false without host memory
 */
bool top_table_init(struct top_table *table, const struct publishers *publishers, enum top_by by,
                    bool has_pools);
void top_table_fini(struct top_table *table);

/* "2 processes, 3 devices; 214 processes may not be looked at" */
void top_table_summary(const struct top_table *table, const struct publishers *publishers,
                       char line[TOP_LINE]);

/* The line above the rows, and where in it the column stands that rows are in order of. */
void top_table_head(char line[TOP_LINE], enum top_by by, int *from, int *length);

void top_table_line(const struct top_row *row, char line[TOP_LINE]);

/* All of it as JSON; NULL without host memory.  more: a value for the key "budget", which is given up; NULL: none */
json_t *top_table_json(const struct publishers *publishers, json_t *more);

#endif
