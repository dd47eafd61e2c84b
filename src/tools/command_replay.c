/* SPDX-License-Identifier: MIT */
#include "src/tools/command.h"

#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/tools/min_device.h"
#include "src/tools/replay.h"
#include "src/tools/report.h"
#include "xseg/sim.h"

#define DEVICE_DEFAULT ((uint64_t)80 << 30)
#define DEVICE_GRANULE ((uint64_t)2 << 20)
#define DEVICE_MOST    ((uint64_t)1 << 60)
#define DEVICE_LAST    1023
#define TICK_DEFAULT   1000 /* milliseconds */

static const char help[] =
    "usage: xseg replay [OPTION]... FILE...\n"
    "\n"
    "Replays recorded programmes (traces, tapes and memory snapshots of PyTorch, plain or .zst)\n"
    "through the allocator.\n"
    "\n"
    "  --config STRING        configuration; otherwise the file's, otherwise the defaults\n"
    "  --device-memory SIZE   of the simulated device, such as 900MiB or 24GiB; otherwise the\n"
    "                         file's, otherwise 80GiB\n"
    "  --driver sim|cuda      the simulated driver (default), or this machine's\n"
    "  --costs PRESET         what simulated driver calls cost: none, a100, a100_cold, consumer,\n"
    "                         rocm_slow (default a100)\n"
    "  --check[=exact|floor]  compare with a tape's answers: every number, or only that no\n"
    "                         request fails that the tape served\n"
    "  --min-device           also find the smallest device on which the trace completes\n"
    "  --compare STRING       replay under this configuration, too, and print both\n"
    "  --explain              say at the end why memory is reserved\n"
    "  --json                 print JSON\n"
    "  --device N             of a snapshot: the history of this device (default: the one with\n"
    "                         most entries)\n"
    "  --timeline FILE        write memory over time: event, requested, allocated, reserved\n"
    "  --tick MS              how often xseg_tick() is called while the trace's clock goes on\n"
    "                         (default 1000; 0: never)\n"
    "  --help                 print this\n"
    "\n"
    "Exit status: 0 fine, 1 a mismatch, 2 a bad file or argument, 3 an out of memory that is\n"
    "not in the file.\n";

struct command {
    const char *config, *compare, *costs, *timeline_path;
    uint64_t device_bytes; /* 0: not given */
    uint64_t tick_ms;
    int device; /* of a snapshot; -1: not given */
    enum gpu_driver driver;
    enum check_mode check;
    bool min_device, json, explain;
    FILE *timeline;
    json_t *objects;
    int exit;
};

static bool refuse(const char *option, const char *sentence)
{
    (void)fprintf(stderr, "xseg replay: %s %s\n", option, sentence);
    return false;
}

/* A number with an optional unit: 4096, 900MiB, 24G. */
static bool parse_size(const char *text, uint64_t *out)
{
    static const char units[] = "kmgt";
    uint64_t number = 0;
    const char *at = text;
    const char *unit;
    unsigned shift = 0;

    for (; *at >= '0' && *at <= '9'; at++) {
        if (number > DEVICE_MOST / 10)
            return refuse("--device-memory", "is more than any device has");
        number = number * 10 + (uint64_t)(*at - '0');
    }
    unit = *at ? strchr(units, *at | 0x20) : NULL;
    if (unit) {
        shift = 10 * (unsigned)(unit - units + 1);
        at += strcmp(at + 1, "iB") == 0 ? 3 : 1;
    }
    if (at == text || *at || text[0] < '0' || text[0] > '9')
        return refuse("--device-memory", "takes a whole number with KiB, MiB, GiB or TiB, such as "
                                         "900MiB or 24GiB");
    if (number > DEVICE_MOST >> shift)
        return refuse("--device-memory", "is more than any device has");
    number = (number << shift) / DEVICE_GRANULE * DEVICE_GRANULE;
    if (number == 0)
        return refuse("--device-memory", "is less than 2MiB; a number alone is in bytes");
    *out = number;
    return true;
}

static bool parse_tick(const char *text, uint64_t *out)
{
    char *end = NULL;

    errno = 0;
    *out = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno != 0)
        return refuse("--tick", "takes a whole number of milliseconds");
    return true;
}

static bool parse_device(const char *text, int *out)
{
    char *end = NULL;
    const unsigned long number = strtoul(text, &end, 10);

    *out = (int)number;
    return (text[0] >= '0' && text[0] <= '9' && !*end && number <= DEVICE_LAST) ||
           refuse("--device", "takes the number of a device, from 0 to 1023");
}

static bool parse_check(const char *text, enum check_mode *out)
{
    if (text && strcmp(text, "exact") != 0 && strcmp(text, "floor") != 0)
        return refuse("--check", "takes exact or floor");
    *out = text && strcmp(text, "floor") == 0 ? CHECK_FLOOR : CHECK_EXACT;
    return true;
}

