/* SPDX-License-Identifier: MIT */
#include "src/tools/ranks/compare.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "src/tools/replay_model/fragmentation.h"

#define VERDICT_PART  100  /* a verdict names differences of 1/100 of the reserved bytes */
#define AVERAGE_PART  1000 /* averages differ by more than 1/1000 of the reserved bytes */
#define LIFETIME_PART 20   /* lifetimes differ by more than 1/20 */

/* --- Measures. --- */

uint64_t compare_amount(enum compare_measure measure, enum compare_kind kind,
                        const struct profile_figures *figures)
{
    const uint64_t *of = figures->of;

    switch (measure) {
    case COMPARE_PEAK_RESERVED:
        return of[PROFILE_PEAK_ALLOCATED] + of[PROFILE_PEAK_CACHED];
    case COMPARE_PEAK_ALLOCATED:
        return of[PROFILE_PEAK_ALLOCATED];
    case COMPARE_FRAGMENTED:
        return kind == COMPARE_SITE ? of[PROFILE_CACHED] : 0;
    case COMPARE_ALLOCATED:
        return of[PROFILE_ALLOCATED];
    case COMPARE_RESERVED:
    case COMPARE_MEASURES:
        break;
    }
    return of[PROFILE_ALLOCATED] + of[PROFILE_CACHED];
}

uint64_t compare_total(enum compare_measure measure, const struct profile *profile)
{
    const uint64_t bytes = compare_amount(measure, COMPARE_SITE, &profile->total);
    const uint64_t other_cached =
        profile->pending.of[PROFILE_CACHED] + profile->idle.of[PROFILE_CACHED];

    if (measure != COMPARE_FRAGMENTED)
        return bytes;
    return bytes > other_cached ? bytes - other_cached : 0;
}

static int64_t subtract(uint64_t b, uint64_t a)
{
    const uint64_t difference = b > a ? b - a : a - b;
    const int64_t bounded = difference > PROFILE_MAX ? INT64_MAX : (int64_t)difference;

    return b > a ? bounded : -bounded;
}

int64_t compare_delta(enum compare_measure measure, const struct compare_row *row)
{
    return subtract(compare_amount(measure, row->kind, row->b),
                    compare_amount(measure, row->kind, row->a));
}

static uint64_t get_magnitude(int64_t number)
{
    return number < 0 ? -(uint64_t)number : (uint64_t)number;
}

/* --- Rows. --- */

static const struct profile_figures no_figures;

static void add_row(struct compare *compare, const struct profile_site *a,
                    const struct profile_site *b)
{
    compare->rows[compare->row_count++] = (struct compare_row){
        .kind = COMPARE_SITE,
        .name_a = a ? a->name : NULL,
        .name_b = b ? b->name : NULL,
        .a = a ? &a->figures : &no_figures,
        .b = b ? &b->figures : &no_figures,
    };
}

static void match_names(struct compare *compare)
{
    const struct profile_site *const a = compare->a->sites, *const b = compare->b->sites;
    const size_t count_a = compare->a->site_count, count_b = compare->b->site_count;
    size_t at_a = 0, at_b = 0;

    while (at_a < count_a || at_b < count_b) {
        const int order = at_a == count_a   ? 1
                          : at_b == count_b ? -1
                                            : strcmp(a[at_a].name, b[at_b].name);

        add_row(compare, order <= 0 ? &a[at_a++] : NULL, order >= 0 ? &b[at_b++] : NULL);
    }
}

/* --- Moved lines. --- */

/* Skip the number of a line: `:212` before a space or the end. */
static const char *skip_line(const char *text)
{
    const char *at = text + 1;

    if (*text != ':' || !isdigit((unsigned char)*at))
        return text;
    while (isdigit((unsigned char)*at))
        at++;
    return *at == ' ' || *at == '\0' ? at : text;
}

