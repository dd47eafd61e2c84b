/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/replay/report.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/replay/min_device.h"
#include "src/tools/replay/replay.h"
#include "src/tools/trace/trace_file.h"

/* The state of the command. */
struct replays {
    const struct option_values *arguments;
    FILE *out; /* of the report */
    struct output_file timeline, history;
    json_t *objects;
    unsigned printed;    /* reports so far */
    bool has_read_input; /* standard input was read */
    int exit;
};

static const char *get_driver(const struct replays *replays)
{
    return gpu_driver_of(option_text(replays->arguments, OPTION_DRIVER));
}

static enum check_mode get_check_mode(const struct replays *replays)
{
    if (!option_given(replays->arguments, OPTION_CHECK))
        return CHECK_OFF;
    return option_number(replays->arguments, OPTION_CHECK) == 0 ? CHECK_EXACT : CHECK_SUCCESS;
}

/* Get whether an option writes to standard output. */
static bool is_standard_output(const struct replays *replays, enum option_id id)
{
    return option_given(replays->arguments, id) &&
           strcmp(option_text(replays->arguments, id), "-") == 0;
}

/* Reject combinations of options. */
static bool check_options(const struct replays *replays)
{
    if (get_driver(replays) != GPU_SIMULATED &&
        (option_given(replays->arguments, OPTION_DEVICE_MEMORY) ||
         option_given(replays->arguments, OPTION_COSTS) ||
         option_given(replays->arguments, OPTION_MIN_DEVICE)))
        return option_error("--driver",
                            "cannot be combined with --device-memory, --costs or --min-device "
                            "unless it is sim");
    if (option_given(replays->arguments, OPTION_CHECK) &&
        option_given(replays->arguments, OPTION_COMPARE))
        return option_error("--check",
                            "cannot be combined with --compare: a tape has the results of one "
                            "configuration");
    if (option_given(replays->arguments, OPTION_TIMELINE) && replays->arguments->operand_count > 1)
        return option_error("--timeline", "requires a single FILE");
    if (option_given(replays->arguments, OPTION_HISTORY) && replays->arguments->operand_count > 1)
        return option_error("--history", "requires a single FILE");
    if (is_standard_output(replays, OPTION_TIMELINE) && is_standard_output(replays, OPTION_HISTORY))
        return option_error("--history", "and --timeline cannot both write to standard output");
    return true;
}

/* Record an exit status; an error outranks an out-of-memory error, which outranks a mismatch. */
static void record_exit(struct replays *replays, int status)
{
    static const int rank[] = {[COMMAND_SUCCESS] = 0,
                               [COMMAND_MISMATCH] = 1,
                               [COMMAND_OUT_OF_MEMORY] = 2,
                               [COMMAND_ERROR] = 3};

    if (rank[status] > rank[replays->exit])
        replays->exit = status;
}

/* Close an output file, or remove it after an error. */
static void close_output(struct replays *replays, struct output_file *file)
{
    if (!output_file_close(file, replays->exit != COMMAND_ERROR))
        record_exit(replays, COMMAND_ERROR);
}

static bool open_output(struct replays *replays, enum option_id id, struct output_file *file)
{
    return output_file_open_second(file, option_text(replays->arguments, id),
                                   replays->arguments->operands, replays->arguments->operand_count,
                                   &replays->out);
}

/* The final state is compared only if the first replay completes with the recorded configuration. */
static void find_gaps(const struct replays *replays, const struct xtrace *trace,
                      struct report *reports, unsigned count)
{
    const struct replay_result *first = &reports[0].result;
    const bool is_recorded_config = !option_given(replays->arguments, OPTION_CONFIG);

    for (unsigned i = 0; i < count; i++)
        trace_notes_find(&reports[i].notes, trace, reports[i].config, is_recorded_config && i == 0,
                         is_recorded_config && first->oom_at < 0 ? first->end_reserved
                                                                 : TRACE_NOTES_UNKNOWN);
}

