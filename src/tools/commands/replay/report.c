/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/replay/report.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH  24
#define COLUMN_WIDTH 18

/* --- Values: all values of a row have the unit of the largest. --- */

struct value {
    enum { UNKNOWN, TEXT, COUNT, BYTES, NANOSECONDS, RATIO } kind;
    uint64_t number;
    double real;
    struct amount text;
};

static struct amount format_value(const struct value *value, double largest)
{
    struct amount text = {"-"};

    switch (value->kind) {
    case UNKNOWN:
        return text;
    case TEXT:
        return value->text;
    case COUNT:
        return amount_count(value->number);
    case BYTES:
        return amount_bytes_in_row(value->number, largest);
    case NANOSECONDS:
        return amount_time_in_row(value->real, largest);
    case RATIO:
        break;
    }
    (void)snprintf(text.text, sizeof(text.text), "%.3f", value->real);
    return text;
}

static struct value make_value(uint64_t number, bool is_bytes)
{
    return (struct value){.kind = is_bytes ? BYTES : COUNT, .number = number};
}

static struct value make_time(bool is_known, double nanoseconds)
{
    return (struct value){.kind = is_known ? NANOSECONDS : UNKNOWN, .real = nanoseconds};
}

static struct value make_ratio(uint64_t number, uint64_t divisor)
{
    return (struct value){.kind = divisor > 0 ? RATIO : UNKNOWN,
                          .real = divisor > 0 ? (double)number / (double)divisor : 0};
}

static struct value make_text(const char *text)
{
    struct value value = {.kind = TEXT};

    (void)snprintf(value.text.text, sizeof(value.text.text), "%s", text);
    return value;
}

static void print_label(FILE *out, int indent, int width, const char *label)
{
    (void)fprintf(out, "%*s%-*s", indent, "", width - indent, label);
}

static void print_row(FILE *out, int width, const char *label, const struct value *values,
                      unsigned count)
{
    double largest = 0;

    for (unsigned i = 0; i < count; i++) {
        const double value =
            values[i].kind == NANOSECONDS ? values[i].real : (double)values[i].number;

        largest = value > largest ? value : largest;
    }
    print_label(out, 2, width, label);
    for (unsigned i = 0; i < count; i++)
        (void)fprintf(out, "%*s", COLUMN_WIDTH, format_value(&values[i], largest).text);
    (void)fputc('\n', out);
}

/* --- The rows. --- */

/* Rows from ALLOCATED_AVERAGE on require a trace with a clock; FAILED and SMALLEST require such values. */
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
        SMALLEST,
        CALLS,
        DRIVER_TIME,
        SPEED,
        ALLOCATED_AVERAGE,
        RESERVED_AVERAGE,
        WAITS,
        LONGEST_EVENT
    } id;
} rows[] = {
    {"events", EVENTS},
    {"out of memory at event", OOM_AT},
    {"recorded failures", FAILED},
    {"peak requested", REQUESTED},
    {"peak allocated", ALLOCATED},
    {"peak active", ACTIVE},
    {"peak reserved", RESERVED},
    {"reserved / requested", WASTE},
    {"smallest device", SMALLEST},
    {"driver calls", CALLS},
    {"driver time, modeled", DRIVER_TIME},
    {"time per event, measured", SPEED},
    {"allocated, time average", ALLOCATED_AVERAGE},
    {"reserved, time average", RESERVED_AVERAGE},
    {"waits for the device", WAITS},
    {"longest event, modeled", LONGEST_EVENT},
};

static uint64_t sum_calls(const struct replay_result *result)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < result->call_count; i++)
        sum += result->calls[i].count;
    return sum;
}

static struct value make_failures(const struct replay_result *result)
{
    struct value value = {.kind = TEXT};

    (void)snprintf(value.text.text, sizeof(value.text.text), "%.9s of %.9s succeed",
                   amount_count(result->failed_served).text, amount_count(result->failed).text);
    return value;
}

