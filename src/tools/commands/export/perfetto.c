/* SPDX-License-Identifier: MIT */
#include "src/tools/commands/export/perfetto.h"

#include <string.h>

#include "src/tools/output/text.h"

#define SEQUENCE 1u /* any ID except 0 */

/* Field numbers, by message. */
enum { TRACE_PACKET = 1 };
enum {
    PACKET_CLOCK_SNAPSHOT = 6,
    PACKET_TIMESTAMP = 8,
    PACKET_SEQUENCE_ID = 10,
    PACKET_TRACK_EVENT = 11,
    PACKET_INTERNED_DATA = 12,
    PACKET_SEQUENCE_FLAGS = 13,
    PACKET_CLOCK_ID = 58, /* in TracePacketDefaults as well */
    PACKET_DEFAULTS = 59,
    PACKET_TRACK_DESCRIPTOR = 60,
    PACKET_IS_FIRST = 87
};
enum { FLAG_CLEARED = 1, FLAG_NEEDED = 2 }; /* SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_ */
enum { SNAPSHOT_CLOCKS = 1, SNAPSHOT_PRIMARY = 2 };
enum { CLOCK_ID = 1, CLOCK_TIMESTAMP = 2 };
enum {
    TRACK_UUID = 1,
    TRACK_NAME = 2,
    TRACK_PARENT = 5,
    TRACK_COUNTER = 8,
    TRACK_ORDERING = 11,
    TRACK_RANK = 12,
    TRACK_DESCRIPTION = 14
};
enum { ORDERING_EXPLICIT = 3 };
enum { COUNTER_UNIT = 3, COUNTER_AXIS = 7 };
enum { UNIT_BYTES = 3 };
enum {
    EVENT_ANNOTATIONS = 4,
    EVENT_TYPE = 9,
    EVENT_NAME = 10,
    EVENT_TRACK = 11,
    EVENT_COUNTER_VALUE = 30
};
enum { INTERNED_EVENT = 2, INTERNED_ANNOTATION = 3, INTERNED_TEXT = 29 };
enum { INTERNED_NUMBER = 1, INTERNED_NAME = 2 };
enum { ANNOTATION_NAME = 1, ANNOTATION_UINT = 3, ANNOTATION_POINTER = 7, ANNOTATION_TEXT = 17 };

static size_t begin_packet(struct perfetto *trace, unsigned flags)
{
    const size_t position = protobuf_begin(&trace->packet, TRACE_PACKET);

    protobuf_number(&trace->packet, PACKET_SEQUENCE_ID, SEQUENCE);
    protobuf_number(&trace->packet, PACKET_SEQUENCE_FLAGS, flags);
    return position;
}

static void end_packet(struct perfetto *trace, size_t position)
{
    protobuf_end(&trace->packet, position);
    protobuf_write(&trace->packet, trace->out);
}

/* Write a string as UTF-8, which Protocol Buffers require. */
static void write_text(struct perfetto *trace, unsigned field, const char *text)
{
    json_t *string = text_json(text);

    if (string)
        protobuf_text(&trace->packet, field, json_string_value(string));
    else
        trace->packet.failed = true;
    json_decref(string);
}

/* Convert a time to Perfetto's unit, signed nanoseconds. */
static uint64_t convert_to_ns(uint64_t time_us)
{
    return time_us > INT64_MAX / 1000 ? INT64_MAX : time_us * 1000;
}

void perfetto_init(struct perfetto *trace, FILE *out, enum perfetto_clock clock, uint64_t now_us)
{
    struct protobuf *packet = &trace->packet;
    size_t position, snapshot, reading;

    *trace = (struct perfetto){.out = out};
    position = begin_packet(trace, FLAG_CLEARED);
    protobuf_number(packet, PACKET_IS_FIRST, 1);
    snapshot = protobuf_begin(packet, PACKET_CLOCK_SNAPSHOT);
    reading = protobuf_begin(packet, SNAPSHOT_CLOCKS);
    protobuf_number(packet, CLOCK_ID, clock);
    protobuf_number(packet, CLOCK_TIMESTAMP, convert_to_ns(now_us));
    protobuf_end(packet, reading);
    protobuf_number(packet, SNAPSHOT_PRIMARY, clock);
    protobuf_end(packet, snapshot);
    snapshot = protobuf_begin(packet, PACKET_DEFAULTS);
    protobuf_number(packet, PACKET_CLOCK_ID, clock);
    protobuf_end(packet, snapshot);
    end_packet(trace, position);
}

