/* SPDX-License-Identifier: MIT */
/*
 * What a job's ranks come to, as a sentence, as tables, and as JSON.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANKS_REPORT_H
#define TOOLS_RANKS_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/ranks/ranks.h"

/*
 * "rank 5 is the odd one of 64: it reserves 2.40 GiB more at the peak, all of it at model.py:212".
 *
 * @param pair  of one job: the comparison of its typical rank, A, and its furthest one, B; NULL where one file alone was read.
 *              Of two jobs: that of their sums
 *
 * The caller frees it; NULL without host memory.
 */
char *ranks_report_verdict(const struct ranks *ranks, const struct compare *pair);

/* Whether the ranks of a job, or the two jobs, differ by anything that is said; pair as above. */
bool ranks_report_differs(const struct ranks *ranks, const struct compare *pair);

/* A line about each thing that was left out, if any, and a table of so many ranks. */
void ranks_report_table(FILE *out, const struct ranks *ranks, uint32_t rows);

/* The ranks, and what could not be read; NULL without host memory. */
json_t *ranks_report_json(const struct ranks *ranks);
json_t *ranks_report_unread(const struct ranks *ranks);

#endif
