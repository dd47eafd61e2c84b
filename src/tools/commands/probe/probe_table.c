/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_table.h"

#include <inttypes.h>

#include "src/tools/output/amount.h"
#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

#define MIB ((uint64_t)1 << 20)

struct text {
    char text[64];
};

static struct text size_of(const struct probe_cost *cost)
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

static struct text span_of(const struct probe_span *span)
{
    struct text out;

    if (span->samples == 0)
        (void)snprintf(out.text, sizeof(out.text), "-");
    else
        (void)snprintf(out.text, sizeof(out.text), "%.1f  %.1f..%.1f", (double)span->median / 1e3,
                       (double)span->low / 1e3, (double)span->high / 1e3);
    return out;
}

/* Sizes of pages and segments; the others are between them. */
static bool is_for_people(const struct probe_cost *cost)
{
    static const unsigned shown[] = {2, 20, 64, 512};

    if (cost->pages > 1 || cost->threads > 1 || cost->bytes < MIB || cost->bytes >= MIB << 10)
        return true;
    for (size_t i = 0; i < sizeof(shown) / sizeof(shown[0]); i++)
        if (cost->bytes == shown[i] * MIB)
            return true;
    return false;
}

static void print_row(FILE *out, const struct probe_cost *cost)
{
    char first[32] = "-";

    if (cost->has_first)
        (void)snprintf(first, sizeof(first), "%.1f", (double)cost->first / 1e3);
    (void)fprintf(out, "  %-20s%-23s%-26s%-26s%-7s%s\n", cost->call, size_of(cost).text,
                  span_of(&cost->idle).text, span_of(&cost->busy).text,
                  cost->busy.samples == 0 ? "-"
                  : cost->waits           ? "yes"
                                          : "no",
                  first);
}

void probe_table_print(FILE *out, const struct probe_costs *costs)
{
    unsigned others = 0;

    (void)fprintf(out, "  %s%-20s%-23s%-26s%-26s%-7s%s%s\n", text_style_on(out, TEXT_STRONG),
                  "call", "size", "device idle", "device busy", "waits", "first",
                  text_style_off(out));
    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];
        /* What this device has no room for, or does not do, needs no row. */
        const bool is_there = cost->missing != PROBE_MISSING_MEMORY &&
                              cost->missing != PROBE_MISSING_BATCH &&
                              cost->missing != PROBE_MISSING_FIT;

        if (is_there && is_for_people(cost))
            print_row(out, cost);
        else
            others += is_there;
    }
    if (others > 0)
        (void)fprintf(out, "  %u rows of sizes between these: --json, --table FILE\n", others);
    if (costs->skipped)
        (void)fprintf(out, "  no memory for sizes from %s on\n", amount_bytes(costs->skipped).text);
    if (costs->is_short)
        (void)fprintf(out, "  the time was up before everything was measured\n");
    if (!costs->is_busy)
        (void)fprintf(out, "  the device could not be kept busy\n");
}

/* --- For programmes. --- */

static void put_key(FILE *out, const struct probe_cost *cost, const char *device, const char *when)
{
    (void)fprintf(out, "%s\t%" PRIu64 "\t%u\t%u\t%u\t%s\t%s\t", cost->call, cost->bytes,
                  cost->pages, cost->calls, cost->threads, device, when);
}

static void put_span(FILE *out, const struct probe_cost *cost, const char *device,
                     const struct probe_span *span, const char *note)
{
    put_key(out, cost, device, "repeated");
    if (span->samples == 0)
        (void)fprintf(out, "-\t-\t-\t0\t%s\n", note);
    else
        (void)fprintf(out, "%" PRIu64 "\t%" PRIu64 "\t%" PRIu64 "\t%u\t%s\n", span->median,
                      span->low, span->high, span->samples, note);
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
            put_key(out, cost, "idle", "first");
            (void)fprintf(out, "%" PRIu64 "\t-\t-\t1\t-\n", cost->first);
        }
        put_span(out, cost, "idle", &cost->idle, missing ? missing : "-");
        if (cost->busy.samples > 0)
            put_span(out, cost, "busy", &cost->busy, cost->waits ? "waits" : "-");
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
