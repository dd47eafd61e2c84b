/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/advise_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH   26
#define COLUMN_WIDTH  16
#define HEADING_WIDTH 15
#define COLUMNS       3
#define PAIR_WIDTH    12 /* of a column in the table of ranks */

/* --- The reason. --- */

/* Get the number of programs that complete with a string. */
static size_t served_with(const struct advice *advice, const struct advise_string *string)
{
    size_t count = 0;

    for (size_t i = 0; i < advice->trials->count; i++)
        count += string->programs[i].completes_on_target;
    return count;
}

/* "falls from 41.17 GiB to 17.26 GiB", "rises from ...", "stays at 17.26 GiB" */
static void print_change(FILE *out, uint64_t from, uint64_t to)
{
    if (amount_bytes_equal(from, to))
        (void)fprintf(out, "stays at %s", amount_bytes(to).text);
    else
        (void)fprintf(out, "%s from %s to %s", to < from ? "falls" : "rises",
                      amount_bytes(from).text, amount_bytes(to).text);
}

/* Print the peaks.  If cached memory fills the device with both strings, print the peaks on the large device, which were
 * compared. */
static void print_peaks(FILE *out, const struct advice *advice)
{
    const struct trial_results *current = &advice->current.results;
    const struct trial_results *advised = &advice->advised.results;
    const bool on_large =
        amount_bytes_equal(current->peak_reserved, advised->peak_reserved) &&
        current->large.completes && advised->large.completes &&
        !amount_bytes_equal(current->large.peak_reserved, advised->large.peak_reserved);

    if (on_large)
        (void)fprintf(out, "on a device of %s, ",
                      amount_bytes(advice->trials->programs[0].large_bytes).text);
    (void)fprintf(out, "the %s ",
                  advice_is_of_ranks(advice) ? "largest peak of these ranks" : "peak");
    print_change(out, on_large ? current->large.peak_reserved : current->peak_reserved,
                 on_large ? advised->large.peak_reserved : advised->peak_reserved);
}

/* If programs do not complete, print the effect on the first program that replays more events. */
static void print_reach(FILE *out, const struct advice *advice)
{
    for (size_t i = 0; i < advice->trials->count; i++) {
        const int64_t current_event = advice->current.programs[i].oom_at,
                      advised_event = advice->advised.programs[i].oom_at;

        if (current_event < 0 || (advised_event >= 0 && advised_event <= current_event))
            continue;
        (void)fputs(advice_is_of_ranks(advice) ? advice->trials->programs[i].name : "the program",
                    out);
        if (advised_event < 0)
            (void)fprintf(out, " no longer runs out of memory at event %s",
                          amount_count((uint64_t)current_event).text);
        else
            (void)fprintf(out, " runs out of memory at event %s instead of %s",
                          amount_count((uint64_t)advised_event).text,
                          amount_count((uint64_t)current_event).text);
        return;
    }
    print_peaks(out, advice);
}

/* Print the change of the smallest device if a lower peak does not reduce it. */
static void print_smallest(FILE *out, const struct advice *advice)
{
    const struct trial_results *current = &advice->current.results;
    const struct trial_results *advised = &advice->advised.results;

    if (!current->has_min_device || !advised->has_min_device ||
        (advised->min_device < current->min_device &&
         !amount_bytes_equal(current->min_device, advised->min_device)))
        return;
    (void)fputs("; the smallest device ", out);
    print_change(out, current->min_device, advised->min_device);
}

static void print_reason(FILE *out, const struct advice *advice)
{
    const struct advise_string *current = &advice->current, *advised = &advice->advised;
    const size_t served = served_with(advice, advised);
    const bool completes = served > served_with(advice, current);

    if (completes && advice_is_of_ranks(advice))
        (void)fprintf(out, "%s of these %s complete instead of %s", amount_count(served).text,
                      amount_of(advice->trials->count, "rank").text,
                      amount_count(served_with(advice, current)).text);
    else if (completes)
        (void)fprintf(out, "the program completes on %s", amount_bytes(advice_target(advice)).text);
    if (completes && current->results.completes)
        (void)fputs(", and ", out);
    if (current->results.completes)
        print_peaks(out, advice);
    else if (!completes)
        print_reach(out, advice);
    if (advised->changes > 1)
        (void)fprintf(out, ", mostly because of %s: %s", advice->key, advice->cause);
    else
        (void)fprintf(out, ", since %s", advice->cause);
    print_smallest(out, advice);
}

