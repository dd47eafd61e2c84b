/* SPDX-License-Identifier: MIT */
/*
 * The report of `xseg probe` as text or JSON, and a table of all measurements for programs.
 *
 * The table has tab-separated columns, with their names in the first line, and a row for each measurement.  `when` is
 * `repeated`, `first` (of that size in the process) or `process` (of that call with any size; most of these are of the probe of
 * two pages).  A dash is an unknown value.
 *
 * Locking: none.
 */
#ifndef TOOLS_PROBE_REPORT_H
#define TOOLS_PROBE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/probe/probe_costs.h"

struct probe_report {
    const char *library; /* of the driver */
    const char *preset;  /* cost model of the simulator; NULL: the costs are measured */
    struct probe_driver *driver;
    const struct probe_device *device;
    const struct probe_costs *costs;
};

void probe_report_print(FILE *out, const struct probe_report *report);

/* NULL on host allocation failure. */
json_t *probe_report_json(const struct probe_report *report);

/* Print the names of the columns; the costs from index `from`; the first calls of the process. */
void probe_table_head(FILE *out);
void probe_table_rows(FILE *out, const struct probe_costs *costs, unsigned from);
void probe_table_firsts(FILE *out, const struct probe_driver *driver);

#endif