static bool parse_driver(const char *text, enum gpu_driver *out)
{
    if (strcmp(text, "sim") != 0 && strcmp(text, "cuda") != 0)
        return refuse("--driver", "takes sim or cuda");
    *out = strcmp(text, "cuda") == 0 ? GPU_SYSTEM : GPU_SIMULATED;
    return true;
}

/* The simulator knows which presets there are; it is set up anew for each run anyway. */
static bool is_preset(const char *name)
{
    struct xseg_sim_settings scene = XSEG_SIM_SETTINGS_INIT;

    scene.costs = name;
    return xseg_sim_reset(&scene) == XSEG_OK;
}

/* Arguments that are fine apart and not together. */
static bool agree(const struct command *command, int files)
{
    if (files == 0)
        return refuse("needs a file;", "xseg replay --help lists the options");
    if (command->driver == GPU_SYSTEM &&
        (command->device_bytes || command->costs || command->min_device))
        return refuse("--driver cuda",
                      "cannot be given with --device-memory, --costs or --min-device");
    if (command->costs && !is_preset(command->costs))
        return refuse("--costs", "takes none, a100, a100_cold, consumer or rocm_slow");
    if (command->check != CHECK_OFF && command->compare)
        return refuse("--check", "cannot be given with --compare: a tape has answers for one "
                                 "configuration only");
    if (command->timeline_path && files > 1)
        return refuse("--timeline", "takes one trace at a time");
    return true;
}

static bool parse_option(struct command *command, int option)
{
    switch (option) {
    case 'c':
        command->config = optarg;
        return true;
    case 'm':
        return parse_size(optarg, &command->device_bytes);
    case 'd':
        return parse_driver(optarg, &command->driver);
    case 'k':
        command->costs = optarg;
        return true;
    case 'x':
        return parse_check(optarg, &command->check);
    case 'n':
        command->min_device = true;
        return true;
    case 'p':
        command->compare = optarg;
        return true;
    case 'e':
        command->explain = true;
        return true;
    case 'j':
        command->json = true;
        return true;
    case 't':
        command->timeline_path = optarg;
        return true;
    case 'g':
        return parse_device(optarg, &command->device);
    case 'i':
        return parse_tick(optarg, &command->tick_ms);
    default: /* getopt has said what is wrong */
        (void)fputs("xseg replay --help lists the options\n", stderr);
        return false;
    }
}

