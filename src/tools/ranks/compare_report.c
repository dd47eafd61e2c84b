/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/compare_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/printable.h"
#include "src/tools/output/style.h"

/* --- Amounts. --- */

static uint64_t magnitude(int64_t number)
{
    return number < 0 ? -(uint64_t)number : (uint64_t)number;
}

/* How long blocks lived, on average. */
static uint64_t mean_life(const struct profile_figures *figures)
{
    const uint64_t blocks = figures->of[PROFILE_BLOCKS];

    return blocks == 0 ? 0 : (figures->of[PROFILE_LIVED] + blocks / 2) / blocks;
}

/* --- The sentence. --- */

static const char *const pending_place = "in pending blocks", *const idle_place = "in idle pages";

static void print_place(FILE *out, const struct compare_row *row)
{
    if (row->kind == COMPARE_SITE)
        (void)fprintf(out, "at %s", row->name_b ? row->name_b : row->name_a);
    else
        (void)fputs(row->kind == COMPARE_PENDING ? pending_place : idle_place, out);
}

static const char *direction(int64_t delta)
{
    return delta < 0 ? "less" : "more";
}

/* Why a row differs, where it says so by itself. */
static void print_reason(FILE *out, const struct compare_verdict *verdict,
                         const struct compare_names *names)
{
    const struct compare_row *row = verdict->most;
    const uint64_t life_a = mean_life(row->a), life_b = mean_life(row->b);

    if (row->kind != COMPARE_SITE)
        return;
    if (!row->name_a || !row->name_b)
        (void)fprintf(out, ", where %s allocates nothing", row->name_a ? names->b : names->a);
    else if (verdict->measure == COMPARE_LIVE && life_a != life_b)
        (void)fprintf(out, ", where a block lives for %s, not %s", amount_of(life_b, "event").text,
                      amount_count(life_a).text);
}

/* Which part of a difference is where, and why there. */
static void print_part(FILE *out, const struct compare_verdict *verdict,
                       const struct compare_names *names)
{
    const int64_t part = compare_delta(verdict->measure, verdict->most);
    const double share = (double)part / (double)verdict->delta;

    if (share > 1.01) {
        (void)fputs(": ", out);
        (void)fprintf(out, "%s %s ", amount_bytes(magnitude(part)).text, direction(part));
    } else if (share >= 0.99) {
        (void)fputs(", all of it ", out);
    } else {
        (void)fprintf(out, "%s%s%s", share >= 0.5 ? ", " : ", the largest part, ",
                      amount_bytes(magnitude(part)).text, share >= 0.5 ? " of it " : ", ");
    }
    print_place(out, verdict->most);
    print_reason(out, verdict, names);
    if (share > 1.01)
        (void)fprintf(out, ", and %s elsewhere", direction(-part));
}

static const struct {
    const char *does, *when;
} words[] = {
    [COMPARE_PEAK_RESERVED] = {"reserves", " at the peak"},
    [COMPARE_PEAK_LIVE] = {"has", " allocated at the peak"},
    [COMPARE_STRANDED] = {"has", " fragmented on average"},
    [COMPARE_LIVE] = {"has", " allocated on average"},
    [COMPARE_RESERVED] = {"reserves", " on average"},
};

static void print_whole(FILE *out, const struct compare_verdict *verdict,
                        const struct compare_names *names)
{
    (void)fprintf(out, "%s %s %s %s%s", names->b, words[verdict->measure].does,
                  amount_bytes(magnitude(verdict->delta)).text, direction(verdict->delta),
                  words[verdict->measure].when);
    if (!verdict->most)
        return;
    print_part(out, verdict, names);
}

static void print_shifted(FILE *out, const struct compare_verdict *verdict,
                          const struct compare_names *names)
{
    const int64_t most = compare_delta(verdict->measure, verdict->most);

    (void)fprintf(out, "%s %s as much as %s%s, but %s %s ", names->b, words[verdict->measure].does,
                  names->a, words[verdict->measure].when, amount_bytes(magnitude(most)).text,
                  direction(most));
    print_place(out, verdict->most);
    print_reason(out, verdict, names);
    if (!verdict->less)
        return;
    (void)fprintf(out, ", and %s less ",
                  amount_bytes(magnitude(compare_delta(verdict->measure, verdict->less))).text);
    print_place(out, verdict->less);
}

