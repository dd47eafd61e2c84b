/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/probe/probe_cost_model.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB             ((uint64_t)1 << 20)
#define WIDE            (128 * MIB) /* cuMemSetAccess has other costs above */
#define NAME_LENGTH_MAX 63
#define POINTS          16
#define LINE_MIN        3 /* points of a line if there is a minimum */

/* Measured times, in the order of sizes. */
struct points {
    double x[POINTS], y[POINTS];
    unsigned count;
};

struct line {
    double start, slope;
};

static int compare_doubles(const void *a, const void *b)
{
    const double a_value = *(const double *)a, b_value = *(const double *)b;

    return (a_value > b_value) - (a_value < b_value);
}

/* Get the median, which is the mean of the two middle values for an even count; 0 without values. */
static double median_of(double *value, unsigned count)
{
    if (count == 0)
        return 0;
    qsort(value, count, sizeof(*value), compare_doubles);
    return count % 2 == 1 ? value[count / 2] : (value[count / 2 - 1] + value[count / 2]) / 2;
}

static struct line fit_line_through_origin(const struct points *points, unsigned from)
{
    double slopes[POINTS];
    unsigned count = 0;

    for (unsigned i = from; i < points->count; i++)
        if (points->x[i] > 0)
            slopes[count++] = points->y[i] / points->x[i];
    return (struct line){0, median_of(slopes, count)};
}

/* Fit a line through the points from index `from` on. */
static struct line fit_line(const struct points *points, unsigned from)
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
    return line.start < 0 ? fit_line_through_origin(points, from) : line;
}

static uint64_t modeled_time(struct probe_sized sized, uint64_t bytes)
{
    const uint64_t time = sized.base + bytes / MIB * sized.per_mib;

    return time < sized.min ? sized.min : time;
}

/* Get the sum of the relative errors of a model. */
static double sum_relative_errors(const struct points *points, struct probe_sized sized)
{
    double sum = 0;

    for (unsigned i = 0; i < points->count; i++)
        sum += fabs((double)modeled_time(sized, (uint64_t)points->x[i] * MIB) - points->y[i]) /
               fmax(1, points->y[i]);
    return sum;
}

static struct probe_sized fit_sized(const struct points *points)
{
    struct probe_sized best = {0, 0, 0};
    double min_error = 0;

    for (unsigned flat_count = 0; flat_count == 0 || flat_count + LINE_MIN <= points->count;
         flat_count++) {
        const struct line line = fit_line(points, flat_count);
        double flat[POINTS];

        memcpy(flat, points->y, flat_count * sizeof(flat[0]));
        const struct probe_sized sized = {(uint64_t)llround(line.start),
                                          (uint64_t)llround(line.slope),
                                          (uint64_t)llround(fmax(0, median_of(flat, flat_count)))};
        const double error = sum_relative_errors(points, sized);

        if (flat_count > 0 && error >= min_error / 2)
            continue;
        best = sized;
        min_error = error;
    }
    return best;
}

static double measured_time(const struct probe_costs *costs, const char *call, uint64_t bytes,
                            unsigned pages)
{
    const struct probe_cost *cost = probe_costs_find(costs, call, bytes, pages, 1);

    return cost && cost->idle.samples > 0 ? (double)cost->idle.median : -1;
}

static uint64_t find_median(const struct probe_costs *costs, const char *call)
{
    for (unsigned i = 0; i < costs->count; i++)
        if (strcmp(costs->cost[i].call, call) == 0 && costs->cost[i].threads == 1)
            return costs->cost[i].idle.median; /* 0 without samples */
    return 0;
}

/* Collect the times of one page of `low` to `high` bytes, less `per_call`. */
static struct points collect_points(const struct probe_costs *costs, const char *call, uint64_t low,
                                    uint64_t high, double per_call)
{
    struct points points = {.count = 0};

    for (unsigned i = 0; i < costs->count && points.count < POINTS; i++) {
        const struct probe_cost *cost = &costs->cost[i];

        if (strcmp(cost->call, call) != 0 || cost->pages != 1 || cost->threads != 1 ||
            cost->idle.samples == 0 || cost->bytes < low || cost->bytes > high)
            continue;
        points.x[points.count] = (double)(cost->bytes / MIB);
        points.y[points.count++] = fmax(0, (double)cost->idle.median - per_call);
    }
    return points;
}

