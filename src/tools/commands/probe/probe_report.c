/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_report.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH 27
#define MIB         ((uint64_t)1 << 20)

struct text {
    char text[192];
};

static void print_line(FILE *out, const char *label, const char *text)
{
    (void)fprintf(out, "  %-*s", LABEL_WIDTH, label);
    text_print(out, text);
    (void)fputc('\n', out);
}

/* "CUDA_ERROR_OUT_OF_MEMORY (2)" */
static struct text format_error(const struct probe_report *report, int error)
{
    char name[48];
    struct text out;

    probe_driver_error_name(report->driver, error, name, sizeof(name));
    (void)snprintf(out.text, sizeof(out.text), "%s (%d)", name, error);
    return out;
}

/* Describe a feature by the value of the attribute and the result of the test. */
static struct text format_feature(const struct probe_report *report, int attribute, int result)
{
    const char *support = attribute == 1               ? "supported"
                          : attribute == PROBE_UNKNOWN ? "unknown to this driver"
                                                       : "not supported";
    struct text out;

    if (result == PROBE_NOT_RUN)
        (void)snprintf(out.text, sizeof(out.text), "%s", support);
    else if (result == 0)
        (void)snprintf(out.text, sizeof(out.text), "%s, test passed", support);
    else
        (void)snprintf(out.text, sizeof(out.text), "%s, test failed with %.100s", support,
                       format_error(report, result).text);
    return out;
}

static struct text format_batch(const struct probe_report *report, int result)
{
    struct text out;

    if (result == PROBE_NOT_RUN)
        (void)snprintf(out.text, sizeof(out.text), "not tested");
    else if (result == 0)
        (void)snprintf(out.text, sizeof(out.text), "accepts several pages per call");
    else
        (void)snprintf(out.text, sizeof(out.text),
                       "accepts one page per call; several pages failed with %.100s",
                       format_error(report, result).text);
    return out;
}

/* Get the kind of segments that xseg uses on the device, with the reason. */
static struct text format_choice(const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    struct text out;

    if (probe_device_is_expandable(device) && device->vmm_probe != 0)
        (void)snprintf(out.text, sizeof(out.text),
                       "expandable segments; not tested, not enough free memory");
    else if (probe_device_is_expandable(device))
        (void)snprintf(out.text, sizeof(out.text), "expandable segments");
    else if (device->has_vmm != 1)
        (void)snprintf(out.text, sizeof(out.text),
                       "classic segments: no virtual memory management");
    else if (device->vmm_call == NULL)
        (void)snprintf(out.text, sizeof(out.text), "classic segments: no granularity");
    else
        (void)snprintf(out.text, sizeof(out.text), "classic segments: %s failed with %.100s",
                       device->vmm_call, format_error(report, device->vmm_probe).text);
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
        print_line(out, "",
                   "a MIG instance, according to its name: it has a part of the GPU's memory");
    if (device->is_wsl)
        print_line(out, "", "under WSL: Windows can move memory out of the device");
    (void)snprintf(line.text, sizeof(line.text), "%s, %s free",
                   amount_bytes(device->total_bytes).text, amount_bytes(device->free_bytes).text);
    print_line(out, "memory", line.text);
    if (device->is_integrated == 1)
        print_line(out, "", "integrated: the device uses the memory of the host");
    if (device->available_bytes) {
        (void)snprintf(line.text, sizeof(line.text),
                       "%s free with reclaimable page cache; xseg leaves %s free "
                       "(device_free_min_mb)",
                       amount_bytes(device->available_bytes).text,
                       amount_bytes(device->free_min_bytes).text);
        print_line(out, "", line.text);
    }
    print_line(out, "xseg uses", format_choice(report).text);
}

