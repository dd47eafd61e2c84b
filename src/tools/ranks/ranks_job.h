/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a job, or of two, as a command reads them: with the comparison that says what the odd one has.
 *
 * Locking: none.
 */
#ifndef TOOLS_RANKS_JOB_H
#define TOOLS_RANKS_JOB_H

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

#endif
