/* SPDX-License-Identifier: MIT */
/*
 * What a comparison found, as one sentence, as text, and as JSON.
 *
 * Locking: none.
 */
#ifndef TOOLS_COMPARE_REPORT_H
#define TOOLS_COMPARE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/ranks/compare.h"

/* What the two sides are called: "A" and "B", or "rank 3" and "rank 5". */
struct compare_names {
    const char *a, *b;
};

/* "B reserves 2.40 GiB less at the peak, all of it at model.py:212".  The caller frees it; NULL without host memory. */
char *compare_report_verdict(const struct compare *compare, const struct compare_names *names);

/*
 * Two tables: all that was compared in all, and the rows that differ.
 *
 * @param rows       how many rows are named
 * @param by_events  averages and lifetimes are over events; else there is a state of one moment alone, and neither
 */
void compare_report_tables(FILE *out, const struct compare *compare,
                           const struct compare_names *names, uint32_t rows, bool by_events);

/* What a profile comes to in all; NULL without host memory. */
json_t *compare_report_whole(const struct profile *profile);

/* All rows, in the order of the comparison; NULL without host memory. */
json_t *compare_report_rows(const struct compare *compare);

#endif
