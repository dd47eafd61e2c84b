/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/command.h"
#include "src/tools/complain.h"

#define FINE     "fine"
#define BAD_FILE "a bad file or argument, or output that cannot be written"

const struct command command_tool = {
    .sentence = "replay recorded programmes through a GPU memory allocator, and probe drivers",
    .usage = "COMMAND [ARGUMENT]...",
    .needs = "a command",
    .operands = COMMAND_NAMES,
    .most_operands = INT_MAX,
    .options = {OPTION_HELP, OPTION_VERSION},
    .description =
        "The command line tool of xseg, a GPU memory allocator with expandable segments. No GPU is "
        "needed: a simulated driver is the default.",
    .examples =
        {
            {"xseg replay --compare expandable_segments:False job.pickle",
             "what expandable segments save in a PyTorch job, by its memory snapshot"},
            {"xseg config", "which configuration a programme would get here, and why"},
            {"xseg probe --driver cuda", "what this machine's driver can do and what it costs"},
        },
    .exits = {FINE, NULL, "a bad argument"},
};

const struct command commands[] = {
    {
        .name = "config",
        .run = command_config,
        .sentence = "say which configuration is in force and why, check a string, list keys",
        .usage = "[STRING]",
        .operands = COMMAND_TEXT,
        .most_operands = 1,
        .options = {OPTION_KEYS, OPTION_ALL_KEYS, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
        .description =
            "Reads a configuration as a programme would that opens the allocator here: STRING, "
            "else the first of the variables `XSEG_ALLOC_CONF`, `PYTORCH_CUDA_ALLOC_CONF` and "
            "`PYTORCH_ALLOC_CONF` that is set, else the defaults. Says where it comes from and "
            "which keys differ from their defaults, or what is wrong with it.",
        .examples =
            {
                {"xseg config", "what is in force, and why"},
                {"xseg config max_split_size_mb:128,idle_ms:5000", "check a string"},
                {"xseg config --keys", "every key, with its meaning"},
            },
        .exits = {FINE, NULL, "the string has an error, or a bad argument"},
    },
    {
        .name = "help",
        .run = command_help,
        .sentence = "explain a command",
        .usage = "[COMMAND]",
        .operands = COMMAND_NAMES,
        .most_operands = 1,
        .options = {OPTION_JSON, OPTION_COLOR, OPTION_HELP},
        .description = "Prints what a command does, its options and examples; without COMMAND, the "
                       "list of commands. The manual pages say the same: `man xseg-replay`. As "
                       "JSON, everything about all commands.",
        .examples = {{"xseg help replay", "the options of `xseg replay`"}},
        .exits = {FINE, NULL, "there is no such command"},
    },
    {
        .name = "probe",
        .run = command_probe,
        .sentence = "say what a driver can do and what its calls cost",
        .usage = "",
        .options = {OPTION_DRIVER, OPTION_PROBE_DEVICE, OPTION_PROBE_COSTS, OPTION_SECONDS,
                    OPTION_TABLE, OPTION_SAVE_COSTS, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
        .description =
            "Says what a driver and a device can do, what its calls cost, and what xseg would use "
            "there. Everything that is taken for this is given back.\n"
            "\n"
            "The simulated machine is the one that the `XSEG_SIM_*` variables describe.",
        .examples =
            {
                {"xseg probe --driver cuda", "this machine's driver, its costs measured"},
                {"xseg probe --costs consumer", "the simulated driver, its costs modelled"},
                {"xseg probe --driver cuda --save-costs ./card.costs",
                 "a card's costs, for the simulator to charge"},
                {"xseg probe --json | jq .would_use", "one answer, for a script"},
            },
        .exits = {FINE, "a call failed, or something was left over",
                  "a bad argument, nothing to probe, or output that cannot be written"},
    },
    {
        .name = "replay",
        .run = command_replay,
        .sentence = "replay recorded programmes through the allocator",
        .usage = "FILE...",
        .needs = "a file",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = INT_MAX,
        .options = {OPTION_CONFIG, OPTION_COMPARE, OPTION_DEVICE_MEMORY, OPTION_DRIVER,
                    OPTION_COSTS, OPTION_CHECK, OPTION_MIN_DEVICE, OPTION_EXPLAIN,
                    OPTION_SNAPSHOT_DEVICE, OPTION_TIMELINE, OPTION_HISTORY, OPTION_TICK,
                    OPTION_NAME_CALLS, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
        .description =
            "Replays recorded programmes through the allocator: traces, tapes and memory snapshots "
            "of PyTorch, plain or compressed with Zstandard. Says how much memory was held at the "
            "peak, how many driver calls were made and how long an allocation took. A FILE may be "
            "`-`, standard input.",
        .examples =
            {
                {"xseg replay trace.xtrace.zst", "peaks, driver calls, time"},
                {"xseg replay --compare expandable_segments:False job.pickle",
                 "what expandable segments save in a PyTorch job"},
                {"xseg replay --min-device --json job.pickle",
                 "the smallest device on which the job runs, for a script"},
                {"xseg replay --check tape.zst", "PyTorch's answers, number for number"},
                {"zcat old.gz | xseg replay -", "a trace from another programme"},
            },
        .exits = {FINE, "a mismatch", BAD_FILE, "an out of memory that is not in the file"},
    },
    {0},
};

const struct command *command_find(const char *name)
{
    for (const struct command *command = commands; command->name; command++)
        if (strcmp(name, command->name) == 0)
            return command;
    return NULL;
}

const char *command_full_name(const struct command *command)
{
    static char name[32];

    (void)snprintf(name, sizeof(name), "xseg%s%s", command->name ? " " : "",
                   command->name ? command->name : "");
    return name;
}

void command_complain(const struct command *command, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    complain_as(command_full_name(command), format, arguments);
    va_end(arguments);
}
