/* SPDX-License-Identifier: MIT */
/*
 * The two tables of `xseg top`.
 *
 * The first table has a row for each device of each process that publishes, followed by rows for the pools of the device; or
 * a row with the reason why the statistics of a process cannot be read.  The second table has a row for each device of each
 * process that uses a budget file, including processes that do not publish.
 *
 * Layout: a terminal can be too narrow for all columns.  The columns that identify a row are always shown.  The others are
 * distributed among pages in the order of their priority, and one page is shown at a time.  The column that the rows are
 * sorted by is on the first page.
 *
 * Locking: none.
 */
#ifndef TOOLS_TOP_TABLE_H
#define TOOLS_TOP_TABLE_H

#include <jansson.h>

#include "src/tools/commands/top/publishers.h"
#include "xseg/status.h"

/* Sort keys, in the order of the words of --sort. */
enum top_by {
    TOP_BY_RESERVED,
    TOP_BY_ALLOCATED,
    TOP_BY_PENDING,
    TOP_BY_CACHED,
    TOP_BY_PEAK,
    TOP_BY_REGISTERED,
    TOP_BY_OOMS,
    TOP_BY_REJECTED,
    TOP_BY_PID, /* ascending; all others are descending */
    TOP_BYS
};

#define TOP_LINE 256 /* bytes of a line, with its terminator */

/* The columns that are shown. */
struct top_layout {
    unsigned shown; /* bit set of column indices */
    unsigned pages; /* 1 or more */
    int command_width;
};

/* --- Processes that publish. --- */

struct top_row {
    const struct publisher *publisher;
    const struct xseg_published_device *device; /* NULL: the process has an error, or no device */
    const struct xseg_published_pool *pool;     /* NULL: the row of the device */
};

struct top_table {
    struct top_row *rows;
    size_t count;
    size_t processes, devices;
};

/*
 * Create the sorted rows.  A device that has only the default pool has no rows of pools.
 *
 * @param publishers  must outlive the table
 * @return false on host allocation failure
 */
bool top_table_init(struct top_table *table, const struct publishers *publishers, enum top_by by,
                    bool has_pools);
void top_table_fini(struct top_table *table);

/* Format the summary: "2 processes, 3 devices; 214 processes cannot be read (permission denied)". */
void top_table_summary(const struct top_table *table, const struct publishers *publishers,
                       char line[TOP_LINE]);

/*
 * Select the columns.
 *
 * @param width  of the terminal; 0: unlimited
 * @param page   from 0; the last page if there are fewer
 */
struct top_layout top_table_layout(int width, enum top_by by, unsigned page);

/* Format the heading; `from` and `length` are the position of the sort column, and `length` is 0 if it is not shown. */
void top_table_head(const struct top_layout *layout, enum top_by by, char line[TOP_LINE], int *from,
                    int *length);

void top_table_line(const struct top_layout *layout, const struct top_row *row,
                    char line[TOP_LINE]);

/*
 * Get both tables as JSON.  Returns NULL on host allocation failure.
 *
 * @param budget  the value of the key "budget", whose ownership passes to the function; NULL: no such key
 */
json_t *top_table_json(const struct publishers *publishers, json_t *budget);

/* --- Processes that share a budget file. --- */

/* A device of a process. */
struct top_share {
    unsigned slot;
    int pid;
    bool is_readable;
    char program[16], uuid[40]; /* empty: none */
    uint64_t physical, idle, demand, share_millionths, min_bytes, released;
};

struct top_budget {
    struct top_share *rows;
    size_t count;
    bool is_full; /* no slot is free for another process */
    xseg_status status;
    char error[512]; /* error message; empty: none */
};

/* Read a budget file.  name: as in --budget */
void top_budget_init(struct top_budget *budget, const char *name);
void top_budget_fini(struct top_budget *budget);

struct top_layout top_budget_layout(int width, unsigned page);

/* Get the number of lines: a heading, a line for each row or a line with the error, and a line if no slot is free. */
size_t top_budget_lines(const struct top_budget *budget);
void top_budget_line(const struct top_layout *layout, const struct top_budget *budget,
                     size_t line_index, char line[TOP_LINE]);

/* Get the second table as JSON.  Returns NULL on host allocation failure. */
json_t *top_budget_json(const struct top_budget *budget);

#endif
