/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_report.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/commands/probe/probe_table.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH 26

struct text {
    char text[192];
};

struct error {
    char text[64];
};

static void print_line(FILE *out, const char *label, const char *text)
{
    (void)fprintf(out, "  %-*s", LABEL_WIDTH, label);
    text_print(out, text);
    (void)fputc('\n', out);
}

/* An error by its name, or what stands for none. */
static struct error error_of(const struct probe_report *report, int error)
{
    char name[48];
    struct error out;

    probe_driver_error_name(report->driver, error, name, sizeof(name));
    (void)snprintf(out.text, sizeof(out.text), "%s (%d)", name, error);
    return out;
}

/* What an attribute says, and what a trial showed. */
static struct text ability_of(const struct probe_report *report, int has, int trial)
{
    const char *says = has == 1               ? "yes"
                       : has == PROBE_UNKNOWN ? "the driver does not know of it"
                                              : "no";
    struct text out;

    if (trial == PROBE_UNTRIED)
        (void)snprintf(out.text, sizeof(out.text), "%s", says);
    else if (trial == 0)
        (void)snprintf(out.text, sizeof(out.text), "%s; a trial went well", says);
    else
        (void)snprintf(out.text, sizeof(out.text), "%s; a trial failed with %s", says,
                       error_of(report, trial).text);
    return out;
}

static struct text batch_of(const struct probe_report *report, int trial)
{
    struct text out;

    if (trial == PROBE_UNTRIED)
        (void)snprintf(out.text, sizeof(out.text), "not tried");
    else if (trial == 0)
        (void)snprintf(out.text, sizeof(out.text), "one call for several pages");
    else
        (void)snprintf(out.text, sizeof(out.text), "page by page: several failed with %s",
                       error_of(report, trial).text);
    return out;
}

/* What xseg would do on this device, and why. */
static struct text choice_of(const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    struct text out;

    if (probe_device_is_expandable(device) && device->vmm_trial != 0)
        (void)snprintf(out.text, sizeof(out.text),
                       "expandable segments; the device is too full for a trial");
    else if (probe_device_is_expandable(device))
        (void)snprintf(out.text, sizeof(out.text), "expandable segments");
    else if (device->has_vmm != 1)
        (void)snprintf(out.text, sizeof(out.text),
                       "classic segments: no virtual memory management is offered");
    else if (device->vmm_call == NULL)
        (void)snprintf(out.text, sizeof(out.text), "classic segments: no granularity is told");
    else
        (void)snprintf(out.text, sizeof(out.text), "classic segments: %s failed with %s",
                       device->vmm_call, error_of(report, device->vmm_trial).text);
    return out;
}

static void print_device(FILE *out, const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    struct text line;

    (void)snprintf(line.text, sizeof(line.text), "%s, CUDA %d.%d", report->library,
                   device->version / 1000, device->version % 1000 / 10);
    print_line(out, "driver", line.text);
    (void)snprintf(line.text, sizeof(line.text), "%d of %d: %s", device->ordinal, device->devices,
                   device->name);
    print_line(out, "device", line.text);
    if (device->major != PROBE_UNKNOWN && device->minor != PROBE_UNKNOWN) {
        (void)snprintf(line.text, sizeof(line.text), "%d.%d", device->major, device->minor);
        print_line(out, "compute capability", line.text);
    }
    if (device->is_partition)
        print_line(out, "", "by its name a MIG instance: its memory is a part of the card's");
    if (device->is_wsl)
        print_line(out, "", "under WSL: Windows may move memory out of the device");
    (void)snprintf(line.text, sizeof(line.text), "%s, of which %s are free",
                   amount_bytes(device->total_bytes).text, amount_bytes(device->free_bytes).text);
    print_line(out, "memory", line.text);
    print_line(out, "xseg would use", choice_of(report).text);
}

static void print_abilities(FILE *out, const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    struct text line;

    print_line(out, "virtual memory", ability_of(report, device->has_vmm, device->vmm_trial).text);
    if (device->has_vmm == 1) {
        (void)snprintf(line.text, sizeof(line.text), "%s at least, %s recommended",
                       amount_bytes(device->granularity).text,
                       amount_bytes(device->best_granularity).text);
        print_line(out, "  granularity", line.text);
        print_line(out, "  access", batch_of(report, device->access_trial).text);
        print_line(out, "  unmap", batch_of(report, device->unmap_trial).text);
    }
    print_line(out, "shared by descriptor",
               ability_of(report, device->has_file, device->file_trial).text);
    print_line(out, "shared by fabric",
               ability_of(report, device->has_fabric, device->fabric_trial).text);
    print_line(out, "GPUDirect RDMA of pages",
               ability_of(report, device->has_rdma, device->rdma_trial).text);
}

/* Most of any row: how many there were unless the time was short. */
static unsigned samples_of(const struct probe_costs *costs)
{
    unsigned most = 0;

    for (unsigned i = 0; i < costs->count; i++)
        if (costs->cost[i].threads == 1 && costs->cost[i].idle.samples > most)
            most = costs->cost[i].idle.samples;
    return most;
}

