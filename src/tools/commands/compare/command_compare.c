/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/progress.h"
#include "src/tools/output/text.h"
#include "src/tools/ranks/compare.h"
#include "src/tools/ranks/rank_files.h"
#include "src/tools/ranks/ranks.h"
#include "src/tools/ranks/ranks_job.h"
#include "src/tools/reading/recording.h"
#include "src/tools/replay_model/host_memory.h"

/* One of the two files that are compared. */
struct side {
    const char *path;
    struct recording recording;
    const struct recording_device *device;
    struct profile profile;
    struct host_memory host;
};

/* The state of the command. */
struct comparing {
    const struct option_values *arguments;
    struct side sides[2];
    struct compare compare;
    bool by_events; /* both files have a history; false: the states at their ends are compared */
};

/* --- Reading. --- */

static bool read_side(const struct comparing *comparing, struct side *side)
{
    const int number = option_device(comparing->arguments, OPTION_SNAPSHOT_DEVICE);
    struct recording_fault fault;

    if (!recording_file_read(side->path, &side->recording))
        return false;
    side->device = recording_file_device(&side->recording, number, &fault);
    if (side->device)
        return true;
    message_print("%s: %s", recording_file_name(side->path), fault.text);
    recording_fini(&side->recording);
    return false;
}

static bool read_both(struct comparing *comparing)
{
    if (!read_side(comparing, &comparing->sides[0]))
        return false;
    if (read_side(comparing, &comparing->sides[1])) {
        comparing->by_events = comparing->sides[0].device->event_count > 0 &&
                               comparing->sides[1].device->event_count > 0;
        return true;
    }
    recording_fini(&comparing->sides[0].recording);
    return false;
}

static bool find_profile(const struct comparing *comparing, struct side *side)
{
    const struct profile_rules rules = {
        .by = ranks_job_sites(comparing->arguments),
        .depth = (uint32_t)option_number(comparing->arguments, OPTION_DEPTH),
        .by_events = true,
        .at_end = !comparing->by_events,
    };
    bool success;

    progress_begin(side->recording.name);
    success = host_memory_init(&side->host, &side->recording) &&
              profile_init(&side->profile, &side->recording, side->device, &rules);
    progress_end();
    return success;
}

static bool compare_both(struct comparing *comparing)
{
    struct side *a = &comparing->sides[0], *b = &comparing->sides[1];

    if (!find_profile(comparing, a))
        return message_out_of_memory();
    if (!find_profile(comparing, b)) {
        profile_fini(&a->profile);
        return message_out_of_memory();
    }
    if (compare_init(&comparing->compare, &a->profile, &b->profile,
                     !option_given(comparing->arguments, OPTION_LABEL)))
        return true;
    profile_fini(&a->profile);
    profile_fini(&b->profile);
    return message_out_of_memory();
}

/* --- Printing. --- */

static void print_limit(uint64_t count, enum recording_limit limit)
{
    if (count > 0)
        (void)printf("   %s\n", recording_file_limit(limit, count).text);
}

static void print_side(const struct side *side, char letter)
{
    (void)printf("%c: ", letter);
    text_print(stdout, recording_file_name(side->path));
    (void)printf(", device %d, %s\n", side->device->number,
                 amount_of(side->profile.entries, "entry").text);
    if (side->profile.entries == 0)
        (void)fputs("   no history was recorded, so the states at the ends of both files are "
                    "compared; " RECORDING_FILE_HOW_TO "\n",
                    stdout);
    print_limit(side->profile.lost, RECORDING_LIMIT_LOST);
    print_limit(side->profile.truncated, RECORDING_LIMIT_TRUNCATED);
    print_limit(side->profile.synthetic, RECORDING_LIMIT_SYNTHETIC);
    print_limit(side->profile.omitted, RECORDING_LIMIT_OMITTED);
    if (side->host.is_recorded)
        (void)printf("   %s\n", host_memory_describe(&side->host).text);
}

static void print_text(const struct comparing *comparing, const char *verdict,
                       const struct compare_names *names)
{
    text_print_strong(stdout, verdict);
    (void)putchar('\n');
    print_side(&comparing->sides[0], 'A');
    print_side(&comparing->sides[1], 'B');
    compare_report_tables(stdout, &comparing->compare, names,
                          (uint32_t)option_number(comparing->arguments, OPTION_ROWS),
                          comparing->by_events);
}

static json_t *host_json(const struct host_memory *host)
{
    return host->is_recorded
               ? json_pack("{s:I, s:I, s:I, s:I, s:I}", "entries", (json_int_t)host->entries,
                           "reserved", (json_int_t)host->reserved, "allocated",
                           (json_int_t)host->allocated, "peak_reserved",
                           (json_int_t)host->peak_reserved, "peak_allocated",
                           (json_int_t)host->peak_allocated)
               : json_null();
}

static json_t *side_json(const struct side *side)
{
    json_t *object = compare_report_totals(&side->profile);

    output_json_set(&object, "file", text_json(recording_file_name(side->path)));
    output_json_set(&object, "device", json_integer(side->device->number));
    output_json_set(&object, "host", host_json(&side->host));
    return object;
}

static bool print_json(const struct comparing *comparing, const char *verdict, bool differs)
{
    return output_json(
        stdout, json_pack("{s:o, s:b, s:b, s:o, s:o, s:o}", "verdict", text_json(verdict),
                          "differs", (int)differs, "over_events", (int)comparing->by_events, "a",
                          side_json(&comparing->sides[0]), "b", side_json(&comparing->sides[1]),
                          "rows", compare_report_rows(&comparing->compare)));
}