static struct value make_row_value(const struct report *report, unsigned row)
{
    const struct replay_result *result = &report->result;

    switch (rows[row].id) {
    case EVENTS:
        return make_value(result->events, false);
    case OOM_AT:
        return result->oom_at < 0 ? make_text("none") : make_value((uint64_t)result->oom_at, false);
    case FAILED:
        return make_failures(result);
    case REQUESTED:
        return make_value(result->peak_requested, true);
    case ALLOCATED:
        return make_value(result->peak_allocated, true);
    case ACTIVE:
        return make_value(result->peak_active, true);
    case RESERVED:
        return make_value(result->peak_reserved, true);
    case WASTE:
        return make_ratio(result->peak_reserved, result->peak_requested);
    case SMALLEST:
        return report->has_min_device ? make_value(report->min_device, true) : make_text("none");
    case CALLS:
        return make_value(sum_calls(result), false);
    case DRIVER_TIME:
        return make_time(result->has_driver_time, (double)result->driver_ns);
    case SPEED:
        return make_time(true, result->ns_per_event);
    case ALLOCATED_AVERAGE:
        return make_value(result->clock.allocated_time_avg, true);
    case RESERVED_AVERAGE:
        return make_value(result->clock.reserved_time_avg, true);
    case WAITS:
        return make_value(result->clock.request_path_syncs, false);
    case LONGEST_EVENT:
        break;
    }
    return make_time(result->clock.has_times, (double)result->clock.max_operation_ns);
}

static bool is_shown(const struct report *reports, unsigned count, unsigned row)
{
    bool has_min_device = false;

    for (unsigned i = 0; i < count; i++)
        has_min_device |= reports[i].has_min_device;
    if (rows[row].id >= ALLOCATED_AVERAGE)
        return reports[0].result.clock.has_clock;
    if (rows[row].id == SMALLEST)
        return has_min_device;
    return rows[row].id != FAILED || reports[0].result.failed > 0;
}

/* --- Driver calls by name. --- */

static uint64_t count_calls(const struct report *report, size_t call)
{
    return call < report->result.call_count ? report->result.calls[call].count : 0;
}

/* Get the width of the longest name, but at least that of the other rows. */
static int measure_names(const struct report *report)
{
    int width = LABEL_WIDTH + 2;

    for (size_t call = 0; call < report->result.call_count; call++) {
        const int length = (int)strlen(report->result.calls[call].name) + 4;

        width = length > width ? length : width;
    }
    return width;
}

static void print_calls(FILE *out, int width, const struct report *reports, unsigned count)
{
    for (size_t call = 0; call < reports[0].result.call_count; call++) {
        struct value values[REPORT_COLUMNS];
        char name[128];
        uint64_t sum = 0;

        for (unsigned i = 0; i < count; i++) {
            values[i] = make_value(count_calls(&reports[i], call), false);
            sum += values[i].number;
        }
        (void)snprintf(name, sizeof(name), "  %s", reports[0].result.calls[call].name);
        if (sum > 0)
            print_row(out, width, name, values, count);
    }
}

/* --- Lines below the table. --- */

static void print_check(FILE *out, const struct report *report)
{
    const struct replay_result *result = &report->result;

    if (!result->was_checked)
        return;
    (void)fprintf(out, "%s%s of %s agree%s",
                  text_style_on(out, result->mismatches > 0 ? TEXT_BAD : TEXT_GOOD),
                  amount_count(result->checked - result->mismatches).text,
                  amount_of(result->checked, "recorded result").text,
                  result->checked == 1 ? "s" : "");
    if (result->check_end_line > 0)
        (void)fprintf(out, " up to line %" PRIu32 ", the first request that succeeds only in xseg",
                      result->check_end_line);
    (void)fprintf(out, "%s\n", text_style_off(out));
}

