/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a job, or of two, as a command reads them: with the comparison that says what the odd one has.
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
    struct profile profiles[2]; /* of one job: its typical rank and its odd one */
    struct compare pair;
    bool has_pair;
    bool has_dropped; /* blocks of a file are left out; standard error has the sentences */
};

/*
 * Read one folder or two, as the operands say, by the rules of the options --label, --depth and --device.  Standard error
 * names each file that cannot be read.
 *
 * @param arguments  must live as long as the job
 *
 * Returns: false where there is nothing to report; standard error has the sentence, and there is nothing to close
 */
bool ranks_job_open(struct ranks_job *job, const struct option_values *arguments);
void ranks_job_close(struct ranks_job *job);

/* What ranks_report_verdict() says of it; NULL without host memory. */
char *ranks_job_verdict(const struct ranks_job *job);

/* Whether the ranks, or the two jobs, differ by anything that is said. */
bool ranks_job_differs(const struct ranks_job *job);

/*
 * A command that is given folders: it reads them, and says which rank is the odd one before what only it has to say.
 *
 * Locking: none.
 */

/* The verdict, and which folders it is about. */
void ranks_run_heading(const struct ranks_job *job, const char *verdict);

/* The object that begins so; NULL without host memory. */
json_t *ranks_run_json(const struct ranks_job *job, const char *verdict);

/*
 * Read the folders and print.
 *
 * print:      returns false where standard error has a sentence instead
 * if_differs: the exit status where the ranks, or the two jobs, differ
 *
 * Returns: the exit status
 */
int ranks_run(const struct option_values *arguments,
              bool (*print)(const struct ranks_job *job, const char *verdict), int if_differs);

#endif