static int compare_without_lines(const char *first, const char *second)
{
    for (;; first++, second++) {
        first = skip_line(first);
        second = skip_line(second);
        if (*first != *second || *first == '\0')
            return (unsigned char)*first - (unsigned char)*second;
    }
}

static const char *get_single_name(const struct compare_row *row)
{
    return row->name_a ? row->name_a : row->name_b;
}

/* Compare rows that only one side has: by the name without lines, then by side, then by lines. */
static int compare_single(const void *first, const void *second)
{
    const struct compare_row *a = first, *b = second;
    const int order = compare_without_lines(get_single_name(a), get_single_name(b));

    if (order != 0)
        return order;
    if (!a->name_a != !b->name_a)
        return a->name_a ? -1 : 1;
    return strverscmp(get_single_name(a), get_single_name(b));
}

/* Find the end of the single rows that differ only in lines; *of_a is the number of rows of A, which come first. */
static size_t find_group_end(const struct compare *compare, size_t first, size_t *of_a)
{
    size_t end = first;

    *of_a = 0;
    for (; end < compare->row_count &&
           compare_without_lines(get_single_name(&compare->rows[first]),
                                 get_single_name(&compare->rows[end])) == 0;
         end++)
        *of_a += compare->rows[end].name_a != NULL;
    return end;
}

static void match_moved(struct compare *compare, size_t single)
{
    size_t count = single, of_a;

    qsort(compare->rows + single, compare->row_count - single, sizeof(*compare->rows),
          compare_single);
    for (size_t first = single, end; first < compare->row_count; first = end) {
        end = find_group_end(compare, first, &of_a);
        const bool moved = 2 * of_a == end - first;

        for (size_t i = first; i < (moved ? first + of_a : end); i++) {
            struct compare_row row = compare->rows[i];

            if (moved) {
                row.name_b = compare->rows[i + of_a].name_b;
                row.b = compare->rows[i + of_a].b;
            }
            compare->rows[count++] = row;
        }
    }
    compare->row_count = count;
}

/* Move rows that both sides have to the front.  Returns their number. */
static size_t partition_single(struct compare *compare)
{
    size_t common = 0;

    for (size_t i = 0; i < compare->row_count; i++) {
        const struct compare_row row = compare->rows[i];

        if (!row.name_a || !row.name_b)
            continue;
        compare->rows[i] = compare->rows[common];
        compare->rows[common++] = row;
    }
    return common;
}

/* --- The order. --- */

/* Get the bytes reserved at the peak, of A or B, whichever are more. */
static uint64_t get_peak_reserved(const struct compare *compare)
{
    const uint64_t a = compare_total(COMPARE_PEAK_RESERVED, compare->a);
    const uint64_t b = compare_total(COMPARE_PEAK_RESERVED, compare->b);

    return a > b ? a : b;
}

static uint64_t compute_distance(uint64_t a, uint64_t b)
{
    return a > b ? a - b : b - a;
}

static bool is_different(const struct compare *compare, const struct compare_row *row)
{
    const uint64_t *a = row->a->of, *b = row->b->of;
    const uint64_t min_bytes = get_peak_reserved(compare) / AVERAGE_PART;

    return a[PROFILE_PEAK_ALLOCATED] != b[PROFILE_PEAK_ALLOCATED] ||
           a[PROFILE_PEAK_CACHED] != b[PROFILE_PEAK_CACHED] ||
           a[PROFILE_BLOCKS] != b[PROFILE_BLOCKS] ||
           compute_distance(a[PROFILE_ALLOCATED], b[PROFILE_ALLOCATED]) > min_bytes ||
           compute_distance(a[PROFILE_CACHED], b[PROFILE_CACHED]) > min_bytes ||
           compute_distance(a[PROFILE_LIVED], b[PROFILE_LIVED]) > a[PROFILE_LIVED] / LIFETIME_PART;
}

