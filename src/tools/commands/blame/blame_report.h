/* SPDX-License-Identifier: MIT */
/*
 * The report of `xseg blame` as text, as JSON, and as folded stacks.
 *
 * Each function returns false, or NULL, on host allocation failure.
 *
 * Locking: none.
 */
#ifndef TOOLS_BLAME_REPORT_H
#define TOOLS_BLAME_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/blame/blame.h"

/* rows: number of sites; one more row has the sum of the omitted sites */
bool blame_report_text(FILE *out, const struct blame *blame, enum blame_by by, uint32_t rows);

/* Sums are decimal strings, because they can exceed 64 bits. */
json_t *blame_report_json(const struct blame *blame, enum blame_by by);

/* Print a line for each stack: frames from the outermost to the innermost, separated by `;`, and average bytes.  The
 * outermost frame of pinned host memory is `(pinned host memory)`. */
bool blame_report_folded(FILE *out, const struct blame *blame, enum blame_by by);

#endif
