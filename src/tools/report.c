/* SPDX-License-Identifier: MIT */
#include "src/tools/report.h"

#include <inttypes.h>
#include <string.h>

#define LABEL_WIDTH  24
#define COLUMN_WIDTH 18

struct cell {
    char text[32];
};

/* 1234567 as 1,234,567. */
static struct cell count_of(uint64_t number)
{
    char digits[24];
    struct cell cell;
    size_t length = (size_t)snprintf(digits, sizeof(digits), "%" PRIu64, number);
    size_t at = 0;

    for (size_t i = 0; i < length; i++) {
        if (i > 0 && (length - i) % 3 == 0)
            cell.text[at++] = ',';
        cell.text[at++] = digits[i];
    }
    cell.text[at] = '\0';
    return cell;
}

static struct cell bytes_of(uint64_t bytes)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes / 1024;
    struct cell cell;
    int unit = 0;

    if (bytes < 1024) {
        snprintf(cell.text, sizeof(cell.text), "%" PRIu64 " bytes", bytes);
        return cell;
    }
    while (value >= 1024 && unit < 3) {
        value /= 1024;
        unit++;
    }
    snprintf(cell.text, sizeof(cell.text), "%.2f %s", value, units[unit]);
    return cell;
}

static struct cell time_of(double nanoseconds)
{
    struct cell cell;

    if (nanoseconds < 1e4)
        snprintf(cell.text, sizeof(cell.text), "%.1f ns", nanoseconds);
    else if (nanoseconds < 1e7)
        snprintf(cell.text, sizeof(cell.text), "%.1f us", nanoseconds / 1e3);
    else
        snprintf(cell.text, sizeof(cell.text), "%.1f ms", nanoseconds / 1e6);
    return cell;
}

static struct cell text_of(const char *text)
{
    struct cell cell;

    snprintf(cell.text, sizeof(cell.text), "%s", text);
    return cell;
}

/*
 * The rows of the table; those from LIVE_AVERAGE on only where the trace has a clock, FAILED only where
 * allocations failed in the file.
 */
static const struct {
    const char *label;
    enum {
        EVENTS,
        OOM_AT,
        FAILED,
        REQUESTED,
        ALLOCATED,
        ACTIVE,
        RESERVED,
        WASTE,
        DRIVER_TIME,
        SPEED,
        LIVE_AVERAGE,
        RESERVED_AVERAGE,
        WAITS,
        LONGEST_CALL
    } what;
} rows[] = {
    {"events", EVENTS},
    {"out of memory at event", OOM_AT},
    {"failed then, served here", FAILED},
    {"peak requested", REQUESTED},
    {"peak allocated", ALLOCATED},
    {"peak active", ACTIVE},
    {"peak reserved", RESERVED},
    {"reserved / requested", WASTE},
    {"driver time, modelled", DRIVER_TIME},
    {"time per event", SPEED},
    {"live, average", LIVE_AVERAGE},
    {"reserved, average", RESERVED_AVERAGE},
    {"waits on requests", WAITS},
    {"longest call, modelled", LONGEST_CALL},
};

static struct cell cell_of(const struct replay_result *result, unsigned row)
{
    struct cell cell = text_of("-");

    switch (rows[row].what) {
    case EVENTS:
        return count_of(result->events);
    case OOM_AT:
        return result->oom_at < 0 ? text_of("none") : count_of((uint64_t)result->oom_at);
    case FAILED:
        snprintf(cell.text, sizeof(cell.text), "%" PRIu64 " of %" PRIu64, result->failed_served,
                 result->failed);
        return cell;
    case REQUESTED:
        return bytes_of(result->peak_requested);
    case ALLOCATED:
        return bytes_of(result->peak_allocated);
    case ACTIVE:
        return bytes_of(result->peak_active);
    case RESERVED:
        return bytes_of(result->peak_reserved);
    case WASTE:
        if (result->peak_requested > 0)
            snprintf(cell.text, sizeof(cell.text), "%.3f",
                     (double)result->peak_reserved / (double)result->peak_requested);
        return cell;
    case DRIVER_TIME:
        return result->has_driver_time ? time_of((double)result->driver_ns) : cell;
    case SPEED:
        return time_of(result->ns_per_event);
    case LIVE_AVERAGE:
        return bytes_of(result->watch.live_time_avg);
    case RESERVED_AVERAGE:
        return bytes_of(result->watch.reserved_time_avg);
    case WAITS:
        return count_of(result->watch.request_path_syncs);
    case LONGEST_CALL:
        return result->watch.has_times ? time_of((double)result->watch.max_call_ns) : cell;
    }
    return cell;
}

