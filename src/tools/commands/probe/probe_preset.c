/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_preset.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/commands/probe/probe_round.h"

#define MIB        ((uint64_t)1 << 20)
#define WIDE       (128 * MIB) /* above it, set-access has a price of its own */
#define NAME_MAX   63
#define POINTS     16
#define LINE_LEAST 3 /* points of a line that has a least time beside it */

/* What was measured, from the smallest size on. */
struct points {
    double x[POINTS], y[POINTS];
    unsigned count;
};

struct line {
    double start, slope;
};

static int compare(const void *a, const void *b)
{
    const double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

/* Of an odd number the middle one, of an even number the mean of two; 0 of none. */
static double median_of(double *value, unsigned count)
{
    if (count == 0)
        return 0;
    qsort(value, count, sizeof(*value), compare);
    return count % 2 == 1 ? value[count / 2] : (value[count / 2 - 1] + value[count / 2]) / 2;
}

static struct line through_origin(const struct points *points, unsigned from)
{
    double slopes[POINTS];
    unsigned count = 0;

    for (unsigned i = from; i < points->count; i++)
        if (points->x[i] > 0)
            slopes[count++] = points->y[i] / points->x[i];
    return (struct line){0, median_of(slopes, count)};
}

/* A line through the points from `from` on. */
static struct line line_of(const struct points *points, unsigned from)
{
    double slopes[POINTS * POINTS / 2], starts[POINTS];
    struct line line = {0, 0};
    unsigned count = 0;

    for (unsigned i = from; i < points->count; i++)
        for (unsigned j = i + 1; j < points->count; j++)
            slopes[count++] = (points->y[j] - points->y[i]) / (points->x[j] - points->x[i]);
    line.slope = fmax(0, median_of(slopes, count));
    count = 0;
    for (unsigned i = from; i < points->count; i++)
        starts[count++] = points->y[i] - line.slope * points->x[i];
    line.start = median_of(starts, count);
    return line.start < 0 ? through_origin(points, from) : line;
}

static uint64_t time_of(struct probe_sized sized, uint64_t bytes)
{
    const uint64_t time = sized.base + bytes / MIB * sized.per_mib;

    return time < sized.least ? sized.least : time;
}

/* By how much a formula is off in all, each point in parts of its own time. */
static double error_of(const struct points *points, struct probe_sized sized)
{
    double sum = 0;

    for (unsigned i = 0; i < points->count; i++)
        sum += fabs((double)time_of(sized, (uint64_t)points->x[i] * MIB) - points->y[i]) /
               fmax(1, points->y[i]);
    return sum;
}

static struct probe_sized sized_of(const struct points *points)
{
    struct probe_sized best = {0, 0, 0};
    double least_error = 0;

    for (unsigned floor = 0; floor == 0 || floor + LINE_LEAST <= points->count; floor++) {
        const struct line line = line_of(points, floor);
        double flat[POINTS];

        memcpy(flat, points->y, floor * sizeof(flat[0]));
        const struct probe_sized sized = {(uint64_t)llround(line.start),
                                          (uint64_t)llround(line.slope),
                                          (uint64_t)llround(fmax(0, median_of(flat, floor)))};
        const double error = error_of(points, sized);

        if (floor > 0 && error >= least_error / 2)
            continue;
        best = sized;
        least_error = error;
    }
    return best;
}

static double time_of_row(const struct probe_costs *costs, const char *call, uint64_t bytes,
                          unsigned pages)
{
    const struct probe_cost *cost = probe_costs_find(costs, call, bytes, pages, 1);

    return cost && cost->idle.samples > 0 ? (double)cost->idle.median : -1;
}

static uint64_t single(const struct probe_costs *costs, const char *call)
{
    for (unsigned i = 0; i < costs->count; i++)
        if (strcmp(costs->cost[i].call, call) == 0 && costs->cost[i].threads == 1)
            return costs->cost[i].idle.median; /* 0 without samples */
    return 0;
}

/* The rows of one page, in the order in which they were measured: of sizes from `low` to `high`. */
static struct points points_of(const struct probe_costs *costs, const char *call, uint64_t low,
                               uint64_t high, double without)
{
    struct points points = {.count = 0};

    for (unsigned i = 0; i < costs->count && points.count < POINTS; i++) {
        const struct probe_cost *cost = &costs->cost[i];

        if (strcmp(cost->call, call) != 0 || cost->pages != 1 || cost->threads != 1 ||
            cost->idle.samples == 0 || cost->bytes < low || cost->bytes > high)
            continue;
        points.x[points.count] = (double)(cost->bytes / MIB);
        points.y[points.count++] = fmax(0, (double)cost->idle.median - without);
    }
    return points;
}

/* What a call takes beside its mappings. */
static uint64_t call_of(const struct probe_costs *costs, const char *call)
{
    static const unsigned pages[] = {1, 10, PROBE_RUN_MAX};
    struct points points = {.count = 0};
    double alone = time_of_row(costs, call, 2 * MIB, 1);

    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        const double time = time_of_row(costs, call, 2 * MIB, pages[i]);

        if (time < 0)
            continue;
        points.x[points.count] = pages[i];
        points.y[points.count++] = time;
    }
    if (points.count < 2 || alone < 0)
        return 0;
    return (uint64_t)llround(fmin(line_of(&points, 0).start, alone));
}

