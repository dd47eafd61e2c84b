/* SPDX-License-Identifier: MIT */
#include "src/tools/command.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/complain.h"
#include "src/tools/probe_report.h"
#include "src/tools/simulator.h"

struct probe {
    const char *driver; /* gpu.h */
    const char *costs;
    int device;
    bool json;
};

static bool refuse(const char *option, const char *sentence)
{
    return option_refuse(command_find("probe"), option, sentence);
}

/* The machine is the environment's, so that one can be probed that some program runs on. */
static bool set_scene(struct probe *probe)
{
    char why[512];

    if (probe->driver != GPU_SIMULATED)
        return true;
    if (!simulator_open("xseg probe"))
        return false;
    if (!probe->costs)
        probe->costs = secure_getenv("XSEG_SIM_COSTS");
    else if (setenv("XSEG_SIM_COSTS", probe->costs, 1) != 0)
        return refuse("--costs", "cannot be set: no host memory is left");
    if (simulator.reset(NULL) != XSEG_OK) {
        (void)simulator.error_text(why, sizeof(why));
        return refuse("the simulator does not understand", why);
    }
    if (!probe->costs)
        probe->costs = "a100";
    return true;
}

/* What could not be written is seen at the end of the tool. */
static bool print(const struct probe *probe, const struct probe_report *report)
{
    json_t *object;

    if (!probe->json) {
        probe_report_print(stdout, report);
        return true;
    }
    object = probe_report_json(report);
    if (!object)
        return refuse("has", "no host memory left");
    (void)json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
    (void)fputc('\n', stdout);
    json_decref(object);
    return true;
}

/* What the simulator says is left after all. */
static bool left_nothing(const struct probe *probe)
{
    char left[512];

    if (probe->driver != GPU_SIMULATED || simulator.leaks(left, sizeof(left)) == 0)
        return true;
    complain("xseg probe: left over:");
    complain_lines(left);
    return false;
}

static int run(const struct probe *probe)
{
    static struct probe_driver driver;
    static struct probe_device device;
    static struct probe_costs costs;
    const struct probe_report report = {
        .library = probe->driver == GPU_SIMULATED ? "simulated" : probe->driver,
        .preset = probe->driver == GPU_SIMULATED ? probe->costs : NULL,
        .driver = &driver,
        .device = &device,
        .costs = &costs,
    };
    char problem[256];
    bool printed, closed;

    if (!probe_driver_open(&driver, probe->driver, probe->device, problem, sizeof(problem))) {
        complain("xseg probe: %s", problem);
        (void)left_nothing(probe);
        return COMMAND_BAD;
    }
    probe_device_describe(&driver, probe->device, &device);
    probe_costs_measure(&driver, &device, &costs);
    printed = print(probe, &report);
    closed = driver.failures == 0;
    probe_driver_close(&driver);
    if (closed && driver.failures > 0)
        complain("xseg probe: %s failed with %s (%d), closing", driver.failure[0].call,
                 driver.failure[0].error_name, driver.failure[0].error);
    if (!printed)
        return COMMAND_BAD;
    return left_nothing(probe) && driver.failures == 0 ? COMMAND_FINE : COMMAND_MISMATCH;
}

int command_probe(const struct option_values *arguments)
{
    struct probe probe = {
        .driver = gpu_driver_of(arguments->of[OPTION_DRIVER].text),
        .costs = arguments->of[OPTION_PROBE_COSTS].text,
        .device = (int)arguments->of[OPTION_PROBE_DEVICE].number,
        .json = arguments->of[OPTION_JSON].given,
    };

    if (probe.driver != GPU_SIMULATED && probe.costs) {
        (void)refuse("--driver", "cannot be given with --costs unless it is sim: what calls of "
                                 "another driver cost is measured");
        return COMMAND_BAD;
    }
    return set_scene(&probe) ? run(&probe) : COMMAND_BAD;
}
