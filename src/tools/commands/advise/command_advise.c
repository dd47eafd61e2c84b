/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/advise/advise_report.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/ranks/rank_files.h"
#include "src/tools/ranks/ranks_job.h"
#include "src/tools/replay/simulator.h"
#include "src/tools/trace/trace_file.h"
#include "xseg/status.h"

#define DEVICE_MAX ((uint64_t)1 << 60) /* as of --device-memory */
#define ROOMY      ((uint64_t)80 << 30)

/* A run of the command. */
struct advising {
    const struct option_values *arguments;
    struct trace_file files[TRIALS_PROGRAMMES];
    struct trials trials; /* its programmes are those of the files */
    struct tuning_base base;
    char *kept, *left_out; /* with --pytorch: of the string in force; else NULL */
};

static int out_of_memory(void)
{
    (void)message_out_of_memory();
    return COMMAND_ERROR;
}

/* --- Files. --- */

/* The devices that configurations are replayed on. */
static void choose_devices(const struct option_values *arguments, const struct trace_file *file,
                           struct programme *programme)
{
    const uint64_t given = option_number(arguments, OPTION_TARGET_MEMORY);
    const uint64_t own = trace_file_device_bytes(file, 0);
    const uint64_t capacity = file->trace.capacity <= DEVICE_MAX ? file->trace.capacity : 0;

    programme->target_bytes = trace_file_device_bytes(file, given ? given : capacity);
    /* A device that is too small says little of what a programme would take. */
    programme->device_bytes = given > own ? programme->target_bytes : own;
    programme->roomy_bytes = given > ROOMY / 2 ? 2 * programme->target_bytes : ROOMY;
    if (programme->roomy_bytes < programme->device_bytes)
        programme->roomy_bytes = programme->device_bytes;
}

/* Without events there is nothing to replay. */
static bool has_history(const struct trace_file *file)
{
    if (!file->trace.is_snapshot || file->trace.has_history)
        return true;
    message_print(
        "%s: there is no history in this snapshot, only what was live at its end: record one with "
        "torch.cuda.memory._record_memory_history(), or with the key history:all of xseg",
        file->name);
    return false;
}

/* Read the file of one more programme.  Returns false where it cannot be replayed: standard error has the sentence. */
static bool add_file(struct advising *advising, const char *path, const char *name)
{
    const struct option_value *device = &advising->arguments->of[OPTION_SNAPSHOT_DEVICE];
    struct trace_file *file = &advising->files[advising->trials.count];
    struct programme *programme = &advising->trials.programmes[advising->trials.count];

    if (!trace_file_read(path, device->given ? (int)device->number : -1, file))
        return false;
    if (!has_history(file)) {
        trace_file_fini(file);
        return false;
    }
    *programme = (struct programme){.trace = &file->trace, .file = file->name, .name = name};
    choose_devices(advising->arguments, file, programme);
    advising->trials.count++;
    return true;
}

static void end(struct advising *advising)
{
    for (size_t i = 0; i < advising->trials.count; i++)
        trace_file_fini(&advising->files[i]);
    free(advising->kept);
    free(advising->left_out);
}

/* Whether all files were made under one configuration. */
static bool has_one_configuration(const struct advising *advising)
{
    const struct trace_file *first = &advising->files[0];

    for (size_t i = 1; i < advising->trials.count; i++) {
        const struct trace_file *file = &advising->files[i];

        if (strcmp(file->config, first->config) == 0)
            continue;
        message_print("%s was made under the configuration '%s', and %s under '%s': advice is for "
                      "ranks of one configuration; give each file alone",
                      file->name, file->config, first->name, first->config);
        return false;
    }
    return true;
}