/* "makes 2,093 driver calls instead of 3,938". */
static void print_calls_change(FILE *out, uint64_t first, uint64_t second)
{
    if (first == second)
        (void)fputs("makes the same number of driver calls", out);
    else
        (void)fprintf(out, "makes %s instead of %s", amount_of(second, "driver call").text,
                      amount_count(first).text);
}

/* "reserves 23.91 GiB less". */
static void print_reserved_change(FILE *out, uint64_t first, uint64_t second)
{
    if (first == second)
        (void)fputs("reserves the same amount", out);
    else
        (void)fprintf(out, "reserves %s %s",
                      amount_bytes(first < second ? second - first : first - second).text,
                      second < first ? "less" : "more");
}

/* Print at which event memory runs out, if only one replay completes: the peaks of the other are not comparable. */
static bool print_shortage(FILE *out, const struct replay_result *first,
                           const struct replay_result *second)
{
    const bool both = first->oom_at >= 0 && second->oom_at >= 0;
    const int64_t at = first->oom_at >= 0 ? first->oom_at : second->oom_at;

    if (first->oom_at == second->oom_at)
        return false;
    if (both)
        (void)fprintf(out, "both run out of memory: A at event %s, B at event %s",
                      amount_count((uint64_t)first->oom_at).text,
                      amount_count((uint64_t)second->oom_at).text);
    else
        (void)fprintf(out, "%c runs out of memory at event %s, %c does not",
                      first->oom_at >= 0 ? 'A' : 'B', amount_count((uint64_t)at).text,
                      first->oom_at >= 0 ? 'B' : 'A');
    return true;
}

static enum text_style choose_style(const struct replay_result *first,
                                    const struct replay_result *second)
{
    if (first->oom_at != second->oom_at)
        return second->oom_at < 0 || (first->oom_at >= 0 && first->oom_at < second->oom_at)
                   ? TEXT_GOOD
                   : TEXT_BAD;
    if (first->peak_reserved == second->peak_reserved)
        return TEXT_STRONG;
    return second->peak_reserved < first->peak_reserved ? TEXT_GOOD : TEXT_BAD;
}

/* Print the difference of the second configuration from the first. */
static void print_verdict(FILE *out, const struct report *reports)
{
    const struct replay_result *first = &reports[0].result, *second = &reports[1].result;

    (void)fputs(text_style_on(out, choose_style(first, second)), out);
    if (!print_shortage(out, first, second)) {
        (void)fputs("B ", out);
        print_reserved_change(out, first->peak_reserved, second->peak_reserved);
        (void)fputs(" and ", out);
        print_calls_change(out, sum_calls(first), sum_calls(second));
    }
    (void)fprintf(out, "%s\n", text_style_off(out));
}

/* Print the gaps of the file; a gap of both replays is printed once. */
static void print_gaps(FILE *out, const struct report *reports, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        for (unsigned at = 0; at < reports[i].notes.count; at++) {
            const char *text = reports[i].notes.text[at];
            bool is_printed = false;

            for (unsigned k = 0; i > 0 && k < reports[0].notes.count; k++)
                is_printed |= strncmp(text, reports[0].notes.text[k], strcspn(text, ":")) == 0;
            if (!is_printed)
                (void)fprintf(out, "%s\n", text);
        }
}

/* --- The table. --- */

static void print_header(FILE *out, int width, const struct report *reports, unsigned count)
{
    text_print_strong(out, reports[0].file);
    (void)fputc('\n', out);
    for (unsigned i = 0; i < count; i++) {
        const char *config = reports[i].config[0] ? reports[i].config : "(none: the defaults)";
        char label[] = "configuration A";

        label[sizeof(label) - 2] = (char)('A' + (int)i);
        print_label(out, 2, width, count > 1 ? label : "configuration");
        text_print(out, config);
        (void)fputc('\n', out);
    }
    print_label(out, 2, width, "device memory");
    (void)fprintf(out, "%s\n",
                  reports[0].driver == GPU_SIMULATED ? amount_bytes(reports[0].device_bytes).text
                                                     : "of this host");
    if (count > 1) {
        const struct value names[REPORT_COLUMNS] = {make_text("A"), make_text("B")};

        print_row(out, width, "", names, count);
    }
}