/* Fit the time of a call without its mappings. */
static uint64_t fit_call(const struct probe_costs *costs, const char *call)
{
    static const unsigned pages[] = {1, 10, PROBE_RUN_MAX};
    struct points points = {.count = 0};
    double alone = measured_time(costs, call, 2 * MIB, 1);

    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        const double time = measured_time(costs, call, 2 * MIB, pages[i]);

        if (time < 0)
            continue;
        points.x[points.count] = pages[i];
        points.y[points.count++] = time;
    }
    if (points.count < 2 || alone < 0)
        return 0;
    return (uint64_t)llround(fmin(fit_line(&points, 0).start, alone));
}

static struct probe_sized fit_call_by_size(const struct probe_costs *costs, const char *call)
{
    const struct points points = collect_points(costs, call, 0, UINT64_MAX, 0);

    return fit_sized(&points);
}

static void fit_access(const struct probe_costs *costs, struct probe_cost_model *out)
{
    struct points points;

    out->access_call = fit_call(costs, "cuMemSetAccess");
    points = collect_points(costs, "cuMemSetAccess", 0, WIDE, (double)out->access_call);
    out->access = fit_sized(&points);
    points =
        collect_points(costs, "cuMemSetAccess", WIDE + 1, UINT64_MAX, (double)out->access_call);
    /* Without measurements of larger sizes, the line of the smaller ones is extrapolated. */
    out->access_wide = points.count > 0 ? fit_sized(&points) : out->access;
}

void probe_cost_model_fit(const struct probe_costs *costs, struct probe_cost_model *out)
{
    struct points points;

    *out = (struct probe_cost_model){
        .reserve = find_median(costs, "cuMemAddressReserve"),
        .address_free = find_median(costs, "cuMemAddressFree"),
        .create = fit_call_by_size(costs, "cuMemCreate"),
        .map = fit_call_by_size(costs, "cuMemMap"),
        .release = fit_call_by_size(costs, "cuMemRelease"),
        .unmap = fit_call(costs, "cuMemUnmap"),
        .alloc = fit_call_by_size(costs, "cuMemAlloc"),
        .free = fit_call_by_size(costs, "cuMemFree"),
        .event_create = find_median(costs, "cuEventCreate"),
        .event_record = find_median(costs, "cuEventRecord"),
        .event_query = find_median(costs, "cuEventQuery"),
        .stream_wait = find_median(costs, "cuStreamWaitEvent"),
        .synchronize = find_median(costs, "cuStreamSynchronize"),
    };
    points = collect_points(costs, "cuMemUnmap", 0, UINT64_MAX, (double)out->unmap);
    out->unmap_mapping = fit_sized(&points);
    fit_access(costs, out);
}

uint64_t probe_cost_model_time(const struct probe_cost_model *model, const struct probe_cost *cost)
{
    const struct {
        const char *call;
        uint64_t per_call;
        struct probe_sized mapping;
    } parts[] = {
        {"cuMemAddressReserve", model->reserve, {0, 0, 0}},
        {"cuMemAddressFree", model->address_free, {0, 0, 0}},
        {"cuMemCreate", 0, model->create},
        {"cuMemMap", 0, model->map},
        {"cuMemRelease", 0, model->release},
        {"cuMemUnmap", model->unmap, model->unmap_mapping},
        {"cuMemSetAccess", model->access_call,
         cost->bytes > WIDE ? model->access_wide : model->access},
        {"cuMemAlloc", 0, model->alloc},
        {"cuMemFree", 0, model->free},
        {"cuEventCreate", model->event_create, {0, 0, 0}},
        {"cuEventRecord", model->event_record, {0, 0, 0}},
        {"cuEventQuery", model->event_query, {0, 0, 0}},
        {"cuStreamWaitEvent", model->stream_wait, {0, 0, 0}},
        {"cuStreamSynchronize", model->synchronize, {0, 0, 0}},
    };

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(parts[i].call, cost->call) == 0)
            return cost->calls * parts[i].per_call +
                   cost->pages * modeled_time(parts[i].mapping, cost->bytes);
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