static struct probe_sized by_size(const struct probe_costs *costs, const char *call)
{
    const struct points points = points_of(costs, call, 0, UINT64_MAX, 0);

    return sized_of(&points);
}

static void fit_access(const struct probe_costs *costs, struct probe_preset *out)
{
    struct points points;

    out->access_call = call_of(costs, "cuMemSetAccess");
    points = points_of(costs, "cuMemSetAccess", 0, WIDE, (double)out->access_call);
    out->access = sized_of(&points);
    points = points_of(costs, "cuMemSetAccess", WIDE + 1, UINT64_MAX, (double)out->access_call);
    /* Where there was no room for larger ones, the line of the smaller ones goes on. */
    out->access_wide = points.count > 0 ? sized_of(&points) : out->access;
}

void probe_preset_fit(const struct probe_costs *costs, struct probe_preset *out)
{
    struct points points;

    *out = (struct probe_preset){
        .reserve = single(costs, "cuMemAddressReserve"),
        .address_free = single(costs, "cuMemAddressFree"),
        .create = by_size(costs, "cuMemCreate"),
        .map = by_size(costs, "cuMemMap"),
        .release = by_size(costs, "cuMemRelease"),
        .unmap = call_of(costs, "cuMemUnmap"),
        .alloc = by_size(costs, "cuMemAlloc"),
        .free = by_size(costs, "cuMemFree"),
        .event_create = single(costs, "cuEventCreate"),
        .event_record = single(costs, "cuEventRecord"),
        .event_query = single(costs, "cuEventQuery"),
        .stream_wait = single(costs, "cuStreamWaitEvent"),
        .synchronize = single(costs, "cuStreamSynchronize"),
    };
    points = points_of(costs, "cuMemUnmap", 0, UINT64_MAX, (double)out->unmap);
    out->unmap_mapping = sized_of(&points);
    fit_access(costs, out);
}

uint64_t probe_preset_of(const struct probe_preset *preset, const struct probe_cost *cost)
{
    const struct {
        const char *call;
        uint64_t each; /* call */
        struct probe_sized mapping;
    } part[] = {
        {"cuMemAddressReserve", preset->reserve, {0, 0, 0}},
        {"cuMemAddressFree", preset->address_free, {0, 0, 0}},
        {"cuMemCreate", 0, preset->create},
        {"cuMemMap", 0, preset->map},
        {"cuMemRelease", 0, preset->release},
        {"cuMemUnmap", preset->unmap, preset->unmap_mapping},
        {"cuMemSetAccess", preset->access_call,
         cost->bytes > WIDE ? preset->access_wide : preset->access},
        {"cuMemAlloc", 0, preset->alloc},
        {"cuMemFree", 0, preset->free},
        {"cuEventCreate", preset->event_create, {0, 0, 0}},
        {"cuEventRecord", preset->event_record, {0, 0, 0}},
        {"cuEventQuery", preset->event_query, {0, 0, 0}},
        {"cuStreamWaitEvent", preset->stream_wait, {0, 0, 0}},
        {"cuStreamSynchronize", preset->synchronize, {0, 0, 0}},
    };

    for (size_t i = 0; i < sizeof(part) / sizeof(part[0]); i++)
        if (strcmp(part[i].call, cost->call) == 0)
            return cost->calls * part[i].each + cost->pages * time_of(part[i].mapping, cost->bytes);
    return 0;
}

/* --- The file. --- */

static bool was_measured(const struct probe_costs *costs, const char *call)
{
    for (unsigned i = 0; i < costs->count; i++)
        if (strcmp(costs->cost[i].call, call) == 0 && costs->cost[i].threads == 1 &&
            costs->cost[i].idle.samples > 0)
            return true;
    return false;
}