char *compare_report_verdict(const struct compare *compare, const struct compare_names *names)
{
    const struct compare_verdict verdict = compare_judge(compare);
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    switch (verdict.result) {
    case COMPARE_EQUAL:
        (void)fprintf(out, "%s and %s differ by nothing", names->a, names->b);
        break;
    case COMPARE_CLOSE:
        (void)fprintf(out, "%s and %s differ by less than 1 %% of what is reserved", names->a,
                      names->b);
        break;
    case COMPARE_WHOLE:
        print_whole(out, &verdict, names);
        break;
    case COMPARE_SHIFTED:
        print_shifted(out, &verdict, names);
        break;
    }
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* --- Tables. --- */

static void print_line(FILE *out, uint64_t a, uint64_t b, const char *name)
{
    (void)fprintf(out, "%12s  %12s  %12s  %s\n", amount_bytes(a).text, amount_bytes(b).text,
                  amount_change((int64_t)(b - a)).text, name);
}

static void print_sums(FILE *out, const struct compare *compare, const struct compare_names *names,
                       bool by_events)
{
    static const char *const lines[] = {
        [COMPARE_PEAK_RESERVED] = "reserved at the peak",
        [COMPARE_PEAK_LIVE] = "allocated at the peak",
        [COMPARE_STRANDED] = "fragmented, on average",
        [COMPARE_LIVE] = "allocated, on average",
        [COMPARE_RESERVED] = "reserved, on average",
    };
    static const char *const at_end[] = {"reserved", "allocated", "fragmented"};
    const struct profile *a = compare->a, *b = compare->b;

    style_heading(out, "%12s  %12s  %12s", names->a, names->b, "difference");
    for (int i = 0; i < (by_events ? COMPARE_MEASURES : COMPARE_LIVE); i++)
        print_line(out, compare_whole((enum compare_measure)i, a),
                   compare_whole((enum compare_measure)i, b), by_events ? lines[i] : at_end[i]);
    if (!by_events)
        return;
    print_line(out, a->pending.of[PROFILE_CACHED], b->pending.of[PROFILE_CACHED],
               "pending, on average");
    print_line(out, a->idle.of[PROFILE_CACHED], b->idle.of[PROFILE_CACHED], "idle, on average");
}

/* "12 -> 40"; "=" for no difference, and "-" on a side that has no such thing. */
static void print_pair(FILE *out, const struct compare_row *row, uint64_t a, uint64_t b)
{
    char both[72] = "=";

    if (a != b)
        (void)snprintf(both, sizeof(both), "%s -> %s",
                       row->a->of[PROFILE_BLOCKS] > 0 ? amount_count(a).text : "-",
                       row->b->of[PROFILE_BLOCKS] > 0 ? amount_count(b).text : "-");
    (void)fprintf(out, "  %16s", both);
}

static void print_name(FILE *out, const struct compare_row *row, const struct compare_names *names)
{
    if (row->kind != COMPARE_SITE) {
        (void)fputs(row->kind == COMPARE_PENDING
                        ? "pending: freed, but another stream may still use it"
                        : "idle: whole pages without a block",
                    out);
        return;
    }
    printable_print(out, row->name_b ? row->name_b : row->name_a);
    if (!row->name_a || !row->name_b)
        (void)fprintf(out, "  (%s alone)", row->name_a ? names->a : names->b);
    else if (strcmp(row->name_a, row->name_b) != 0) {
        (void)fprintf(out, "  (%s: ", names->a);
        printable_print(out, row->name_a);
        (void)fputc(')', out);
    }
}

static void print_row(FILE *out, const struct compare_row *row, const struct compare_names *names,
                      bool by_events)
{
    const uint64_t *a = row->a->of, *b = row->b->of;
    const int64_t deltas[] = {compare_delta(COMPARE_PEAK_RESERVED, row),
                              (int64_t)(b[PROFILE_CACHED] - a[PROFILE_CACHED]),
                              (int64_t)(b[PROFILE_LIVE] - a[PROFILE_LIVE])};

    for (size_t i = 0; i < (by_events ? 3 : 2); i++)
        (void)fprintf(out, "%s%12s", i > 0 ? "  " : "", amount_change(deltas[i]).text);
    if (by_events)
        print_pair(out, row, mean_life(row->a), mean_life(row->b));
    print_pair(out, row, a[PROFILE_BLOCKS], b[PROFILE_BLOCKS]);
    (void)fputs("  ", out);
    print_name(out, row, names);
    (void)fputc('\n', out);
}

void compare_report_tables(FILE *out, const struct compare *compare,
                           const struct compare_names *names, uint32_t rows, bool by_events)
{
    print_sums(out, compare, names, by_events);
    if (compare->differing > 0 && by_events)
        style_heading(out, "%12s  %12s  %12s  %16s  %16s  site", "at the peak", "fragmented",
                      "allocated", "events lived", "blocks");
    else if (compare->differing > 0)
        style_heading(out, "%12s  %12s  %16s  site", "reserved", "fragmented", "blocks");
    for (size_t i = 0; i < compare->differing && i < rows; i++)
        print_row(out, &compare->rows[i], names, by_events);
    if (compare->differing > rows)
        (void)fprintf(out, "more rows that differ: %s\n",
                      amount_count(compare->differing - rows).text);
    (void)fprintf(out, "%srows that do not differ: %s\n", compare->differing == 0 ? "\n" : "",
                  amount_count(compare->row_count - compare->differing).text);
}

/* --- JSON. --- */

json_t *compare_report_whole(const struct profile *profile)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:{s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I}}", "events",
                     (json_int_t)profile->events, "lost", (json_int_t)profile->lost, "no_room",
                     (json_int_t)profile->no_room, "omitted", (json_int_t)profile->left_out, "peak",
                     "reserved", (json_int_t)compare_whole(COMPARE_PEAK_RESERVED, profile),
                     "allocated", (json_int_t)compare_whole(COMPARE_PEAK_LIVE, profile), "average",
                     "reserved", (json_int_t)compare_whole(COMPARE_RESERVED, profile), "allocated",
                     (json_int_t)compare_whole(COMPARE_LIVE, profile), "fragmented",
                     (json_int_t)compare_whole(COMPARE_STRANDED, profile), "pending",
                     (json_int_t)profile->pending.of[PROFILE_CACHED], "idle",
                     (json_int_t)profile->idle.of[PROFILE_CACHED]);
}

