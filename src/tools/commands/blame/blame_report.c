/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/blame/blame_report.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"
#include "src/tools/reading/recording.h"

/* --- Amounts. --- */

/* Compute the average bytes over the time of the recording. */
static uint64_t average(const struct blame *blame, fragmentation_sum sum)
{
    return (uint64_t)((sum + blame->duration_us / 2) / blame->duration_us);
}

static bool is_host(const struct blame *blame)
{
    return blame->device->number == RECORDING_HOST;
}

/* --- Text. --- */

static void print_heading(FILE *out, const struct blame *blame)
{
    const struct fragmentation *sums = &blame->sums;
    const char *const when = blame->is_instant  ? ""
                             : blame->has_times ? "averages over time: "
                                                : "averages over events: ";

    text_print_strong(out, blame->recording->name);
    if (is_host(blame))
        (void)fputs(": pinned host memory, ", out);
    else
        (void)fprintf(out, ": device %d, ", blame->device->number);
    (void)fputs(amount_of(blame->device->event_count, "entry").text, out);
    if (blame->is_instant)
        (void)fputs("; values at the end\n", out);
    else if (blame->has_times)
        (void)fprintf(out, " in %s\n", amount_time((double)blame->duration_us * 1e3).text);
    else
        (void)fputs(" without times\n", out);
    (void)fprintf(out,
                  "%sreserved %s, allocated %s; at the peak of reserved memory: reserved %s, "
                  "allocated %s\n",
                  when, amount_bytes(average(blame, sums->reserved)).text,
                  amount_bytes(average(blame, sums->allocated)).text,
                  amount_bytes(sums->peak.reserved).text, amount_bytes(sums->peak.allocated).text);
}

/* Print the limits of the file: entries that it does not contain. */
static void print_limits(FILE *out, const struct blame *blame)
{
    const struct {
        uint64_t count;
        enum recording_limit limit;
    } limits[] = {
        {blame->device->lost, RECORDING_LIMIT_LOST},
        {blame->device->truncated, RECORDING_LIMIT_TRUNCATED},
        {blame->device->synthetic, RECORDING_LIMIT_SYNTHETIC},
        {blame->omitted, RECORDING_LIMIT_OMITTED},
    };

    if (blame->device->event_count == 0 && !is_host(blame))
        (void)fputs("no history was recorded; record one with `_record_memory_history()` in "
                    "PyTorch, or with the key history:all in xseg\n",
                    out);
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (limits[i].count > 0)
            (void)fprintf(out, "%s\n", recording_file_limit(limits[i].limit, limits[i].count).text);
}

struct row {
    fragmentation_sum amount; /* the sort key */
    fragmentation_sum fragmented, allocated;
    uint64_t peak;
    bool has_allocated; /* false: `allocated` and `peak` are not printed */
};

static void print_row(FILE *out, const struct blame *blame, const struct row *row,
                      fragmentation_sum total)
{
    (void)fprintf(out, "%s  %12s  %12s  %12s  ",
                  amount_share((double)row->amount, (double)total).text,
                  amount_bytes(average(blame, row->fragmented)).text,
                  row->has_allocated ? amount_bytes(average(blame, row->allocated)).text : "",
                  row->has_allocated ? amount_bytes(row->peak).text : "");
}

static void add_site(const struct blame *blame, enum blame_by by, uint32_t number, struct row *row)
{
    const struct fragmentation_site *site = &blame->sums.sites[number];

    row->amount += blame_amount(blame, by, number);
    row->fragmented += site->fragmented;
    row->allocated += site->allocated;
    row->peak += site->peak_bytes;
    row->has_allocated = true;
}

static bool has_blocks(const struct blame *blame, uint32_t number)
{
    return blame->sums.sites[number].blocks > 0;
}

