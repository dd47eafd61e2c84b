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

#define DEVICE_MAX ((uint64_t)1 << 60) /* of --device-memory */
#define LARGE      ((uint64_t)80 << 30)

/* The state of the command. */
struct advise_state {
    const struct option_values *arguments;
    struct trace_file files[TRIALS_PROGRAMS];
    struct trials trials; /* programs[i] is that of files[i] */
    struct tuning_base base;
    char *pytorch_config, *omitted; /* with --pytorch: of the current string */
};

static int out_of_memory(void)
{
    (void)message_out_of_memory();
    return COMMAND_ERROR;
}

/* --- Files. --- */

/* Select the devices of the replays. */
static void select_devices(const struct option_values *arguments, const struct trace_file *file,
                           struct trial_program *program)
{
    const uint64_t requested = option_number(arguments, OPTION_TARGET_MEMORY);
    const uint64_t recorded = trace_file_device_bytes(file, 0);
    const uint64_t capacity = file->trace.capacity <= DEVICE_MAX ? file->trace.capacity : 0;

    program->target_bytes = trace_file_device_bytes(file, requested ? requested : capacity);
    /* On a device that is too small, the peak of memory is not meaningful. */
    program->device_bytes = requested > recorded ? program->target_bytes : recorded;
    program->large_bytes = requested > LARGE / 2 ? 2 * program->target_bytes : LARGE;
    if (program->large_bytes < program->device_bytes)
        program->large_bytes = program->device_bytes;
}

static bool has_history(const struct trace_file *file)
{
    if (!file->trace.is_snapshot || file->trace.has_history)
        return true;
    message_print("%s: no history was recorded, only the state at the end; record one with "
                  "torch.cuda.memory._record_memory_history(), or with the key history:all of xseg",
                  file->name);
    return false;
}

/* Add the file of a program.  Returns false if it cannot be replayed; an error message is on standard error. */
static bool add_file(struct advise_state *state, const char *path, const char *name)
{
    const struct option_value *device = &state->arguments->of[OPTION_SNAPSHOT_DEVICE];
    struct trace_file *file = &state->files[state->trials.count];
    struct trial_program *program = &state->trials.programs[state->trials.count];

    if (!trace_file_read(path, device->given ? (int)device->number : -1, file))
        return false;
    if (!has_history(file)) {
        trace_file_fini(file);
        return false;
    }
    *program = (struct trial_program){.trace = &file->trace, .file = file->name, .name = name};
    select_devices(state->arguments, file, program);
    state->trials.count++;
    return true;
}

static void free_state(struct advise_state *state)
{
    for (size_t i = 0; i < state->trials.count; i++)
        trace_file_fini(&state->files[i]);
    free(state->pytorch_config);
    free(state->omitted);
}

/* Get whether all files have the same configuration. */
static bool has_one_configuration(const struct advise_state *state)
{
    const struct trace_file *first = &state->files[0];

    for (size_t i = 1; i < state->trials.count; i++) {
        const struct trace_file *file = &state->files[i];

        if (strcmp(file->config, first->config) == 0)
            continue;
        message_print("%s has the configuration '%s', but %s has '%s'; run the command for each of "
                      "them, or for "
                      "ranks with the same configuration",
                      file->name, file->config, first->name, first->config);
        return false;
    }
    return true;
}

/* Set the base configuration, with the keys that can have an effect on any of the files. */
static bool set_base(struct advise_state *state, const char *config)
{
    const bool only_pytorch = option_given(state->arguments, OPTION_PYTORCH);
    char error[512];

    for (size_t i = 0; i < state->trials.count; i++) {
        const struct trace_file *file = &state->files[i];
        const struct tuning_base previous = state->base;

        if (!tuning_base_init(&state->base, config, &file->trace, only_pytorch)) {
            (void)xseg_error_message(error, sizeof(error));
            message_print("%s: invalid configuration, '%s': %s", file->name, config, error);
            return false;
        }
        state->base.has_clock |= previous.has_clock;
        state->base.has_captures |= previous.has_captures;
    }
    return true;
}

