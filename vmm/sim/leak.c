/* SPDX-License-Identifier: MIT */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/event.h"
#include "vmm/sim/host.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/stream.h"

/* A report that is truncated to fit. */
struct report {
    char *text;
    size_t bytes, used;
    size_t objects;
};

static void __attribute__((format(printf, 2, 3)))
report_print(struct report *report, const char *form, ...)
{
    va_list arguments;
    int length;

    if (report->used >= report->bytes)
        return;
    va_start(arguments, form);
    length = vsnprintf(report->text + report->used, report->bytes - report->used, form, arguments);
    va_end(arguments);
    if (length > 0)
        report->used += (size_t)length;
}

static void report_physical(struct report *report)
{
    const struct sim_physical *example;
    uint32_t at = 0;

    example = sim_handles_next(&sim_machine.physical, &at);
    if (example == NULL)
        return;
    report_print(report,
                 "physical memory: %" PRIu32 ", first: %" PRIu64 " bytes on device %u, %" PRIu64
                 " reference%s, %" PRIu64 " mapping%s\n",
                 sim_machine.physical.live, example->bytes, example->device, example->references,
                 example->references == 1 ? "" : "s", example->mappings,
                 example->mappings == 1 ? "" : "s");
    report->objects += sim_machine.physical.live;
}

/* The first live range of a kind. */
static const struct sim_range *first_range(bool is_reservation, bool is_mapped)
{
    const struct sim_addresses *addresses = &sim_machine.addresses;

    for (size_t i = 0; i < addresses->count; i++) {
        const struct sim_range *range = addresses->range[i];

        if (range != NULL && (range->granule != NULL) == is_reservation &&
            (!is_mapped || range->mapped != 0))
            return range;
    }
    return NULL;
}

static void report_mappings(struct report *report)
{
    const struct sim_range *range = first_range(true, true);
    uint64_t at = 0;

    if (range == NULL)
        return;
    while (range->granule[at] == NULL)
        at++;
    report_print(report, "mappings: %" PRIu64 ", first: %" PRIu64 " bytes at 0x%" PRIx64 "\n",
                 sim_machine.mappings, range->granule[at]->bytes, range->granule[at]->address);
    report->objects += sim_machine.mappings;
}

static void report_ranges(struct report *report, bool is_reservation, const char *kind,
                          size_t count)
{
    const struct sim_range *range = first_range(is_reservation, false);

    if (range == NULL)
        return;
    report_print(report, "%s: %zu, first: %" PRIu64 " bytes at 0x%" PRIx64 "\n", kind, count,
                 range->bytes, range->base);
    report->objects += count;
}

static void report_streams(struct report *report)
{
    const struct sim_stream *stream, *example = NULL;
    uint32_t at = 0, count = 0;

    while ((stream = sim_handles_next(&sim_machine.streams, &at)) != NULL) {
        if (stream->is_made_here)
            continue;
        count++;
        if (example == NULL)
            example = stream;
    }
    if (example == NULL)
        return;
    report_print(report, "streams: %" PRIu32 ", first: stream %" PRIu64 " of device %u\n", count,
                 example->id, example->device);
    report->objects += count;
}

static void report_events(struct report *report)
{
    const struct sim_event *example;
    uint32_t at = 0;

    example = sim_handles_next(&sim_machine.events, &at);
    if (example == NULL)
        return;
    report_print(report, "events: %" PRIu32 ", first: on device %u, %s\n", sim_machine.events.live,
                 example->device, example->is_recorded ? "recorded" : "never recorded");
    report->objects += sim_machine.events.live;
}

static void report_graphs(struct report *report)
{
    const struct sim_graph *example;
    uint32_t at = 0;

    example = sim_handles_next(&sim_machine.graphs, &at);
    if (example == NULL)
        return;
    report_print(report, "graphs: %" PRIu32 ", first: %" PRIu64 " nodes\n", sim_machine.graphs.live,
                 example->nodes);
    report->objects += sim_machine.graphs.live;
}

static void report_executables(struct report *report)
{
    if (sim_machine.executables.live != 0)
        report_print(report, "executable graphs: %" PRIu32 "\n", sim_machine.executables.live);
    if (sim_machine.objects.live != 0)
        report_print(report, "user objects: %" PRIu32 "\n", sim_machine.objects.live);
    report->objects += sim_machine.executables.live + sim_machine.objects.live;
}

static void report_hosts(struct report *report)
{
    const struct sim_host *example = NULL;
    const size_t count = sim_host_count(&example);

    if (count == 0)
        return;
    report_print(report, "pinned host memory: %zu, first: %" PRIu64 " bytes\n", count,
                 example->bytes);
    report->objects += count;
}

static void report_contexts(struct report *report)
{
    unsigned count = 0, example = 0;

    for (unsigned i = sim_machine.devices; i-- > 0;)
        if (sim_machine.device[i].retained != 0) {
            count++;
            example = i;
        }
    if (count == 0)
        return;
    report_print(report, "retained contexts: %u, first: device %u, %u reference%s\n", count,
                 example, sim_machine.device[example].retained,
                 sim_machine.device[example].retained == 1 ? "" : "s");
    report->objects += count;
}

static void report_registrations(struct report *report)
{
    const struct sim_registrations *registrations = &sim_machine.registrations;

    if (registrations->count == 0)
        return;
    report_print(report, "registrations: %zu, first: %" PRIu64 " bytes at 0x%" PRIx64 " for %s\n",
                 registrations->count, registrations->registration[0].bytes,
                 registrations->registration[0].address, registrations->registration[0].registrar);
    report->objects += registrations->count;
}

size_t xseg_sim_leaks(char *text, size_t bytes)
{
    struct report report = {.text = text, .bytes = bytes};

    if (bytes != 0)
        text[0] = '\0';
    sim_lock();
    sim_physical_settle_pinned();
    report_physical(&report);
    report_mappings(&report);
    report_ranges(&report, true, "reservations", sim_machine.addresses.reservations);
    report_ranges(&report, false, "allocations", sim_machine.addresses.allocations);
    report_streams(&report);
    report_events(&report);
    report_graphs(&report);
    report_executables(&report);
    report_hosts(&report);
    report_registrations(&report);
    report_contexts(&report);
    sim_unlock();
    return report.objects;
}
