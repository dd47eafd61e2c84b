/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/ranks_run.h"

#include <stdlib.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/complain.h"
#include "src/tools/output/printable.h"
#include "src/tools/output/style.h"
#include "src/tools/ranks/compare_report.h"
#include "src/tools/ranks/ranks_report.h"

void ranks_run_heading(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;

    style_strong(stdout, verdict);
    (void)fputc('\n', stdout);
    for (unsigned i = 0; i < ranks->jobs; i++) {
        if (ranks->jobs == 2)
            (void)fprintf(stdout, "%c: ", "AB"[i]);
        printable_print(stdout, job->arguments->operands[i]);
        (void)fprintf(stdout, ", %s", amount_of(ranks->read, "file").text);
        if (ranks_has_typical(ranks))
            (void)fprintf(stdout, "; %s is the most like all",
                          ranks->ranks[ranks_typical(ranks)].name);
        (void)fputc('\n', stdout);
    }
}

json_t *ranks_run_json(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    const bool differs = ranks_job_differs(job);
    const bool has_odd = differs && ranks->odd == 1;

    return json_pack("{s:o, s:b, s:o, s:o, s:o, s:o, s:o}", "verdict", printable_json(verdict),
                     "differs", (int)differs, "odd",
                     has_odd ? json_string(ranks->ranks[ranks_furthest(ranks)].name) : json_null(),
                     "typical",
                     ranks_has_typical(ranks) ? json_string(ranks->ranks[ranks_typical(ranks)].name)
                                              : json_null(),
                     "ranks", ranks_report_json(ranks), "unread", ranks_report_unread(ranks),
                     "rows", job->has_pair ? compare_report_rows(&job->pair) : json_array());
}

int ranks_run(const struct option_values *arguments,
              bool (*print)(const struct ranks_job *job, const char *verdict), int if_differs)
{
    struct ranks_job job;
    char *verdict;
    bool fine, differs;

    if (!ranks_job_open(&job, arguments))
        return COMMAND_BAD;
    verdict = ranks_job_verdict(&job);
    fine = verdict ? print(&job, verdict) : complain_of_memory();
    fine = fine && job.ranks.read == job.ranks.count && !job.has_dropped;
    differs = ranks_job_differs(&job);
    free(verdict);
    ranks_job_close(&job);
    if (!fine)
        return COMMAND_BAD;
    return differs ? if_differs : COMMAND_FINE;
}