/* Compare rows: rows that differ first, by the first measure in which their differences are unequal, then by name. */
static int compare_rows(const void *first, const void *second, void *context)
{
    const struct compare *compare = context;
    const struct compare_row *a = first, *b = second;
    const bool a_differs = is_different(compare, a), b_differs = is_different(compare, b);

    if (a_differs != b_differs)
        return a_differs ? -1 : 1;
    for (int i = 0; i < COMPARE_MEASURES; i++) {
        const uint64_t of_a = get_magnitude(compare_delta((enum compare_measure)i, a));
        const uint64_t of_b = get_magnitude(compare_delta((enum compare_measure)i, b));

        if (of_a != of_b)
            return of_a > of_b ? -1 : 1;
    }
    if (a->kind != b->kind)
        return a->kind < b->kind ? -1 : 1;
    return a->kind == COMPARE_SITE ? strcmp(get_single_name(a), get_single_name(b)) : 0;
}

bool compare_init(struct compare *compare, const struct profile *a, const struct profile *b,
                  bool may_move)
{
    *compare = (struct compare){.a = a, .b = b};
    compare->rows = malloc((a->site_count + b->site_count + 2) * sizeof(*compare->rows));
    if (!compare->rows)
        return false;
    match_names(compare);
    if (may_move)
        match_moved(compare, partition_single(compare));
    compare->rows[compare->row_count++] =
        (struct compare_row){COMPARE_PENDING, NULL, NULL, &a->pending, &b->pending};
    compare->rows[compare->row_count++] =
        (struct compare_row){COMPARE_IDLE, NULL, NULL, &a->idle, &b->idle};
    qsort_r(compare->rows, compare->row_count, sizeof(*compare->rows), compare_rows, compare);
    while (compare->differing < compare->row_count &&
           is_different(compare, &compare->rows[compare->differing]))
        compare->differing++;
    return true;
}

void compare_fini(struct compare *compare)
{
    free(compare->rows);
    *compare = (struct compare){0};
}

/* --- The verdict. --- */

/* Find the row with the largest difference in a direction; NULL: none. */
static const struct compare_row *find_largest(const struct compare *compare,
                                              enum compare_measure measure, bool is_decrease)
{
    const struct compare_row *largest = NULL;

    for (size_t i = 0; i < compare->row_count; i++) {
        const struct compare_row *row = &compare->rows[i];
        const int64_t delta = compare_delta(measure, row);

        if ((is_decrease ? delta < 0 : delta > 0) &&
            (!largest || get_magnitude(delta) > get_magnitude(compare_delta(measure, largest))))
            largest = row;
    }
    return largest;
}

static bool is_equal(const struct compare *compare)
{
    for (size_t i = 0; i < compare->row_count; i++)
        if (memcmp(compare->rows[i].a, compare->rows[i].b, sizeof(*compare->rows[i].a)) != 0)
            return false;
    return true;
}

static bool is_shifted(const struct compare *compare, enum compare_measure measure,
                       uint64_t min_bytes, struct compare_verdict *out)
{
    const struct compare_row *increase = find_largest(compare, measure, false);
    const struct compare_row *decrease = find_largest(compare, measure, true);

    if (increase && get_magnitude(compare_delta(measure, increase)) < min_bytes)
        increase = NULL;
    if (decrease && get_magnitude(compare_delta(measure, decrease)) < min_bytes)
        decrease = NULL;
    if (!increase && !decrease)
        return false;
    *out = (struct compare_verdict){.result = COMPARE_SHIFTED,
                                    .measure = measure,
                                    .largest = increase ? increase : decrease,
                                    .decrease = increase ? decrease : NULL};
    return true;
}

struct compare_verdict compare_judge(const struct compare *compare)
{
    const uint64_t part = get_peak_reserved(compare) / VERDICT_PART,
                   min_bytes = part > 0 ? part : 1;
    struct compare_verdict verdict = {.result = is_equal(compare) ? COMPARE_EQUAL : COMPARE_CLOSE};