static void print_no_advice(FILE *out, const struct advice *advice)
{
    const struct trial_results *results = &advice->current.results;
    const struct amount_noun configurations = amount_of(advice->replayed, "configuration");

    if (!results->completes && advice_is_of_ranks(advice))
        (void)fprintf(out, "with none of %s do more of these ranks complete", configurations.text);
    else if (!results->completes)
        (void)fprintf(out, "with none of %s does the program complete on %s", configurations.text,
                      amount_bytes(advice_target(advice)).text);
    else
        (void)fprintf(
            out,
            "none of %s lowers the %s of %s by more than 1 %% with at most %s of additional "
            "driver time%s; at its peak, the program requests %s",
            configurations.text, advice_is_of_ranks(advice) ? "largest peak" : "peak",
            amount_bytes(results->peak_reserved).text, amount_time((double)advice->driver_ns).text,
            advice->needs_larger ? " and without a larger device" : "",
            amount_bytes(results->peak_requested).text);
}

/* Format the reason for the advice, without a period.  The caller owns the string.  Returns NULL on host allocation failure. */
static char *format_reason(const struct advice *advice)
{
    size_t bytes = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    if (!advice->is_certain)
        (void)fputs("as far as the recording shows, ", out);
    if (advice->advised.config)
        print_reason(out, advice);
    else
        print_no_advice(out, advice);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* --- Out of memory. --- */

/* "a device of 26.10 GiB (2.10 GiB more)" */
static void print_device_needed(FILE *out, const struct advice *advice,
                                const struct advise_string *string)
{
    if (!string->results.has_min_full_device) {
        (void)fputs("no device is large enough", out);
        return;
    }
    (void)fprintf(out, "a device of %s", amount_bytes(string->results.min_full_device).text);
    if (!advice_is_of_ranks(advice) && string->results.min_full_device > advice_target(advice))
        (void)fprintf(out, " (%s more)",
                      amount_bytes(string->results.min_full_device - advice_target(advice)).text);
}

static void print_least_change(FILE *out, const struct advice *advice)
{
    if (advice->least_change.config && advice->least_change.changes == 0) {
        (void)fputs("none is needed", out);
        return;
    }
    if (advice->least_change.config) {
        if (advice->advised.config &&
            strcmp(advice->advised.config, advice->least_change.config) == 0)
            (void)fputs("the advised string", out);
        else
            text_print(out, advice->least_change.config);
        (void)fputs("; or, with the current string, ", out);
    } else if (advice->advised.config && advice->advised.results.has_min_full_device &&
               (!advice->current.results.has_min_full_device ||
                !amount_bytes_equal(advice->advised.results.min_full_device,
                                    advice->current.results.min_full_device))) {
        print_device_needed(out, advice, &advice->advised);
        (void)fputs(" with the advised string; with the current string, ", out);
    }
    print_device_needed(out, advice, &advice->current);
}

static void print_label(FILE *out, const char *label)
{
    (void)fprintf(out, "%-*s", HEADING_WIDTH, label);
}

/* "rank 5, rank 2"; "none" */
static void print_failing_ranks(FILE *out, const struct advice *advice,
                                const struct advise_string *string)
{
    const char *separator = "";

    for (size_t i = 0; i < advice->trials->count; i++)
        if (!string->programs[i].completes_on_target) {
            (void)fprintf(out, "%s%s", separator, advice->trials->programs[i].name);
            separator = ", ";
        }
    if (!separator[0])
        (void)fputs("none", out);
}

static void print_certainty(FILE *out, const struct advice *advice)
{
    if (!advice->is_certain)
        (void)fputs("as far as the recording shows, ", out);
}

static void print_short_ranks(FILE *out, const struct advice *advice)
{
    print_label(out, "out of memory");
    print_certainty(out, advice);
    print_failing_ranks(out, advice, &advice->current);
    (void)fputs(" with the current string", out);
    if (advice->advised.config) {
        (void)fputs("; ", out);
        print_failing_ranks(out, advice, &advice->advised);
        (void)fputs(" with the advised string", out);
    }
    (void)fputc('\n', out);
}

static void print_shortage(FILE *out, const struct advice *advice)
{
    const struct trial_results *current = &advice->current.results;

    if (advice_is_of_ranks(advice)) {
        print_short_ranks(out, advice);
        return;
    }
    print_label(out, "out of memory");
    print_certainty(out, advice);
    if (current->failed > 0)
        (void)fprintf(out, "%s failed in the file; ", amount_of(current->failed, "request").text);
    (void)fprintf(out, "the program completes on %s with ",
                  amount_bytes(advice_target(advice)).text);
    if (current->completes_on_target)
        (void)fputs("the current string", out);
    else if (advice->advised.config && advice->advised.results.completes_on_target)
        (void)fputs("the advised string", out);
    else
        (void)fprintf(out, "none of %s", amount_of(advice->replayed, "configuration").text);
    (void)fputc('\n', out);
}

/* --- The table. --- */

enum row { PEAK, SMALLEST, DRIVER_TIME, COMPLETES, BOUND_E, BOUND_C, PEAK_E, PEAK_C, ROWS };

/* "0.012" */
static struct amount format_ratio(uint32_t e)
{
    struct amount out;

    (void)snprintf(out.text, sizeof(out.text), "%" PRIu32 ".%03" PRIu32, e / HEADROOM_UNIT,
                   e % HEADROOM_UNIT);
    return out;
}

static struct amount format_cell(enum row row, const struct advise_string *string)
{
    const struct trial_results *results = &string->results;

    if (row == PEAK)
        return amount_bytes(results->peak_reserved);
    if (row == SMALLEST && results->has_min_device)
        return amount_bytes(results->min_device);
    if (row == DRIVER_TIME)
        return amount_time((double)results->driver_ns);
    if (row == BOUND_E)
        return format_ratio(results->headroom.e);
    if (row == BOUND_C)
        return amount_bytes(results->headroom.c);
    if (row == PEAK_E)
        return format_ratio(results->headroom_of_peak.e);
    if (row == PEAK_C)
        return amount_bytes(results->headroom_of_peak.c);
    if (row == COMPLETES)
        return results->completes_on_target ? (struct amount){"yes"} : (struct amount){"no"};
    return (struct amount){"none"};
}

static void print_cells(FILE *out, enum row row, const char *label,
                        const struct advise_string *const *columns)
{
    (void)fprintf(out, "  %-*s", LABEL_WIDTH - 2, label);
    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s", COLUMN_WIDTH, format_cell(row, columns[i]).text);
    (void)fputc('\n', out);
}

static void print_table(FILE *out, const struct advice *advice)
{
    static const char *const names[COLUMNS] = {"current", "advised", "runner-up"};
    const struct advise_string *const columns[COLUMNS] = {&advice->current, &advice->advised,
                                                          &advice->runner_up};
    char label[48];

    (void)snprintf(label, sizeof(label), "completes on %s",
                   amount_bytes(advice_target(advice)).text);
    (void)fprintf(out, "%*s", LABEL_WIDTH, "");
    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s", COLUMN_WIDTH, names[i]);
    (void)fputc('\n', out);
    print_cells(out, PEAK, "peak reserved", columns);
    print_cells(out, SMALLEST, "smallest device", columns);
    print_cells(out, DRIVER_TIME, "driver time, modeled", columns);
    if (advice->is_short)
        print_cells(out, COMPLETES, label, columns);
    print_cells(out, BOUND_E, "headroom: e", columns);
    print_cells(out, BOUND_C, "headroom: c", columns);
    print_cells(out, PEAK_E, "peak headroom: e", columns);
    print_cells(out, PEAK_C, "peak headroom: c", columns);
}

/* --- Headroom. --- */

#define MARGIN_MIN ((uint64_t)1 << 30)

/* Get the bytes that are allocated at the peak and not at the end. */
static uint64_t transient_peak(const struct trial_results *results)
{
    return results->peak_allocated - results->end_allocated;
}

/* Get the margin that inference engines keep today instead of a bound. */
static uint64_t engine_margin(const struct trial_results *results)
{
    const uint64_t transient = transient_peak(results);
    const uint64_t margin = transient - transient / 4;

    return margin > MARGIN_MIN ? margin : MARGIN_MIN;
}

static void print_headroom(FILE *out, const struct advice *advice)
{
    const struct trial_results *results = &advice->current.programs[0];

    (void)fputc('\n', out);
    print_label(out, "headroom");
    (void)fputs(
        "reserved <= (1 + e) x allocated + c after each event; peak headroom: the same with the "
        "peak of allocated so far\n",
        out);
    print_label(out, "engines keep");
    (void)fprintf(out, "%s today: 0.75 x the transient peak of %s, at least %s\n",
                  amount_bytes(engine_margin(results)).text,
                  amount_bytes(transient_peak(results)).text, amount_bytes(MARGIN_MIN).text);
}

static void print_string(FILE *out, const char *label, const char *config)
{
    print_label(out, label);
    text_print(out, config[0] ? config : "(none: the defaults)");
    (void)fputc('\n', out);
}

static void print_title(FILE *out, const char *title)
{
    text_print_strong(out, title);
    (void)fputc('\n', out);
}

/* Print the gaps of all files. */
static void print_gaps(FILE *out, const struct advice *advice)
{
    for (size_t i = 0; i < advice->trials->count; i++)
        for (unsigned at = 0; at < advice->notes[i].count; at++) {
            print_label(out, "note");
            if (advice_is_of_ranks(advice))
                (void)fprintf(out, "%s, ", advice->trials->programs[i].name);
            (void)fprintf(out, "%s\n", advice->notes[i].text[at]);
        }
}

/* Print the lines above the table.  Returns false on host allocation failure. */
static bool print_summary(FILE *out, const struct advice *advice)
{
    char *reason = format_reason(advice);

    if (!reason)
        return false;
    (void)fputs(
        text_style_on(out, advice->advised.config && advice->is_certain ? TEXT_GOOD : TEXT_STRONG),
        out);
    if (advice->advised.config)
        print_string(out, advice->is_certain ? "set" : "try", advice->advised.config);
    else
        (void)fputs(advice->is_certain ? "no configuration helps\n"
                                       : "the file does not show whether a configuration helps\n",
                    out);
    (void)fputs(text_style_off(out), out);
    print_label(out, "reason");
    (void)fprintf(out, "%s\n", reason);
    print_gaps(out, advice);
    if (advice->is_short) {
        print_shortage(out, advice);
        print_label(out, "least change");
        print_least_change(out, advice);
        (void)fputc('\n', out);
    }
    print_string(out, "current", advice->current.config);
    if (advice->omitted && advice->omitted[0])
        print_string(out, "omitted", advice->omitted);
    if (advice->runner_up.config)
        print_string(out, "runner-up", advice->runner_up.config);
    else if (advice->advised.config)
        print_string(out, "runner-up",
                     advice->needs_larger
                         ? "none: other strings lower the peak, but need a larger device"
                         : "none: no other string helps");
    (void)fputc('\n', out);
    free(reason);
    return true;
}

bool advise_report_text(FILE *out, const struct advice *advice)
{
    print_title(out, advice->trials->name);
    if (!print_summary(out, advice))
        return false;
    print_table(out, advice);
    print_headroom(out, advice);
    (void)fprintf(out, "\n%s replayed\n", amount_of(advice->replayed, "configuration").text);
    return true;
}

/* --- Ranks. --- */

static void print_rank(FILE *out, const struct advise_ranks *ranks,
                       const struct advise_string *const *columns, size_t rank)
{
    for (unsigned i = 0; i < COLUMNS; i++) {
        const struct trial_results *results = &columns[i]->programs[rank];

        if (columns[i]->config)
            (void)fprintf(
                out, "%*s%*s", PAIR_WIDTH, amount_bytes(results->peak_reserved).text, PAIR_WIDTH,
                results->has_min_device ? amount_bytes(results->min_device).text : "none");
    }
    (void)fprintf(out, "  %s%s%s\n", ranks->of[rank].name,
                  ranks->of[rank].is_outlier ? ", outlier" : "",
                  ranks->of[rank].is_typical ? ", most typical" : "");
}

static void print_ranks(FILE *out, const struct advise_ranks *ranks, const struct advice *advice)
{
    static const char *const names[COLUMNS] = {"current", "advised", "runner-up"};
    const struct advise_string *const columns[COLUMNS] = {&advice->current, &advice->advised,
                                                          &advice->runner_up};

    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s", 2 * PAIR_WIDTH, names[i]);
    (void)fputc('\n', out);
    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s%*s", PAIR_WIDTH, "peak", PAIR_WIDTH, "min device");
    (void)fputs("  rank\n", out);
    for (size_t i = 0; i < advice->trials->count; i++)
        print_rank(out, ranks, columns, i);
}

bool advise_report_ranks_text(FILE *out, const struct advise_ranks *ranks,
                              const struct advice *advice)
{
    print_title(out, ranks->verdict);
    text_print(out, ranks->folder);
    (void)fprintf(out, ", %s\n", amount_of(ranks->files, "file").text);
    if (!print_summary(out, advice))
        return false;
    print_ranks(out, ranks, advice);
    (void)fprintf(out, "\n%s replayed\n", amount_of(advice->replayed, "configuration").text);
    return true;
}

/* --- JSON. --- */

static json_t *text_or_null(const char *text)
{
    return text ? text_json(text) : json_null();
}

static json_t *omitted_json(const struct advice *advice)
{
    return text_or_null(advice->omitted && advice->omitted[0] ? advice->omitted : NULL);
}

/* NULL on host allocation failure. */
static json_t *notes_json(const struct advice *advice)
{
    json_t *list = json_array();

    for (size_t i = 0; i < advice->trials->count; i++)
        for (unsigned at = 0; at < advice->notes[i].count; at++)
            output_json_add(&list, json_sprintf("%s%s%s", advice->trials->programs[i].name,
                                                advice_is_of_ranks(advice) ? ", " : "",
                                                advice->notes[i].text[at]));
    return list;
}

static json_t *headroom_json(const struct trial_results *results)
{
    return json_pack("{s:f, s:I, s:f, s:I}", "e", (double)results->headroom.e / HEADROOM_UNIT, "c",
                     (json_int_t)results->headroom.c, "peak_e",
                     (double)results->headroom_of_peak.e / HEADROOM_UNIT, "peak_c",
                     (json_int_t)results->headroom_of_peak.c);
}

/* A string with its results for one program. */
static json_t *string_json(const struct advice *advice, const struct advise_string *string,
                           size_t program)
{
    const struct trial_results *results = &string->programs[program];
    const bool needs_more = advice->is_short && !results->has_min_full_device;

    if (!string->config)
        return json_null();
    return json_pack(
        "{s:o, s:i, s:I, s:I, s:I, s:o?, s:f, s:o, s:o*, s:o*}", "config",
        text_json(string->config), "changes", (int)string->changes, "oom_at",
        (json_int_t)results->oom_at, "peak_requested", (json_int_t)results->peak_requested,
        "peak_reserved", (json_int_t)results->peak_reserved, "min_device",
        output_json_number(results->has_min_device, results->min_device), "driver_us",
        (double)results->driver_ns / 1000, "headroom", headroom_json(results), "completes",
        advice->is_short ? json_boolean(results->completes_on_target) : NULL, "device_needed",
        needs_more ? json_null() : output_json_number(advice->is_short, results->min_full_device));
}

static json_t *shortage_json(const struct advice *advice)
{
    const struct advise_string *string =
        advice->advised.config ? &advice->advised : &advice->current;

    if (!advice->is_short)
        return json_null();
    return json_pack("{s:I, s:I, s:b, s:o}", "device_bytes", (json_int_t)advice_target(advice),
                     "failed", (json_int_t)advice->current.results.failed, "completes",
                     (int)string->results.completes_on_target, "least_change",
                     text_or_null(advice->least_change.config));
}

json_t *advise_report_json(const struct advice *advice)
{
    const struct trial_program *program = &advice->trials->programs[0];
    char *reason = format_reason(advice);
    json_t *object = json_pack(
        "{s:o, s:I, s:I, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:I, s:I}", "trace",
        text_json(program->file), "device_bytes", (json_int_t)program->device_bytes, "replayed",
        (json_int_t)advice->replayed, "reason", reason, "certain", (int)advice->is_certain, "notes",
        notes_json(advice), "omitted", omitted_json(advice), "current",
        string_json(advice, &advice->current, 0), "advised",
        string_json(advice, &advice->advised, 0), "runner_up",
        string_json(advice, &advice->runner_up, 0), "out_of_memory", shortage_json(advice),
        "transient_peak", (json_int_t)transient_peak(&advice->current.programs[0]), "engine_margin",
        (json_int_t)engine_margin(&advice->current.programs[0]));

    free(reason);
    return object;
}

/* A string with its results for all ranks. */
static json_t *combined_json(const struct advise_string *string)
{
    if (!string->config)
        return json_null();
    return json_pack(
        "{s:o, s:i, s:I, s:o?}", "config", text_json(string->config), "changes",
        (int)string->changes, "peak_reserved", (json_int_t)string->results.peak_reserved,
        "min_device",
        output_json_number(string->results.has_min_device, string->results.min_device));
}

static json_t *rank_json(const struct advise_ranks *ranks, const struct advice *advice, size_t rank)
{
    const struct trial_program *program = &advice->trials->programs[rank];

    return json_pack("{s:s, s:o, s:b, s:b, s:I, s:I, s:o, s:o, s:o}", "rank", ranks->of[rank].name,
                     "trace", text_json(program->file), "outlier", (int)ranks->of[rank].is_outlier,
                     "typical", (int)ranks->of[rank].is_typical, "device_bytes",
                     (json_int_t)program->device_bytes, "target_bytes",
                     (json_int_t)program->target_bytes, "current",
                     string_json(advice, &advice->current, rank), "advised",
                     string_json(advice, &advice->advised, rank), "runner_up",
                     string_json(advice, &advice->runner_up, rank));
}

json_t *advise_report_ranks_json(const struct advise_ranks *ranks, const struct advice *advice)
{
    json_t *list = json_array(), *object;
    char *reason = format_reason(advice);

    for (size_t i = 0; i < advice->trials->count; i++)
        output_json_add(&list, rank_json(ranks, advice, i));
    object = json_pack(
        "{s:o, s:o, s:s?, s:i, s:i, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "folder",
        text_json(ranks->folder), "verdict", text_json(ranks->verdict), "outlier", ranks->outlier,
        "files", (int)ranks->files, "replayed", (int)advice->replayed, "reason", reason, "certain",
        (int)advice->is_certain, "notes", notes_json(advice), "omitted", omitted_json(advice),
        "current", combined_json(&advice->current), "advised", combined_json(&advice->advised),
        "runner_up", combined_json(&advice->runner_up), "out_of_memory", (int)advice->is_short,
        "least_change", text_or_null(advice->least_change.config), "ranks", list);
    free(reason);
    return object;
}
