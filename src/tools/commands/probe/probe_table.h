/* SPDX-License-Identifier: MIT */
/*
 * Costs as a table: for people the sizes that xseg uses, for programmes every figure.
 *
 * The table for programmes has columns with tabs between them and a line of their names.  A row for each
 * figure: `when` is `repeated`, `first` (at that size in the process) or `process` (the first of that
 * name, whatever its size: most are of the trial of two pages).  A dash is what is not known.
 *
 * Locking: none.
 */
#ifndef TOOLS_PROBE_TABLE_H
#define TOOLS_PROBE_TABLE_H

#include <stdio.h>

#include "src/tools/commands/probe/probe_costs.h"

void probe_table_print(FILE *out, const struct probe_costs *costs);

/* The names of the columns; the rows from `from` on; the first calls of the process. */
void probe_table_head(FILE *out);
void probe_table_rows(FILE *out, const struct probe_costs *costs, unsigned from);
void probe_table_firsts(FILE *out, const struct probe_driver *driver);

#endif