/* The row that a preset is farthest from, in per cent of the row.  NULL: it meets all of them. */
static const struct probe_cost *farthest(const struct probe_preset *preset,
                                         const struct probe_costs *costs, double *percent)
{
    const struct probe_cost *worst = NULL;

    *percent = 0;
    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];
        const double time = (double)cost->idle.median;
        const uint64_t says = probe_preset_of(preset, cost);
        const double off = 100 * ((double)says - time) / fmax(1, time);

        /* Neither part of the simulator's model. */
        if (cost->idle.samples == 0 || cost->threads > 1 ||
            strcmp(cost->call, "cuMemGetInfo") == 0 || strcmp(cost->call, "cuEventDestroy") == 0 ||
            fabs(off) <= fabs(*percent))
            continue;
        *percent = off;
        worst = cost;
    }
    return worst;
}

/* Members that are 0 because nothing is known of them. */
static void print_missing(FILE *out, const struct probe_costs *costs)
{
    static const char *const calls[] = {
        "cuMemAddressReserve", "cuMemAddressFree",    "cuMemCreate",    "cuMemMap",
        "cuMemRelease",        "cuMemUnmap",          "cuMemSetAccess", "cuMemAlloc",
        "cuMemFree",           "cuEventCreate",       "cuEventRecord",  "cuEventQuery",
        "cuStreamWaitEvent",   "cuStreamSynchronize",
    };

    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        if (!was_measured(costs, calls[i]))
            (void)fprintf(out, "# %s was not measured: it costs nothing here.\n", calls[i]);
}

/* A card's name as a word of C: "NVIDIA H100 PCIe" is nvidia_h100_pcie. */
static void print_word(FILE *out, const char *card)
{
    bool has_gap = false, has_letter = false;

    for (; *card; card++) {
        if (!isalnum((unsigned char)*card) || (unsigned char)*card > 127) {
            has_gap = true;
            continue;
        }
        if (has_gap && has_letter)
            (void)fputc('_', out);
        (void)fputc(tolower((unsigned char)*card), out);
        has_gap = false;
        has_letter = true;
    }
}

static void print_row(FILE *out, const struct probe_preset *preset, const char *card)
{
    (void)fprintf(out, "# As a row of vmm/sim/cost.c:\n#     {.name = \"");
    print_word(out, card);
    (void)fputc('"', out);
#define ONE(member) (void)fprintf(out, ", ." #member " = %" PRIu64, preset->member);
#define SIZED(member)                                                              \
    (void)fprintf(out, ", ." #member " = {%" PRIu64 ", %" PRIu64 ", %" PRIu64 "}", \
                  preset->member.base, preset->member.per_mib, preset->member.least);
    PROBE_PRESET_MEMBERS(ONE, SIZED)
#undef ONE
#undef SIZED
    (void)fprintf(out, "},\n");
}

/* What a name may have in such a file. */
static void print_name(FILE *out, const char *card)
{
    (void)fprintf(out, "name = ");
    for (unsigned i = 0; i < NAME_MAX && card[i]; i++)
        (void)fputc(card[i] < ' ' || card[i] > '~' || card[i] == '#' ? '_' : card[i], out);
    (void)fprintf(out, "%s\n", *card ? "" : "unknown");
}

void probe_preset_print(FILE *out, const struct probe_preset *preset,
                        const struct probe_costs *costs, const char *card, const char *source)
{
    double percent;
    const struct probe_cost *worst = farthest(preset, costs, &percent);

    (void)fprintf(out, "# %s\n# Nanoseconds; by size: base, each MiB, least.\n", source);
    if (worst)
        (void)fprintf(out,
                      "# Farthest from what it was fitted to: %s, %u x %" PRIu64
                      " KiB in %u call%s, is off by %+.1f %%.\n",
                      worst->call, worst->pages, worst->bytes >> 10, worst->calls,
                      worst->calls == 1 ? "" : "s", percent);
    print_missing(out, costs);
    print_row(out, preset, card);
    print_name(out, card);
#define ONE(member) (void)fprintf(out, #member " = %" PRIu64 "\n", preset->member);
#define SIZED(member)                                                                           \
    (void)fprintf(out, #member " = %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", preset->member.base, \
                  preset->member.per_mib, preset->member.least);
    PROBE_PRESET_MEMBERS(ONE, SIZED)
#undef ONE
#undef SIZED
}
