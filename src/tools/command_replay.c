/* SPDX-License-Identifier: MIT */
#include "src/tools/command.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/complain.h"
#include "src/tools/min_device.h"
#include "src/tools/replay.h"
#include "src/tools/report.h"

#define DEVICE_DEFAULT ((uint64_t)80 << 30)
#define DEVICE_GRANULE ((uint64_t)2 << 20)

/* A run of the command. */
struct replays {
    const struct option_values *arguments;
    FILE *out; /* where the report goes */
    FILE *timeline, *history;
    json_t *objects;
    unsigned printed;    /* reports */
    bool has_read_input; /* standard input is at its end */
    int exit;
};

static bool is_given(const struct replays *replays, enum option_id id)
{
    return replays->arguments->of[id].given;
}

static const char *text_of(const struct replays *replays, enum option_id id)
{
    return replays->arguments->of[id].text;
}

static uint64_t number_of(const struct replays *replays, enum option_id id)
{
    return replays->arguments->of[id].number;
}

static const char *driver_of(const struct replays *replays)
{
    return gpu_driver_of(text_of(replays, OPTION_DRIVER));
}

static enum check_mode check_of(const struct replays *replays)
{
    if (!is_given(replays, OPTION_CHECK))
        return CHECK_OFF;
    return number_of(replays, OPTION_CHECK) == 0 ? CHECK_EXACT : CHECK_FLOOR;
}

static bool refuse(const char *option, const char *sentence)
{
    return option_refuse(command_find("replay"), option, sentence);
}

/* Whether an option is given that writes to standard output. */
static bool is_output(const struct replays *replays, enum option_id id)
{
    return is_given(replays, id) && strcmp(text_of(replays, id), "-") == 0;
}

/* Arguments that are fine apart and not together. */
static bool agree(const struct replays *replays)
{
    if (driver_of(replays) != GPU_SIMULATED &&
        (is_given(replays, OPTION_DEVICE_MEMORY) || is_given(replays, OPTION_COSTS) ||
         is_given(replays, OPTION_MIN_DEVICE)))
        return refuse("--driver", "cannot be given with --device-memory, --costs or --min-device "
                                  "unless it is sim");
    if (is_given(replays, OPTION_CHECK) && is_given(replays, OPTION_COMPARE))
        return refuse("--check", "cannot be given with --compare: a tape has answers for one "
                                 "configuration only");
    if (is_given(replays, OPTION_TIMELINE) && replays->arguments->operand_count > 1)
        return refuse("--timeline", "takes one trace at a time");
    if (is_given(replays, OPTION_HISTORY) && replays->arguments->operand_count > 1)
        return refuse("--history", "takes one trace at a time");
    if (is_output(replays, OPTION_TIMELINE) && is_output(replays, OPTION_HISTORY))
        return refuse("--history", "cannot go to standard output together with --timeline");
    return true;
}

/* Open the file that an option names.  Where it is standard output, what else is printed goes to standard error. */
static bool open_output(struct replays *replays, enum option_id id, FILE **out)
{
    const char *path = text_of(replays, id);

    if (!path)
        return true;
    if (is_output(replays, id)) {
        *out = stdout;
        replays->out = stderr;
        return true;
    }
    *out = fopen(path, "w");
    if (!*out)
        command_complain(command_find("replay"), "%s cannot be written: %s", path, strerror(errno));
    return *out != NULL;
}

/*
 * The configuration that a file was made under.  Its `c` line is a string as PyTorch reads it, and
 * to PyTorch a string that does not name expandable_segments means classic.  Allocated; NULL without
 * host memory.
 */
static char *config_of(const struct xtrace *trace)
{
    const char *config = trace->config;
    char *whole;

    if (!config || xtrace_names_expandable(config))
        return strdup(config ? config : "");
    if (asprintf(&whole, "%s%sexpandable_segments:False", config, config[0] ? "," : "") < 0)
        return NULL;
    return whole;
}

