/* SPDX-License-Identifier: MIT */
#include "src/tools/command/option_table.h"

#define COST_PRESETS                                          \
    {                                                         \
        "none", "a100", "a100_cold", "consumer", "rocm_slow", \
    }
#define ORDINAL_MAX   1023
#define DEVICE_TAKES  "a device ordinal, from 0 to 1023"
#define SECONDS_TAKES "a number of seconds, from 1 to 3600"
#define MEMORY_MIN    ((uint64_t)2 << 20)
#define MEMORY_MAX    ((uint64_t)1 << 60)
#define COSTS_MEANING                                                                         \
    "cost model of the simulated driver, which sets the modeled time of each call: a preset " \
    "(`none`, `a100`, `a100_cold`, `consumer` or `rocm_slow`), or a FILE from `xseg probe "   \
    "--save-costs`, whose path contains a slash or a dot, such as `./gpu.costs`. "

const struct option_row option_table[OPTION_COUNT] = {
    [OPTION_HELP] =
        {
            .name = "help",
            .letter = 'h',
            .meaning = "print this help",
        },
    [OPTION_VERSION] =
        {
            .name = "version",
            .letter = 'V',
            .meaning = "print the version, the build type and the commit",
        },
    [OPTION_COLOR] =
        {
            .name = "color",
            .takes = OPTION_TAKES_WORD,
            .argument = "WHEN",
            .words = {"auto", "always", "never"},
            .meaning =
                "when to use colors: `auto` (on a terminal, unless `NO_COLOR` is set), `always` "
                "or `never`. Default: `auto`",
        },
    [OPTION_LIST_CALLS] =
        {
            .name = "verbose",
            .letter = 'v',
            .meaning = "also print the number of calls of each driver function",
        },
    [OPTION_ALL_KEYS] =
        {
            .name = "verbose",
            .letter = 'v',
            .meaning = "also list the keys that have their default values",
        },
    [OPTION_JSON] =
        {
            .name = "json",
            .meaning = "print the report as JSON",
        },
    [OPTION_KEYS] =
        {
            .name = "keys",
            .meaning = "list all keys with their descriptions, accepted values and defaults",
        },
    [OPTION_CONFIG] =
        {
            .name = "config",
            .takes = OPTION_TAKES_KEYS,
            .argument = "STRING",
            .meaning =
                "configuration string of the replay; replaces the whole string that is recorded in "
                "the file. Default: the recorded string, or the defaults of xseg",
        },
    [OPTION_DEVICE_MEMORY] =
        {
            .name = "device-memory",
            .takes = OPTION_TAKES_SIZE,
            .argument = "SIZE",
            .min = MEMORY_MIN,
            .max = MEMORY_MAX,
            .meaning =
                "memory of the simulated device, such as `900MiB` or `24GiB`; without a unit in "
                "bytes; rounded down to a multiple of 2 MiB. Default: the recorded size, or 80 GiB",
        },
    [OPTION_TARGET_MEMORY] =
        {
            .name = "device-memory",
            .takes = OPTION_TAKES_SIZE,
            .argument = "SIZE",
            .min = MEMORY_MIN,
            .max = MEMORY_MAX,
            .meaning =
                "memory of the device on which the program must complete, such as `900MiB` or "
                "`24GiB`; without a unit in bytes. Default: after an out-of-memory error in a "
                "snapshot, the memory that the program could reserve then; otherwise the recorded "
                "size, or 80 GiB",
        },
    [OPTION_DRIVER] =
        {
            .name = "driver",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "DRIVER",
            .words = {"sim", "cuda"},
            .meaning =
                "driver to use: `sim`, the simulated driver; `cuda`, the CUDA driver of this host "
                "(`libcuda.so.1`); or a FILE, a driver library, whose path contains a slash or a "
                "dot. "
                "Only `sim` has modeled times. Default: `sim`",
        },
    [OPTION_COSTS] =
        {
            .name = "costs",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "COSTS",
            .words = COST_PRESETS,
            .meaning = COSTS_MEANING "Default: `a100`",
        },
    [OPTION_PROBE_COSTS] =
        {
            .name = "costs",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "COSTS",
            .words = COST_PRESETS,
            .meaning = COSTS_MEANING "Default: the value of `XSEG_SIM_COSTS`, or `a100`",
        },
    [OPTION_CHECK] =
        {
            .name = "check",
            .takes = OPTION_TAKES_WORD,
            .is_optional = true,
            .argument = "HOW",
            .words = {"exact", "success"},
            .meaning =
                "compare the replay with the results that a tape records for each operation. "
                "`exact`: all statistics are equal; `success`: each request that succeeded in the "
                "recording also succeeds in xseg. The comparison of `success` ends at the first "
                "request that failed in the recording and succeeds in xseg. Default: `exact`",
        },
    [OPTION_MIN_DEVICE] =
        {
            .name = "min-device",
            .meaning = "also search for the smallest device on which the replay completes",
        },
    [OPTION_COMPARE] =
        {
            .name = "compare",
            .takes = OPTION_TAKES_KEYS,
            .argument = "STRING",
            .meaning =
                "replay a second time with this configuration string, and print both results and "
                "their difference",
        },
    [OPTION_EXPLAIN] =
        {
            .name = "explain",
            .meaning =
                "also print why reserved memory is not released at the end of the replay, or at "
                "the out-of-memory error: bytes by reason, with the 8 largest page ranges of each. "
                "Ages of blocks require the key `history:state`",
        },
    [OPTION_SNAPSHOT_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .max = ORDINAL_MAX,
            .unit = DEVICE_TAKES,
            .meaning = "ordinal of the device to read from a memory snapshot. Default: the device "
                       "with the most entries",
        },
    [OPTION_PROBE_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .max = ORDINAL_MAX,
            .unit = DEVICE_TAKES,
            .meaning = "ordinal of the device. Default: 0",
        },
    [OPTION_SECONDS] =
        {
            .name = "seconds",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .min = 1,
            .max = 3600,
            .unit = SECONDS_TAKES,
            .meaning =
                "time limit of the measurement, which then takes up to 101 samples of each call. "
                "Default: no limit, and 21 samples",
        },
    [OPTION_TABLE] =
        {
            .name = "table",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write all measurements to FILE as tab-separated columns, each as soon as it is "
                "complete. If FILE is `-`, they go to standard output, and the report to standard "
                "error",
        },
    [OPTION_SAVE_COSTS] =
        {
            .name = "save-costs",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "fit a cost model to the medians and write it to FILE, for `--costs` and "
                "`XSEG_SIM_COSTS`. If FILE is `-`, it goes to standard output, and the report to "
                "standard error",
        },
    [OPTION_TIMELINE] =
        {
            .name = "timeline",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning = "write memory over time to FILE as tab-separated columns: event, requested, "
                       "allocated, reserved; of a trace with a clock, `usec` instead of event, and "
                       "also address space, host memory and driver objects. If FILE is `-`, they "
                       "go to standard output, and the "
                       "report to standard error",
        },
    [OPTION_HISTORY] =
        {
            .name = "history",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write the history of the replay (events of blocks and segments) to FILE, one JSON "
                "object per line; `-` as "
                "with `--timeline`. Sets the key `history:all` unless the configuration sets "
                "`history`. `history_stacks:all` adds call stacks, which are those of the replay "
                "and not of the recorded program, with function names if the tool was built with "
                "libdw (see `xseg --version`)",
        },
    [OPTION_TICK] =
        {
            .name = "tick",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "MS",
            .max = UINT64_MAX - 1,
            .default_number = 1000,
            .unit = "a whole number of milliseconds",
            .meaning = "interval, in milliseconds of the trace's clock, at which the replay "
                       "releases the idle memory that is due by `idle_ms` or a limit "
                       "(`xseg_trim()` with `due_only`); 0: never. Default: 1000",
        },
    [OPTION_BY] =
        {
            .name = "by",
            .takes = OPTION_TAKES_WORD,
            .argument = "WHAT",
            .words = {"fragmented", "allocated", "peak"},
            .meaning =
                "what to sort the sites by: `fragmented`, their shares of the cached bytes on "
                "pages with allocated blocks, averaged over time; `allocated`, the allocated "
                "bytes, averaged over time; `peak`, the allocated bytes at the peak of reserved "
                "memory. "
                "Default: `fragmented`",
        },
    [OPTION_LABEL] =
        {
            .name = "label",
            .takes = OPTION_TAKES_WORD,
            .is_optional = true,
            .argument = "KIND",
            .words = {"user", "region", "step", "stage"},
            .meaning =
                "group blocks by a label of their allocation instead of by call site. `user`: the "
                "label of `xseg_history_label()`, or PyTorch's `user_metadata`. `region`: the "
                "compiled region of `torch.compile`. `step`, `stage`: the training step, and its "
                "stage such as forward, by the names of `record_function()`. Default: `user`",
        },
    [OPTION_DEPTH] =
        {
            .name = "depth",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .min = 1,
            .max = 1000,
            .default_number = 1,
            .unit = "a number of frames, from 1 to 1000",
            .meaning = "number of stack frames that identify a call site: a frame and its callers. "
                       "Default: 1",
        },
    [OPTION_FLAME] =
        {
            .name = "flame",
            .meaning = "print folded call stacks for `flamegraph.pl` and similar programs: a line "
                       "for each stack, with its bytes by `--by`",
        },
    [OPTION_ROWS] =
        {
            .name = "rows",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .max = UINT32_MAX,
            .default_number = 20,
            .unit = "a number of sites",
            .meaning =
                "number of call sites, labels or ranks to list; one line summarizes the others. "
                "Default: 20",
        },
    [OPTION_OUTPUT] =
        {
            .name = "output",
            .letter = 'o',
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "OUT",
            .meaning =
                "file to write; `-` is standard output. If the command fails, the file is not "
                "created or replaced",
        },
    [OPTION_BLOCKS] =
        {
            .name = "blocks",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .min = 1,
            .max = 100000000,
            .default_number = 1000000,
            .unit = "a number of blocks, from 1 to 100000000",
            .meaning = "maximum number of blocks in the HTML page. Of larger snapshots, it has the "
                       "blocks with the largest product of size and lifetime, and the sum of the "
                       "others. Default: 1000000",
        },
    [OPTION_PERFETTO] =
        {
            .name = "perfetto",
            .meaning = "write a trace for Perfetto (`ui.perfetto.dev`); required",
        },
    [OPTION_SLICES] =
        {
            .name = "blocks",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .max = 100000,
            .default_number = 1000,
            .unit = "a number of blocks, from 0 to 100000",
            .meaning = "number of blocks of each device that are exported as slices: those with "
                       "the largest product of size and lifetime. Default: 1000",
        },
    [OPTION_ONE_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .max = ORDINAL_MAX,
            .unit = DEVICE_TAKES,
            .meaning = "ordinal of the device to export. Default: all devices of the snapshot",
        },
    [OPTION_ONCE] =
        {
            .name = "once",
            .meaning =
                "print the table once and exit. Default: update it on the terminal until `q` is "
                "pressed",
        },
    [OPTION_SORT] =
        {
            .name = "sort",
            .takes = OPTION_TAKES_WORD,
            .argument = "COLUMN",
            .words = {"reserved", "allocated", "pending", "cached", "peak", "registered", "ooms",
                      "rejected", "pid"},
            .meaning =
                "column to sort by, largest first: `reserved`, `allocated`, `pending`, `cached`, "
                "`peak`, `registered`, `ooms` or `rejected`; or `pid`, smallest first. Default: "
                "`reserved`",
        },
    [OPTION_INTERVAL] =
        {
            .name = "interval",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "SECONDS",
            .min = 1,
            .max = 3600,
            .default_number = 1,
            .unit = SECONDS_TAKES,
            .meaning = "seconds between updates. Default: 1",
        },
    [OPTION_PID] =
        {
            .name = "pid",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "PID",
            .min = 1,
            .max = INT32_MAX,
            .unit = "a process ID",
            .meaning = "show only the process with this ID",
        },
    [OPTION_BUDGET] =
        {
            .name = "budget",
            .takes = OPTION_TAKES_TEXT,
            .argument = "NAME",
            .meaning =
                "also show the processes that share devices through this budget file: a name or a "
                "path, as in the key `budget_file`",
        },
    [OPTION_PYTORCH] =
        {
            .name = "pytorch",
            .meaning = "recommend only keys that PyTorch's own allocator also has",
        },
    [OPTION_KEEP_EXPANDABLE] =
        {
            .name = "keep-expandable",
            .meaning =
                "ignore `expandable_segments:False` that the program sets at run time, as long as "
                "IPC of expandable memory is served (`XSEG_TORCH_KEEP_EXPANDABLE=1`)",
        },
    [OPTION_DECLARE_EXPANDABLE] =
        {
            .name = "declare-expandable",
            .meaning =
                "add the value of `expandable_segments` that is in effect to `PYTORCH_ALLOC_CONF` "
                "and `PYTORCH_CUDA_ALLOC_CONF`, unless they have this key, for programs that read "
                "the variables to disable legacy IPC. Other programs reject the value True, such "
                "as vLLM with a KV connector",
        },
};