static void print_label(FILE *out, const char *label)
{
    (void)fprintf(out, "  %-*s", LABEL_WIDTH, label);
}

static void print_cell(FILE *out, struct cell cell)
{
    (void)fprintf(out, "%*s", COLUMN_WIDTH, cell.text);
}

static void print_calls(FILE *out, const struct report *reports, unsigned count)
{
    for (size_t call = 0; call < reports[0].result.call_count; call++) {
        uint64_t sum = 0;

        for (unsigned i = 0; i < count; i++)
            if (call < reports[i].result.call_count)
                sum += reports[i].result.calls[call].count;
        if (sum == 0)
            continue;
        print_label(out, reports[0].result.calls[call].name);
        for (unsigned i = 0; i < count; i++)
            print_cell(out, call < reports[i].result.call_count
                                ? count_of(reports[i].result.calls[call].count)
                                : text_of("-"));
        (void)fputc('\n', out);
    }
}

static void print_check(FILE *out, const struct report *report)
{
    const struct replay_result *result = &report->result;

    if (!result->was_checked)
        return;
    (void)fprintf(out, "%" PRIu64 " of %" PRIu64 " steps agree",
                  result->checked - result->mismatches, result->checked);
    if (result->check_end_line > 0)
        (void)fprintf(out, " up to line %" PRIu32 ", where only xseg found memory",
                      result->check_end_line);
    (void)fputc('\n', out);
}

static void print_head(FILE *out, const struct report *reports, unsigned count)
{
    (void)fprintf(out, "%s\n", reports[0].file);
    for (unsigned i = 0; i < count; i++) {
        const char *config = reports[i].config[0] ? reports[i].config : "(none: the defaults)";
        char label[] = "configuration A";

        label[sizeof(label) - 2] = (char)('A' + (int)i);
        print_label(out, count > 1 ? label : "configuration");
        (void)fprintf(out, "%s\n", config);
    }
    print_label(out, "device memory");
    (void)fprintf(out, "%s\n",
                  reports[0].driver == GPU_SIMULATED ? bytes_of(reports[0].device_bytes).text
                                                     : "this machine's");
    for (unsigned i = 0; i < count && count > 1; i++) {
        char name[2] = {(char)('A' + (int)i), '\0'};

        if (i == 0)
            print_label(out, "");
        print_cell(out, text_of(name));
    }
    if (count > 1)
        (void)fputc('\n', out);
}

void report_table(FILE *out, const struct report *reports, unsigned count)
{
    bool has_min_device = false;

    print_head(out, reports, count);
    for (unsigned row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        if (rows[row].what >= LIVE_AVERAGE && !reports[0].result.watch.has_clock)
            break;
        if (rows[row].what == FAILED && reports[0].result.failed == 0)
            continue;
        print_label(out, rows[row].label);
        for (unsigned i = 0; i < count; i++)
            print_cell(out, cell_of(&reports[i].result, row));
        (void)fputc('\n', out);
    }
    for (unsigned i = 0; i < count; i++)
        has_min_device |= reports[i].has_min_device;
    if (has_min_device) {
        print_label(out, "smallest device");
        for (unsigned i = 0; i < count; i++)
            print_cell(out, reports[i].has_min_device ? bytes_of(reports[i].min_device)
                                                      : text_of("none"));
        (void)fputc('\n', out);
    }
    print_calls(out, reports, count);
    for (unsigned i = 0; i < count; i++)
        print_check(out, &reports[i]);
    for (unsigned i = 0; i < count; i++)
        if (reports[i].result.explained.is_there)
            explained_print(out, &reports[i].result.explained);
}