void report_table(FILE *out, const struct report *reports, unsigned count, bool with_calls)
{
    const int width = with_calls ? measure_names(&reports[0]) : LABEL_WIDTH + 2;

    print_header(out, width, reports, count);
    for (unsigned row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        struct value values[REPORT_COLUMNS];

        if (!is_shown(reports, count, row))
            continue;
        for (unsigned i = 0; i < count; i++)
            values[i] = make_row_value(&reports[i], row);
        print_row(out, width, rows[row].label, values, count);
        if (rows[row].id == CALLS && with_calls)
            print_calls(out, width, reports, count);
    }
    for (unsigned i = 0; i < count; i++)
        print_check(out, &reports[i]);
    for (unsigned i = 0; i < count; i++)
        if (reports[i].result.explanation.exists) {
            if (count > 1)
                (void)fprintf(out, "%c: ", 'A' + (int)i);
            explanation_print(out, &reports[i].result.explanation);
        }
    if (count > 1)
        print_verdict(out, reports);
    print_gaps(out, reports, count);
}

/* --- JSON. --- */

/* Round a value to the resolution of the measurement. */
static double round_to_tenth(double value)
{
    return (double)(int64_t)(value * 10 + 0.5) / 10;
}

static json_t *calls_json(const struct replay_result *result)
{
    json_t *calls = json_object();

    for (size_t i = 0; i < result->call_count; i++)
        output_json_set(&calls, result->calls[i].name,
                        json_integer((json_int_t)result->calls[i].count));
    return calls;
}

static json_t *us_json(bool is_known, uint64_t nanoseconds)
{
    return is_known ? json_real((double)nanoseconds / 1000) : json_null();
}

json_t *report_json(const struct report *report)
{
    const struct replay_result *result = &report->result;
    const struct trace_clock_result *clock = &result->clock;
    const bool has_clock = clock->has_clock, has_failed = result->failed > 0;

    return json_pack(
        "{s:o, s:o, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:f, s:I, s:I, s:o?, s:o*, s:o*, "
        "s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*, s:o*}",
        "trace", text_json(report->file), "config", text_json(report->config), "events",
        (json_int_t)result->events, "oom_at", (json_int_t)result->oom_at, "peak_requested",
        (json_int_t)result->peak_requested, "peak_allocated", (json_int_t)result->peak_allocated,
        "peak_active", (json_int_t)result->peak_active, "peak_reserved",
        (json_int_t)result->peak_reserved, "driver_calls", calls_json(result), "driver_us",
        us_json(result->has_driver_time, result->driver_ns), "ns_per_event",
        round_to_tenth(result->ns_per_event), "checked", (json_int_t)result->checked, "mismatches",
        (json_int_t)result->mismatches, "min_device",
        output_json_number(report->has_min_device, report->min_device), "failed",
        output_json_number(has_failed, result->failed), "failed_served",
        output_json_number(has_failed, result->failed_served), "allocated_time_avg",
        output_json_number(has_clock, clock->allocated_time_avg), "reserved_time_avg",
        output_json_number(has_clock, clock->reserved_time_avg), "request_path_syncs",
        output_json_number(has_clock, clock->request_path_syncs), "max_operation_us",
        has_clock ? us_json(clock->has_times, clock->max_operation_ns) : NULL, "requests",
        output_json_number(has_clock, clock->requests), "max_request_us",
        has_clock ? us_json(clock->has_times, clock->max_request_ns) : NULL, "explained",
        result->explanation.exists ? explanation_json(&result->explanation) : NULL, "notes",
        report->notes.count > 0 ? trace_notes_json(&report->notes) : NULL);
}