/* Take a configuration as the base, with what of its keys can matter to any of the files. */
static bool set_base(struct advising *advising, const char *config)
{
    const bool only_pytorch = option_given(advising->arguments, OPTION_PYTORCH);
    char problem[512];

    for (size_t i = 0; i < advising->trials.count; i++) {
        const struct trace_file *file = &advising->files[i];
        const struct tuning_base others = advising->base;

        if (!tuning_base_init(&advising->base, config, &file->trace, only_pytorch)) {
            (void)xseg_error_message(problem, sizeof(problem));
            message_print("%s: nothing can be advised against the configuration '%s': %s",
                          file->name, config, problem);
            return false;
        }
        advising->base.has_clock |= others.has_clock;
        advising->base.has_captures |= others.has_captures;
    }
    return true;
}

/* What the strings begin from: the one in force, without what PyTorch's allocator does not know if the user says so. */
static bool find_base(struct advising *advising)
{
    if (!has_one_configuration(advising) || !set_base(advising, advising->files[0].config))
        return false;
    if (!option_given(advising->arguments, OPTION_PYTORCH))
        return true;
    advising->kept = tuning_of_pytorch(&advising->base);
    advising->left_out = tuning_not_of_pytorch(&advising->base);
    if (!advising->kept || !advising->left_out) {
        (void)out_of_memory();
        return false;
    }
    if (!set_base(advising, advising->kept))
        return false;
    advising->base.left_out = advising->left_out;
    return true;
}

/* Advise on the files that were added. */
static int advise_files(struct advising *advising, const char *name,
                        const struct advise_ranks *ranks)
{
    const bool as_json = option_given(advising->arguments, OPTION_JSON);
    struct advice advice;
    bool fine;

    advising->trials.name = name;
    advising->trials.progress = isatty(STDERR_FILENO);
    if (!find_base(advising) || !advise(&advising->trials, &advising->base, &advice))
        return COMMAND_ERROR;
    if (ranks)
        fine = as_json
                   ? output_json(stdout, advise_report_ranks_json(ranks, &advice))
                   : advise_report_ranks_text(stdout, ranks, &advice) || message_out_of_memory();
    else
        fine = as_json ? output_json(stdout, advise_report_json(&advice))
                       : advise_report_text(stdout, &advice) || message_out_of_memory();
    advice_fini(&advice);
    return fine ? COMMAND_SUCCESS : COMMAND_ERROR;
}

/* --- A folder. --- */

/* Places in the order of ranks, the furthest first, that may still be looked at. */
struct places {
    size_t *of;
    size_t count;
};

/* The odd rank; if none is odd, the one with the largest peak. */
static size_t first_place(const struct ranks *ranks, const struct places *places)
{
    size_t largest = 0;

    if (places->of[0] < ranks->outliers)
        return 0;
    for (size_t i = 1; i < places->count; i++)
        if (ranks->ranks[ranks->order[places->of[i]]].whole[0][COMPARE_PEAK_RESERVED] >
            ranks->ranks[ranks->order[places->of[largest]]].whole[0][COMPARE_PEAK_RESERVED])
            largest = i;
    return largest;
}

/* Which to look at next, where so many are looked at: then the most typical one, and two at thirds of the rest. */
static size_t next_place(const struct ranks *ranks, const struct places *places, size_t looked_at)
{
    switch (looked_at) {
    case 0:
        return first_place(ranks, places);
    case 1:
        return places->count - 1;
    case 2:
        return places->count / 3;
    default:
        return 2 * (places->count + 1) / 3 - 1;
    }
}

/* Add up to four ranks.  Returns how many files could not be replayed. */
static size_t add_ranks(struct advising *advising, const struct ranks *ranks, struct places *places,
                        struct advise_ranks *out)
{
    size_t bad = 0;

    while (places->count > 0 && advising->trials.count < TRIALS_PROGRAMMES) {
        const size_t number = advising->trials.count;
        const size_t at = next_place(ranks, places, number);
        const size_t place = places->of[at], rank = ranks->order[place];

        places->count--;
        memmove(&places->of[at], &places->of[at + 1], (places->count - at) * sizeof(*places->of));
        if (!add_file(advising, ranks->files[0].files[rank].path, ranks->ranks[rank].name)) {
            bad++;
            continue;
        }
        out->of[number].name = ranks->ranks[rank].name;
        out->of[number].is_odd = place < ranks->outliers;
        out->of[number].is_typical = ranks->read > 2 && rank == ranks_typical(ranks);
    }
    return bad;
}