static json_t *figures_json(const struct profile_figures *figures)
{
    const uint64_t *of = figures->of;

    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "peak_allocated",
                     (json_int_t)of[PROFILE_PEAK_LIVE], "peak_cached",
                     (json_int_t)of[PROFILE_PEAK_CACHED], "allocated", (json_int_t)of[PROFILE_LIVE],
                     "cached", (json_int_t)of[PROFILE_CACHED], "blocks",
                     (json_int_t)of[PROFILE_BLOCKS], "lived", (json_int_t)of[PROFILE_LIVED]);
}

static json_t *name_json(const struct compare_row *row, const char *name)
{
    if (row->kind == COMPARE_SITE)
        return name ? printable_json(name) : json_null();
    return json_string(row->kind == COMPARE_PENDING ? "(pending)" : "(idle)");
}

json_t *compare_report_rows(const struct compare *compare)
{
    json_t *list = json_array();

    for (size_t i = 0; i < compare->row_count; i++) {
        const struct compare_row *row = &compare->rows[i];

        output_json_add(&list, json_pack("{s:o, s:o, s:b, s:o, s:o}", "site_a",
                                         name_json(row, row->name_a), "site_b",
                                         name_json(row, row->name_b), "differs",
                                         (int)(i < compare->differing), "a", figures_json(row->a),
                                         "b", figures_json(row->b)));
    }
    return list;
}
