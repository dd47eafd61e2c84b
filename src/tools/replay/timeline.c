/* SPDX-License-Identifier: MIT */
#include "src/tools/replay/timeline.h"

#include <inttypes.h>
#include <string.h>

#include "src/tools/output/output.h"
#include "src/tools/output/text.h"

/* Get whether a trace has a clock; *span is its duration in microseconds. */
static bool has_clock(const struct xtrace *trace, uint64_t *span)
{
    uint64_t first = 0, last = 0;
    bool found = false;

    for (size_t i = 0; i < trace->op_count; i++)
        if (trace->ops[i].kind == XTRACE_CLOCK) {
            first = found ? first : trace->ops[i].value;
            last = trace->ops[i].value;
            found = true;
        }
    *span = last - first;
    return found;
}

void timeline_init(struct timeline *timeline, FILE *file, const struct xtrace *trace)
{
    uint64_t length = 0;

    *timeline = (struct timeline){.file = file};
    if (!file)
        return;
    timeline->has_clock = has_clock(trace, &length);
    if (!timeline->has_clock)
        length = trace->events;
    timeline->row_length = length / TIMELINE_ROWS + (length % TIMELINE_ROWS != 0);
    (void)fprintf(file, "# %s\trequested\tallocated\treserved%s\n",
                  timeline->has_clock ? "usec" : "event",
                  timeline->has_clock ? "\taddresses\thost\tobjects" : "");
}

static void write_row(struct timeline *timeline)
{
    const unsigned columns = timeline->has_clock ? TIMELINE_COLUMNS : 3;

    (void)fprintf(timeline->file, "%" PRIu64, timeline->position);
    for (unsigned i = 0; i < columns; i++)
        (void)fprintf(timeline->file, "\t%" PRIu64, timeline->maxima[i]);
    (void)fputc('\n', timeline->file);
    memset(timeline->maxima, 0, sizeof(timeline->maxima));
    timeline->count = 0;
}

static void update_maxima(struct timeline *timeline, const uint64_t *values, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (values[i] > timeline->maxima[i])
            timeline->maxima[i] = values[i];
}

void timeline_add(struct timeline *timeline, const struct xseg_statistics *stats)
{
    const uint64_t values[] = {stats->requested_bytes[0].current, stats->allocated_bytes[0].current,
                               stats->reserved_bytes[0].current};

    timeline->position++;
    timeline->count++;
    update_maxima(timeline, values, 3);
    if (timeline->count == timeline->row_length)
        write_row(timeline);
}

void timeline_mark(struct timeline *timeline, const char *label)
{
    if (timeline->has_clock)
        return;
    (void)fprintf(timeline->file, "# mark\t%" PRIu64 "\t", timeline->position);
    text_print(timeline->file, label);
    (void)fputc('\n', timeline->file);
}

/* Count the objects of the driver that the allocator owns: pages, reservations, segments, events. */
static uint64_t count_driver_objects(struct xseg_allocator *allocator)
{
    static const char *const creates[] = {"cuMemCreate", "cuMemAddressReserve", "cuMemAlloc",
                                          "cuEventCreate"};
    static const char *const destroys[] = {"cuMemRelease", "cuMemAddressFree", "cuMemFree",
                                           "cuEventDestroy"};
    struct xseg_driver_call calls[128];
    size_t count = 0;
    uint64_t objects = 0;

    if (xseg_driver_calls(allocator, calls, sizeof(calls) / sizeof(calls[0]), &count) != XSEG_OK)
        return 0;
    for (size_t i = 0; i < count && i < sizeof(calls) / sizeof(calls[0]); i++) {
        const uint64_t succeeded = calls[i].count - calls[i].failed;

        for (size_t kind = 0; kind < sizeof(creates) / sizeof(creates[0]); kind++) {
            objects += strcmp(calls[i].name, creates[kind]) == 0 ? succeeded : 0;
            objects -= strcmp(calls[i].name, destroys[kind]) == 0 ? succeeded : 0;
        }
    }
    return objects;
}

/* Query host memory and objects, which is expensive, once per row. */
static void sample_host(struct timeline *timeline, struct xseg_allocator *allocator)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    scope.device = 0;
    if (xseg_stats_get(allocator, &scope, &stats) == XSEG_OK)
        timeline->maxima[4] = stats.host_bytes;
    timeline->maxima[5] = count_driver_objects(allocator);
}

void timeline_until(struct timeline *timeline, uint64_t microseconds,
                    struct xseg_allocator *allocator, const struct xseg_statistics *stats)
{
    const uint64_t values[] = {stats->requested_bytes[0].current, stats->allocated_bytes[0].current,
                               stats->reserved_bytes[0].current, stats->address_bytes};

    while (timeline->row_length > 0 && timeline->position + timeline->row_length <= microseconds) {
        timeline->position += timeline->row_length;
        update_maxima(timeline, values, 4);
        sample_host(timeline, allocator);
        write_row(timeline);
    }
    if (timeline->position < microseconds) {
        update_maxima(timeline, values, 4);
        if (timeline->count++ == 0)
            sample_host(timeline, allocator);
    }
}

bool timeline_fini(struct timeline *timeline)
{
    if (!timeline->file)
        return true;
    if (timeline->count > 0) {
        timeline->position += timeline->has_clock ? timeline->row_length : 0;
        write_row(timeline);
    }
    return output_flush(timeline->file);
}