static bool print_sites(FILE *out, const struct blame *blame, enum blame_by by, uint32_t rows)
{
    const fragmentation_sum total = blame_total(blame, by);
    struct row omitted = {0};
    uint64_t omitted_count = 0;

    for (uint32_t i = 0, named = 0; i < blame->sites.count; i++) {
        struct row row = {0};
        char *name;

        if (!has_blocks(blame, blame->order[i]))
            continue;
        if (named++ >= rows) {
            add_site(blame, by, blame->order[i], &omitted);
            omitted_count++;
            continue;
        }
        name = sites_name(&blame->sites, blame->order[i]);
        if (!name)
            return false;
        add_site(blame, by, blame->order[i], &row);
        print_row(out, blame, &row, total);
        text_print(out, name);
        (void)fputc('\n', out);
        free(name);
    }
    if (omitted_count > 0) {
        print_row(out, blame, &omitted, total);
        (void)fprintf(out, "%s more\n", amount_count(omitted_count).text);
    }
    return true;
}

static void print_category(FILE *out, const struct blame *blame, fragmentation_sum amount,
                           const char *name)
{
    const struct row row = {.amount = amount, .fragmented = amount};

    print_row(out, blame, &row, blame_total(blame, BLAME_BY_FRAGMENTED));
    (void)fprintf(out, "%s\n", name);
}

static void print_reasons(FILE *out, const struct blame *blame)
{
    if (blame->reason_count > 0)
        (void)fputs("\nidle at the end, by the reason why it is not released (xseg/stats.h)\n",
                    out);
    for (size_t i = 0; i < blame->reason_count; i++) {
        const struct blame_reason *reason = &blame->reasons[i];

        (void)fprintf(out, "%8s  %12s  ", "", amount_bytes(reason->bytes).text);
        if (reason->reason == 0)
            (void)fputs("part of a larger page that is in use", out);
        else
            text_print(out, recording_text(blame->recording, reason->reason));
        (void)fputc('\n', out);
    }
    if (blame->device->single_page_padding > 0)
        (void)fprintf(out, "\npadding of single-page blocks (key single_page) at the end: %s\n",
                      amount_bytes(blame->device->single_page_padding).text);
}

bool blame_report_text(FILE *out, const struct blame *blame, enum blame_by by, uint32_t rows)
{
    const struct fragmentation *sums = &blame->sums;
    struct row total = {.amount = blame_total(blame, by),
                        .fragmented = by == BLAME_BY_FRAGMENTED ? sums->reserved - sums->allocated
                                                                : sums->fragmented,
                        .allocated = sums->allocated,
                        .peak = sums->peak.allocated,
                        .has_allocated = true};

    print_heading(out, blame);
    print_limits(out, blame);
    text_print_heading(out, "%8s  %12s  %12s  %12s  %s", "share", "fragmented", "allocated",
                       "at the peak", sites_noun(blame->sites.by));
    if (!print_sites(out, blame, by, rows))
        return false;
    if (by == BLAME_BY_FRAGMENTED) {
        print_category(out, blame, sums->pending + sums->near_pending, FRAGMENTATION_PENDING_ROW);
        print_category(out, blame, sums->idle, FRAGMENTATION_IDLE_ROW);
    }
    print_row(out, blame, &total, total.amount);
    (void)fprintf(out, "%s\n", by == BLAME_BY_FRAGMENTED ? FRAGMENTATION_TOTAL_ROW : "total");
    print_reasons(out, blame);
    return true;
}

/* --- JSON. --- */

static json_t *sum_json(fragmentation_sum sum)
{
    char digits[48];
    size_t at = sizeof(digits) - 1;

    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + (int)(sum % 10));
        sum /= 10;
    } while (sum > 0);
    return json_string(digits + at);
}

static json_t *site_json(const struct blame *blame, uint32_t number)
{
    const struct fragmentation_site *site = &blame->sums.sites[number];
    char *name = sites_name(&blame->sites, number);
    json_t *object =
        name ? json_pack("{s:o, s:o, s:o, s:I, s:I}", "site", text_json(name), "fragmented",
                         sum_json(site->fragmented), "allocated", sum_json(site->allocated), "peak",
                         (json_int_t)site->peak_bytes, "blocks", (json_int_t)site->blocks)
             : NULL;

    free(name);
    return object;
}

static json_t *sites_json(const struct blame *blame)
{
    json_t *list = json_array();

    for (uint32_t i = 0; i < blame->sites.count; i++)
        if (has_blocks(blame, blame->order[i]))
            output_json_add(&list, site_json(blame, blame->order[i]));
    return list;
}