static void print_features(FILE *out, const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    struct text line;

    print_line(out, "virtual memory management",
               format_feature(report, device->has_vmm, device->vmm_probe).text);
    if (device->has_vmm == 1) {
        (void)snprintf(line.text, sizeof(line.text), "minimum %s, recommended %s",
                       amount_bytes(device->granularity).text,
                       amount_bytes(device->best_granularity).text);
        print_line(out, "  granularity", line.text);
        print_line(out, "  cuMemSetAccess", format_batch(report, device->access_probe).text);
        print_line(out, "  cuMemUnmap", format_batch(report, device->unmap_probe).text);
    }
    print_line(out, "export: file descriptor",
               format_feature(report, device->has_file, device->file_probe).text);
    print_line(out, "export: fabric handle",
               format_feature(report, device->has_fabric, device->fabric_probe).text);
    print_line(out, "GPUDirect RDMA",
               format_feature(report, device->has_rdma, device->rdma_probe).text);
}

static struct text format_size(const struct probe_cost *cost)
{
    const char *unit = cost->bytes < MIB ? "KiB" : cost->bytes < MIB << 10 ? "MiB" : "GiB";
    const unsigned shift = cost->bytes < MIB ? 10 : cost->bytes < MIB << 10 ? 20 : 30;
    const unsigned size = (unsigned)(cost->bytes >> shift);
    struct text out = {""};

    if (cost->pages > 1)
        (void)snprintf(out.text, sizeof(out.text), "%u x %u %s, %u call%s", cost->pages, size, unit,
                       cost->calls, cost->calls == 1 ? "" : "s");
    else if (cost->bytes != 0)
        (void)snprintf(out.text, sizeof(out.text), "%u %s%s", size, unit,
                       cost->threads > 1 ? ", 2 threads" : "");
    return out;
}

/* Format a time in us.  From 10,000 us on, a decimal would exceed the width of the column. */
static struct amount microseconds(uint64_t nanoseconds)
{
    const double us = (double)nanoseconds / 1e3;

    return amount_decimal(us, us < 9999.95 ? 1 : 0);
}

static struct text format_quartiles(const struct probe_quartiles *times)
{
    struct text out;

    if (times->samples == 0)
        (void)snprintf(out.text, sizeof(out.text), "-");
    else
        (void)snprintf(out.text, sizeof(out.text), "%.25s  %.25s..%.25s",
                       microseconds(times->median).text, microseconds(times->low).text,
                       microseconds(times->high).text);
    return out;
}

/* Get whether the text contains a cost: it has the sizes of pages and segments, and omits the sizes between them. */
static bool is_printed(const struct probe_cost *cost)
{
    static const unsigned printed_mib[] = {2, 20, 64, 512};

    if (cost->pages > 1 || cost->threads > 1 || cost->bytes < MIB || cost->bytes >= MIB << 10)
        return true;
    for (size_t i = 0; i < sizeof(printed_mib) / sizeof(printed_mib[0]); i++)
        if (cost->bytes == printed_mib[i] * MIB)
            return true;
    return false;
}

static void print_row(FILE *out, const struct probe_cost *cost)
{
    char first[32] = "-";

    if (cost->has_first)
        (void)snprintf(first, sizeof(first), "%s", microseconds(cost->first).text);
    (void)fprintf(out, "  %-20s%-23s%-25s %-25s %-7s%s\n", cost->call, format_size(cost).text,
                  format_quartiles(&cost->idle).text, format_quartiles(&cost->busy).text,
                  cost->busy.samples == 0 ? "-"
                  : cost->waits           ? "yes"
                                          : "no",
                  first);
}

static void print_costs(FILE *out, const struct probe_costs *costs)
{
    unsigned omitted = 0;

    (void)fprintf(out, "  %s%-20s%-23s%-25s %-25s %-7s%s%s\n", text_style_on(out, TEXT_STRONG),
                  "call", "size", "idle device", "busy device", "waits", "first call",
                  text_style_off(out));
    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];
        const bool is_possible = cost->missing != PROBE_MISSING_MEMORY &&
                                 cost->missing != PROBE_MISSING_BATCH &&
                                 cost->missing != PROBE_MISSING_FIT;

        if (is_possible && is_printed(cost))
            print_row(out, cost);
        else
            omitted += is_possible;
    }
    if (omitted > 0)
        (void)fprintf(out, "  %u more rows of other sizes: --json or --table FILE\n", omitted);
    if (costs->skipped)
        (void)fprintf(out, "  not enough free memory for sizes of %s and more\n",
                      amount_bytes(costs->skipped).text);
    if (costs->is_incomplete)
        (void)fprintf(out, "  the time limit was reached before all costs were measured\n");
    if (!costs->has_busy)
        (void)fprintf(out, "  no costs of a busy device: it could not be kept busy\n");
}