/* The worst of what happened counts: a bad file, then an out of memory, then a mismatch. */
static void note_exit(struct replays *replays, int status)
{
    static const int rank[] = {
        [COMMAND_FINE] = 0, [COMMAND_MISMATCH] = 1, [COMMAND_OUT_OF_MEMORY] = 2, [COMMAND_BAD] = 3};

    if (rank[status] > rank[replays->exit])
        replays->exit = status;
}

static void close_output(struct replays *replays, enum option_id id, FILE *file)
{
    if (!file || file == stdout || fclose(file) == 0)
        return;
    complain("%s: cannot be written: %s", text_of(replays, id), strerror(errno));
    note_exit(replays, COMMAND_BAD);
}

/* is_first: of those that are compared; files are written of that one */
static void run(struct replays *replays, const struct xtrace *trace, struct report *report,
                bool is_first)
{
    static const int exits[] = {[REPLAY_DONE] = COMMAND_FINE,
                                [REPLAY_MISMATCH] = COMMAND_MISMATCH,
                                [REPLAY_OUT_OF_MEMORY] = COMMAND_OUT_OF_MEMORY,
                                [REPLAY_REFUSED] = COMMAND_BAD};
    const struct replay_settings settings = {
        .file = report->file,
        .config = report->config,
        .driver = report->driver,
        .device_bytes = report->device_bytes,
        .costs = text_of(replays, OPTION_COSTS),
        .check = report->check,
        .timeline = is_first ? replays->timeline : NULL,
        .history = is_first ? replays->history : NULL,
        .tick_ms = number_of(replays, OPTION_TICK),
        .explain = is_given(replays, OPTION_EXPLAIN),
        .progress = isatty(STDERR_FILENO),
    };

    replay_run(trace, &settings, &report->result);
    note_exit(replays, exits[report->result.end]);
    if (is_given(replays, OPTION_MIN_DEVICE) && report->result.end != REPLAY_REFUSED)
        report->has_min_device =
            min_device_find(trace, &settings, &report->result, &report->min_device);
}

