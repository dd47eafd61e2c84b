/* SPDX-License-Identifier: MIT */
/*
 * A command with folders as operands: read the ranks, compare the outlier with the typical rank, and print the
 * verdict before the report of the command.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANKS_JOB_H
#define TOOLS_RANKS_JOB_H

#include <jansson.h>

#include "src/tools/command/option.h"
#include "src/tools/ranks/ranks.h"

struct ranks_job {
    const struct option_values *arguments;
    struct ranks_rules rules;
    struct ranks ranks;
    struct profile profiles[2]; /* of one job: its typical rank and its outlier */
    struct compare pair;
    bool has_pair;
    bool has_dropped; /* blocks of a file are omitted, as reported on standard error */
};

/* Get the identity of a site, as the option --label specifies it. */
static inline enum sites_by ranks_job_sites(const struct option_values *arguments)
{
    return option_given(arguments, OPTION_LABEL)
               ? (enum sites_by)(SITES_BY_LABEL + option_number(arguments, OPTION_LABEL))
               : SITES_BY_FRAME;
}

/*
 * Read the operands, one folder or two, by the options --label, --depth and --device.  Files that cannot be read are
 * reported on standard error.
 *
 * arguments: must outlive the job.
 *
 * Returns: false, with a message on standard error, if there is nothing to report; the job is closed then
 */
bool ranks_job_open(struct ranks_job *job, const struct option_values *arguments);
void ranks_job_close(struct ranks_job *job);

/* As ranks_report_verdict() and ranks_report_differs(). */
char *ranks_job_verdict(const struct ranks_job *job);
bool ranks_job_differs(const struct ranks_job *job);

/* Print the verdict and the folders. */
void ranks_run_heading(const struct ranks_job *job, const char *verdict);

/* Make a JSON object with the verdict and the ranks, to which the command adds; NULL if out of host memory. */
json_t *ranks_run_json(const struct ranks_job *job, const char *verdict);

/*
 * Read the folders and print.
 *
 * print:      the report of the command; returns false after a message on standard error.
 * if_differs: the exit status if the ranks, or the two jobs, differ.
 * if_dropped: the exit status if blocks of a file are omitted.
 *
 * Returns: the exit status
 */
int ranks_run(const struct option_values *arguments,
              bool (*print)(const struct ranks_job *job, const char *verdict), int if_differs,
              int if_dropped);

#endif
