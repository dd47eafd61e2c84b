/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/advise/advise_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/advise/advise_why.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define LABEL_WIDTH  26
#define COLUMN_WIDTH 16
#define HEAD_WIDTH   15
#define COLUMNS      3
#define PAIR_WIDTH   12 /* of a column of the table of ranks */

/* --- Memory that ran out. --- */

/* "a device of 26.10 GiB, 2.10 GiB more" */
static void put_enough(FILE *out, const struct advice *advice, const struct advise_string *with)
{
    if (!with->figures.has_enough) {
        (void)fputs("no device is large enough", out);
        return;
    }
    (void)fprintf(out, "a device of %s", amount_bytes(with->figures.enough).text);
    if (!advice_is_of_ranks(advice) && with->figures.enough > advice_target(advice))
        (void)fprintf(out, ", %s more",
                      amount_bytes(with->figures.enough - advice_target(advice)).text);
}

static void put_least(FILE *out, const struct advice *advice)
{
    if (advice->least.config && advice->least.changes == 0) {
        (void)fputs("none", out);
        return;
    }
    if (advice->least.config) {
        (void)fputs("only ", out);
        if (advice->advised.config && strcmp(advice->advised.config, advice->least.config) == 0)
            (void)fputs("this string", out);
        else
            text_print(out, advice->least.config);
        (void)fputs("; or, with the string in force, ", out);
        put_enough(out, advice, &advice->in_force);
        return;
    }
    if (advice->advised.config && advice->advised.figures.has_enough &&
        (!advice->in_force.figures.has_enough ||
         !amount_bytes_equal(advice->advised.figures.enough, advice->in_force.figures.enough))) {
        put_enough(out, advice, &advice->advised);
        (void)fputs(", with the advised string; with the string in force ", out);
    }
    put_enough(out, advice, &advice->in_force);
}

static void print_head(FILE *out, const char *head)
{
    (void)fprintf(out, "%-*s", HEAD_WIDTH, head);
}

/* "rank 5, rank 2"; "none" */
static void put_short(FILE *out, const struct advice *advice, const struct advise_string *with)
{
    const char *between = "";

    for (size_t i = 0; i < advice->trials->count; i++)
        if (!with->of[i].serves) {
            (void)fprintf(out, "%s%s", between, advice->trials->programmes[i].name);
            between = ", ";
        }
    if (!between[0])
        (void)fputs("none", out);
}

static void put_certainty(FILE *out, const struct advice *advice)
{
    if (!advice->is_certain)
        (void)fputs("as far as the history shows, ", out);
}

static void print_short_ranks(FILE *out, const struct advice *advice)
{
    print_head(out, "out of memory");
    put_certainty(out, advice);
    put_short(out, advice, &advice->in_force);
    (void)fputs(" with the string in force", out);
    if (advice->advised.config) {
        (void)fputs("; ", out);
        put_short(out, advice, &advice->advised);
        (void)fputs(" with this one", out);
    }
    (void)fputc('\n', out);
}

static void print_shortage(FILE *out, const struct advice *advice)
{
    const struct trial_figures *in_force = &advice->in_force.figures;

    if (advice_is_of_ranks(advice)) {
        print_short_ranks(out, advice);
        return;
    }
    print_head(out, "out of memory");
    put_certainty(out, advice);
    if (in_force->failed > 0)
        (void)fprintf(out, "%s failed in the file; ", amount_of(in_force->failed, "request").text);
    (void)fprintf(out, "on %s", amount_bytes(advice_target(advice)).text);
    if (in_force->serves)
        (void)fputs(" a replay completes with the string in force", out);
    else if (advice->advised.config && advice->advised.figures.serves)
        (void)fputs(in_force->failed > 0 ? " it would have completed with this string"
                                         : " it completes with this string",
                    out);
    else
        (void)fprintf(out, " it completes with none of %s",
                      amount_of(advice->replayed, "configuration").text);
    (void)fputc('\n', out);
}

/* --- The table. --- */

enum row { PEAK, SMALLEST, DRIVER_TIME, COMPLETES, ROWS };

static struct amount cell(enum row row, const struct advise_string *string)
{
    const struct trial_figures *figures = &string->figures;

    if (row == PEAK)
        return amount_bytes(figures->peak_reserved);
    if (row == SMALLEST && figures->has_min_device)
        return amount_bytes(figures->min_device);
    if (row == DRIVER_TIME)
        return amount_time((double)figures->driver_ns);
    if (row == COMPLETES)
        return figures->serves ? (struct amount){"yes"} : (struct amount){"no"};
    return (struct amount){"none"};
}

static void print_cells(FILE *out, enum row row, const char *label,
                        const struct advise_string *const *columns)
{
    (void)fprintf(out, "  %-*s", LABEL_WIDTH - 2, label);
    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s", COLUMN_WIDTH, cell(row, columns[i]).text);
    (void)fputc('\n', out);
}

