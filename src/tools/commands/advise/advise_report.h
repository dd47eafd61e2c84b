/* SPDX-License-Identifier: MIT */
/*
 * The advice for a file, or for the ranks of a job, as text or as JSON.
 *
 * Locking: none.
 */
#ifndef TOOLS_ADVISE_REPORT_H
#define TOOLS_ADVISE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/advise/advise.h"

/* The ranks of the programs. */
struct advise_ranks {
    const char *folder, *verdict; /* verdict: of ranks_report_verdict() */
    const char *outlier;          /* the outlier; NULL: none */
    size_t files;
    struct {
        const char *name;
        bool is_outlier, is_typical;
    } of[TRIALS_PROGRAMS];
};

/* The advice for one program.  Returns false on host allocation failure. */
bool advise_report_text(FILE *out, const struct advice *advice);

/* NULL on host allocation failure. */
json_t *advise_report_json(const struct advice *advice);

/* The advice for ranks of a job, in the same formats. */
bool advise_report_ranks_text(FILE *out, const struct advise_ranks *ranks,
                              const struct advice *advice);
json_t *advise_report_ranks_json(const struct advise_ranks *ranks, const struct advice *advice);

#endif