/* Get the number of samples of a cost for which time remained. */
static unsigned max_samples(const struct probe_costs *costs)
{
    unsigned max = 0;

    for (unsigned i = 0; i < costs->count; i++)
        if (costs->cost[i].threads == 1 && costs->cost[i].idle.samples > max)
            max = costs->cost[i].idle.samples;
    return max;
}

void probe_report_print(FILE *out, const struct probe_report *report)
{
    const struct probe_driver *driver = report->driver;

    print_device(out, report);
    print_features(out, report);
    if (report->preset)
        (void)fprintf(out, "\n  time of all calls of a row in us, modeled (%s)", report->preset);
    else
        (void)fprintf(out, "\n  time of all calls of a row in us, measured");
    (void)fprintf(out, ": median and quartiles of %u samples\n", max_samples(report->costs));
    print_costs(out, report->costs);
    for (unsigned i = 0; i < driver->failures && i < PROBE_FAILURES; i++)
        (void)fprintf(out, "%s  %sfailed:%s %s with %s (%d), %s\n", i == 0 ? "\n" : "",
                      text_style_on(out, TEXT_BAD), text_style_off(out), driver->failure[i].call,
                      driver->failure[i].error_name, driver->failure[i].error,
                      driver->failure[i].purpose);
    if (driver->failures > PROBE_FAILURES)
        (void)fprintf(out, "  failed: %u more calls\n", driver->failures - PROBE_FAILURES);
}

/* --- The table for programs. --- */

static void print_table_key(FILE *out, const struct probe_cost *cost, const char *device,
                            const char *when)
{
    (void)fprintf(out, "%s\t%" PRIu64 "\t%u\t%u\t%u\t%s\t%s\t", cost->call, cost->bytes,
                  cost->pages, cost->calls, cost->threads, device, when);
}

static void print_table_quartiles(FILE *out, const struct probe_cost *cost, const char *device,
                                  const struct probe_quartiles *times, const char *note)
{
    print_table_key(out, cost, device, "repeated");
    if (times->samples == 0)
        (void)fprintf(out, "-\t-\t-\t0\t%s\n", note);
    else
        (void)fprintf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%u\t%s\n", times->median,
                      times->low, times->high, times->samples, note);
}

void probe_table_head(FILE *out)
{
    static const char *const column[] = {"call",    "bytes",   "pages",   "calls",
                                         "threads", "device",  "when",    "median_ns",
                                         "low_ns",  "high_ns", "samples", "note"};
    const size_t last = sizeof(column) / sizeof(column[0]) - 1;

    for (size_t i = 0; i <= last; i++)
        (void)fprintf(out, "%s%c", column[i], i < last ? '\t' : '\n');
    (void)output_flush(out);
}

void probe_table_rows(FILE *out, const struct probe_costs *costs, unsigned from)
{
    for (unsigned i = from; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];
        const char *missing = probe_missing_text(cost->missing);

        if (cost->has_first) {
            print_table_key(out, cost, "idle", "first");
            (void)fprintf(out, "%" PRIu64 "\t-\t-\t1\t-\n", cost->first);
        }
        print_table_quartiles(out, cost, "idle", &cost->idle, missing ? missing : "-");
        if (cost->busy.samples > 0)
            print_table_quartiles(out, cost, "busy", &cost->busy, cost->waits ? "waits" : "-");
    }
    (void)output_flush(out);
}

void probe_table_firsts(FILE *out, const struct probe_driver *driver)
{
    for (unsigned entry = 0; entry < PROBE_ENTRY_COUNT; entry++)
        if (driver->has_first[entry])
            (void)fprintf(out, "%s\t-\t-\t-\t1\tidle\tprocess\t%" PRIu64 "\t-\t-\t1\t-\n",
                          probe_driver_name((enum probe_entry)entry).text, driver->first[entry]);
    (void)output_flush(out);
}

