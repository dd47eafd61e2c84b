/* SPDX-License-Identifier: MIT */
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/tools/command/command.h"
#include "src/tools/text/complain.h"

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
        .name = "advise",
        .run = command_advise,
        .sentence = "say which configuration a programme should have",
        .usage = "FILE | FOLDER",
        .needs = "a file or a folder",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = 1,
        .options = {OPTION_DEVICE_MEMORY, OPTION_PYTORCH, OPTION_SNAPSHOT_DEVICE, OPTION_JSON,
                    OPTION_COLOR, OPTION_HELP},
        .description =
            "Replays a recorded programme, as `xseg replay` does, on the simulated driver under "
            "many "
            "configurations, and prints the one to set, why, the runner-up, and what each takes: "
            "the "
            "peak of what is reserved and the smallest device. Where nothing helps, it says so. "
            "FILE "
            "is a trace, a tape or a memory snapshot, or `-`, standard input.\n"
            "\n"
            "`--device-memory` is how large the device is on which the programme is to complete. "
            "Otherwise that is what could be reserved when a request of a snapshot last failed; "
            "otherwise it is the file's device, or 80 GiB. Where memory runs out there, or ran out "
            "in the file, it says whether the programme would have completed, and the least change "
            "with which it does.\n"
            "\n"
            "Each figure is what `xseg replay --min-device --config STRING FILE` prints, on the "
            "file's device or on 80 GiB; if `--device-memory` is larger, with that as well.\n"
            "\n"
            "Of a FOLDER with a snapshot for each rank of a job it looks at the odd rank, or, if "
            "none "
            "is, at the one with the largest peak, at the most typical one and at two others, and "
            "prints one string for all of them: the one with which the largest of their peaks is "
            "lowest.",
        .examples =
            {
                {"xseg advise job.pickle", "what to set, why, and what it saves"},
                {"xseg advise --pytorch oom.pickle", "with keys that PyTorch knows, too"},
                {"xseg advise --device-memory 24GiB job.pickle", "will it run on a smaller card?"},
                {"xseg advise --json job.pickle | jq -r .advised.config",
                 "the string, for a script"},
                {"xseg advise snapshots/", "one string for the ranks of a job"},
            },
        .exits = {FINE, NULL, BAD_FILE},
    },
    {
        .name = "blame",
        .run = command_blame,
        .sentence = "say which lines of a programme keep memory from going back",
        .usage = "FILE | FOLDER",
        .needs = "a file or a folder",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = 1,
        .options = {OPTION_BY, OPTION_LABEL, OPTION_DEPTH, OPTION_ROWS, OPTION_FLAME,
                    OPTION_SNAPSHOT_DEVICE, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
        .description =
            "Reads a memory snapshot of PyTorch or xseg, plain or compressed with Zstandard, and "
            "says who strands memory: whose live blocks lie on pages of which the rest is cached, "
            "and cannot go back to the driver for that. Each site's stranded bytes, pending and "
            "idle ones add up to what was reserved and not live. A FILE may be `-`, standard input."
            "\n\n"
            "A page is 2 MiB of a small expandable segment, 20 MiB or large_segment_size_mb of a "
            "large one, or a whole classic segment. Several live blocks on a page share what is "
            "cached there equally. Figures are averages over the "
            "time of the recording. Without a history in the file they are those of its end."
            "\n\n"
            "Of a FOLDER with a snapshot for each rank of a job it says which rank is unlike the "
            "others, and in what, and whose blocks all ranks have.",
        .examples =
            {
                {"xseg blame job.pickle", "lines of code, those that strand most first"},
                {"xseg blame --by peak job.pickle", "who held memory when most was reserved"},
                {"xseg blame --label job.pickle", "by label instead"},
                {"xseg blame --flame job.pickle", "call stacks, for `flamegraph.pl` to draw"},
                {"xseg blame --json job.pickle | jq .idle", "one of the sums, for a script"},
                {"xseg blame snapshots/", "all ranks of a job, and which is the odd one"},
            },
        .exits = {FINE, NULL, BAD_FILE},
    },
    {
        .name = "compare",
        .run = command_compare,
        .sentence = "say what one run of a programme holds and strands more than another",
        .usage = "FILE FILE | FOLDER [FOLDER]",
        .needs = "two files, or a folder",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = 2,
        .options = {OPTION_LABEL, OPTION_DEPTH, OPTION_ROWS, OPTION_SNAPSHOT_DEVICE, OPTION_JSON,
                    OPTION_COLOR, OPTION_HELP},
        .description =
            "Reads two memory snapshots of PyTorch or xseg, plain or compressed with Zstandard, "
            "and says by call site what the second, B, has more or less of than the first, A: "
            "reserved and live bytes at the peak, stranded bytes and lifetimes. Addresses do not "
            "count, and time is counted in events, so two runs of one programme differ by "
            "nothing. A FILE may be `-`, standard input."
            "\n\n"
            "Of a FOLDER with a snapshot for each rank of a job it says which rank is unlike the "
            "others, and in what. Two folders are compared rank by rank.",
        .examples =
            {
                {"xseg compare before.pickle after.pickle", "what a change of the programme did"},
                {"xseg compare --rows 5 before.pickle after.pickle",
                 "the five largest differences"},
                {"xseg compare snapshots/", "which rank of a job is the odd one"},
                {"xseg compare --json a.pickle b.pickle | jq .verdict", "a sentence, for a script"},
            },
        .exits = {"no difference of 1 % of what is reserved, or more", "there is one", BAD_FILE},
    },
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
        .name = "export",
        .run = command_export,
        .sentence = "write a memory snapshot in the format of another programme",
        .usage = "--perfetto FILE -o OUT",
        .needs = "a memory snapshot",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = 1,
        .options = {OPTION_PERFETTO, OPTION_OUTPUT, OPTION_ONE_DEVICE, OPTION_SLICES, OPTION_COLOR,
                    OPTION_HELP},
        .description =
            "Reads a memory snapshot of PyTorch or xseg, plain or compressed with Zstandard, and "
            "writes its history as a trace that Perfetto opens: reserved, live, pending and cached "
            "bytes by device and pool, what happened to segments and why, requests that failed, "
            "and the largest blocks. A FILE may be `-`, standard input.",
        .examples =
            {
                {"xseg export --perfetto job.pickle -o job.perfetto", "a trace of all devices"},
                {"xseg export --perfetto --device 3 job.pickle -o job.perfetto", "of one of them"},
                {"xseg export --perfetto --blocks 20000 job.pickle -o job.perfetto",
                 "with more blocks"},
            },
        .exits = {FINE, NULL, BAD_FILE},
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
    {
        .name = "top",
        .run = command_top,
        .sentence = "show the memory of running processes",
        .usage = "",
        .options = {OPTION_ONCE, OPTION_SORT, OPTION_INTERVAL, OPTION_PID, OPTION_JSON,
                    OPTION_COLOR, OPTION_HELP},
        .description =
            "Shows the memory of processes that have the key `publish:True`, by device and pool: "
            "what is live, pending, cached and reserved, the most that was reserved, requests "
            "refused for want of memory, and how old these figures are. The kernel lets a user see "
            "the processes of that user; others are counted.\n"
            "\n"
            "On a terminal: `q` quits, `<` and `>` order by another column, `p` shows and hides "
            "pools, arrows scroll, the space bar looks at once.",
        .examples =
            {
                {"XSEG_ALLOC_CONF=publish:True ./service &", "a process that publishes"},
                {"xseg top", "all of them, live"},
                {"xseg top --once --sort cached", "one look, as text"},
                {"xseg top --once --json | jq '.publishers[].devices[].reserved'", "for a script"},
            },
        .exits = {FINE, "the process that is asked for publishes nothing that may be read",
                  "a bad argument, no terminal, or output that cannot be written"},
    },
    {
        .name = "view",
        .run = command_view,
        .sentence = "make a page of a memory snapshot, for a browser",
        .usage = "FILE [FILE] -o PAGE",
        .needs = "a memory snapshot",
        .operands = COMMAND_FILES,
        .least_operands = 1,
        .most_operands = 2,
        .options = {OPTION_OUTPUT, OPTION_SNAPSHOT_DEVICE, OPTION_BLOCKS, OPTION_COLOR,
                    OPTION_HELP},
        .description =
            "Writes one file of HTML that shows a memory snapshot, of PyTorch or of xseg, plain or "
            "compressed with Zstandard: live memory by call site over time, reserved against live, "
            "pages over time, the state at any event, and the call stack of each block. It has all "
            "that it needs in it, and asks nothing of a network. Of two files it shows both, "
            "beside "
            "each other. A FILE may be `-`, standard input.",
        .examples =
            {
                {"xseg view job.pickle -o job.html", "a page of one snapshot"},
                {"xseg view before.pickle after.pickle -o both.html", "two, to compare"},
                {"xseg view --device 3 job.pickle -o job.html", "of another device"},
            },
        .exits = {FINE, NULL, BAD_FILE},
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
