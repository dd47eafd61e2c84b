/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/ranks_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/printable.h"
#include "src/tools/output/style.h"
#include "src/tools/ranks/compare_report.h"
#include "src/tools/reading/recording_file.h"

/* --- The sentence. --- */

/* The ranks of a job differ if one is odd, or if they are two; two jobs by their sums. */
bool ranks_report_differs(const struct ranks *ranks, const struct compare *pair)
{
    if (!pair || (ranks->jobs == 1 && ranks->read > 2 && ranks->odd == 0))
        return false;
    return compare_judge(pair).result >= COMPARE_WHOLE;
}

/* Of one job of which no rank is odd: why not. */
static void print_none(FILE *out, const struct ranks *ranks, const struct compare *pair)
{
    enum compare_result result;

    if (ranks->read == 1) {
        (void)fprintf(out, "there is %s alone, so no rank is the odd one",
                      ranks->ranks[ranks->order[0]].name);
        return;
    }
    result = compare_judge(pair).result;
    (void)fprintf(out, "no rank of %zu is the odd one: ", ranks->read);
    if (ranks->ranks[ranks_furthest(ranks)].gap <= 0 && result == COMPARE_EQUAL)
        (void)fputs("they differ by nothing", out);
    else if (result < COMPARE_WHOLE)
        (void)fputs("they differ by less than 1 % of what is reserved", out);
    else
        (void)fputs("each differs from the others as they do from each other", out);
}

/* Of one job: what stands before the verdict on its furthest rank, and what that rank is called in it. */
static const char *print_odd(FILE *out, const struct ranks *ranks)
{
    const char *name = ranks->ranks[ranks_furthest(ranks)].name;

    if (ranks->read == 2)
        return name;
    if (ranks->odd == 1)
        (void)fprintf(out, "%s is the odd one of %zu: ", name, ranks->read);
    else
        (void)fprintf(out, "%zu ranks of %zu are odd, %s most of all: ", ranks->odd, ranks->read,
                      name);
    return "it";
}

static bool print_verdict(FILE *out, const struct ranks *ranks, const struct compare *pair)
{
    struct compare_names names = {"A", "B"};
    char *verdict;

    if (ranks->jobs == 1 && !ranks_report_differs(ranks, pair)) {
        print_none(out, ranks, pair);
        return true;
    }
    if (ranks->jobs == 1)
        names =
            (struct compare_names){ranks->ranks[ranks_typical(ranks)].name, print_odd(out, ranks)};
    verdict = compare_report_verdict(pair, &names);
    if (verdict)
        (void)fputs(verdict, out);
    free(verdict);
    return verdict;
}

char *ranks_report_verdict(const struct ranks *ranks, const struct compare *pair)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    bool fine;

    if (!out)
        return NULL;
    fine = print_verdict(out, ranks, pair);
    if (fclose(out) == 0 && fine)
        return text;
    free(text);
    return NULL;
}

/* --- Tables. --- */

static uint64_t whole_bytes(double bytes)
{
    return bytes < (double)PROFILE_MOST ? (uint64_t)bytes : PROFILE_MOST;
}

static void print_cell(FILE *out, uint64_t bytes)
{
    (void)fprintf(out, "%12s  ", amount_bytes(bytes).text);
}

static void print_left_out(FILE *out, size_t count, const char *why)
{
    if (count > 0)
        (void)fprintf(out, "omitted: %zu, %s\n", count, why);
}

static void print_limits(FILE *out, const struct ranks *ranks)
{
    size_t without = 0;

    for (size_t i = 0; i < ranks->count; i++)
        without += ranks->ranks[i].lacks_history;
    print_left_out(out, ranks->count - ranks->read, "which could not be read");
    print_left_out(out, ranks->files[0].older + ranks->files[1].older,
                   "of whose rank there is a newer file");
    print_left_out(out, ranks->files[0].others + ranks->files[1].others, "of another kind");
    print_left_out(out, ranks->unmatched, "whose rank is in one folder alone");
    if (without > 0)
        (void)fprintf(out,
                      "without a history: %zu, of which the state at the end "
                      "counts; " RECORDING_FILE_HOW_TO "\n",
                      without);
}

static void print_rank(FILE *out, const struct ranks *ranks, const struct rank *rank)
{
    if (ranks->jobs == 1) {
        print_cell(out, rank->whole[0][COMPARE_PEAK_RESERVED]);
        print_cell(out, rank->whole[0][COMPARE_PEAK_LIVE]);
        print_cell(out, rank->whole[0][COMPARE_STRANDED]);
    } else {
        for (unsigned job = 0; job < 2; job++)
            print_cell(out, rank->whole[job][COMPARE_PEAK_RESERVED]);
        for (unsigned job = 0; job < 2; job++)
            print_cell(out, rank->whole[job][COMPARE_STRANDED]);
    }
    print_cell(out, whole_bytes(rank->distance));
    (void)fprintf(out, "%s\n", rank->name);
}

void ranks_report_table(FILE *out, const struct ranks *ranks, uint32_t rows)
{
    print_limits(out, ranks);
    if (ranks->jobs == 1)
        style_heading(out, "%12s  %12s  %12s  %12s  rank", "reserved", "allocated", "fragmented",
                      "distance");
    else
        style_heading(out, "%12s  %12s  %12s  %12s  %12s  rank", "reserved A", "B", "fragmented A",
                      "B", "distance");
    for (size_t i = 0; i < ranks->read && i < rows; i++)
        print_rank(out, ranks, &ranks->ranks[ranks->order[i]]);
    if (ranks->read > rows)
        (void)fprintf(out, "%s more\n", amount_count(ranks->read - rows).text);
}

/* --- JSON. --- */

static json_t *side_json(const struct ranks *ranks, size_t number, unsigned job)
{
    const struct rank *rank = &ranks->ranks[number];
    const uint64_t *whole = rank->whole[job];

    return json_pack(
        "{s:o, s:I, s:{s:I, s:I}, s:{s:I, s:I, s:I}}", "file",
        printable_json(ranks->files[job].files[number].path), "events",
        (json_int_t)rank->events[job], "peak", "reserved", (json_int_t)whole[COMPARE_PEAK_RESERVED],
        "allocated", (json_int_t)whole[COMPARE_PEAK_LIVE], "average", "reserved",
        (json_int_t)whole[COMPARE_RESERVED], "allocated", (json_int_t)whole[COMPARE_LIVE],
        "fragmented", (json_int_t)whole[COMPARE_STRANDED]);
}

json_t *ranks_report_json(const struct ranks *ranks)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ranks->read; i++) {
        const size_t number = ranks->order[i];
        const struct rank *rank = &ranks->ranks[number];
        const int64_t of_name = ranks->files[0].files[number].rank;
        json_t *object =
            json_pack("{s:s, s:o, s:I, s:o}", "name", rank->name, "rank",
                      of_name < 0 ? json_null() : json_integer(of_name), "distance",
                      (json_int_t)whole_bytes(rank->distance), "a", side_json(ranks, number, 0));

        if (ranks->jobs == 2)
            output_json_set(&object, "b", side_json(ranks, number, 1));
        output_json_add(&list, object);
    }
    return list;
}

json_t *ranks_report_unread(const struct ranks *ranks)
{
    json_t *list = json_array();

    for (size_t i = 0; i < ranks->count; i++) {
        const struct rank *rank = &ranks->ranks[i];

        if (!rank->is_read)
            output_json_add(&list, printable_json(rank->fault ? rank->fault : rank->name));
    }
    return list;
}