/* --- JSON. --- */

static json_t *json_answer(int has)
{
    return has == PROBE_UNKNOWN ? json_null() : json_boolean(has);
}

static json_t *json_probe(const struct probe_report *report, int result)
{
    char name[64];

    if (result == PROBE_NOT_RUN)
        return json_null();
    if (result == 0)
        return json_string("passed");
    probe_driver_error_name(report->driver, result, name, sizeof(name));
    return json_string(name);
}

static json_t *json_quartiles(const struct probe_quartiles *times)
{
    if (times->samples == 0)
        return json_null();
    return json_pack("{s:f,s:f,s:f,s:i}", "median_us", (double)times->median / 1e3, "low_us",
                     (double)times->low / 1e3, "high_us", (double)times->high / 1e3, "samples",
                     (int)times->samples);
}

static json_t *json_costs(const struct probe_costs *costs)
{
    json_t *rows = json_array();

    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];

        output_json_add(
            &rows, json_pack("{s:s,s:I,s:i,s:i,s:i,s:o,s:o,s:o,s:o,s:s?}", "call", cost->call,
                             "bytes", (json_int_t)cost->bytes, "pages", (int)cost->pages, "calls",
                             (int)cost->calls, "threads", (int)cost->threads, "first_us",
                             cost->has_first ? json_real((double)cost->first / 1e3) : json_null(),
                             "idle", json_quartiles(&cost->idle), "busy",
                             json_quartiles(&cost->busy), "waits_for_work",
                             cost->busy.samples == 0 ? json_null() : json_boolean(cost->waits),
                             "missing", probe_missing_text(cost->missing)));
    }
    return rows;
}

/* The first calls of the process, by name. */
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
                                  "purpose", driver->failure[i].purpose));
    return rows;
}

static json_t *json_features(const struct probe_report *report)
{
    const struct probe_device *device = report->device;

    return json_pack(
        "{s:o,s:o,s:I,s:I,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o}", "vmm", json_answer(device->has_vmm),
        "vmm_probe", json_probe(report, device->vmm_probe), "granularity",
        (json_int_t)device->granularity, "granularity_recommended",
        (json_int_t)device->best_granularity, "access_of_several",
        json_probe(report, device->access_probe), "unmap_of_several",
        json_probe(report, device->unmap_probe), "descriptor", json_answer(device->has_file),
        "descriptor_probe", json_probe(report, device->file_probe), "fabric",
        json_answer(device->has_fabric), "fabric_probe", json_probe(report, device->fabric_probe),
        "rdma", json_answer(device->has_rdma), "rdma_probe",
        json_probe(report, device->rdma_probe));
}

json_t *probe_report_json(const struct probe_report *report)
{
    const struct probe_device *device = report->device;
    const bool is_expandable = probe_device_is_expandable(device);

    return json_pack(
        "{s:o,s:i,s:i,s:i,s:s,s:I,s:I,s:o,s:o,s:I,s:b,s:b,s:s,s:s,s:o,s:s,s:s?,s:o,s:o,s:b,s:i,s:"
        "o}",
        "driver", text_json(report->library), "version", device->version, "device", device->ordinal,
        "devices", device->devices, "name", device->name, "free_bytes",
        (json_int_t)device->free_bytes, "total_bytes", (json_int_t)device->total_bytes,
        "integrated", json_answer(device->is_integrated), "available_bytes",
        device->available_bytes ? json_integer((json_int_t)device->available_bytes) : json_null(),
        "free_min_bytes", (json_int_t)device->free_min_bytes, "mig", device->is_partition, "wsl",
        device->is_wsl, "segments", is_expandable ? "expandable" : "classic", "reason",
        format_choice(report).text, "features", json_features(report), "costs_source",
        report->preset ? "modeled" : "measured", "preset", report->preset, "costs",
        json_costs(report->costs), "first_us", json_firsts(report->driver), "timed_out",
        report->costs->is_incomplete, "failed_calls", (int)report->driver->failures, "failures",
        json_failures(report->driver));
}
