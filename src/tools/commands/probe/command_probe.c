/* SPDX-License-Identifier: MIT */
#include <stdlib.h>
#include <string.h>

#include "src/tools/command/command.h"
#include "src/tools/command/option.h"
#include "src/tools/commands/probe/probe_cost_model.h"
#include "src/tools/commands/probe/probe_report.h"
#include "src/tools/output/message.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "src/tools/replay/simulator.h"

struct probe {
    const char *driver; /* gpu.h */
    const char *costs;
    int device;
    unsigned seconds; /* 0: unlimited */
    bool json;
    FILE *out; /* of the report */
    struct output_file table, save;
};

/* Configure the simulator by the environment and --costs. */
static bool configure_simulator(struct probe *probe)
{
    char reason[512];

    if (probe->driver != GPU_SIMULATED)
        return true;
    if (!simulator_open())
        return false;
    if (!probe->costs)
        probe->costs = secure_getenv("XSEG_SIM_COSTS");
    else if (setenv("XSEG_SIM_COSTS", probe->costs, 1) != 0)
        return option_error("--costs", "cannot be set: out of host memory");
    if (simulator.reset(NULL) != XSEG_OK) {
        (void)simulator.error_message(reason, sizeof(reason));
        return option_error("simulator configuration:", reason);
    }
    if (!probe->costs)
        probe->costs = "a100";
    return true;
}

static bool print_report(const struct probe *probe, const struct probe_report *report)
{
    if (probe->json)
        return output_json(probe->out, probe_report_json(report));
    probe_report_print(probe->out, report);
    return true;
}

/* Report the resources of the simulator that were not released. */
static bool check_leaks(const struct probe *probe)
{
    char unreleased[512];

    if (probe->driver != GPU_SIMULATED || simulator.leaks(unreleased, sizeof(unreleased)) == 0)
        return true;
    message_error("not released:");
    message_lines(unreleased);
    return false;
}

/* --- Files. --- */

static void print_table_rows(const struct probe_costs *costs, unsigned from, void *context)
{
    probe_table_rows(context, costs, from);
}

static void save_costs(const struct probe *probe, const struct probe_report *report)
{
    struct probe_cost_model model;
    char source[256], origin[128];

    if (!probe->save.out)
        return;
    (void)text_escape(report->preset ? report->preset : report->device->name, origin,
                      sizeof(origin));
    if (report->preset)
        (void)snprintf(source, sizeof(source),
                       "Costs of the calls of the simulated driver, modeled by %s.", origin);
    else
        (void)snprintf(source, sizeof(source),
                       "Costs of the calls of the driver, measured on %s with CUDA %d.%d.", origin,
                       report->device->version / 1000, report->device->version % 1000 / 10);
    probe_cost_model_fit(report->costs, &model);
    probe_cost_model_print(probe->save.out, &model, report->costs, report->device->name, source);
}

static int run_probe(const struct probe *probe)
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
    char error[256];
    bool printed, closed;

    if (!probe_driver_open(&driver, probe->driver, probe->device, error, sizeof(error))) {
        message_error("%s", error);
        (void)check_leaks(probe);
        return COMMAND_ERROR;
    }
    probe_device_describe(&driver, probe->device, &device);
    if (probe->table.out)
        probe_table_head(probe->table.out);
    probe_costs_measure(&driver, &device, probe->seconds, &costs,
                        probe->table.out ? print_table_rows : NULL, probe->table.out);
    if (probe->table.out)
        probe_table_firsts(probe->table.out, &driver);
    save_costs(probe, &report);
    printed = print_report(probe, &report);
    closed = driver.failures == 0;
    probe_driver_close(&driver);
    if (closed && driver.failures > 0)
        message_error("%s failed with %s (%d), closing the driver", driver.failure[0].call,
                      driver.failure[0].error_name, driver.failure[0].error);
    if (!printed)
        return COMMAND_ERROR;
    return check_leaks(probe) && driver.failures == 0 ? COMMAND_SUCCESS : COMMAND_MISMATCH;
}

static int command_probe_run(const struct option_values *arguments)
{
    struct probe probe = {
        .driver = gpu_driver_of(option_text(arguments, OPTION_DRIVER)),
        .costs = option_text(arguments, OPTION_PROBE_COSTS),
        .device = (int)option_number(arguments, OPTION_PROBE_DEVICE),
        .seconds = (unsigned)option_number(arguments, OPTION_SECONDS),
        .json = option_given(arguments, OPTION_JSON),
        .out = stdout,
    };
    const char *const table = option_text(arguments, OPTION_TABLE);
    const char *const save = option_text(arguments, OPTION_SAVE_COSTS);
    bool written;
    int status;

    if (probe.driver != GPU_SIMULATED && probe.costs) {
        (void)option_error(
            "--driver",
            "cannot be combined with --costs unless it is sim: the costs of other drivers are "
            "measured");
        return COMMAND_ERROR;
    }
    if (table && save && strcmp(table, save) == 0) {
        (void)option_error("--table", "and --save-costs require two different files");
        return COMMAND_ERROR;
    }
    /* Open files before the measurement, so that an invalid name is reported immediately. */
    status = configure_simulator(&probe) &&
                     output_file_open_second(&probe.table, table, NULL, 0, &probe.out) &&
                     output_file_open_second(&probe.save, save, NULL, 0, &probe.out)
                 ? run_probe(&probe)
                 : COMMAND_ERROR;
    written = output_file_close(&probe.table, status != COMMAND_ERROR);
    written = output_file_close(&probe.save, status != COMMAND_ERROR) && written;
    return written ? status : COMMAND_ERROR;
}

const struct command command_probe = {
    .name = "probe",
    .run = command_probe_run,
    .summary = "report what a driver supports and what its calls cost",
    .usage = "",
    .options = {OPTION_DRIVER, OPTION_PROBE_DEVICE, OPTION_PROBE_COSTS, OPTION_SECONDS,
                OPTION_TABLE, OPTION_SAVE_COSTS, OPTION_JSON, OPTION_COLOR, OPTION_HELP},
    .description = "Reports the features of a driver and a device, the time that each driver call "
                   "takes, and the kind of segments that xseg uses on the device. All memory that "
                   "the measurement allocates is released at its end."
                   "\n\n"
                   "The environment variables `XSEG_SIM_*` configure the simulated device.",
    .examples =
        {
            {"xseg probe --driver cuda", "the CUDA driver of this host, with measured times"},
            {"xseg probe --costs consumer", "the simulated driver, with modeled times"},
            {"xseg probe --driver cuda --save-costs ./gpu.costs",
             "write a cost model of this host's GPU, for the simulator"},
            {"xseg probe --json | jq .segments", "only the kind of segments, for a script"},
        },
    .exits = {COMMAND_EXIT_SUCCESS,
              "a driver call failed, or the driver did not release a resource",
              "an invalid argument, no such driver or device, or an output error"},
};