/* Find the base: the current string, with --pytorch without the keys that PyTorch's allocator does not have. */
static bool find_base(struct advise_state *state)
{
    if (!has_one_configuration(state) || !set_base(state, state->files[0].config))
        return false;
    if (!option_given(state->arguments, OPTION_PYTORCH))
        return true;
    state->pytorch_config = tuning_of_pytorch(&state->base);
    state->omitted = tuning_not_of_pytorch(&state->base);
    if (!state->pytorch_config || !state->omitted) {
        (void)out_of_memory();
        return false;
    }
    if (!set_base(state, state->pytorch_config))
        return false;
    state->base.omitted = state->omitted;
    return true;
}

/* Print the advice for the files. */
static int advise_files(struct advise_state *state, const char *name,
                        const struct advise_ranks *ranks)
{
    const bool as_json = option_given(state->arguments, OPTION_JSON);
    struct advice advice;
    bool success;

    state->trials.name = name;
    state->trials.progress = isatty(STDERR_FILENO);
    if (!find_base(state) || !advise(&state->trials, &state->base, &advice))
        return COMMAND_ERROR;
    if (ranks)
        success = as_json
                      ? output_json(stdout, advise_report_ranks_json(ranks, &advice))
                      : advise_report_ranks_text(stdout, ranks, &advice) || message_out_of_memory();
    else
        success = as_json ? output_json(stdout, advise_report_json(&advice))
                          : advise_report_text(stdout, &advice) || message_out_of_memory();
    advice_fini(&advice);
    return success ? COMMAND_SUCCESS : COMMAND_ERROR;
}

/* --- Folders. --- */

/* The ranks that were not selected, as positions in ranks.order, which begins with the most different rank. */
struct candidates {
    size_t *positions;
    size_t count;
};

/* Get the outlier, or else the rank with the largest peak. */
static size_t first_candidate(const struct ranks *ranks, const struct candidates *candidates)
{
    size_t largest = 0;

    if (candidates->positions[0] < ranks->outliers)
        return 0;
    for (size_t i = 1; i < candidates->count; i++)
        if (ranks->ranks[ranks->order[candidates->positions[i]]].totals[0][COMPARE_PEAK_RESERVED] >
            ranks->ranks[ranks->order[candidates->positions[largest]]]
                .totals[0][COMPARE_PEAK_RESERVED])
            largest = i;
    return largest;
}

/* Get the next rank to select: the first one, the most typical one, and two at a third and two thirds of the others. */
static size_t next_candidate(const struct ranks *ranks, const struct candidates *candidates,
                             size_t chosen)
{
    switch (chosen) {
    case 0:
        return first_candidate(ranks, candidates);
    case 1:
        return candidates->count - 1;
    case 2:
        return candidates->count / 3;
    default:
        return 2 * (candidates->count + 1) / 3 - 1;
    }
}

/* Add up to four ranks.  Returns the number of files that cannot be replayed. */
static size_t add_ranks(struct advise_state *state, const struct ranks *ranks,
                        struct candidates *candidates, struct advise_ranks *out)
{
    size_t failed = 0;

    while (candidates->count > 0 && state->trials.count < TRIALS_PROGRAMS) {
        const size_t number = state->trials.count;
        const size_t at = next_candidate(ranks, candidates, number);
        const size_t place = candidates->positions[at], rank = ranks->order[place];

        candidates->count--;
        memmove(&candidates->positions[at], &candidates->positions[at + 1],
                (candidates->count - at) * sizeof(*candidates->positions));
        if (!add_file(state, ranks->files[0].files[rank].path, ranks->ranks[rank].name)) {
            failed++;
            continue;
        }
        out->of[number].name = ranks->ranks[rank].name;
        out->of[number].is_outlier = place < ranks->outliers;
        out->of[number].is_typical = ranks->read > 2 && rank == ranks_typical(ranks);
    }
    return failed;
}