static void print(struct replays *replays, const struct report *reports, unsigned count)
{
    if (!replays->objects) {
        if (replays->printed++ > 0)
            (void)fputc('\n', replays->out);
        report_table(replays->out, reports, count, is_given(replays, OPTION_NAME_CALLS));
        (void)fflush(replays->out);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        if (json_array_append_new(replays->objects, report_json(&reports[i])) != 0) {
            command_complain(command_find("replay"), "no host memory is left");
            note_exit(replays, COMMAND_BAD);
        }
}

/* Replay a file that has been read, once or twice. */
static void replay_trace(struct replays *replays, const char *file, const struct xtrace *trace,
                         const char *own_config)
{
    const char *const config = text_of(replays, OPTION_CONFIG);
    const char *const compare = text_of(replays, OPTION_COMPARE);
    const char *const driver = driver_of(replays);
    const uint64_t device_bytes = is_given(replays, OPTION_DEVICE_MEMORY)
                                      ? number_of(replays, OPTION_DEVICE_MEMORY)
                                  : trace->device_bytes ? trace->device_bytes
                                                        : DEVICE_DEFAULT;
    struct report reports[REPORT_COLUMNS] = {
        {.file = file,
         .config = config ? config : own_config,
         .driver = driver,
         .check = check_of(replays)},
        {.file = file, .config = compare, .driver = driver},
    };
    const unsigned count = compare ? 2 : 1;
    bool refused = false;

    for (unsigned i = 0; i < count; i++) {
        reports[i].device_bytes = device_bytes / DEVICE_GRANULE * DEVICE_GRANULE;
        run(replays, trace, &reports[i], i == 0);
        refused |= reports[i].result.end == REPLAY_REFUSED;
    }
    if (!refused)
        print(replays, reports, count);
    for (unsigned i = 0; i < count; i++)
        replay_result_fini(&reports[i].result);
}

static bool may_check(const struct replays *replays, const char *file, const struct xtrace *trace,
                      const char *own_config)
{
    const char *const config = text_of(replays, OPTION_CONFIG);
    bool has_answers = false;

    if (!is_given(replays, OPTION_CHECK))
        return true;
    for (size_t i = 0; i < trace->answer_count && !has_answers; i++)
        has_answers = trace->answers[i].row == XTRACE_ROW_NOW;
    if (!has_answers) {
        complain("%s: --check needs a tape: there is no `=` line in this file", file);
        return false;
    }
    if (config && strcmp(config, own_config) != 0) {
        complain("%s: --check needs the configuration that the tape was made under, '%s'", file,
                 own_config);
        return false;
    }
    return true;
}

/* Whether the options fit a file that has been read. */
static bool may_replay(const struct replays *replays, const char *file, const struct xtrace *trace,
                       const char *own_config)
{
    if (is_given(replays, OPTION_SNAPSHOT_DEVICE) && !trace->is_snapshot) {
        complain("%s: --device chooses a history of a memory snapshot; this is a trace, which "
                 "has one",
                 file);
        return false;
    }
    return may_check(replays, file, trace, own_config);
}

/* Open a file, or standard input, once. */
static FILE *open_file(struct replays *replays, const char *name)
{
    FILE *file;

    if (strcmp(name, "-") == 0) {
        if (!replays->has_read_input) {
            replays->has_read_input = true;
            return stdin;
        }
        command_complain(command_find("replay"), "standard input can be read once only");
        return NULL;
    }
    file = fopen(name, "rb");
    if (!file)
        complain("%s: cannot be opened: %s", name, strerror(errno));
    return file;
}

/* Returns whether the file is one that can be replayed. */
static bool read_file(struct replays *replays, FILE *file, const char *name, struct xtrace *trace)
{
    const int device = is_given(replays, OPTION_SNAPSHOT_DEVICE)
                           ? (int)number_of(replays, OPTION_SNAPSHOT_DEVICE)
                           : -1;
    struct xtrace_fault fault;

    if (!xtrace_read(file, device, trace, &fault)) {
        if (fault.line > 0)
            complain("%s:%" PRIu64 ": %s", name, fault.line, fault.text);
        else
            complain("%s: %s", name, fault.text);
        return false;
    }
    if (trace->note[0])
        complain("%s: %s", name, trace->note);
    return true;
}

static void replay_file(struct replays *replays, const char *path)
{
    FILE *file = open_file(replays, path);
    const char *const name = file == stdin ? "standard input" : path;
    struct xtrace trace;
    char *own_config;
    bool fine;

    fine = file && read_file(replays, file, name, &trace);
    if (file && file != stdin)
        (void)fclose(file);
    if (!fine) {
        note_exit(replays, COMMAND_BAD);
        return;
    }
    own_config = config_of(&trace);
    if (own_config && may_replay(replays, name, &trace, own_config))
        replay_trace(replays, name, &trace, own_config);
    else
        note_exit(replays, COMMAND_BAD);
    free(own_config);
    xtrace_fini(&trace);
}

static void print_json(struct replays *replays)
{
    const bool several = replays->arguments->operand_count > 1 || is_given(replays, OPTION_COMPARE);
    const size_t count = json_array_size(replays->objects);
    const json_t *what = several ? replays->objects : json_array_get(replays->objects, 0);

    if (count > 0 && json_dumpf(what, replays->out, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0)
        (void)fputc('\n', replays->out);
}

int command_replay(const struct option_values *arguments)
{
    struct replays replays = {.arguments = arguments, .out = stdout, .exit = COMMAND_FINE};

    if (!agree(&replays) || !open_output(&replays, OPTION_TIMELINE, &replays.timeline))
        return COMMAND_BAD;
    if (!open_output(&replays, OPTION_HISTORY, &replays.history)) {
        close_output(&replays, OPTION_TIMELINE, replays.timeline);
        return COMMAND_BAD;
    }
    if (is_given(&replays, OPTION_JSON))
        replays.objects = json_array();
    for (int i = 0; i < arguments->operand_count; i++)
        replay_file(&replays, arguments->operands[i]);
    if (replays.objects)
        print_json(&replays);
    json_decref(replays.objects);
    close_output(&replays, OPTION_TIMELINE, replays.timeline);
    close_output(&replays, OPTION_HISTORY, replays.history);
    return replays.exit;
}
