/* SPDX-License-Identifier: MIT */
/*
 * A comparison of two profiles, A and B, row by row: what B has more or less of.
 *
 * Rows are matched by name.  An edit moves lines, so names that one side alone has may be matched, too: those that differ
 * in numbers of lines alone, if A has as many of them as B.
 *
 * A difference is said where it is a hundredth of what was reserved at the peak, A's or B's, whichever is more.  A row is
 * shown where peaks or numbers of blocks are unequal, averages by more than a thousandth, or lifetimes by a twentieth: what
 * one row has more moves the averages of all a little.
 *
 * Locking: none.
 */
#ifndef TOOLS_COMPARE_H
#define TOOLS_COMPARE_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/replay_model/profile.h"

/* What a difference is of, in the order in which a verdict looks for one. */
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
    const char *name_a, *name_b; /* of a site; NULL: the other alone has it */
    const struct profile_figures *a, *b;
};

struct compare {
    const struct profile *a, *b;
    struct compare_row
        *rows; /* [row_count], those that are shown first, the largest difference first of all */
    size_t row_count, differing; /* differing: how many are shown */
};

enum compare_result {
    COMPARE_EQUAL,  /* every figure of every row is equal */
    COMPARE_CLOSE,  /* no difference is large enough to be said */
    COMPARE_WHOLE,  /* B has more or less of the measure in all */
    COMPARE_SHIFTED /* it has as much in all, and more or less in a row */
};

struct compare_verdict {
    enum compare_result result;
    enum compare_measure measure;
    int64_t delta; /* B - A in all, bytes */
    const struct compare_row
        *most; /* the row with the largest difference, in the direction of delta */
    const struct compare_row *less; /* COMPARE_SHIFTED: the row that has less of it, or NULL */
};

/*
 * Match two profiles, which must live as long.
 *
 * @param may_move  names are those of frames, so lines may have moved
 *
 * Returns: false without host memory; there is nothing to end then
 */
bool compare_init(struct compare *compare, const struct profile *a, const struct profile *b,
                  bool may_move);
void compare_fini(struct compare *compare);

/* Bytes of a row that count for a measure. */
uint64_t compare_amount(enum compare_measure measure, enum compare_kind kind,
                        const struct profile_figures *figures);

/* Bytes of all rows that count for a measure. */
uint64_t compare_whole(enum compare_measure measure, const struct profile *profile);

/* B - A of a row. */
int64_t compare_delta(enum compare_measure measure, const struct compare_row *row);

struct compare_verdict compare_judge(const struct compare *compare);

/*
 * What a comparison found, as one sentence, as text, and as JSON.
 *
 * Locking: none.
 */

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
