/* SPDX-License-Identifier: MIT */
#include "src/tools/command.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/probe_report.h"
#include "xseg/sim.h"

#define DEVICE_MOST 1023

static const char help[] =
    "usage: xseg probe [OPTION]...\n"
    "\n"
    "Says what a driver and a device can do, what its calls cost, and what xseg would use there.\n"
    "Everything that is taken for this is given back.\n"
    "\n"
    "  --driver sim|cuda   the simulated driver (default), or this machine's\n"
    "  --device N          which device (default 0)\n"
    "  --costs PRESET      what simulated driver calls cost: none, a100, a100_cold, consumer,\n"
    "                      rocm_slow (default a100, or what XSEG_SIM_COSTS says)\n"
    "  --json              print JSON\n"
    "  --help              print this\n"
    "\n"
    "Exit status: 0 fine, 1 a call failed or something was left over, 2 a bad argument or nothing\n"
    "to probe.\n";

struct command {
    enum gpu_driver driver;
    const char *costs;
    int device;
    bool json;
};

static bool refuse(const char *option, const char *sentence)
{
    (void)fprintf(stderr, "xseg probe: %s %s\n", option, sentence);
    return false;
}

static bool parse_device(const char *text, int *out)
{
    int number = 0;

    if (*text == '\0')
        return refuse("--device", "takes the number of a device, such as 0");
    for (; *text >= '0' && *text <= '9' && number <= DEVICE_MOST; text++)
        number = number * 10 + (*text - '0');
    if (*text != '\0' || number > DEVICE_MOST)
        return refuse("--device", "takes the number of a device, such as 0");
    *out = number;
    return true;
}

static bool parse_option(struct command *command, int option)
{
    switch (option) {
    case 'd':
        if (strcmp(optarg, "sim") != 0 && strcmp(optarg, "cuda") != 0)
            return refuse("--driver", "takes sim or cuda");
        command->driver = strcmp(optarg, "cuda") == 0 ? GPU_SYSTEM : GPU_SIMULATED;
        return true;
    case 'n':
        return parse_device(optarg, &command->device);
    case 'k':
        command->costs = optarg;
        return true;
    case 'j':
        command->json = true;
        return true;
    default: /* getopt has said what is wrong */
        (void)fputs("xseg probe --help lists the options\n", stderr);
        return false;
    }
}

/* Returns -1 to go on, or an exit status. */
static int parse(struct command *command, int count, char **arguments)
{
    static const struct option options[] = {
        {"driver", required_argument, NULL, 'd'}, {"device", required_argument, NULL, 'n'},
        {"costs", required_argument, NULL, 'k'},  {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0},
    };
    static char whole_name[] = "xseg probe";
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
    if (optind < count) {
        (void)refuse(arguments[optind], "is no option: xseg probe --help lists them");
        return COMMAND_BAD;
    }
    if (command->driver == GPU_SYSTEM && command->costs) {
        (void)refuse("--driver cuda", "cannot be given with --costs: what calls cost is measured");
        return COMMAND_BAD;
    }
    return -1;
}

/* The machine is the environment's, so that one can be probed that some program runs on. */
static bool set_scene(struct command *command)
{
    struct xseg_sim_settings scene = XSEG_SIM_SETTINGS_INIT;

    if (command->driver == GPU_SYSTEM)
        return true;
    if (command->costs) {
        scene.costs = command->costs;
        if (xseg_sim_reset(&scene) != XSEG_OK)
            return refuse("--costs", "takes none, a100, a100_cold, consumer or rocm_slow");
        if (setenv("XSEG_SIM_COSTS", command->costs, 1) != 0)
            return refuse("--costs", "cannot be set: no host memory is left");
    } else {
        command->costs = getenv("XSEG_SIM_COSTS");
    }
    if (xseg_sim_reset(NULL) != XSEG_OK)
        return refuse("the simulator", "does not understand the XSEG_SIM_* variables");
    if (!command->costs)
        command->costs = "a100";
    return true;
}

static bool print(const struct command *command, const struct probe_report *report)
{
    json_t *object;
    bool fine = true;

    if (command->json) {
        object = probe_report_json(report);
        fine = object && json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12)) == 0;
        (void)fputc('\n', stdout);
        json_decref(object);
    } else {
        probe_report_print(stdout, report);
    }
    if (fine && fflush(stdout) == 0 && !ferror(stdout))
        return true;
    return refuse("the output", "cannot be written");
}

/* What the simulator says is left after all. */
static bool left_nothing(const struct command *command)
{
    char left[512];

    if (command->driver == GPU_SYSTEM || xseg_sim_leaks(left, sizeof(left)) == 0)
        return true;
    (void)fprintf(stderr, "xseg probe: left over:\n%s", left);
    return false;
}

static int probe(const struct command *command)
{
    static struct probe_driver driver;
    static struct probe_device device;
    static struct probe_costs costs;
    const char *library = command->driver == GPU_SIMULATED ? "simulated" : "libcuda.so.1";
    const struct probe_report report = {
        .library = library,
        .preset = command->driver == GPU_SIMULATED ? command->costs : NULL,
        .driver = &driver,
        .device = &device,
        .costs = &costs,
    };
    char problem[256];
    bool printed, closed;

    if (!probe_driver_open(&driver, command->driver, command->device, problem, sizeof(problem))) {
        (void)fprintf(stderr, "xseg probe: %s\n", problem);
        (void)left_nothing(command);
        return COMMAND_BAD;
    }
    probe_device_describe(&driver, command->device, &device);
    probe_costs_measure(&driver, &device, &costs);
    printed = print(command, &report);
    closed = driver.failures == 0;
    probe_driver_close(&driver);
    if (closed && driver.failures > 0)
        (void)fprintf(stderr, "xseg probe: %s failed with %s (%d), closing\n",
                      driver.failure[0].call, driver.failure[0].error_name,
                      driver.failure[0].error);
    if (!printed)
        return COMMAND_BAD;
    return left_nothing(command) && driver.failures == 0 ? COMMAND_FINE : COMMAND_MISMATCH;
}

int command_probe(int count, char **arguments)
{
    struct command command = {.driver = GPU_SIMULATED};
    const int status = parse(&command, count, arguments);

    if (status >= 0)
        return status;
    return set_scene(&command) ? probe(&command) : COMMAND_BAD;
}
