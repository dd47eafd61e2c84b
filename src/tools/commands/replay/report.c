/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/replay/report.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH  24
#define COLUMN_WIDTH 18

/* --- Figures: a row of the table has one unit, that of its largest. --- */

struct figure {
    enum { UNKNOWN, TEXT, COUNT, BYTES, NANOSECONDS, RATIO } kind;
    uint64_t number;
    double value;
    struct amount text;
};

static struct amount format_figure(const struct figure *figure, double largest)
{
    struct amount text = {"-"};

    switch (figure->kind) {
    case UNKNOWN:
        return text;
    case TEXT:
        return figure->text;
    case COUNT:
        return amount_count(figure->number);
    case BYTES:
        return amount_bytes_in_row(figure->number, largest);
    case NANOSECONDS:
        return amount_time_in_row(figure->value, largest);
    case RATIO:
        break;
    }
    (void)snprintf(text.text, sizeof(text.text), "%.3f", figure->value);
    return text;
}

static struct figure figure_of(uint64_t number, bool is_bytes)
{
    return (struct figure){.kind = is_bytes ? BYTES : COUNT, .number = number};
}

static struct figure time_of(bool is_known, double nanoseconds)
{
    return (struct figure){.kind = is_known ? NANOSECONDS : UNKNOWN, .value = nanoseconds};
}

static struct figure ratio_of(uint64_t number, uint64_t of)
{
    return (struct figure){.kind = of > 0 ? RATIO : UNKNOWN,
                           .value = of > 0 ? (double)number / (double)of : 0};
}

static struct figure text_of(const char *text)
{
    struct figure figure = {.kind = TEXT};

    (void)snprintf(figure.text.text, sizeof(figure.text.text), "%s", text);
    return figure;
}

static void print_label(FILE *out, int indent, int width, const char *label)
{
    (void)fprintf(out, "%*s%-*s", indent, "", width - indent, label);
}

static void print_row(FILE *out, int width, const char *label, const struct figure *figures,
                      unsigned count)
{
    double largest = 0;

    for (unsigned i = 0; i < count; i++) {
        const double value =
            figures[i].kind == NANOSECONDS ? figures[i].value : (double)figures[i].number;

        largest = value > largest ? value : largest;
    }
    print_label(out, 2, width, label);
    for (unsigned i = 0; i < count; i++)
        (void)fprintf(out, "%*s", COLUMN_WIDTH, format_figure(&figures[i], largest).text);
    (void)fputc('\n', out);
}

/* --- The rows. --- */

/* Rows from LIVE_AVERAGE on are shown only where the trace has a clock, FAILED and SMALLEST where there are
 * such figures. */
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
    {"smallest device", SMALLEST},
    {"driver calls", CALLS},
    {"driver time, modelled", DRIVER_TIME},
    {"time per event", SPEED},
    {"live, average", LIVE_AVERAGE},
    {"reserved, average", RESERVED_AVERAGE},
    {"waits on requests", WAITS},
    {"longest call, modelled", LONGEST_CALL},
};

static uint64_t sum_calls(const struct replay_result *result)
{
    uint64_t sum = 0;

    for (size_t i = 0; i < result->call_count; i++)
        sum += result->calls[i].count;
    return sum;
}

static struct figure failed_of(const struct replay_result *result)
{
    struct figure figure = {.kind = TEXT};

    (void)snprintf(figure.text.text, sizeof(figure.text.text), "%.13s of %.13s",
                   amount_count(result->failed_served).text, amount_count(result->failed).text);
    return figure;
}

static struct figure figure_in(const struct report *report, unsigned row)
{
    const struct replay_result *result = &report->result;

    switch (rows[row].what) {
    case EVENTS:
        return figure_of(result->events, false);
    case OOM_AT:
        return result->oom_at < 0 ? text_of("none") : figure_of((uint64_t)result->oom_at, false);
    case FAILED:
        return failed_of(result);
    case REQUESTED:
        return figure_of(result->peak_requested, true);
    case ALLOCATED:
        return figure_of(result->peak_allocated, true);
    case ACTIVE:
        return figure_of(result->peak_active, true);
    case RESERVED:
        return figure_of(result->peak_reserved, true);
    case WASTE:
        return ratio_of(result->peak_reserved, result->peak_requested);
    case SMALLEST:
        return report->has_min_device ? figure_of(report->min_device, true) : text_of("none");
    case CALLS:
        return figure_of(sum_calls(result), false);
    case DRIVER_TIME:
        return time_of(result->has_driver_time, (double)result->driver_ns);
    case SPEED:
        return time_of(true, result->ns_per_event);
    case LIVE_AVERAGE:
        return figure_of(result->clock.live_time_avg, true);
    case RESERVED_AVERAGE:
        return figure_of(result->clock.reserved_time_avg, true);
    case WAITS:
        return figure_of(result->clock.request_path_syncs, false);
    case LONGEST_CALL:
        break;
    }
    return time_of(result->clock.has_times, (double)result->clock.max_call_ns);
}

static bool is_shown(const struct report *reports, unsigned count, unsigned row)
{
    bool has_min_device = false;

    for (unsigned i = 0; i < count; i++)
        has_min_device |= reports[i].has_min_device;
    if (rows[row].what >= LIVE_AVERAGE)
        return reports[0].result.clock.has_clock;
    if (rows[row].what == SMALLEST)
        return has_min_device;
    return rows[row].what != FAILED || reports[0].result.failed > 0;
}