/* is_first: of the replays that are compared; only this one writes files */
static void run_replay(struct replays *replays, const struct xtrace *trace, struct report *report,
                       bool is_first)
{
    static const int exits[] = {[REPLAY_DONE] = COMMAND_SUCCESS,
                                [REPLAY_MISMATCH] = COMMAND_MISMATCH,
                                [REPLAY_OUT_OF_MEMORY] = COMMAND_OUT_OF_MEMORY,
                                [REPLAY_ERROR] = COMMAND_ERROR};
    const struct replay_settings settings = {
        .file = report->file,
        .config = report->config,
        .driver = report->driver,
        .device_bytes = report->device_bytes,
        .costs = option_text(replays->arguments, OPTION_COSTS),
        .check = report->check,
        .timeline = is_first ? replays->timeline.out : NULL,
        .history = is_first ? replays->history.out : NULL,
        .tick_ms = option_number(replays->arguments, OPTION_TICK),
        .explain = option_given(replays->arguments, OPTION_EXPLAIN),
        .progress = isatty(STDERR_FILENO),
    };

    replay_run(trace, &settings, &report->result);
    record_exit(replays, exits[report->result.end]);
    if (option_given(replays->arguments, OPTION_MIN_DEVICE) && report->result.end != REPLAY_ERROR)
        report->has_min_device =
            min_device_find(trace, &settings, &report->result, false, &report->min_device);
}