static void print_table(FILE *out, const struct advice *advice)
{
    static const char *const names[COLUMNS] = {"in force", "advised", "runner-up"};
    const struct advise_string *const columns[COLUMNS] = {&advice->in_force, &advice->advised,
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
    print_cells(out, DRIVER_TIME, "driver time, modelled", columns);
    if (advice->is_short)
        print_cells(out, COMPLETES, label, columns);
}

static void print_string(FILE *out, const char *head, const char *config)
{
    print_head(out, head);
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
            print_head(out, "note");
            if (advice_is_of_ranks(advice))
                (void)fprintf(out, "%s, ", advice->trials->programmes[i].name);
            (void)fprintf(out, "%s\n", advice->notes[i].text[at]);
        }
}

/* What stands above the table.  Returns false without host memory. */
static bool print_sentences(FILE *out, const struct advice *advice)
{
    char *why = advise_why(advice);

    if (!why)
        return false;
    (void)fputs(
        text_style_on(out, advice->advised.config && advice->is_certain ? TEXT_GOOD : TEXT_STRONG),
        out);
    if (advice->advised.config)
        print_string(out, advice->is_certain ? "set" : "try", advice->advised.config);
    else
        (void)fputs(advice->is_certain ? "nothing helps\n"
                                       : "the file does not show whether anything helps\n",
                    out);
    (void)fputs(text_style_off(out), out);
    print_head(out, "why");
    (void)fprintf(out, "%s\n", why);
    print_gaps(out, advice);
    if (advice->is_short) {
        print_shortage(out, advice);
        print_head(out, "least change");
        put_least(out, advice);
        (void)fputc('\n', out);
    }
    print_string(out, "in force", advice->in_force.config);
    if (advice->left_out && advice->left_out[0])
        print_string(out, "omitted", advice->left_out);
    if (advice->runner_up.config)
        print_string(out, "runner-up", advice->runner_up.config);
    else if (advice->advised.config)
        print_string(out, "runner-up",
                     advice->needs_larger
                         ? "none: other strings lower the peak, but need a larger device"
                         : "none: no other string helps");
    (void)fputc('\n', out);
    free(why);
    return true;
}

bool advise_report_text(FILE *out, const struct advice *advice)
{
    print_title(out, advice->trials->name);
    if (!print_sentences(out, advice))
        return false;
    print_table(out, advice);
    (void)fprintf(out, "\n%s replayed\n", amount_of(advice->replayed, "configuration").text);
    return true;
}

/* --- Of ranks. --- */

static void print_rank(FILE *out, const struct advise_ranks *ranks,
                       const struct advise_string *const *columns, size_t rank)
{
    for (unsigned i = 0; i < COLUMNS; i++) {
        const struct trial_figures *figures = &columns[i]->of[rank];

        if (columns[i]->config)
            (void)fprintf(
                out, "%*s%*s", PAIR_WIDTH, amount_bytes(figures->peak_reserved).text, PAIR_WIDTH,
                figures->has_min_device ? amount_bytes(figures->min_device).text : "none");
    }
    (void)fprintf(out, "  %s%s%s\n", ranks->of[rank].name,
                  ranks->of[rank].is_odd ? ", the odd one" : "",
                  ranks->of[rank].is_typical ? ", the most typical" : "");
}

static void print_ranks(FILE *out, const struct advise_ranks *ranks, const struct advice *advice)
{
    static const char *const names[COLUMNS] = {"in force", "advised", "runner-up"};
    const struct advise_string *const columns[COLUMNS] = {&advice->in_force, &advice->advised,
                                                          &advice->runner_up};

    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s", 2 * PAIR_WIDTH, names[i]);
    (void)fputc('\n', out);
    for (unsigned i = 0; i < COLUMNS; i++)
        if (columns[i]->config)
            (void)fprintf(out, "%*s%*s", PAIR_WIDTH, "peak", PAIR_WIDTH, "smallest");
    (void)fputs("  looked at\n", out);
    for (size_t i = 0; i < advice->trials->count; i++)
        print_rank(out, ranks, columns, i);
}

bool advise_report_ranks_text(FILE *out, const struct advise_ranks *ranks,
                              const struct advice *advice)
{
    print_title(out, ranks->verdict);
    text_print(out, ranks->folder);
    (void)fprintf(out, ", %s\n", amount_of(ranks->files, "file").text);
    if (!print_sentences(out, advice))
        return false;
    print_ranks(out, ranks, advice);
    (void)fprintf(out, "\n%s replayed\n", amount_of(advice->replayed, "configuration").text);
    return true;
}

/* --- JSON. --- */

static json_t *text_if(const char *text)
{
    return text ? text_json(text) : json_null();
}

static json_t *left_out_json(const struct advice *advice)
{
    return text_if(advice->left_out && advice->left_out[0] ? advice->left_out : NULL);
}