static int advise_job(struct advising *advising, const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    struct advise_ranks looked_at = {
        .folder = advising->arguments->operands[0], .verdict = verdict, .files = ranks->count};
    struct places places = {.of = malloc(ranks->read * sizeof(*places.of)), .count = ranks->read};
    int status = COMMAND_ERROR;
    size_t bad;

    if (!places.of)
        return out_of_memory();
    for (size_t i = 0; i < places.count; i++)
        places.of[i] = i;
    if (ranks_job_differs(job) && ranks->outliers == 1)
        looked_at.odd = ranks->ranks[ranks_furthest(ranks)].name;
    bad = add_ranks(advising, ranks, &places, &looked_at);
    if (advising->trials.count > 0)
        status = advise_files(advising, looked_at.folder, &looked_at);
    end(advising);
    free(places.of);
    return bad > 0 || ranks->read < ranks->count || job->has_dropped ? COMMAND_ERROR : status;
}

static int advise_folder(struct advising *advising)
{
    struct ranks_job job;
    char *verdict;
    int status;

    if (!ranks_job_open(&job, advising->arguments))
        return COMMAND_ERROR;
    verdict = ranks_job_verdict(&job);
    status = verdict ? advise_job(advising, &job, verdict) : out_of_memory();
    free(verdict);
    ranks_job_close(&job);
    return status;
}

static int run(const struct option_values *arguments)
{
    struct advising advising = {.arguments = arguments};
    const char *path = arguments->operands[0];
    int status;

    if (!simulator_open())
        return COMMAND_ERROR;
    if (rank_files_is_folder(path))
        return advise_folder(&advising);
    if (!add_file(&advising, path, ""))
        return COMMAND_ERROR;
    status = advise_files(&advising, advising.files[0].name, NULL);
    end(&advising);
    return status;
}

const struct command command_advise = {
    .name = "advise",
    .run = run,
    .sentence = "recommend a configuration for a recorded program",
    .usage = "FILE | FOLDER",
    .needs = "a file or a folder",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 1,
    .options = {OPTION_TARGET_MEMORY, OPTION_PYTORCH, OPTION_SNAPSHOT_DEVICE, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Replays a recorded program on the simulated driver under about 100 configurations, and "
        "prints the "
        "configuration string to set, the reason, the second-best string, and for each string the "
        "peak of "
        "reserved memory and the smallest device on which the program completes. If no string "
        "reduces the "
        "peak, the report says so. FILE is a trace or a memory snapshot of PyTorch or xseg; `-` is "
        "standard "
        "input.\n"
        "\n"
        "If memory runs out, in the recording or on the device of `--device-memory`, the report "
        "also says "
        "whether the program completes with the recommended string, and which change of the fewest "
        "keys suffices.\n"
        "\n"
        "`xseg replay --min-device --config STRING FILE` prints the same values for any string.\n"
        "\n"
        "FOLDER contains a snapshot of each rank of a job. The command then replays up to four "
        "ranks: the "
        "outlier or else the rank with the largest peak, the most typical rank, and two others. It "
        "recommends "
        "one string for all of them, the one with the lowest maximum of their peaks.",
    .examples =
        {
            {"xseg advise job.pickle",
             "the string to set, the reason, and the memory that it saves"},
            {"xseg advise --pytorch oom.pickle",
             "use only keys that PyTorch's own allocator also has"},
            {"xseg advise --device-memory 24GiB job.pickle",
             "does the program complete on a device of 24 GiB, and with which string?"},
            {"xseg advise --json job.pickle | jq -r .advised.config",
             "only the string, for a script"},
            {"xseg advise snapshots/", "one string for all ranks of a job"},
        },
    .exits = {COMMAND_EXIT_SUCCESS, NULL, COMMAND_EXIT_ERROR},
};
