/* SPDX-License-Identifier: MIT */
#include "src/tools/command/option_table.h"

#define PRESETS                                               \
    {                                                         \
        "none", "a100", "a100_cold", "consumer", "rocm_slow", \
    }
#define DEVICE_TAKES "the number of a device, from 0 to 1023"

const struct option_row option_table[OPTION_COUNT] = {
    [OPTION_HELP] =
        {
            .name = "help",
            .letter = 'h',
            .meaning = "print this text",
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
            .meaning = "colours: `auto` (default) on a terminal unless `NO_COLOR` is set, `always` "
                       "or `never`",
        },
    [OPTION_NAME_CALLS] =
        {
            .name = "verbose",
            .letter = 'v',
            .meaning = "name each driver call, with how often it was made",
        },
    [OPTION_ALL_KEYS] =
        {
            .name = "verbose",
            .letter = 'v',
            .meaning = "list the keys that have their defaults, too",
        },
    [OPTION_JSON] =
        {
            .name = "json",
            .meaning = "print JSON",
        },
    [OPTION_KEYS] =
        {
            .name = "keys",
            .meaning = "list all keys with their meaning, what they accept and their defaults",
        },
    [OPTION_CONFIG] =
        {
            .name = "config",
            .takes = OPTION_TAKES_KEYS,
            .argument = "STRING",
            .meaning = "configuration; otherwise the file's, otherwise the defaults. It takes the "
                       "place of the file's whole `c` line",
        },
    [OPTION_DEVICE_MEMORY] =
        {
            .name = "device-memory",
            .takes = OPTION_TAKES_SIZE,
            .argument = "SIZE",
            .least = (uint64_t)2 << 20,
            .most = (uint64_t)1 << 60,
            .meaning =
                "memory of the simulated device, such as `900MiB` or `24GiB`; a number alone is in "
                "bytes; rounded down to 2 MiB. Otherwise the file's, otherwise 80 GiB",
        },
    [OPTION_DRIVER] =
        {
            .name = "driver",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "DRIVER",
            .words = {"sim", "cuda"},
            .meaning =
                "which driver: `sim`, the simulated one (default); `cuda`, this machine's "
                "`libcuda.so.1`; or a FILE, a driver's library, whose name has a `/` or a `.`. "
                "Only `sim` goes by the modelled clock",
        },
    [OPTION_COSTS] =
        {
            .name = "costs",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "COSTS",
            .words = PRESETS,
            .meaning = "what simulated driver calls cost: `none`, `a100` (default), `a100_cold`, "
                       "`consumer`, `rocm_slow`, or a FILE of costs, whose name has a `/` or a `.`",
        },
    [OPTION_PROBE_COSTS] =
        {
            .name = "costs",
            .takes = OPTION_TAKES_CHOICE,
            .argument = "COSTS",
            .words = PRESETS,
            .meaning = "what simulated driver calls cost: `none`, `a100`, `a100_cold`, `consumer`, "
                       "`rocm_slow`, or a FILE of costs, whose name has a `/` or a `.`; otherwise "
                       "what `XSEG_SIM_COSTS` says, otherwise `a100`",
        },
    [OPTION_CHECK] =
        {
            .name = "check",
            .takes = OPTION_TAKES_WORD,
            .may_lack = true,
            .argument = "HOW",
            .words = {"exact", "floor"},
            .meaning = "compare with a tape's answers. `exact` (default): every number; `floor`: "
                       "only that no request fails that the tape served, up to the first that only "
                       "xseg served",
        },
    [OPTION_MIN_DEVICE] =
        {
            .name = "min-device",
            .meaning = "also find the smallest device on which the trace completes",
        },
    [OPTION_COMPARE] =
        {
            .name = "compare",
            .takes = OPTION_TAKES_KEYS,
            .argument = "STRING",
            .meaning = "replay under this configuration, too; print both, and what the difference "
                       "is",
        },
    [OPTION_EXPLAIN] =
        {
            .name = "explain",
            .meaning =
                "say at the end, or where memory ran out, why each reserved byte is not "
                "free: by kind, with the largest of each. It reports the ages of blocks with "
                "the key `history:state`",
        },
    [OPTION_SNAPSHOT_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .most = 1023,
            .unit = DEVICE_TAKES,
            .meaning =
                "the device whose history is taken from a memory snapshot; otherwise the one with "
                "most entries",
        },
    [OPTION_PROBE_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .most = 1023,
            .unit = DEVICE_TAKES,
            .meaning = "which device; otherwise 0",
        },
    [OPTION_SECONDS] =
        {
            .name = "seconds",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .least = 1,
            .most = 3600,
            .unit = "a number of seconds, from 1 to 3600",
            .meaning =
                "measure for so long at most, with up to 101 samples of each call; otherwise "
                "as long as 21 take",
        },
    [OPTION_TABLE] =
        {
            .name = "table",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write every figure, as columns with tabs between them, as soon as it is there. "
                "With `-` as FILE it goes to standard output, and the report to standard error",
        },
    [OPTION_SAVE_COSTS] =
        {
            .name = "save-costs",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write what calls cost as a file for `XSEG_SIM_COSTS` and `--costs`, fitted to the "
                "medians. With `-` as FILE it goes to standard output, and the report to standard "
                "error",
        },
    [OPTION_TIMELINE] =
        {
            .name = "timeline",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write memory over time, as columns with tabs between them: event, "
                "requested, allocated, reserved. With `-` as FILE it goes to standard output, "
                "and what else is printed to standard error",
        },
    [OPTION_HISTORY] =
        {
            .name = "history",
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning =
                "write what happened to blocks and segments, one JSON object a line; `-` as with "
                "`--timeline`. Switches `history:all` on unless the configuration names that key. "
                "`history_stacks:all` adds the call stacks of the tool itself, named by libdw if "
                "it was built with that (`xseg --version` says so)",
        },
    [OPTION_TICK] =
        {
            .name = "tick",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "MS",
            .most = UINT64_MAX - 1,
            .standard = 1000,
            .unit = "a whole number of milliseconds",
            .meaning =
                "how often `xseg_trim()` with due_only is called while the trace's clock goes on; "
                "otherwise each 1000 ms. 0: never",
        },
    [OPTION_BY] =
        {
            .name = "by",
            .takes = OPTION_TAKES_WORD,
            .argument = "WHAT",
            .words = {"fragmented", "allocated", "peak"},
            .meaning =
                "the order of sites: by `fragmented` bytes over time (default), which are cached "
                "bytes on pages that also contain blocks; by `allocated` bytes over time; "
                "or by allocated bytes at the `peak` of reserved memory",
        },
    [OPTION_LABEL] =
        {
            .name = "label",
            .meaning = "a site is a label (`xseg_history_label()`, PyTorch's `user_metadata`), not "
                       "a frame of the call stack",
        },
    [OPTION_DEPTH] =
        {
            .name = "depth",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .least = 1,
            .most = 1000,
            .standard = 1,
            .unit = "a number of frames, from 1 to 1000",
            .meaning = "a site is a frame and its callers, N frames in all; otherwise one",
        },
    [OPTION_FLAME] =
        {
            .name = "flame",
            .meaning = "print a line for each call stack, as flamegraph.pl and its like read them: "
                       "frames, and bytes, on average over time",
        },
    [OPTION_ROWS] =
        {
            .name = "rows",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .most = UINT32_MAX,
            .standard = 20,
            .unit = "a number of sites",
            .meaning = "name so many sites; otherwise 20. The others are added up, or counted",
        },
    [OPTION_OUTPUT] =
        {
            .name = "output",
            .letter = 'o',
            .takes = OPTION_TAKES_OUTPUT,
            .argument = "FILE",
            .meaning = "the file to write; `-` is standard output. It is whole or not there",
        },
    [OPTION_BLOCKS] =
        {
            .name = "blocks",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .least = 1,
            .most = 100000000,
            .standard = 1000000,
            .unit = "a number of blocks, from 1 to 100000000",
            .meaning = "how many blocks the page has at most, those that were most for longest; "
                       "otherwise 1000000. The others are drawn as one sum",
        },
    [OPTION_PERFETTO] =
        {
            .name = "perfetto",
            .meaning = "the format: a trace that Perfetto opens (`ui.perfetto.dev`)",
        },
    [OPTION_SLICES] =
        {
            .name = "blocks",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .most = 100000,
            .standard = 1000,
            .unit = "a number of blocks, from 0 to 100000",
            .meaning = "how many blocks of a device have a slice each, those that held most bytes "
                       "for longest; otherwise 1000",
        },
    [OPTION_ONE_DEVICE] =
        {
            .name = "device",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "N",
            .most = 1023,
            .unit = DEVICE_TAKES,
            .meaning = "this device of a memory snapshot alone; otherwise all of them",
        },
    [OPTION_ONCE] =
        {
            .name = "once",
            .meaning = "print the table once, and end; otherwise it is shown on the terminal until "
                       "`q` is typed",
        },
    [OPTION_SORT] =
        {
            .name = "sort",
            .takes = OPTION_TAKES_WORD,
            .argument = "COLUMN",
            .words = {"reserved", "allocated", "pending", "cached", "peak", "registered", "ooms",
                      "rejected", "pid"},
            .meaning = "what rows are in order of, the largest first: `reserved` (default), "
                       "`allocated`, `pending`, `cached`, `peak`, `registered`, `ooms` or "
                       "`rejected`; or `pid`, the smallest first",
        },
    [OPTION_INTERVAL] =
        {
            .name = "interval",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "SECONDS",
            .least = 1,
            .most = 3600,
            .standard = 1,
            .unit = "a number of seconds, from 1 to 3600",
            .meaning = "seconds between two updates; otherwise one",
        },
    [OPTION_PID] =
        {
            .name = "pid",
            .takes = OPTION_TAKES_NUMBER,
            .argument = "PID",
            .least = 1,
            .most = INT32_MAX,
            .unit = "the number of a process",
            .meaning = "this process alone",
        },
    [OPTION_BUDGET] =
        {
            .name = "budget",
            .takes = OPTION_TAKES_TEXT,
            .argument = "NAME",
            .meaning =
                "show below which processes share devices by this budget file: a name or a path, "
                "as of the key `budget_file`",
        },
    [OPTION_PYTORCH] =
        {
            .name = "pytorch",
            .meaning = "advise only keys that PyTorch's own allocator knows, too",
        },
};