    for (int i = 0; i < COMPARE_MEASURES; i++) {
        const enum compare_measure measure = (enum compare_measure)i;
        const int64_t delta =
            subtract(compare_total(measure, compare->b), compare_total(measure, compare->a));

        if (get_magnitude(delta) >= min_bytes)
            return (struct compare_verdict){.result = COMPARE_TOTAL,
                                            .measure = measure,
                                            .delta = delta,
                                            .largest = find_largest(compare, measure, delta < 0)};
    }
    for (int i = 0; i < COMPARE_MEASURES; i++)
        if (is_shifted(compare, (enum compare_measure)i, min_bytes, &verdict))
            break;
    return verdict;
}

static uint64_t mean_lifetime(const struct profile_figures *figures)
{
    const uint64_t blocks = figures->of[PROFILE_BLOCKS];

    return blocks == 0 ? 0 : (figures->of[PROFILE_LIVED] + blocks / 2) / blocks;
}

/* --- The report of the verdict. --- */

static const char *const pending_phrase = "in pending blocks", *const idle_phrase = "in idle pages";

static void print_row_name(FILE *out, const struct compare_row *row)
{
    if (row->kind == COMPARE_SITE)
        (void)fprintf(out, "at %s", row->name_b ? row->name_b : row->name_a);
    else
        (void)fputs(row->kind == COMPARE_PENDING ? pending_phrase : idle_phrase, out);
}

static const char *describe_direction(int64_t delta)
{
    return delta < 0 ? "less" : "more";
}

/* Print the reason of a difference, if the row shows it. */
static void print_reason(FILE *out, const struct compare_verdict *verdict,
                         const struct compare_names *names)
{
    const struct compare_row *row = verdict->largest;
    const uint64_t lifetime_a = mean_lifetime(row->a), lifetime_b = mean_lifetime(row->b);

    if (row->kind != COMPARE_SITE)
        return;
    if (!row->name_a || !row->name_b)
        (void)fprintf(out, ", where %s allocates nothing", row->name_a ? names->b : names->a);
    else if (verdict->measure == COMPARE_ALLOCATED && lifetime_a != lifetime_b)
        (void)fprintf(out, ", where a block lives for %s, not %s",
                      amount_of(lifetime_b, "event").text, amount_count(lifetime_a).text);
}

/* Print the part of a difference at its largest row. */
static void print_part(FILE *out, const struct compare_verdict *verdict,
                       const struct compare_names *names)
{
    const int64_t part = compare_delta(verdict->measure, verdict->largest);
    const double share = (double)part / (double)verdict->delta;

    if (share > 1.01) {
        (void)fputs(": ", out);
        (void)fprintf(out, "%s %s ", amount_bytes(get_magnitude(part)).text,
                      describe_direction(part));
    } else if (share >= 0.99) {
        (void)fputs(", all of it ", out);
    } else {
        (void)fprintf(out, "%s%s%s", share >= 0.5 ? ", " : ", the largest part, ",
                      amount_bytes(get_magnitude(part)).text, share >= 0.5 ? " of it " : ", ");
    }
    print_row_name(out, verdict->largest);
    print_reason(out, verdict, names);
    if (share > 1.01)
        (void)fprintf(out, ", and %s elsewhere", describe_direction(-part));
}

static const struct {
    const char *does, *when;
} phrases[] = {
    [COMPARE_PEAK_RESERVED] = {"reserves", " at the peak"},
    [COMPARE_PEAK_ALLOCATED] = {"has", " allocated at the peak"},
    [COMPARE_FRAGMENTED] = {"has", " fragmented on average"},
    [COMPARE_ALLOCATED] = {"has", " allocated on average"},
    [COMPARE_RESERVED] = {"reserves", " on average"},
};

static void print_total(FILE *out, const struct compare_verdict *verdict,
                        const struct compare_names *names)
{
    (void)fprintf(out, "%s %s %s %s%s", names->b, phrases[verdict->measure].does,
                  amount_bytes(get_magnitude(verdict->delta)).text,
                  describe_direction(verdict->delta), phrases[verdict->measure].when);
    if (!verdict->largest)
        return;
    print_part(out, verdict, names);
}