static int advise_job(struct advise_state *state, const struct ranks_job *job, const char *verdict)
{
    const struct ranks *ranks = &job->ranks;
    struct advise_ranks chosen = {
        .folder = state->arguments->operands[0], .verdict = verdict, .files = ranks->count};
    struct candidates candidates = {
        .positions = malloc(ranks->read * sizeof(*candidates.positions)), .count = ranks->read};
    int status = COMMAND_ERROR;
    size_t failed;

    if (!candidates.positions)
        return out_of_memory();
    for (size_t i = 0; i < candidates.count; i++)
        candidates.positions[i] = i;
    if (ranks_job_differs(job) && ranks->outliers == 1)
        chosen.outlier = ranks->ranks[ranks_furthest(ranks)].name;
    failed = add_ranks(state, ranks, &candidates, &chosen);
    if (state->trials.count > 0)
        status = advise_files(state, chosen.folder, &chosen);
    free_state(state);
    free(candidates.positions);
    return failed > 0 || ranks->read < ranks->count || job->has_dropped ? COMMAND_ERROR : status;
}

static int advise_folder(struct advise_state *state)
{
    struct ranks_job job;
    char *verdict;
    int status;

    if (!ranks_job_open(&job, state->arguments))
        return COMMAND_ERROR;
    verdict = ranks_job_verdict(&job);
    status = verdict ? advise_job(state, &job, verdict) : out_of_memory();
    free(verdict);
    ranks_job_close(&job);
    return status;
}

static int command_advise_run(const struct option_values *arguments)
{
    struct advise_state state = {.arguments = arguments};
    const char *path = arguments->operands[0];
    int status;

    if (!simulator_open())
        return COMMAND_ERROR;
    if (rank_files_is_folder(path))
        return advise_folder(&state);
    if (!add_file(&state, path, ""))
        return COMMAND_ERROR;
    status = advise_files(&state, state.files[0].name, NULL);
    free_state(&state);
    return status;
}

const struct command command_advise = {
    .name = "advise",
    .run = command_advise_run,
    .summary = "recommend a configuration for a recorded program",
    .usage = "FILE | FOLDER",
    .required_operands = "a file or a folder",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = 1,
    .options = {OPTION_TARGET_MEMORY, OPTION_PYTORCH, OPTION_SNAPSHOT_DEVICE, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Replays a recorded program on the simulated driver under about 100 configurations, and "
        "prints the configuration string to set (advised), the reason, the best string without one "
        "of its keys (runner-up), "
        "and for each string the peak of reserved memory and the smallest device on which the "
        "program completes. If no string reduces the peak, the report states this. FILE is a trace "
        "or "
        "a memory "
        "snapshot of PyTorch or xseg; `-` is standard input."
        "\n\n"
        "If memory runs out, in the recording or on the device of `--device-memory`, the report "
        "also states whether the program completes with the recommended string, and the "
        "change of the fewest keys with which it completes (least change)."
        "\n\n"
        "`xseg replay --min-device --config STRING FILE` prints the same values for any string."
        "\n\n"
        "Headroom is the memory that the allocator needs beyond the allocated bytes: the smallest "
        "e and c with reserved <= (1 + e) x allocated + c after each event of the replay. Peak "
        "headroom is the same beyond the peak of the allocated bytes so far. e is a multiple of "
        "0.001, c is the "
        "smallest "
        "that is valid with e, and of all these pairs it is the one with the smallest average of "
        "the bound. The last line has the margin that inference engines keep today instead: 0.75 "
        "of "
        "the transient peak, which is the peak of allocated bytes less those at the end, and at "
        "least 1 GiB."
        "\n\n"
        "FOLDER contains a snapshot of each rank of a job. The command then replays up to four "
        "ranks: the outlier or else the rank with the largest peak, the most typical rank, and two "
        "others. It recommends one string for all of them, the one with the lowest maximum of "
        "their peaks.",
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