/* Find the cost with the largest deviation of the model, in percent of its time.  Returns NULL without a deviation. */
static const struct probe_cost *find_worst(const struct probe_cost_model *model,
                                           const struct probe_costs *costs, double *percent)
{
    const struct probe_cost *worst = NULL;

    *percent = 0;
    for (unsigned i = 0; i < costs->count; i++) {
        const struct probe_cost *cost = &costs->cost[i];
        const double time = (double)cost->idle.median;
        const uint64_t modeled = probe_cost_model_time(model, cost);
        const double deviation = 100 * ((double)modeled - time) / fmax(1, time);

        /* The simulator's model has neither two threads nor these two calls. */
        if (cost->idle.samples == 0 || cost->threads > 1 ||
            strcmp(cost->call, "cuMemGetInfo") == 0 || strcmp(cost->call, "cuEventDestroy") == 0 ||
            fabs(deviation) <= fabs(*percent))
            continue;
        *percent = deviation;
        worst = cost;
    }
    return worst;
}

/* Print the members that are 0 because they were not measured. */
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
            (void)fprintf(out, "# %s was not measured, so its cost is 0.\n", calls[i]);
}

/* Print the name of a device as an identifier: "NVIDIA H100 PCIe" becomes nvidia_h100_pcie. */
static void print_identifier(FILE *out, const char *device)
{
    bool has_gap = false, has_letter = false;

    for (; *device; device++) {
        if (!isalnum((unsigned char)*device) || (unsigned char)*device > 127) {
            has_gap = true;
            continue;
        }
        if (has_gap && has_letter)
            (void)fputc('_', out);
        (void)fputc(tolower((unsigned char)*device), out);
        has_gap = false;
        has_letter = true;
    }
}

static void print_row(FILE *out, const struct probe_cost_model *model, const char *device)
{
    (void)fprintf(out, "# As a row of vmm/sim/cost.c:\n#     {.name = \"");
    print_identifier(out, device);
    (void)fputc('"', out);
#define CONSTANT(member) (void)fprintf(out, ", ." #member " = %" PRIu64, model->member);
#define SIZED(member)                                                              \
    (void)fprintf(out, ", ." #member " = {%" PRIu64 ", %" PRIu64 ", %" PRIu64 "}", \
                  model->member.base, model->member.per_mib, model->member.min);
    PROBE_COST_MODEL_MEMBERS(CONSTANT, SIZED)
#undef CONSTANT
#undef SIZED
    (void)fprintf(out, "},\n");
}

/* Print a name without the characters that a cost file does not allow. */
static void print_name(FILE *out, const char *device)
{
    (void)fprintf(out, "name = ");
    for (unsigned i = 0; i < NAME_LENGTH_MAX && device[i]; i++)
        (void)fputc(device[i] < ' ' || device[i] > '~' || device[i] == '#' ? '_' : device[i], out);
    (void)fprintf(out, "%s\n", *device ? "" : "unknown");
}

void probe_cost_model_print(FILE *out, const struct probe_cost_model *model,
                            const struct probe_costs *costs, const char *device, const char *source)
{
    double percent;
    const struct probe_cost *worst = find_worst(model, costs, &percent);

    (void)fprintf(out, "# %s\n# In nanoseconds.  By size: base, per MiB, minimum.\n", source);
    if (worst)
        (void)fprintf(out,
                      "# Largest deviation from a measurement: %s, %u x %" PRIu64
                      " KiB in %u call%s, "
                      "%+.1f %%.\n",
                      worst->call, worst->pages, worst->bytes >> 10, worst->calls,
                      worst->calls == 1 ? "" : "s", percent);
    print_missing(out, costs);
    print_row(out, model, device);
    print_name(out, device);
#define CONSTANT(member) (void)fprintf(out, #member " = %" PRIu64 "\n", model->member);
#define SIZED(member)                                                                          \
    (void)fprintf(out, #member " = %" PRIu64 " %" PRIu64 " %" PRIu64 "\n", model->member.base, \
                  model->member.per_mib, model->member.min);
    PROBE_COST_MODEL_MEMBERS(CONSTANT, SIZED)
#undef CONSTANT
#undef SIZED
}