/* File names may hold any byte; JSON may not. */
static json_t *json_text(const char *text)
{
    json_t *string = json_string(text);
    char clean[4096];
    size_t at = 0;

    if (string)
        return string;
    for (; *text && at < sizeof(clean) - 1; text++)
        clean[at++] = (char)(*text >= ' ' && *text <= '~' ? *text : '?');
    clean[at] = '\0';
    return json_string(clean);
}

static json_t *json_bytes(uint64_t number)
{
    return json_integer((json_int_t)number);
}

/* Tenths are as fine as the measurement is. */
static json_t *json_tenths(double value)
{
    return json_real((double)(int64_t)(value * 10 + 0.5) / 10);
}

static json_t *json_calls(const struct replay_result *result)
{
    json_t *calls = json_object();

    for (size_t i = 0; i < result->call_count; i++)
        json_object_set_new(calls, result->calls[i].name, json_bytes(result->calls[i].count));
    return calls;
}

static json_t *json_us(bool is_known, uint64_t nanoseconds)
{
    return is_known ? json_real((double)nanoseconds / 1000) : json_null();
}

/* What a trace with a clock adds. */
static int add_watch(json_t *object, const struct watch_result *watch)
{
    int failed = 0;

    failed |= json_object_set_new(object, "live_time_avg", json_bytes(watch->live_time_avg));
    failed |=
        json_object_set_new(object, "reserved_time_avg", json_bytes(watch->reserved_time_avg));
    failed |=
        json_object_set_new(object, "request_path_syncs", json_bytes(watch->request_path_syncs));
    failed |=
        json_object_set_new(object, "max_call_us", json_us(watch->has_times, watch->max_call_ns));
    failed |= json_object_set_new(object, "requests", json_bytes(watch->requests));
    failed |= json_object_set_new(object, "max_request_us",
                                  json_us(watch->has_times, watch->max_request_ns));
    return failed;
}

json_t *report_json(const struct report *report)
{
    const struct replay_result *result = &report->result;
    json_t *object = json_object();
    int failed = 0;

    if (!object)
        return NULL;
    failed |= json_object_set_new(object, "trace", json_text(report->file));
    failed |= json_object_set_new(object, "config", json_text(report->config));
    failed |= json_object_set_new(object, "events", json_bytes(result->events));
    failed |= json_object_set_new(object, "oom_at", json_integer(result->oom_at));
    failed |= json_object_set_new(object, "peak_requested", json_bytes(result->peak_requested));
    failed |= json_object_set_new(object, "peak_allocated", json_bytes(result->peak_allocated));
    failed |= json_object_set_new(object, "peak_active", json_bytes(result->peak_active));
    failed |= json_object_set_new(object, "peak_reserved", json_bytes(result->peak_reserved));
    failed |= json_object_set_new(object, "driver_calls", json_calls(result));
    failed |= json_object_set_new(object, "driver_us",
                                  json_us(result->has_driver_time, result->driver_ns));
    failed |= json_object_set_new(object, "ns_per_event", json_tenths(result->ns_per_event));
    failed |= json_object_set_new(object, "checked", json_bytes(result->checked));
    failed |= json_object_set_new(object, "mismatches", json_bytes(result->mismatches));
    failed |=
        json_object_set_new(object, "min_device",
                            report->has_min_device ? json_bytes(report->min_device) : json_null());
    if (result->failed > 0) {
        failed |= json_object_set_new(object, "failed", json_bytes(result->failed));
        failed |= json_object_set_new(object, "failed_served", json_bytes(result->failed_served));
    }
    if (result->watch.has_clock)
        failed |= add_watch(object, &result->watch);
    if (result->explained.is_there)
        failed |= json_object_set_new(object, "explained", explained_json(&result->explained));
    if (!failed)
        return object;
    json_decref(object);
    return NULL;
}