/* The gaps of all files, as an array; NULL without host memory. */
static json_t *notes_json(const struct advice *advice)
{
    json_t *list = json_array();

    for (size_t i = 0; i < advice->trials->count; i++)
        for (unsigned at = 0; at < advice->notes[i].count; at++)
            output_json_add(&list, json_sprintf("%s%s%s", advice->trials->programmes[i].name,
                                                advice_is_of_ranks(advice) ? ", " : "",
                                                advice->notes[i].text[at]));
    return list;
}

/* A string with what came of it in one programme. */
static json_t *string_json(const struct advice *advice, const struct advise_string *string,
                           size_t programme)
{
    const struct trial_figures *figures = &string->of[programme];
    const bool needs_more = advice->is_short && !figures->has_enough;

    if (!string->config)
        return json_null();
    return json_pack(
        "{s:o, s:i, s:I, s:I, s:I, s:o?, s:f, s:o*, s:o*}", "config", text_json(string->config),
        "changes", (int)string->changes, "oom_at", (json_int_t)figures->oom_at, "peak_requested",
        (json_int_t)figures->peak_requested, "peak_reserved", (json_int_t)figures->peak_reserved,
        "min_device", output_json_number(figures->has_min_device, figures->min_device), "driver_us",
        (double)figures->driver_ns / 1000, "completes",
        advice->is_short ? json_boolean(figures->serves) : NULL, "device_needed",
        needs_more ? json_null() : output_json_number(advice->is_short, figures->enough));
}

static json_t *shortage_json(const struct advice *advice)
{
    const struct advise_string *with =
        advice->advised.config ? &advice->advised : &advice->in_force;

    if (!advice->is_short)
        return json_null();
    return json_pack("{s:I, s:I, s:b, s:o}", "device_bytes", (json_int_t)advice_target(advice),
                     "failed", (json_int_t)advice->in_force.figures.failed, "completes",
                     (int)with->figures.serves, "least_change", text_if(advice->least.config));
}

json_t *advise_report_json(const struct advice *advice)
{
    const struct programme *programme = &advice->trials->programmes[0];
    char *why = advise_why(advice);
    json_t *object = json_pack(
        "{s:o, s:I, s:I, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:o}", "trace",
        text_json(programme->file), "device_bytes", (json_int_t)programme->device_bytes, "replayed",
        (json_int_t)advice->replayed, "why", why, "certain", (int)advice->is_certain, "notes",
        notes_json(advice), "omitted", left_out_json(advice), "in_force",
        string_json(advice, &advice->in_force, 0), "advised",
        string_json(advice, &advice->advised, 0), "runner_up",
        string_json(advice, &advice->runner_up, 0), "out_of_memory", shortage_json(advice));

    free(why);
    return object;
}

/* What came of a string in the ranks together. */
static json_t *together_json(const struct advise_string *string)
{
    if (!string->config)
        return json_null();
    return json_pack(
        "{s:o, s:i, s:I, s:o?}", "config", text_json(string->config), "changes",
        (int)string->changes, "peak_reserved", (json_int_t)string->figures.peak_reserved,
        "min_device",
        output_json_number(string->figures.has_min_device, string->figures.min_device));
}

static json_t *rank_json(const struct advise_ranks *ranks, const struct advice *advice, size_t rank)
{
    const struct programme *programme = &advice->trials->programmes[rank];

    return json_pack("{s:s, s:o, s:b, s:b, s:I, s:I, s:o, s:o, s:o}", "rank", ranks->of[rank].name,
                     "trace", text_json(programme->file), "odd", (int)ranks->of[rank].is_odd,
                     "typical", (int)ranks->of[rank].is_typical, "device_bytes",
                     (json_int_t)programme->device_bytes, "target_bytes",
                     (json_int_t)programme->target_bytes, "in_force",
                     string_json(advice, &advice->in_force, rank), "advised",
                     string_json(advice, &advice->advised, rank), "runner_up",
                     string_json(advice, &advice->runner_up, rank));
}

json_t *advise_report_ranks_json(const struct advise_ranks *ranks, const struct advice *advice)
{
    json_t *list = json_array(), *object;
    char *why = advise_why(advice);

    for (size_t i = 0; i < advice->trials->count; i++)
        output_json_add(&list, rank_json(ranks, advice, i));
    object = json_pack(
        "{s:o, s:o, s:s?, s:i, s:i, s:s, s:b, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o}", "folder",
        text_json(ranks->folder), "verdict", text_json(ranks->verdict), "odd", ranks->odd, "files",
        (int)ranks->files, "replayed", (int)advice->replayed, "why", why, "certain",
        (int)advice->is_certain, "notes", notes_json(advice), "omitted", left_out_json(advice),
        "in_force", together_json(&advice->in_force), "advised", together_json(&advice->advised),
        "runner_up", together_json(&advice->runner_up), "out_of_memory", (int)advice->is_short,
        "least_change", text_if(advice->least.config), "ranks", list);
    free(why);
    return object;
}