/* --- Driver calls by name. --- */

static uint64_t calls_in(const struct report *report, size_t call)
{
    return call < report->result.call_count ? report->result.calls[call].count : 0;
}

/* As wide as the longest name needs, and no narrower than the rows above. */
static int width_of_names(const struct report *report)
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
        struct figure figures[REPORT_COLUMNS];
        char name[128];
        uint64_t sum = 0;

        for (unsigned i = 0; i < count; i++) {
            figures[i] = figure_of(calls_in(&reports[i], call), false);
            sum += figures[i].number;
        }
        (void)snprintf(name, sizeof(name), "  %s", reports[0].result.calls[call].name);
        if (sum > 0)
            print_row(out, width, name, figures, count);
    }
}

/* --- Sentences. --- */

static void print_check(FILE *out, const struct report *report)
{
    const struct replay_result *result = &report->result;

    if (!result->was_checked)
        return;
    (void)fprintf(out, "%s%s of %s agree%s",
                  text_style_on(out, result->mismatches > 0 ? TEXT_BAD : TEXT_GOOD),
                  amount_count(result->checked - result->mismatches).text,
                  amount_of(result->checked, "step").text, result->checked == 1 ? "s" : "");
    if (result->check_end_line > 0)
        (void)fprintf(out, " up to line %" PRIu32 ", where only xseg found memory",
                      result->check_end_line);
    (void)fprintf(out, "%s\n", text_style_off(out));
}

/* "2.4 x fewer driver calls"; a number where the factor would be 1.0. */
static void print_fewer(FILE *out, uint64_t before, uint64_t after)
{
    const uint64_t low = before < after ? before : after;
    const uint64_t high = before < after ? after : before;
    const char *const word = after < before ? "fewer" : "more";

    if (before == after)
        (void)fputs("as many driver calls", out);
    else if (low > 0 && (double)high / (double)low >= 1.05)
        (void)fprintf(out, "%.1f x %s driver calls", (double)high / (double)low, word);
    else
        (void)fprintf(out, "%s %s driver call%s", amount_count(high - low).text, word,
                      high - low == 1 ? "" : "s");
}

/* "reserves 23.91 GiB less". */
static void print_less(FILE *out, uint64_t before, uint64_t after)
{
    if (before == after)
        (void)fputs("reserves as much", out);
    else
        (void)fprintf(out, "reserves %s %s",
                      amount_bytes(before < after ? after - before : before - after).text,
                      after < before ? "less" : "more");
}

/* A programme that ended early held less: its peaks say nothing. */
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

static enum text_style style_of(const struct replay_result *first,
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

/* What the second configuration does better or worse than the first. */
static void print_verdict(FILE *out, const struct report *reports)
{
    const struct replay_result *first = &reports[0].result, *second = &reports[1].result;

    (void)fputs(text_style_on(out, style_of(first, second)), out);
    if (!print_shortage(out, first, second)) {
        (void)fputs("B ", out);
        print_less(out, first->peak_reserved, second->peak_reserved);
        (void)fputs(", ", out);
        print_fewer(out, sum_calls(first), sum_calls(second));
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

/* --- The whole. --- */

static void print_head(FILE *out, int width, const struct report *reports, unsigned count)
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
                                                     : "this machine's");
    if (count > 1) {
        const struct figure names[REPORT_COLUMNS] = {text_of("A"), text_of("B")};

        print_row(out, width, "", names, count);
    }
}

void report_table(FILE *out, const struct report *reports, unsigned count, bool with_calls)
{
    const int width = with_calls ? width_of_names(&reports[0]) : LABEL_WIDTH + 2;

    print_head(out, width, reports, count);
    for (unsigned row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
        struct figure figures[REPORT_COLUMNS];

        if (!is_shown(reports, count, row))
            continue;
        for (unsigned i = 0; i < count; i++)
            figures[i] = figure_in(&reports[i], row);
        print_row(out, width, rows[row].label, figures, count);
        if (rows[row].what == CALLS && with_calls)
            print_calls(out, width, reports, count);
    }
    for (unsigned i = 0; i < count; i++)
        print_check(out, &reports[i]);
    for (unsigned i = 0; i < count; i++)
        if (reports[i].result.explanation.exists)
            explanation_print(out, &reports[i].result.explanation);
    if (count > 1)
        print_verdict(out, reports);
    print_gaps(out, reports, count);
}

/* --- JSON. --- */

/* Tenths are as fine as the measurement is. */
static double tenths(double value)
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
        tenths(result->ns_per_event), "checked", (json_int_t)result->checked, "mismatches",
        (json_int_t)result->mismatches, "min_device",
        output_json_number(report->has_min_device, report->min_device), "failed",
        output_json_number(has_failed, result->failed), "failed_served",
        output_json_number(has_failed, result->failed_served), "live_time_avg",
        output_json_number(has_clock, clock->live_time_avg), "reserved_time_avg",
        output_json_number(has_clock, clock->reserved_time_avg), "request_path_syncs",
        output_json_number(has_clock, clock->request_path_syncs), "max_call_us",
        has_clock ? us_json(clock->has_times, clock->max_call_ns) : NULL, "requests",
        output_json_number(has_clock, clock->requests), "max_request_us",
        has_clock ? us_json(clock->has_times, clock->max_request_ns) : NULL, "explained",
        result->explanation.exists ? explanation_json(&result->explanation) : NULL, "notes",
        report->notes.count > 0 ? trace_notes_json(&report->notes) : NULL);
}
