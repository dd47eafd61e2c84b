/* SPDX-License-Identifier: MIT */
/*
 * Writes a trace in Perfetto's format (https://perfetto.dev/docs/reference/synthetic-track-event), packet by packet.
 *
 * The numbers of fields are those of the messages Trace, TracePacket, ClockSnapshot, TrackDescriptor, TrackEvent and
 * InternedData in protos/perfetto/trace of Perfetto's source, as of version 59.
 *
 * Terms:
 *   track     a row of the picture: of counters, of slices and instants, or of other tracks
 *   slice     what lasts from one time to another; on one track slices lie within each other or apart
 *   interned  a text that is written once, and has a number from then on
 *
 * A trace is one sequence of packets, so an interned text has one number throughout.  Only the packet that is being
 * written is in host memory.
 *
 * Locking: none; a trace belongs to one thread.
 */
#ifndef TOOLS_PERFETTO_H
#define TOOLS_PERFETTO_H

#include "src/tools/commands/export/protobuf.h"

/* Numbers of the builtin clocks: enum BuiltinClock. */
enum perfetto_clock { PERFETTO_CLOCK_REALTIME = 1, PERFETTO_CLOCK_BOOTTIME = 6 };

enum perfetto_event {
    PERFETTO_SLICE_BEGIN = 1,
    PERFETTO_SLICE_END = 2,
    PERFETTO_INSTANT = 3,
    PERFETTO_COUNTER = 4
};

struct perfetto {
    FILE *out;
    struct protobuf packet;
    size_t packet_place, event_place; /* of the event that is being written */
    uint64_t tracks;                  /* numbers given so far */
};

struct perfetto_track {
    const char *name;
    const char *description; /* NULL: none */
    uint64_t parent;         /* 0: none */
    int rank;                /* tracks of one parent are in the order of their ranks */
    bool is_counter;         /* of bytes */
};

/*
 * Begin a trace.  Whether it could be written is the stream's to say (ferror()).
 *
 * now_us: a reading of the clock, which is that of all times of the trace
 */
void perfetto_init(struct perfetto *trace, FILE *out, enum perfetto_clock clock, uint64_t now_us);

/* Returns: false where host memory ran out: packets are missing */
bool perfetto_fini(struct perfetto *trace);

/* Describe a track.  Returns its number. */
uint64_t perfetto_track(struct perfetto *trace, const struct perfetto_track *track);

/* Intern a name of events, of annotations, or a text that annotations have; each kind has its own numbers, from 1. */
void perfetto_intern_event(struct perfetto *trace, uint64_t number, const char *name);
void perfetto_intern_annotation(struct perfetto *trace, uint64_t number, const char *name);
void perfetto_intern_text(struct perfetto *trace, uint64_t number, const char *text);

void perfetto_counter(struct perfetto *trace, uint64_t time_us, uint64_t track, uint64_t value);

/*
 * Begin an event, add what it is annotated with, and end it.
 *
 * name: interned; 0: none, as of the end of a slice
 */
void perfetto_event_begin(struct perfetto *trace, enum perfetto_event type, uint64_t time_us,
                          uint64_t track, uint64_t name);
void perfetto_annotate_number(struct perfetto *trace, uint64_t name, uint64_t number);
void perfetto_annotate_address(struct perfetto *trace, uint64_t name, uint64_t address);
void perfetto_annotate_text(struct perfetto *trace, uint64_t name, uint64_t text);
void perfetto_event_end(struct perfetto *trace);

#endif
