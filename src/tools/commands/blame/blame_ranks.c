/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/blame/blame_ranks.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/blame/blame.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "src/tools/ranks/ranks.h"
#include "src/tools/ranks/ranks_job.h"

/* --- The table of sites. --- */

static uint64_t sort_bytes(enum blame_by by, const struct profile_figures *figures)
{
    switch (by) {
    case BLAME_BY_FRAGMENTED:
        return figures->of[PROFILE_CACHED];
    case BLAME_BY_ALLOCATED:
        return figures->of[PROFILE_ALLOCATED];
    case BLAME_BY_PEAK:
        break;
    }
    return figures->of[PROFILE_PEAK_ALLOCATED];
}

static int compare_sites(const void *first, const void *second, void *context)
{
    const enum blame_by by = *(const enum blame_by *)context;
    const struct profile_site *a = *(const struct profile_site *const *)first;
    const struct profile_site *b = *(const struct profile_site *const *)second;
    const uint64_t of_a = sort_bytes(by, &a->figures), of_b = sort_bytes(by, &b->figures);

    return of_a != of_b ? (of_a > of_b ? -1 : 1) : strcmp(a->name, b->name);
}

static void print_row(FILE *out, const struct profile_figures *figures, enum blame_by by,
                      uint64_t total, bool has_allocated, const char *name)
{
    const uint64_t *of = figures->of;

    (void)fprintf(out, "%s  %12s  %12s  %12s  ",
                  amount_share((double)sort_bytes(by, figures), (double)total).text,
                  amount_bytes(of[PROFILE_CACHED]).text,
                  has_allocated ? amount_bytes(of[PROFILE_ALLOCATED]).text : "",
                  has_allocated ? amount_bytes(of[PROFILE_PEAK_ALLOCATED]).text : "");
    text_print(out, name);
    (void)fputc('\n', out);
}

/* Print the sum of the sites that are not listed. */
static void print_omitted(FILE *out, const struct profile_site *const *sites, size_t count,
                          enum blame_by by, uint64_t total)
{
    struct profile_figures omitted = {{0}};
    char name[40];

    for (size_t i = 0; i < count; i++)
        profile_figures_add(&omitted, &sites[i]->figures);
    (void)snprintf(name, sizeof(name), "%s more", amount_count(count).text);
    print_row(out, &omitted, by, total, true, name);
}

/* Print the total.  Its fragmented bytes are the sum of their column. */
static void print_total(FILE *out, const struct profile *sum, enum blame_by by, uint64_t total)
{
    struct profile_figures sites = {{0}};

    if (by == BLAME_BY_FRAGMENTED) {
        print_row(out, &sum->total, by, total, true, FRAGMENTATION_TOTAL_ROW);
        return;
    }
    for (size_t i = 0; i < sum->site_count; i++)
        profile_figures_add(&sites, &sum->sites[i].figures);
    print_row(out, &sites, by, total, true, "total");
}

static bool print_sites(FILE *out, const struct profile *sum, enum blame_by by, uint32_t rows)
{
    const uint64_t total = sort_bytes(by, &sum->total);
    const struct profile_site **order = malloc((sum->site_count + 1) * sizeof(*order));

    if (!order)
        return false;
    for (size_t i = 0; i < sum->site_count; i++)
        order[i] = &sum->sites[i];
    qsort_r(order, sum->site_count, sizeof(*order), compare_sites, &by);
    text_print_heading(out, "%8s  %12s  %12s  %12s  site, all ranks", "share", "fragmented",
                       "allocated", "at the peak");
    for (size_t i = 0; i < sum->site_count && i < rows; i++)
        print_row(out, &order[i]->figures, by, total, true, order[i]->name);
    if (sum->site_count > rows)
        print_omitted(out, order + rows, sum->site_count - rows, by, total);
    free(order);
    if (by == BLAME_BY_FRAGMENTED) {
        print_row(out, &sum->pending, by, total, false, FRAGMENTATION_PENDING_ROW);
        print_row(out, &sum->idle, by, total, false, FRAGMENTATION_IDLE_ROW);
    }
    print_total(out, sum, by, total);
    return true;
}

/* Get the sites of a sum, sorted by name; NULL on host allocation failure. */
static json_t *sum_json(const struct profile *sum)
{
    json_t *list = json_array();

    for (size_t i = 0; i < sum->site_count; i++) {
        const uint64_t *of = sum->sites[i].figures.of;

        output_json_add(&list, json_pack("{s:o, s:I, s:I, s:I, s:I}", "site",
                                         text_json(sum->sites[i].name), "fragmented",
                                         (json_int_t)of[PROFILE_CACHED], "allocated",
                                         (json_int_t)of[PROFILE_ALLOCATED], "peak",
                                         (json_int_t)of[PROFILE_PEAK_ALLOCATED], "blocks",
                                         (json_int_t)of[PROFILE_BLOCKS]));
    }
    return list;
}

static bool print_ranks(const struct ranks_job *job, const char *verdict)
{
    const uint32_t rows = (uint32_t)option_number(job->arguments, OPTION_ROWS);
    json_t *object;

    if (option_given(job->arguments, OPTION_JSON)) {
        object = ranks_run_json(job, verdict);
        output_json_set(&object, "sites", sum_json(&job->ranks.sums[0]));
        return output_json(stdout, object);
    }
    ranks_run_heading(job, verdict);
    ranks_report_table(stdout, &job->ranks, rows);
    return print_sites(stdout, &job->ranks.sums[0],
                       (enum blame_by)option_number(job->arguments, OPTION_BY), rows) ||
           message_out_of_memory();
}

int blame_ranks(const struct option_values *arguments)
{
    if (!option_given(arguments, OPTION_FLAME))
        return ranks_run(arguments, print_ranks, COMMAND_SUCCESS, COMMAND_MISMATCH);
    (void)option_error("--flame", "requires a file instead of a folder");
    return COMMAND_ERROR;
}
