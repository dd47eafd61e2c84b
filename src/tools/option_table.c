/* SPDX-License-Identifier: MIT */
#include "src/tools/option.h"

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
            .meaning = "say at the end, or where memory ran out, why each reserved byte is not "
                       "free: by kind, with the largest of each. How old blocks are it says with "
                       "the key `block_ages:True`",
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
            .meaning = "how often `xseg_tick()` is called while the trace's clock goes on; "
                       "otherwise each 1000 ms. 0: never",
        },
};