static void print_shifted(FILE *out, const struct compare_verdict *verdict,
                          const struct compare_names *names)
{
    const int64_t delta = compare_delta(verdict->measure, verdict->largest);

    (void)fprintf(out, "%s %s as much as %s%s, but %s %s ", names->b,
                  phrases[verdict->measure].does, names->a, phrases[verdict->measure].when,
                  amount_bytes(get_magnitude(delta)).text, describe_direction(delta));
    print_row_name(out, verdict->largest);
    print_reason(out, verdict, names);
    if (!verdict->decrease)
        return;
    (void)fprintf(
        out, ", and %s less ",
        amount_bytes(get_magnitude(compare_delta(verdict->measure, verdict->decrease))).text);
    print_row_name(out, verdict->decrease);
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
        (void)fprintf(out, "%s and %s do not differ", names->a, names->b);
        break;
    case COMPARE_CLOSE:
        (void)fprintf(out, "%s and %s differ by less than 1 %% of the reserved bytes", names->a,
                      names->b);
        break;
    case COMPARE_TOTAL:
        print_total(out, &verdict, names);
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
    (void)fprintf(out, "%12s  %12s  %13s  %s\n", amount_bytes(a).text, amount_bytes(b).text,
                  amount_change((int64_t)(b - a)).text, name);
}

static void print_sums(FILE *out, const struct compare *compare, const struct compare_names *names,
                       bool by_events)
{
    static const char *const lines[] = {
        [COMPARE_PEAK_RESERVED] = "peak reserved",
        [COMPARE_PEAK_ALLOCATED] = "allocated at the peak",
        [COMPARE_FRAGMENTED] = "fragmented, average over events",
        [COMPARE_ALLOCATED] = "allocated, average over events",
        [COMPARE_RESERVED] = "reserved, average over events",
    };
    static const char *const at_end[] = {"reserved", "allocated", "fragmented"};
    const struct profile *a = compare->a, *b = compare->b;

    text_print_heading(out, "%12s  %12s  %13s", names->a, names->b, "difference");
    for (int i = 0; i < (by_events ? COMPARE_MEASURES : COMPARE_ALLOCATED); i++)
        print_line(out, compare_total((enum compare_measure)i, a),
                   compare_total((enum compare_measure)i, b), by_events ? lines[i] : at_end[i]);
    if (!by_events)
        return;
    print_line(out, a->pending.of[PROFILE_CACHED], b->pending.of[PROFILE_CACHED],
               "pending, average over events");
    print_line(out, a->idle.of[PROFILE_CACHED], b->idle.of[PROFILE_CACHED],
               "idle, average over events");
}

/* "12 -> 40"; "=" for no difference, and "-" for a side without blocks; "" for a row that is no site. */
static void print_pair(FILE *out, int width, const struct compare_row *row, uint64_t a, uint64_t b)
{
    char text[72] = "=";

    if (row->kind != COMPARE_SITE)
        text[0] = '\0';
    else if (a != b)
        (void)snprintf(text, sizeof(text), "%s -> %s",
                       row->a->of[PROFILE_BLOCKS] > 0 ? amount_count(a).text : "-",
                       row->b->of[PROFILE_BLOCKS] > 0 ? amount_count(b).text : "-");
    (void)fprintf(out, "  %*s", width, text);
}

static void print_name(FILE *out, const struct compare_row *row, const struct compare_names *names)
{
    if (row->kind != COMPARE_SITE) {
        (void)fputs(
            row->kind == COMPARE_PENDING ? FRAGMENTATION_PENDING_ROW : FRAGMENTATION_IDLE_ROW, out);
        return;
    }
    text_print(out, row->name_b ? row->name_b : row->name_a);
    if (!row->name_a || !row->name_b)
        (void)fprintf(out, "  (only in %s)", row->name_a ? names->a : names->b);
    else if (strcmp(row->name_a, row->name_b) != 0) {
        (void)fprintf(out, "  (%s: ", names->a);
        text_print(out, row->name_a);
        (void)fputc(')', out);
    }
}

