/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/ranks_run.h"

#include <stdlib.h>

#include "src/tools/ranks/compare_report.h"
#include "src/tools/ranks/ranks_job.h"
#include "src/tools/ranks/ranks_report.h"
#include "src/tools/text/complain.h"
#include "src/tools/text/printable.h"
#include "src/tools/text/style.h"

static uint64_t number_of(const struct ranks_job *job, enum option_id id)
{
    return job->arguments->of[id].number;
}

static bool is_given(const struct ranks_job *job, enum option_id id)
{
    return job->arguments->of[id].given;
}

static bool lacks_memory(void)
{
    complain("no host memory is left");
    return false;
}

static void print_heading(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;

    (void)fputs(style_on(stdout, STYLE_STRONG), stdout);
    printable_print(stdout, verdict);
    (void)fprintf(stdout, "%s\n", style_off(stdout));
    for (unsigned i = 0; i < ranks->jobs; i++) {
        if (ranks->jobs == 2)
            (void)fprintf(stdout, "%c: ", "AB"[i]);
        printable_print(stdout, job->arguments->operands[i]);
        (void)fprintf(stdout, ", %zu file%s", ranks->read, ranks->read == 1 ? "" : "s");
        if (ranks_has_typical(ranks))
            (void)fprintf(stdout, "; %s is the most like all",
                          ranks->ranks[ranks_typical(ranks)].name);
        (void)fputc('\n', stdout);
    }
}

/* object: given up */
static bool print_json(json_t *object)
{
    const bool fine = object && json_dumpf(object, stdout, JSON_INDENT(2)) == 0;

    if (fine)
        (void)fputc('\n', stdout);
    json_decref(object);
    return object || lacks_memory();
}

static json_t *make_json(const struct ranks_job *job, const char *verdict)
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

static bool print_blame(const struct ranks_job *job, const char *verdict)
{
    const uint32_t rows = (uint32_t)number_of(job, OPTION_ROWS);
    json_t *object;

    if (is_given(job, OPTION_JSON)) {
        object = make_json(job, verdict);
        if (object &&
            json_object_set_new(object, "sites", ranks_report_sum(&job->ranks.sums[0])) != 0) {
            json_decref(object);
            object = NULL;
        }
        return print_json(object);
    }
    print_heading(job, verdict);
    ranks_report_table(stdout, &job->ranks, rows);
    return ranks_report_sites(stdout, &job->ranks.sums[0], (enum blame_by)number_of(job, OPTION_BY),
                              rows) ||
           lacks_memory();
}

static bool print_compare(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    const uint32_t rows = (uint32_t)number_of(job, OPTION_ROWS);
    struct compare_names names = {"A", "B"};

    if (is_given(job, OPTION_JSON))
        return print_json(make_json(job, verdict));
    print_heading(job, verdict);
    ranks_report_table(stdout, ranks, rows);
    if (!job->has_pair)
        return true;
    if (ranks->jobs == 1)
        names = (struct compare_names){ranks->ranks[ranks_typical(ranks)].name,
                                       ranks->ranks[ranks_furthest(ranks)].name};
    compare_report_tables(stdout, &job->pair, &names, rows, true);
    return true;
}

static int run_with(const struct option_values *arguments,
                    bool (*print)(const struct ranks_job *job, const char *verdict),
                    bool has_status)
{
    struct ranks_job job;
    char *verdict;
    bool fine, differs;

    if (!ranks_job_open(&job, arguments))
        return COMMAND_BAD;
    verdict = ranks_job_verdict(&job);
    fine = verdict ? print(&job, verdict) : lacks_memory();
    fine = fine && job.ranks.read == job.ranks.count;
    differs = ranks_job_differs(&job);
    free(verdict);
    ranks_job_close(&job);
    if (!fine)
        return COMMAND_BAD;
    return has_status && differs ? COMMAND_MISMATCH : COMMAND_FINE;
}

int ranks_run_blame(const struct option_values *arguments)
{
    if (!arguments->of[OPTION_FLAME].given)
        return run_with(arguments, print_blame, false);
    (void)option_refuse(command_find("blame"), "--flame", "is of one file, not of a folder");
    return COMMAND_BAD;
}

int ranks_run_compare(const struct option_values *arguments)
{
    return run_with(arguments, print_compare, true);
}