bool perfetto_fini(struct perfetto *trace)
{
    const bool success = !trace->packet.failed;

    protobuf_fini(&trace->packet);
    return success;
}

uint64_t perfetto_track(struct perfetto *trace, const struct perfetto_track *track)
{
    struct protobuf *packet = &trace->packet;
    const size_t position = begin_packet(trace, FLAG_NEEDED);
    const size_t descriptor = protobuf_begin(packet, PACKET_TRACK_DESCRIPTOR);

    protobuf_number(packet, TRACK_UUID, ++trace->tracks);
    if (track->parent)
        protobuf_number(packet, TRACK_PARENT, track->parent);
    write_text(trace, TRACK_NAME, track->name);
    if (track->description)
        write_text(trace, TRACK_DESCRIPTION, track->description);
    protobuf_number(packet, TRACK_ORDERING, ORDERING_EXPLICIT);
    protobuf_number(packet, TRACK_RANK, (uint64_t)track->rank);
    if (track->is_counter) {
        const size_t counter = protobuf_begin(packet, TRACK_COUNTER);

        protobuf_number(packet, COUNTER_UNIT, UNIT_BYTES);
        protobuf_text(packet, COUNTER_AXIS, "bytes");
        protobuf_end(packet, counter);
    }
    protobuf_end(packet, descriptor);
    end_packet(trace, position);
    return trace->tracks;
}

static void write_interned(struct perfetto *trace, unsigned kind, uint64_t number, const char *name)
{
    struct protobuf *packet = &trace->packet;
    const size_t position = begin_packet(trace, FLAG_NEEDED);
    const size_t data = protobuf_begin(packet, PACKET_INTERNED_DATA);
    const size_t entry = protobuf_begin(packet, kind);

    protobuf_number(packet, INTERNED_NUMBER, number);
    write_text(trace, INTERNED_NAME, name);
    protobuf_end(packet, entry);
    protobuf_end(packet, data);
    end_packet(trace, position);
}

void perfetto_intern_event(struct perfetto *trace, uint64_t number, const char *name)
{
    write_interned(trace, INTERNED_EVENT, number, name);
}

void perfetto_intern_annotation(struct perfetto *trace, uint64_t number, const char *name)
{
    write_interned(trace, INTERNED_ANNOTATION, number, name);
}

void perfetto_intern_text(struct perfetto *trace, uint64_t number, const char *text)
{
    write_interned(trace, INTERNED_TEXT, number, text);
}

void perfetto_event_begin(struct perfetto *trace, enum perfetto_event type, uint64_t time_us,
                          uint64_t track, uint64_t name)
{
    struct protobuf *packet = &trace->packet;

    trace->packet_position = begin_packet(trace, FLAG_NEEDED);
    protobuf_number(packet, PACKET_TIMESTAMP, convert_to_ns(time_us));
    trace->event_position = protobuf_begin(packet, PACKET_TRACK_EVENT);
    protobuf_number(packet, EVENT_TYPE, type);
    protobuf_number(packet, EVENT_TRACK, track);
    if (name)
        protobuf_number(packet, EVENT_NAME, name);
}

void perfetto_event_end(struct perfetto *trace)
{
    protobuf_end(&trace->packet, trace->event_position);
    end_packet(trace, trace->packet_position);
}

void perfetto_counter(struct perfetto *trace, uint64_t time_us, uint64_t track, uint64_t value)
{
    perfetto_event_begin(trace, PERFETTO_COUNTER, time_us, track, 0);
    protobuf_number(&trace->packet, EVENT_COUNTER_VALUE, value);
    perfetto_event_end(trace);
}

static void write_annotation(struct perfetto *trace, uint64_t name, unsigned field, uint64_t value)
{
    struct protobuf *packet = &trace->packet;
    const size_t annotation = protobuf_begin(packet, EVENT_ANNOTATIONS);

    protobuf_number(packet, ANNOTATION_NAME, name);
    protobuf_number(packet, field, value);
    protobuf_end(packet, annotation);
}

void perfetto_annotate_number(struct perfetto *trace, uint64_t name, uint64_t number)
{
    write_annotation(trace, name, ANNOTATION_UINT, number);
}

void perfetto_annotate_address(struct perfetto *trace, uint64_t name, uint64_t address)
{
    write_annotation(trace, name, ANNOTATION_POINTER, address);
}

void perfetto_annotate_text(struct perfetto *trace, uint64_t name, uint64_t text)
{
    write_annotation(trace, name, ANNOTATION_TEXT, text);
}
