/* SPDX-License-Identifier: MIT */
#include "vmm/sim/report.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "vmm/sim/capture.h"
#include "vmm/sim/event.h"
#include "vmm/sim/machine.h"
#include "vmm/sim/mapping.h"
#include "vmm/sim/memory.h"
#include "vmm/sim/stream.h"

#if defined(__GLIBC__)
#include <execinfo.h>
#endif

static _Thread_local char message[SIM_MESSAGE_MAX];

/* Format a message, escape bytes that are not printable, and truncate it to fit. */
static void format_printable(char *out, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

static void format_printable(char *out, const char *format, va_list arguments)
{
    char plain[SIM_MESSAGE_MAX];
    size_t length = 0;

    (void)vsnprintf(plain, sizeof(plain), format, arguments);
    for (const char *at = plain; *at != '\0' && length + 4 < SIM_MESSAGE_MAX; at++)
        if (*at >= ' ' && *at <= '~')
            out[length++] = *at;
        else
            length += (size_t)snprintf(out + length, 5, "\\x%02x", (unsigned)(unsigned char)*at);
    out[length] = '\0';
}

xseg_status sim_error(xseg_status status, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    format_printable(message, format, arguments);
    va_end(arguments);
    return status;
}

void sim_warn(const char *format, ...)
{
    char line[SIM_MESSAGE_MAX];
    va_list arguments;

    va_start(arguments, format);
    format_printable(line, format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "xseg-sim: %s\n", line);
}

size_t xseg_sim_error_message(char *text, size_t bytes)
{
    if (bytes > 0)
        (void)snprintf(text, bytes, "%s", message);
    return strlen(message);
}

struct sim_origin sim_origin_of_call(void)
{
    return (struct sim_origin){
        .call = sim_machine.current_call,
        .number = sim_machine.call_number,
        .thread = sim_machine.config.strict ? sim_thread()->number : 0,
        .time = sim_machine.now,
    };
}

#define LABEL "%-14s"

static void print_origin(const struct sim_origin *origin)
{
    (void)fprintf(stderr, "%s, call %" PRIu64 ", thread %" PRIu64 ", time %" PRIu64 " ns\n",
                  origin->call, origin->number, origin->thread, origin->time);
}

void sim_report_begin(const char *error)
{
    const struct sim_origin origin = sim_origin_of_call();

    (void)fflush(NULL);
    (void)fprintf(stderr, "xseg-sim: %s: undefined behavior, %s\n  " LABEL, origin.call, error,
                  "call:");
    print_origin(&origin);
}

void sim_report_line(const char *label, const struct sim_origin *origin, const char *form, ...)
{
    va_list arguments;

    (void)fprintf(stderr, "  " LABEL, label);
    va_start(arguments, form);
    (void)vfprintf(stderr, form, arguments);
    va_end(arguments);
    if (origin == NULL || origin->call == NULL) {
        (void)fputs("\n", stderr);
        return;
    }
    (void)fputs(" by ", stderr);
    print_origin(origin);
}

void sim_report_mapping(const struct sim_mapping *mapping)
{
    const struct sim_physical *physical = mapping->physical;

    sim_report_line("mapping:", &mapping->origin, "%" PRIu64 " bytes at 0x%" PRIx64 ", created",
                    mapping->bytes, mapping->address);
    sim_report_line("memory:", &physical->origin, "%" PRIu64 " bytes on device %u, created",
                    physical->bytes, physical->device);
}

void sim_report_allocation(const struct sim_range *range)
{
    sim_report_line("memory:", &range->origin,
                    "%" PRIu64 " bytes on device %u at 0x%" PRIx64 ", created", range->bytes,
                    range->device, range->base);
}

noreturn void sim_report_end(void)
{
#if defined(__GLIBC__)
    void *frame[32];
    const int count = backtrace(frame, 32);

    (void)fputs("  stack:\n", stderr);
    (void)fflush(stderr);
    backtrace_symbols_fd(frame, count, STDERR_FILENO);
#endif
    (void)fflush(stderr);
    abort();
}

/* Text of xseg_sim_leaks(), truncated to fit. */
struct leak_report {
    char *text;
    size_t bytes, used;
    size_t objects;
};

static void __attribute__((format(printf, 2, 3)))
report_print(struct leak_report *report, const char *form, ...)
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

static void report_physical(struct leak_report *report)
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

/* Get the first range of a kind. */
static const struct sim_range *first_range(bool is_reservation, bool is_mapped)
{
    const struct sim_address_space *addresses = &sim_machine.addresses;

    for (size_t i = 0; i < addresses->count; i++) {
        const struct sim_range *range = addresses->range[i];

        if (range != NULL && (range->granule != NULL) == is_reservation &&
            (!is_mapped || range->mapped_granules != 0))
            return range;
    }
    return NULL;
}

static void report_mappings(struct leak_report *report)
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

static void report_ranges(struct leak_report *report, bool is_reservation, const char *kind,
                          size_t count)
{
    const struct sim_range *range = first_range(is_reservation, false);

    if (range == NULL)
        return;
    report_print(report, "%s: %zu, first: %" PRIu64 " bytes at 0x%" PRIx64 "\n", kind, count,
                 range->bytes, range->base);
    report->objects += count;
}

static void report_streams(struct leak_report *report)
{
    const struct sim_stream *stream, *example = NULL;
    uint32_t at = 0, count = 0;

    while ((stream = sim_handles_next(&sim_machine.streams, &at)) != NULL) {
        if (stream->is_default)
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

static void report_events(struct leak_report *report)
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

static void report_graphs(struct leak_report *report)
{
    const struct sim_graph *example;
    uint32_t at = 0;

    example = sim_handles_next(&sim_machine.graphs, &at);
    if (example == NULL)
        return;
    report_print(report, "graphs: %" PRIu32 ", first: %" PRIu64 " nodes\n", sim_machine.graphs.live,
                 example->node_count);
    report->objects += sim_machine.graphs.live;
}

static void report_graph_execs(struct leak_report *report)
{
    if (sim_machine.graph_execs.live != 0)
        report_print(report, "executable graphs: %" PRIu32 "\n", sim_machine.graph_execs.live);
    if (sim_machine.user_objects.live != 0)
        report_print(report, "user objects: %" PRIu32 "\n", sim_machine.user_objects.live);
    report->objects += sim_machine.graph_execs.live + sim_machine.user_objects.live;
}

static void report_pinned(struct leak_report *report)
{
    const struct sim_pinned *example = NULL;
    const size_t count = sim_pinned_count(&example);

    if (count == 0)
        return;
    report_print(report, "pinned host memory: %zu, first: %" PRIu64 " bytes\n", count,
                 example->bytes);
    report->objects += count;
}

static void report_contexts(struct leak_report *report)
{
    unsigned count = 0, example = 0;

    for (unsigned i = sim_machine.config.devices; i-- > 0;)
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

static void report_registrations(struct leak_report *report)
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
    struct leak_report report = {.text = text, .bytes = bytes};

    if (bytes != 0)
        text[0] = '\0';
    sim_lock();
    sim_physical_free_unused_exports();
    report_physical(&report);
    report_mappings(&report);
    report_ranges(&report, true, "reservations", sim_machine.addresses.reservations);
    report_ranges(&report, false, "allocations", sim_machine.addresses.allocations);
    report_streams(&report);
    report_events(&report);
    report_graphs(&report);
    report_graph_execs(&report);
    report_pinned(&report);
    report_registrations(&report);
    report_contexts(&report);
    sim_unlock();
    return report.objects;
}
