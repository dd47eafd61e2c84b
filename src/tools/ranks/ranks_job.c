/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/ranks_job.h"

#include <stdlib.h>
#include <unistd.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/text.h"
#include "src/tools/ranks/compare.h"
#include "src/tools/ranks/ranks.h"

/* --- Reading. --- */

/* Set the rules.  Averages are in events: in time, equal ranks differ by the load of their hosts. */
static void set_rules(struct ranks_job *job)
{
    job->rules = (struct ranks_rules){
        .profile = {.by = ranks_job_sites(job->arguments),
                    .depth = (uint32_t)option_number(job->arguments, OPTION_DEPTH),
                    .by_events = true},
        .device = option_device(job->arguments, OPTION_SNAPSHOT_DEVICE),
        .progress = isatty(STDERR_FILENO),
    };
}

/* Compare the profiles of the typical rank and the outlier. */
static bool compare_outlier(struct ranks_job *job)
{
    const size_t compared[2] = {ranks_typical(&job->ranks), ranks_furthest(&job->ranks)};
    struct recording_fault fault;

    for (unsigned i = 0; i < 2; i++)
        if (!ranks_profile(&job->ranks, compared[i], &job->rules, &job->profiles[i], &fault)) {
            message_print("%s: %s", job->ranks.files[0].files[compared[i]].path, fault.text);
            if (i == 1)
                profile_fini(&job->profiles[0]);
            return false;
        }
    job->has_pair = compare_init(&job->pair, &job->profiles[0], &job->profiles[1], false);
    if (job->has_pair)
        return true;
    profile_fini(&job->profiles[0]);
    profile_fini(&job->profiles[1]);
    return message_out_of_memory();
}

bool ranks_job_open(struct ranks_job *job, const struct option_values *arguments)
{
    char **operands = arguments->operands;
    const bool has_two_folders = arguments->operand_count == 2;
    struct recording_fault fault;
    const char *at;
    bool success;

    *job = (struct ranks_job){.arguments = arguments};
    set_rules(job);
    if (!ranks_init(&job->ranks, operands[0], has_two_folders ? operands[1] : NULL, &job->rules,
                    &at, &fault)) {
        message_print("%s: %s", at, fault.text);
        return false;
    }
    for (unsigned i = 0; i < job->ranks.jobs; i++) {
        char packed[200];

        rank_files_describe_packed(&job->ranks.files[i], packed, sizeof(packed));
        if (packed[0])
            message_print("%s: %s", operands[i], packed);
        if (job->ranks.files[i].kinds)
            message_print(
                "%s: files of several kinds for one rank, %s; for another one, move its files "
                "into a folder of their own",
                operands[i], job->ranks.files[i].kinds);
    }
    for (size_t i = 0; i < job->ranks.count; i++)
        if (!job->ranks.ranks[i].is_read)
            message_print("%s", job->ranks.ranks[i].fault ? job->ranks.ranks[i].fault
                                                          : "out of host memory");
    for (size_t i = 0; i < job->ranks.count; i++)
        for (unsigned of = 0; of < job->ranks.jobs; of++)
            job->has_dropped |= replay_model_report_dropped(job->ranks.files[of].files[i].path,
                                                            &job->ranks.ranks[i].dropped[of]);
    success = job->ranks.read > 0;
    if (success && has_two_folders) {
        success = job->has_pair = compare_init(&job->pair, &job->ranks.sums[0], &job->ranks.sums[1],
                                               job->rules.profile.by == SITES_BY_FRAME);
        success = success || message_out_of_memory();
    } else if (success && job->ranks.read > 1) {
        success = compare_outlier(job);
    }
    if (!success)
        ranks_fini(&job->ranks);
    return success;
}

void ranks_job_close(struct ranks_job *job)
{
    if (job->has_pair)
        compare_fini(&job->pair);
    if (job->has_pair && job->ranks.jobs == 1) {
        profile_fini(&job->profiles[0]);
        profile_fini(&job->profiles[1]);
    }
    ranks_fini(&job->ranks);
}

char *ranks_job_verdict(const struct ranks_job *job)
{
    return ranks_report_verdict(&job->ranks, job->has_pair ? &job->pair : NULL);
}

bool ranks_job_differs(const struct ranks_job *job)
{
    return ranks_report_differs(&job->ranks, job->has_pair ? &job->pair : NULL);
}

void ranks_run_heading(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;

    text_print_strong(stdout, verdict);
    (void)fputc('\n', stdout);
    for (unsigned i = 0; i < ranks->jobs; i++) {
        if (ranks->jobs == 2)
            (void)fprintf(stdout, "%c: ", "AB"[i]);
        text_print(stdout, job->arguments->operands[i]);
        (void)fprintf(stdout, ", %s", amount_of(ranks->read, "file").text);
        if (ranks_has_typical(ranks))
            (void)fprintf(stdout, "; %s is the most typical",
                          ranks->ranks[ranks_typical(ranks)].name);
        (void)fputc('\n', stdout);
    }
}

json_t *ranks_run_json(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    const bool differs = ranks_job_differs(job);
    const bool has_outlier = differs && ranks->outliers == 1;

    return json_pack("{s:o, s:b, s:o, s:o, s:o, s:o, s:o}", "verdict", text_json(verdict),
                     "differs", (int)differs, "outlier",
                     has_outlier ? json_string(ranks->ranks[ranks_furthest(ranks)].name)
                                 : json_null(),
                     "typical",
                     ranks_has_typical(ranks) ? json_string(ranks->ranks[ranks_typical(ranks)].name)
                                              : json_null(),
                     "ranks", ranks_report_json(ranks), "unread", ranks_report_unread(ranks),
                     "rows", job->has_pair ? compare_report_rows(&job->pair) : json_array());
}

int ranks_run(const struct option_values *arguments,
              bool (*print)(const struct ranks_job *job, const char *verdict), int if_differs,
              int if_dropped)
{
    struct ranks_job job;
    char *verdict;
    bool success, differs, has_dropped;

    if (!ranks_job_open(&job, arguments))
        return COMMAND_ERROR;
    verdict = ranks_job_verdict(&job);
    success = verdict ? print(&job, verdict) : message_out_of_memory();
    success = success && job.ranks.read == job.ranks.count;
    has_dropped = job.has_dropped;
    differs = ranks_job_differs(&job);
    free(verdict);
    ranks_job_close(&job);
    if (!success)
        return COMMAND_ERROR;
    if (has_dropped)
        return if_dropped;
    return differs ? if_differs : COMMAND_SUCCESS;
}
