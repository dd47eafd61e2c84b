/* SPDX-License-Identifier: MIT */
/*
 * Advice about a file, or about the ranks of a job, as text for people or as JSON for programs.
 *
 * Locking: none.
 */
#ifndef TOOLS_ADVISE_REPORT_H
#define TOOLS_ADVISE_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "src/tools/commands/advise/advise.h"

/* The ranks that the programmes of the trials are of. */
struct advise_ranks {
    const char *folder, *verdict; /* what ranks_report_verdict() says */
    const char *odd;              /* the rank that is the odd one; NULL: none is */
    size_t files;
    struct {
        const char *name;
        bool is_odd, is_typical;
    } of[TRIALS_PROGRAMMES];
};

/* Of one programme.  Returns false without host memory. */
bool advise_report_text(FILE *out, const struct advice *advice);

/* Returns NULL without host memory. */
json_t *advise_report_json(const struct advice *advice);

/* Of ranks, likewise. */
bool advise_report_ranks_text(FILE *out, const struct advise_ranks *ranks,
                              const struct advice *advice);
json_t *advise_report_ranks_json(const struct advise_ranks *ranks, const struct advice *advice);

#endif