/* Returns -1 to go on, or an exit status. */
static int parse(struct command *command, int count, char **arguments)
{
    static const struct option options[] = {
        {"config", required_argument, NULL, 'c'},   {"device-memory", required_argument, NULL, 'm'},
        {"driver", required_argument, NULL, 'd'},   {"costs", required_argument, NULL, 'k'},
        {"check", optional_argument, NULL, 'x'},    {"min-device", no_argument, NULL, 'n'},
        {"compare", required_argument, NULL, 'p'},  {"json", no_argument, NULL, 'j'},
        {"timeline", required_argument, NULL, 't'}, {"tick", required_argument, NULL, 'i'},
        {"explain", no_argument, NULL, 'e'},        {"device", required_argument, NULL, 'g'},
        {"help", no_argument, NULL, 'h'},           {NULL, 0, NULL, 0},
    };
    static char whole_name[] = "xseg replay";
    int option;

    arguments[0] = whole_name; /* as getopt's sentences begin */
    while ((option = getopt_long(count, arguments, "h", options, NULL)) != -1) {
        if (option == 'h') {
            (void)fputs(help, stdout);
            return COMMAND_FINE;
        }
        if (!parse_option(command, option))
            return COMMAND_BAD;
    }
    if (!agree(command, count - optind))
        return COMMAND_BAD;
    if (command->timeline_path) {
        command->timeline = fopen(command->timeline_path, "w");
        if (!command->timeline) {
            (void)fprintf(stderr, "%s: cannot be written: %s\n", command->timeline_path,
                          strerror(errno));
            return COMMAND_BAD;
        }
    }
    return -1;
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
static void note_exit(struct command *command, int status)
{
    static const int rank[] = {
        [COMMAND_FINE] = 0, [COMMAND_MISMATCH] = 1, [COMMAND_OUT_OF_MEMORY] = 2, [COMMAND_BAD] = 3};

    if (rank[status] > rank[command->exit])
        command->exit = status;
}

static void run(struct command *command, const struct xtrace *trace, struct report *report,
                FILE *timeline)
{
    static const int exits[] = {[REPLAY_DONE] = COMMAND_FINE,
                                [REPLAY_MISMATCH] = COMMAND_MISMATCH,
                                [REPLAY_OUT_OF_MEMORY] = COMMAND_OUT_OF_MEMORY,
                                [REPLAY_REFUSED] = COMMAND_BAD};
    const struct replay_settings settings = {
        .file = report->file,
        .config = report->config,
        .driver = command->driver,
        .device_bytes = report->device_bytes,
        .costs = command->costs,
        .check = report->check,
        .timeline = timeline,
        .tick_ms = command->tick_ms,
        .explain = command->explain,
        .progress = isatty(STDERR_FILENO),
    };

    replay_run(trace, &settings, &report->result);
    note_exit(command, exits[report->result.end]);
    if (command->min_device && report->result.end != REPLAY_REFUSED)
        report->has_min_device =
            min_device_find(trace, &settings, &report->result, &report->min_device);
}

static void print(struct command *command, const struct report *reports, unsigned count)
{
    static bool second;

    if (!command->json) {
        if (second)
            (void)fputc('\n', stdout);
        second = true;
        report_table(stdout, reports, count);
        (void)fflush(stdout);
        return;
    }
    for (unsigned i = 0; i < count; i++)
        if (json_array_append_new(command->objects, report_json(&reports[i])) != 0) {
            (void)fprintf(stderr, "xseg replay: no host memory is left\n");
            note_exit(command, COMMAND_BAD);
        }
}

/* Replay a file that has been read, once or twice. */
static void replay_trace(struct command *command, const char *file, const struct xtrace *trace,
                         const char *own_config)
{
    const char *config = command->config ? command->config : own_config;
    uint64_t device_bytes = command->device_bytes ? command->device_bytes
                            : trace->device_bytes ? trace->device_bytes
                                                  : DEVICE_DEFAULT;
    struct report reports[REPORT_COLUMNS] = {
        {.file = file, .config = config, .driver = command->driver, .check = command->check},
        {.file = file, .config = command->compare, .driver = command->driver},
    };
    unsigned count = command->compare ? 2 : 1;
    bool refused = false;

    for (unsigned i = 0; i < count; i++) {
        reports[i].device_bytes = device_bytes / DEVICE_GRANULE * DEVICE_GRANULE;
        run(command, trace, &reports[i], i == 0 ? command->timeline : NULL);
        refused |= reports[i].result.end == REPLAY_REFUSED;
    }
    if (!refused)
        print(command, reports, count);
    for (unsigned i = 0; i < count; i++)
        replay_result_fini(&reports[i].result);
}

static bool may_check(const struct command *command, const char *file, const struct xtrace *trace,
                      const char *own_config)
{
    bool has_answers = false;

    if (command->check == CHECK_OFF)
        return true;
    for (size_t i = 0; i < trace->answer_count && !has_answers; i++)
        has_answers = trace->answers[i].row == XTRACE_ROW_NOW;
    if (!has_answers) {
        (void)fprintf(stderr, "%s: --check needs a tape: there is no `=` line in this file\n",
                      file);
        return false;
    }
    if (command->config && strcmp(command->config, own_config) != 0) {
        (void)fprintf(stderr,
                      "%s: --check needs the configuration that the tape was made under, '%s'\n",
                      file, own_config);
        return false;
    }
    return true;
}

static void replay_file(struct command *command, const char *name)
{
    FILE *file = fopen(name, "rb");
    struct xtrace trace;
    struct xtrace_fault fault;
    char *own_config;

    if (!file) {
        (void)fprintf(stderr, "%s: cannot be opened: %s\n", name, strerror(errno));
        note_exit(command, COMMAND_BAD);
        return;
    }
    if (!xtrace_read(file, command->device, &trace, &fault)) {
        if (fault.line > 0)
            (void)fprintf(stderr, "%s:%" PRIu64 ": %s\n", name, fault.line, fault.text);
        else
            (void)fprintf(stderr, "%s: %s\n", name, fault.text);
        note_exit(command, COMMAND_BAD);
        (void)fclose(file);
        return;
    }
    (void)fclose(file);
    if (trace.note[0])
        (void)fprintf(stderr, "%s: %s\n", name, trace.note);
    own_config = config_of(&trace);
    if (own_config && may_check(command, name, &trace, own_config))
        replay_trace(command, name, &trace, own_config);
    else
        note_exit(command, COMMAND_BAD);
    free(own_config);
    xtrace_fini(&trace);
}

static void print_json(struct command *command, bool several)
{
    size_t count = json_array_size(command->objects);
    json_t *what = several ? command->objects : json_array_get(command->objects, 0);

    if (count > 0 && json_dumpf(what, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0)
        (void)fputc('\n', stdout);
}

int command_replay(int count, char **arguments)
{
    struct command command = {
        .driver = GPU_SIMULATED, .device = -1, .tick_ms = TICK_DEFAULT, .exit = COMMAND_FINE};
    int status = parse(&command, count, arguments);

    if (status >= 0)
        return status;
    if (command.json)
        command.objects = json_array();
    for (int i = optind; i < count; i++)
        replay_file(&command, arguments[i]);
    if (command.json)
        print_json(&command, count - optind > 1 || command.compare);
    json_decref(command.objects);
    if (command.timeline && fclose(command.timeline) != 0) {
        (void)fprintf(stderr, "%s: cannot be written: %s\n", command.timeline_path,
                      strerror(errno));
        note_exit(&command, COMMAND_BAD);
    }
    if (fflush(stdout) != 0 || ferror(stdout)) {
        (void)fprintf(stderr, "xseg replay: the output cannot be written\n");
        note_exit(&command, COMMAND_BAD);
    }
    return command.exit;
}