static json_t *reasons_json(const struct blame *blame)
{
    json_t *object = json_object();

    for (size_t i = 0; i < blame->reason_count; i++) {
        const struct blame_reason *reason = &blame->reasons[i];
        char name[64] = "in_use";

        if (reason->reason != 0)
            (void)text_escape(recording_text(blame->recording, reason->reason), name, sizeof(name));
        output_json_set(&object, name, json_integer((json_int_t)reason->bytes));
    }
    return object;
}

json_t *blame_report_json(const struct blame *blame, enum blame_by by)
{
    static const char *const words[] = {"fragmented", "allocated", "peak"};
    const struct fragmentation *sums = &blame->sums;

    return json_pack(
        "{s:o, s:i, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:{s:I, s:I, s:I}, "
        "s:o, "
        "s:I, s:o, s:I}",
        "file", text_json(blame->recording->name), "device", blame->device->number, "by", words[by],
        "entries", (json_int_t)blame->device->event_count, "duration_us",
        (json_int_t)(blame->is_instant || !blame->has_times ? 0 : blame->duration_us),
        "duration_events",
        (json_int_t)(blame->is_instant || blame->has_times ? 0 : blame->duration_us), "lost",
        (json_int_t)blame->device->lost, "truncated", (json_int_t)blame->device->truncated,
        "omitted", (json_int_t)blame->omitted, "reserved", sum_json(sums->reserved), "allocated",
        sum_json(sums->allocated), "fragmented", sum_json(sums->fragmented), "pending",
        sum_json(sums->pending + sums->near_pending), "idle", sum_json(sums->idle), "peak", "entry",
        (json_int_t)sums->peak.event, "reserved", (json_int_t)sums->peak.reserved, "allocated",
        (json_int_t)sums->peak.allocated, "idle_at_end", reasons_json(blame), "single_page_padding",
        (json_int_t)blame->device->single_page_padding, "sites", sites_json(blame), "synthetic",
        (json_int_t)blame->device->synthetic);
}

/* --- Folded stacks. --- */

#define FLAME_HOST "(pinned host memory)" /* the outermost frame of its stacks */

/* Print a frame; `;` separates frames, so it is replaced. */
static bool print_frame(FILE *out, const struct blame *blame, uint32_t frame)
{
    char *name = sites_frame_name(blame->recording, frame);

    if (!name)
        return false;
    for (char *at = name; *at; at++)
        *at = *at == ';' ? ',' : *at;
    text_print(out, name);
    free(name);
    return true;
}

static bool print_folded(FILE *out, const struct blame *blame, uint32_t number)
{
    const struct site *site = &blame->sites.sites[number];

    if (is_host(blame))
        (void)fputs(FLAME_HOST ";", out);
    for (uint32_t i = site->count; i-- > 0;) {
        if (!print_frame(out, blame, blame->sites.frames[site->first + i]))
            return false;
        if (i > 0)
            (void)fputc(';', out);
    }
    if (number == SITES_UNKNOWN)
        (void)fputs("(no stack)", out);
    if (number == SITES_OLDER)
        (void)fputs("(allocated before the recording began)", out);
    return true;
}

bool blame_report_folded(FILE *out, const struct blame *blame, enum blame_by by)
{
    const struct fragmentation *sums = &blame->sums;
    const char *const root = is_host(blame) ? FLAME_HOST ";" : "";

    for (uint32_t i = 0; i < blame->sites.count; i++) {
        const fragmentation_sum amount = blame_amount(blame, by, blame->order[i]);
        const uint64_t bytes = by == BLAME_BY_PEAK ? (uint64_t)amount : average(blame, amount);

        if (bytes == 0)
            continue;
        if (!print_folded(out, blame, blame->order[i]))
            return false;
        (void)fprintf(out, " %" PRIu64 "\n", bytes);
    }
    if (by != BLAME_BY_FRAGMENTED)
        return true;
    (void)fprintf(out, "%s(pending) %" PRIu64 "\n%s(idle) %" PRIu64 "\n", root,
                  average(blame, sums->pending + sums->near_pending), root,
                  average(blame, sums->idle));
    return true;
}
