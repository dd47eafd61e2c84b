/* SPDX-License-Identifier: MIT */
/*
 * What blame found, as text, as JSON, and as folded stacks.
 *
 * Each returns false without host memory.
 *
 * Locking: none.
 */
#ifndef TOOLS_BLAME_REPORT_H
#define TOOLS_BLAME_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/blame/blame.h"

/* rows: how many sites are named; the others are one row */
bool blame_report_text(FILE *out, const struct blame *blame, enum blame_by by, uint32_t rows);

/* Sums are decimal text: they may need more than 64 bits. */
json_t *blame_report_json(const struct blame *blame, enum blame_by by);

/* A line for each stack: frames from the outermost to the innermost, with `;` between them, and bytes, on average. */
bool blame_report_folded(FILE *out, const struct blame *blame, enum blame_by by);

#endif