static void print_row(FILE *out, const struct compare_row *row, const struct compare_names *names,
                      bool by_events)
{
    const uint64_t *a = row->a->of, *b = row->b->of;
    const int64_t deltas[] = {compare_delta(COMPARE_PEAK_RESERVED, row),
                              (int64_t)(b[PROFILE_CACHED] - a[PROFILE_CACHED]),
                              (int64_t)(b[PROFILE_ALLOCATED] - a[PROFILE_ALLOCATED])};

    for (size_t i = 0; i < (by_events ? 3 : 2); i++)
        (void)fprintf(out, i > 0 ? "  %13s" : "%13s", amount_change(deltas[i]).text);
    if (by_events)
        print_pair(out, 16, row, mean_lifetime(row->a), mean_lifetime(row->b));
    print_pair(out, 14, row, a[PROFILE_BLOCKS], b[PROFILE_BLOCKS]);
    (void)fputs("  ", out);
    print_name(out, row, names);
    (void)fputc('\n', out);
}

void compare_report_tables(FILE *out, const struct compare *compare,
                           const struct compare_names *names, uint32_t rows, bool by_events)
{
    print_sums(out, compare, names, by_events);
    if (compare->differing > 0 && by_events)
        text_print_heading(out, "%13s  %13s  %13s  %16s  %14s  site", "peak reserved", "fragmented",
                           "allocated", "lifetime, events", "blocks");
    else if (compare->differing > 0)
        text_print_heading(out, "%13s  %13s  %14s  site", "reserved", "fragmented", "blocks");
    for (size_t i = 0; i < compare->differing && i < rows; i++)
        print_row(out, &compare->rows[i], names, by_events);
    if (compare->differing > rows)
        (void)fprintf(out, "more rows that differ: %s\n",
                      amount_count(compare->differing - rows).text);
    (void)fprintf(out, "%srows that do not differ: %s\n", compare->differing == 0 ? "\n" : "",
                  amount_count(compare->row_count - compare->differing).text);
}

/* --- JSON. --- */

json_t *compare_report_totals(const struct profile *profile)
{
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:{s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I}}",
                     "entries", (json_int_t)profile->entries, "lost", (json_int_t)profile->lost,
                     "truncated", (json_int_t)profile->truncated, "synthetic",
                     (json_int_t)profile->synthetic, "omitted", (json_int_t)profile->omitted,
                     "peak", "reserved", (json_int_t)compare_total(COMPARE_PEAK_RESERVED, profile),
                     "allocated", (json_int_t)compare_total(COMPARE_PEAK_ALLOCATED, profile),
                     "average", "reserved", (json_int_t)compare_total(COMPARE_RESERVED, profile),
                     "allocated", (json_int_t)compare_total(COMPARE_ALLOCATED, profile),
                     "fragmented", (json_int_t)compare_total(COMPARE_FRAGMENTED, profile),
                     "pending", (json_int_t)profile->pending.of[PROFILE_CACHED], "idle",
                     (json_int_t)profile->idle.of[PROFILE_CACHED]);
}

static json_t *figures_json(const struct profile_figures *figures)
{
    const uint64_t *of = figures->of;

    return json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I}", "peak_allocated", (json_int_t)of[PROFILE_PEAK_ALLOCATED],
        "peak_cached", (json_int_t)of[PROFILE_PEAK_CACHED], "allocated",
        (json_int_t)of[PROFILE_ALLOCATED], "cached", (json_int_t)of[PROFILE_CACHED], "blocks",
        (json_int_t)of[PROFILE_BLOCKS], "lived", (json_int_t)of[PROFILE_LIVED]);
}

static json_t *name_json(const struct compare_row *row, const char *name)
{
    if (row->kind == COMPARE_SITE)
        return name ? text_json(name) : json_null();
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