void probe_report_print(FILE *out, const struct probe_report *report)
{
    const struct probe_driver *driver = report->driver;

    print_device(out, report);
    print_abilities(out, report);
    if (report->preset)
        (void)fprintf(out, "\n  us, modelled (%s)", report->preset);
    else
        (void)fprintf(out, "\n  us, measured");
    (void)fprintf(out, ": median and quartiles of %u\n", samples_of(report->costs));
    probe_table_print(out, report->costs);
    for (unsigned i = 0; i < driver->failures && i < PROBE_FAILURES; i++)
        (void)fprintf(out, "%s  %sfailed:%s %s with %s (%d), %s\n", i == 0 ? "\n" : "",
                      text_style_on(out, TEXT_BAD), text_style_off(out), driver->failure[i].call,
                      driver->failure[i].error_name, driver->failure[i].error,
                      driver->failure[i].doing);
    if (driver->failures > PROBE_FAILURES)
        (void)fprintf(out, "  failed: %u more calls\n", driver->failures - PROBE_FAILURES);
}

/* --- JSON. --- */

static json_t *json_answer(int has)
{
    return has == PROBE_UNKNOWN ? json_null() : json_boolean(has);
}

static json_t *json_trial(const struct probe_report *report, int trial)
{
    char name[64];

    if (trial == PROBE_UNTRIED)
        return json_null();
    if (trial == 0)
        return json_string("fine");
    probe_driver_error_name(report->driver, trial, name, sizeof(name));
    return json_string(name);
}

static json_t *json_span(const struct probe_span *span)
{
    if (span->samples == 0)
        return json_null();
    return json_pack("{s:f,s:f,s:f,s:i}", "median_us", (double)span->median / 1e3, "low_us",
                     (double)span->low / 1e3, "high_us", (double)span->high / 1e3, "samples",
                     (int)span->samples);
}

static json_t *json_costs(const struct probe_costs *costs)
{
    json_t *rows = json_array();

    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];

        output_json_add(
            &rows,
            json_pack("{s:s,s:I,s:i,s:i,s:i,s:o,s:o,s:o,s:o,s:s?}", "call", cost->call, "bytes",
                      (json_int_t)cost->bytes, "pages", (int)cost->pages, "calls", (int)cost->calls,
                      "threads", (int)cost->threads, "first_us",
                      cost->has_first ? json_real((double)cost->first / 1e3) : json_null(), "idle",
                      json_span(&cost->idle), "busy", json_span(&cost->busy), "waits_for_work",
                      cost->busy.samples == 0 ? json_null() : json_boolean(cost->waits), "missing",
                      probe_missing_text(cost->missing)));
    }
    return rows;
}

/* Of the whole process, by call. */
static json_t *json_firsts(const struct probe_driver *driver)
{
    json_t *object = json_object();

    for (unsigned entry = 0; entry < PROBE_ENTRY_COUNT; entry++)
        if (driver->has_first[entry])
            output_json_set(&object, probe_driver_name((enum probe_entry)entry).text,
                            json_real((double)driver->first[entry] / 1e3));
    return object;
}

static json_t *json_failures(const struct probe_driver *driver)
{
    json_t *rows = json_array();

    for (unsigned i = 0; i < driver->failures && i < PROBE_FAILURES; i++)
        output_json_add(&rows,
                        json_pack("{s:s,s:s,s:i,s:s}", "call", driver->failure[i].call, "error",
                                  driver->failure[i].error_name, "number", driver->failure[i].error,
                                  "doing", driver->failure[i].doing));
    return rows;
}

static json_t *json_abilities(const struct probe_report *report)
{
    const struct probe_device *device = report->device;

    return json_pack(
        "{s:o,s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "vmm", json_answer(device->has_vmm),
        "vmm_trial", json_trial(report, device->vmm_trial), "granularity",
        (json_int_t)device->granularity, "granularity_recommended",
        (json_int_t)device->best_granularity, "access_of_several",
        json_trial(report, device->access_trial), "unmap_of_several",
        json_trial(report, device->unmap_trial), "descriptor", json_answer(device->has_file),
        "descriptor_trial", json_trial(report, device->file_trial), "fabric",
        json_answer(device->has_fabric), "fabric_trial", json_trial(report, device->fabric_trial),
        "rdma", json_answer(device->has_rdma), "rdma_trial",
        json_trial(report, device->rdma_trial));
}

json_t *probe_report_json(const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    const bool is_expandable = probe_device_is_expandable(device);

    return json_pack(
        "{s:o,s:i,s:i,s:i,s:s,s:I,s:I,s:b,s:b,s:s,s:s,s:o,s:s,s:s?,s:o,s:o,s:b,s:i,s:o}", "driver",
        text_json(report->library), "version", device->version, "device", device->ordinal,
        "devices", device->devices, "name", device->name, "free_bytes",
        (json_int_t)device->free_bytes, "total_bytes", (json_int_t)device->total_bytes, "mig",
        device->is_partition, "wsl", device->is_wsl, "would_use",
        is_expandable ? "expandable" : "classic", "why", choice_of(report).text, "can",
        json_abilities(report), "costs_are", report->preset ? "modelled" : "measured", "preset",
        report->preset, "costs", json_costs(report->costs), "first_us", json_firsts(report->driver),
        "time_was_up", report->costs->is_short, "failed_calls", (int)report->driver->failures,
        "failures", json_failures(report->driver));
}