static void print_reports(struct replays *replays, const struct report *reports, unsigned count)
{
    if (!replays->objects) {
        if (replays->printed++ > 0)
            (void)fputc('\n', replays->out);
        report_table(replays->out, reports, count,
                     option_given(replays->arguments, OPTION_LIST_CALLS));
        (void)output_flush(replays->out);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        if (json_array_append_new(replays->objects, report_json(&reports[i])) != 0) {
            (void)message_out_of_memory();
            record_exit(replays, COMMAND_ERROR);
        }
}

/* Replay a trace under one configuration or two. */
static void replay_trace(struct replays *replays, const struct trace_file *file)
{
    const char *const config = option_text(replays->arguments, OPTION_CONFIG);
    const char *const compare = option_text(replays->arguments, OPTION_COMPARE);
    const char *const driver = get_driver(replays);
    const uint64_t device_bytes =
        trace_file_device_bytes(file, option_number(replays->arguments, OPTION_DEVICE_MEMORY));
    struct report reports[REPORT_COLUMNS] = {
        {.file = file->name,
         .config = config ? config : file->config,
         .driver = driver,
         .device_bytes = device_bytes,
         .check = get_check_mode(replays)},
        {.file = file->name, .config = compare, .driver = driver, .device_bytes = device_bytes},
    };
    const unsigned count = compare ? 2 : 1;
    bool has_failed = false;

    for (unsigned i = 0; i < count; i++) {
        run_replay(replays, &file->trace, &reports[i], i == 0);
        has_failed |= reports[i].result.end == REPLAY_ERROR;
    }
    find_gaps(replays, &file->trace, reports, count);
    if (!has_failed)
        print_reports(replays, reports, count);
    for (unsigned i = 0; i < count; i++)
        replay_result_fini(&reports[i].result);
}

/* Get whether --check is possible with a file; print an error message if not. */
static bool check_recorded_results(const struct replays *replays, const struct trace_file *file)
{
    const struct xtrace *trace = &file->trace;
    const char *const config = option_text(replays->arguments, OPTION_CONFIG);
    bool has_answers = false;

    if (!option_given(replays->arguments, OPTION_CHECK))
        return true;
    for (size_t i = 0; i < trace->answer_count && !has_answers; i++)
        has_answers = trace->answers[i].row == XTRACE_ROW_NOW;
    if (!has_answers) {
        message_print("%s: --check requires a tape, but the file has no `=` line", file->name);
        return false;
    }
    if (config && strcmp(config, file->config) != 0) {
        message_print("%s: --check requires the recorded configuration, '%s'", file->name,
                      file->config);
        return false;
    }
    return true;
}

/* Reject a second read of standard input. */
static bool check_standard_input(struct replays *replays, const char *path)
{
    const bool is_input = strcmp(path, "-") == 0;

    if (is_input && replays->has_read_input) {
        message_error("standard input can be read only once");
        return false;
    }
    replays->has_read_input |= is_input;
    return true;
}

static void replay_file(struct replays *replays, const char *path)
{
    const int device = option_device(replays->arguments, OPTION_SNAPSHOT_DEVICE);
    struct trace_file file;

    if (!check_standard_input(replays, path) || !trace_file_read(path, device, &file)) {
        record_exit(replays, COMMAND_ERROR);
        return;
    }
    if (check_recorded_results(replays, &file))
        replay_trace(replays, &file);
    else
        record_exit(replays, COMMAND_ERROR);
    trace_file_fini(&file);
}

static void print_json(struct replays *replays)
{
    const bool has_several =
        replays->arguments->operand_count > 1 || option_given(replays->arguments, OPTION_COMPARE);
    const size_t count = json_array_size(replays->objects);

    if (count > 0)
        (void)output_json(
            replays->out,
            json_incref(has_several ? replays->objects : json_array_get(replays->objects, 0)));
}

/* A replay uses the configuration of --config or of the file.  Without the variable, the library does not log that it
 * is ignored. */
static void remove_environment_config(const struct option_values *arguments)
{
    const char *const text = secure_getenv("XSEG_ALLOC_CONF");

    if (text && text[0] != '\0' && !option_given(arguments, OPTION_CONFIG))
        message_error("XSEG_ALLOC_CONF is ignored; set the configuration with --config");
    (void)unsetenv("XSEG_ALLOC_CONF");
}

static int command_replay_run(const struct option_values *arguments)
{
    struct replays replays = {.arguments = arguments, .out = stdout, .exit = COMMAND_SUCCESS};

    remove_environment_config(arguments);
    if (!check_options(&replays) || !open_output(&replays, OPTION_TIMELINE, &replays.timeline))
        return COMMAND_ERROR;
    if (!open_output(&replays, OPTION_HISTORY, &replays.history)) {
        (void)output_file_close(&replays.timeline, false);
        return COMMAND_ERROR;
    }
    if (option_given(arguments, OPTION_JSON))
        replays.objects = json_array();
    for (int i = 0; i < arguments->operand_count; i++)
        replay_file(&replays, arguments->operands[i]);
    if (replays.objects)
        print_json(&replays);
    json_decref(replays.objects);
    close_output(&replays, &replays.timeline);
    close_output(&replays, &replays.history);
    return replays.exit;
}

const struct command command_replay = {
    .name = "replay",
    .run = command_replay_run,
    .summary = "replay recorded programs through the allocator",
    .usage = "FILE...",
    .required_operands = "a file",
    .operands = COMMAND_FILES,
    .min_operands = 1,
    .max_operands = INT_MAX,
    .options = {OPTION_CONFIG, OPTION_COMPARE, OPTION_DEVICE_MEMORY, OPTION_DRIVER, OPTION_COSTS,
                OPTION_CHECK, OPTION_MIN_DEVICE, OPTION_EXPLAIN, OPTION_SNAPSHOT_DEVICE,
                OPTION_TIMELINE, OPTION_HISTORY, OPTION_TICK, OPTION_LIST_CALLS, OPTION_JSON,
                OPTION_COLOR, OPTION_HELP},
    .description =
        "Replays the allocations and frees of a recorded program through the allocator, and prints "
        "the peaks of memory, the number of driver calls, and the time per event, an allocation or "
        "a free. There is one report for each FILE. FILE is a "
        "trace, a tape (a trace with the expected results of each operation) or a memory snapshot "
        "of PyTorch or xseg, plain or compressed with Zstandard; `-` is standard input. The "
        "default driver is simulated and needs no GPU."
        "\n\n"
        "Recorded failures are requests that failed in the recording; the report has the number of "
        "those that succeed in the replay. In a message that begins with FILE:LINE, LINE is a "
        "line of a trace, or the number of an entry in the history of a memory snapshot.",
    .examples =
        {
            {"xseg replay trace.xtrace.zst", "peaks of memory, driver calls and times"},
            {"xseg replay --compare expandable_segments:False job.pickle",
             "the memory that expandable segments save in a PyTorch job"},
            {"xseg replay --min-device --json job.pickle",
             "the smallest device on which the job completes, for a script"},
            {"xseg replay --check tape.zst", "compare all statistics with those of PyTorch"},
            {"zcat trace.gz | xseg replay -", "a trace from another program"},
        },
    .exits = {COMMAND_EXIT_SUCCESS,
              "a result differs from the tape, a call failed, or a resource was not released",
              COMMAND_EXIT_ERROR, "an out-of-memory error that is not in the recording"},
};
