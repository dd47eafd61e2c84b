/* SPDX-License-Identifier: MIT */
/*
 * Comparison of two profiles, A and B, row by row.  The reports are a verdict in one sentence, tables and JSON.
 *
 * Rows are matched by name.  An edit of a source file moves lines, so names that only one side has are also matched if
 * they differ only in line numbers, and A has as many such names as B.
 *
 * A verdict names a difference of at least 1 % of the bytes reserved at the peak of A or B, whichever is more.  A row
 * differs if peaks or numbers of blocks are unequal, averages differ by more than 0.1 %, or lifetimes by more than
 * 5 %: additional events of one row move the averages of all rows slightly.
 *
 * Locking: none.
 */
#ifndef TOOLS_COMPARE_H
#define TOOLS_COMPARE_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/replay_model/profile.h"

/* The measures, in the order in which the verdict searches for a difference. */
enum compare_measure {
    COMPARE_PEAK_RESERVED,
    COMPARE_PEAK_ALLOCATED,
    COMPARE_FRAGMENTED,
    COMPARE_ALLOCATED,
    COMPARE_RESERVED,
    COMPARE_MEASURES
};

enum compare_kind { COMPARE_SITE, COMPARE_PENDING, COMPARE_IDLE };

struct compare_row {
    enum compare_kind kind;
    const char *name_a, *name_b; /* of a site; NULL: only the other side has it */
    const struct profile_figures *a, *b;
};

struct compare {
    const struct profile *a, *b;
    struct compare_row *rows;    /* [row_count]; rows that differ first, by decreasing difference */
    size_t row_count, differing; /* differing: rows that differ */
};

enum compare_result {
    COMPARE_EQUAL,  /* all figures are equal */
    COMPARE_CLOSE,  /* all differences are small */
    COMPARE_TOTAL,  /* the sums of a measure differ */
    COMPARE_SHIFTED /* the sums are close, and a row differs */
};

struct compare_verdict {
    enum compare_result result;
    enum compare_measure measure;
    int64_t delta; /* B - A of the sums, bytes */
    /* The row with the largest difference in the direction of delta. */
    const struct compare_row *largest;
    /* COMPARE_SHIFTED: the row with the largest decrease, or NULL. */
    const struct compare_row *decrease;
};

/*
 * Match two profiles, which must outlive the comparison.
 *
 * may_move: names contain lines, which may have moved.
 *
 * Returns: false if out of host memory; there is nothing to free then
 */
bool compare_init(struct compare *compare, const struct profile *a, const struct profile *b,
                  bool may_move);
void compare_fini(struct compare *compare);

/* Get the bytes of a measure in a row, and in all rows. */
uint64_t compare_amount(enum compare_measure measure, enum compare_kind kind,
                        const struct profile_figures *figures);
uint64_t compare_total(enum compare_measure measure, const struct profile *profile);

/* Get the difference B - A of a row. */
int64_t compare_delta(enum compare_measure measure, const struct compare_row *row);

struct compare_verdict compare_judge(const struct compare *compare);

/* --- Reports. --- */

/* The names of the sides: "A" and "B", or "rank 3" and "rank 5". */
struct compare_names {
    const char *a, *b;
};

/* Describe the verdict: "B reserves 2.40 GiB less at the peak, all of it at model.py:212".  The caller frees the text;
 * NULL if out of host memory. */
char *compare_report_verdict(const struct compare *compare, const struct compare_names *names);

/*
 * Print a table of the sums, and a table of the rows that differ.
 *
 * rows:      maximum number of rows.
 * by_events: averages and lifetimes are in events; false: the profiles are of one state and have neither.
 */
void compare_report_tables(FILE *out, const struct compare *compare,
                           const struct compare_names *names, uint32_t rows, bool by_events);

/* Make JSON of the sums of a profile, and of all rows in the order of the comparison.  NULL if out of host memory. */
json_t *compare_report_totals(const struct profile *profile);
json_t *compare_report_rows(const struct compare *compare);

#endif