static int print_comparison(const struct comparing *comparing)
{
    const struct compare_names names = {"A", "B"};
    const bool differs = compare_judge(&comparing->compare).result >= COMPARE_TOTAL;
    char *verdict = compare_report_verdict(&comparing->compare, &names);
    bool success = verdict, has_dropped = false;

    if (!success)
        (void)message_out_of_memory();
    else if (option_given(comparing->arguments, OPTION_JSON))
        success = print_json(comparing, verdict, differs);
    else
        print_text(comparing, verdict, &names);
    free(verdict);
    for (unsigned i = 0; success && i < 2; i++)
        has_dropped |= replay_model_report_dropped(recording_file_name(comparing->sides[i].path),
                                                   &comparing->sides[i].profile.dropped);
    /* The omitted blocks may be the difference. */
    if (!success || has_dropped)
        return COMMAND_ERROR;
    return differs ? COMMAND_MISMATCH : COMMAND_SUCCESS;
}

static int compare_files(struct comparing *comparing)
{
    struct side *sides = comparing->sides;
    int status = COMMAND_ERROR;

    if (!read_both(comparing))
        return COMMAND_ERROR;
    if (compare_both(comparing)) {
        status = print_comparison(comparing);
        compare_fini(&comparing->compare);
        profile_fini(&sides[0].profile);
        profile_fini(&sides[1].profile);
    }
    recording_fini(&sides[0].recording);
    recording_fini(&sides[1].recording);
    return status;
}

/* --- Folders. --- */

static bool print_folders(const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    const uint32_t rows = (uint32_t)option_number(job->arguments, OPTION_ROWS);
    struct compare_names names = {"A", "B"};

    if (option_given(job->arguments, OPTION_JSON))
        return output_json(stdout, ranks_run_json(job, verdict));
    ranks_run_heading(job, verdict);
    ranks_report_table(stdout, ranks, rows);
    if (!job->has_pair)
        return true;
    if (ranks->jobs == 1)
        names = (struct compare_names){ranks->ranks[ranks_typical(ranks)].name,
                                       ranks->ranks[ranks_furthest(ranks)].name};
    compare_report_tables(stdout, &job->pair, &names, rows, true);
    return true;
}

static int command_compare_run(const struct option_values *arguments)
{
    struct comparing comparing = {.arguments = arguments};
    int folders = 0;

    if (option_given(arguments, OPTION_DEPTH) && option_given(arguments, OPTION_LABEL)) {
        (void)option_error("--depth", "cannot be combined with --label");
        return COMMAND_ERROR;
    }
    for (int i = 0; i < arguments->operand_count; i++) {
        folders += rank_files_is_folder(arguments->operands[i]);
        comparing.sides[i].path = arguments->operands[i];
    }
    if (folders == arguments->operand_count)
        return ranks_run(arguments, print_folders, COMMAND_MISMATCH, COMMAND_ERROR);
    if (folders > 0)
        message_error("takes two files, or one or two folders, but not a file and a folder");
    else if (arguments->operand_count == 1 && access(arguments->operands[0], F_OK) != 0)
        message_print("%s: cannot be opened: %s", arguments->operands[0], strerror(errno));
    else if (arguments->operand_count == 1)
        message_error("%s is not a folder; the command takes two files, or one or two folders",
                      arguments->operands[0]);
    else if (strcmp(arguments->operands[0], "-") == 0 && strcmp(arguments->operands[1], "-") == 0)
        message_error("standard input cannot be both files");
    else
        return compare_files(&comparing);
    return COMMAND_ERROR;
}

const struct command command_compare = {
    .name = "compare",
    .run = command_compare_run,
    .summary = "compare the memory of two runs, or of the ranks of a job",
    .usage = "FILE FILE | FOLDER [FOLDER]",
    .required_operands = "two files, or a folder",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 2,
    .options = {OPTION_LABEL, OPTION_DEPTH, OPTION_ROWS, OPTION_SNAPSHOT_DEVICE, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description = "Reads two memory snapshots of PyTorch or xseg, plain or compressed with "
                   "Zstandard, and prints the differences of the second file (B) from the first "
                   "(A) in total and by call site: reserved and allocated bytes at the peak, "
                   "fragmented bytes, and lifetimes of blocks. Addresses and times do not matter: "
                   "lifetimes and averages count events, so two equal runs have no difference. "
                   "An event is an entry of the history, or a free request and its completion "
                   "directly after it. FILE may be `-`, standard input."
                   "\n\n"
                   "FOLDER contains a snapshot of each rank of a job. The command then reports the "
                   "outlier, the rank that differs from the others, and its differences from the "
                   "most typical rank. The distance of a rank is the sum of its deviations from "
                   "the medians of all ranks, in bytes. Of two folders, it compares each rank with "
                   "the same rank in the other folder.",
    .examples =
        {
            {"xseg compare before.pickle after.pickle", "the effect of a change of the program"},
            {"xseg compare --rows 5 before.pickle after.pickle",
             "only the five largest differences"},
            {"xseg compare snapshots/", "which rank of a job is the outlier"},
            {"xseg compare --json a.pickle b.pickle | jq .verdict",
             "only the result, for a script"},
        },
    .exits = {"no difference, or one of less than 1 % of the reserved bytes at the peak",
              "a difference of 1 % or more of the reserved bytes at the peak", COMMAND_EXIT_ERROR},
};
