/* SPDX-License-Identifier: MIT */
#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/blame/blame_ranks.h"
#include "src/tools/commands/blame/blame_report.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/progress.h"
#include "src/tools/ranks/rank_files.h"
#include "src/tools/ranks/ranks_job.h"
#include "src/tools/reading/recording.h"

/* Reject combinations of options. */
static bool check_options(const struct option_values *arguments)
{
    if (option_given(arguments, OPTION_FLAME) && option_given(arguments, OPTION_JSON))
        return option_error("--flame", "cannot be combined with --json");
    if (option_given(arguments, OPTION_FLAME) && option_given(arguments, OPTION_LABEL))
        return option_error("--flame",
                            "cannot be combined with --label, since it prints call stacks");
    if (option_given(arguments, OPTION_DEPTH) &&
        (option_given(arguments, OPTION_FLAME) || option_given(arguments, OPTION_LABEL)))
        return option_error("--depth", "cannot be combined with --flame or --label");
    return true;
}

/* Find the device of --device, or the default device; pinned host memory if the file has no device.  Returns NULL
 * after an error message. */
static const struct recording_device *find_device(const struct option_values *arguments,
                                                  const struct recording *recording)
{
    const int number = option_device(arguments, OPTION_SNAPSHOT_DEVICE);
    struct recording_fault fault;
    const struct recording_device *device;

    if (number < 0 && recording->device_count == 0 && recording_has_host(recording))
        return &recording->host;
    device = recording_file_device(recording, number, &fault);
    if (!device)
        message_print("%s: %s", recording->name, fault.text);
    return device;
}

/* Print the report of a device.  host: of pinned host memory, or NULL */
static bool print_report(const struct option_values *arguments, const struct blame *blame,
                         const struct blame *host)
{
    const enum blame_by by = (enum blame_by)option_number(arguments, OPTION_BY);
    const uint32_t rows = (uint32_t)option_number(arguments, OPTION_ROWS);

    if (option_given(arguments, OPTION_JSON)) {
        json_t *object = blame_report_json(blame, by);

        output_json_set(&object, "host", host ? blame_report_json(host, by) : json_null());
        return output_json(stdout, object);
    }
    if (option_given(arguments, OPTION_FLAME))
        return (blame_report_folded(stdout, blame, by) &&
                (!host || blame_report_folded(stdout, host, by))) ||
               message_out_of_memory();
    if (!blame_report_text(stdout, blame, by, rows))
        return message_out_of_memory();
    if (!host)
        return true;
    (void)putchar('\n');
    return blame_report_text(stdout, host, by, rows) || message_out_of_memory();
}

static bool blame_device(const struct option_values *arguments, const struct recording *recording,
                         const struct recording_device *device, struct blame *out)
{
    const enum sites_by sites_by =
        option_given(arguments, OPTION_FLAME) ? SITES_BY_STACK : ranks_job_sites(arguments);
    bool success;

    progress_begin(recording->name);
    success = blame_init(out, recording, device, sites_by,
                         (uint32_t)option_number(arguments, OPTION_DEPTH),
                         (enum blame_by)option_number(arguments, OPTION_BY));
    progress_end();
    return success || message_out_of_memory();
}

static int blame_recording(const struct option_values *arguments, const struct recording *recording)
{
    const struct recording_device *device = find_device(arguments, recording);
    const bool has_host = recording_has_host(recording) && device != &recording->host;
    struct blame blame, host;
    int status = COMMAND_SUCCESS;

    if (!device || !blame_device(arguments, recording, device, &blame))
        return COMMAND_ERROR;
    if (has_host && !blame_device(arguments, recording, &recording->host, &host)) {
        blame_fini(&blame);
        return COMMAND_ERROR;
    }
    if (!print_report(arguments, &blame, has_host ? &host : NULL))
        status = COMMAND_ERROR;
    else if (replay_model_report_dropped(recording->name, &blame.dropped))
        status = COMMAND_MISMATCH;
    blame_fini(&blame);
    if (has_host)
        blame_fini(&host);
    return status;
}

static int command_blame_run(const struct option_values *arguments)
{
    const char *path = arguments->operands[0];
    struct recording recording;
    int status;

    if (!check_options(arguments))
        return COMMAND_ERROR;
    if (rank_files_is_folder(path))
        return blame_ranks(arguments);
    if (!recording_file_read(path, &recording))
        return COMMAND_ERROR;
    status = blame_recording(arguments, &recording);
    recording_fini(&recording);
    return status;
}

const struct command command_blame = {
    .name = "blame",
    .run = command_blame_run,
    .summary = "list the call sites that fragment cached memory",
    .usage = "FILE | FOLDER",
    .required_operands = "a file or a folder",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 1,
    .options = {OPTION_BY, OPTION_LABEL, OPTION_DEPTH, OPTION_ROWS, OPTION_FLAME,
                OPTION_SNAPSHOT_DEVICE, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
    .description =
        "Reads a memory snapshot of PyTorch or xseg, plain or compressed with "
        "Zstandard, and lists the call sites that fragment memory. A page with an "
        "allocated block cannot be released to the driver, so the cached bytes of that "
        "page are fragmented; the allocated blocks of a page share them equally. FILE "
        "may be `-`, standard input."
        "\n\n"
        "The fragmented bytes of all sites, the pending bytes (freed, but still in use "
        "on another stream) and the idle bytes (pages without a block) add up to the "
        "bytes that are reserved and not allocated."
        "\n\n"
        "A page is the unit that is released to the driver: 2 MiB of a small expandable "
        "segment, 20 MiB (or `large_segment_size_mb`) of a large one, or a whole "
        "classic segment. Values are averages over the time of the recording; of a "
        "snapshot without a history, they are the values at its end. Pinned host memory, "
        "if PyTorch recorded it, has a separate table."
        "\n\n"
        "FOLDER contains a snapshot of each rank of a job. The command then reports the "
        "outlier, the rank that differs from the others, and lists the call sites of "
        "all ranks together. The distance of a rank is the sum of its deviations from "
        "the medians of all ranks, in bytes. Averages then count events instead of "
        "time: entries of the history, where a free request and its completion "
        "directly after it are one event.",
    .examples =
        {
            {"xseg blame job.pickle", "the lines of code that fragment the most memory"},
            {"xseg blame --by peak job.pickle", "the lines of code that held memory at the peak"},
            {"xseg blame --label=stage job.pickle",
             "by stage, such as forward and backward, instead of by line"},
            {"xseg blame --flame job.pickle", "folded call stacks, for `flamegraph.pl`"},
            {"xseg blame --json job.pickle | jq .idle", "one sum, for a script"},
            {"xseg blame snapshots/", "all ranks of a job, and which rank is the outlier"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, COMMAND_EXIT_DROPPED, COMMAND_EXIT_ERROR},
};
