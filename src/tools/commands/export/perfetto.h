/* SPDX-License-Identifier: MIT */
/*
 * A writer of Perfetto traces (https://perfetto.dev/docs/reference/synthetic-track-event).
 *
 * Field numbers are those of the messages Trace, TracePacket, ClockSnapshot, TrackDescriptor, TrackEvent and InternedData in
 * protos/perfetto/trace of Perfetto 59.
 *
 * Terms:
 *   track     a row of the display: a counter, slices and instants, or a group of tracks
 *   slice     an interval of time; the slices of a track are nested or disjoint
 *   interned  a string that is written once and then referred to by its ID
 *
 * A trace is one sequence of packets, so the IDs of interned strings are valid in the whole trace.  Only the current packet is
 * in host memory.
 *
 * Locking: none; a trace belongs to one thread.
 */
#ifndef TOOLS_PERFETTO_H
#define TOOLS_PERFETTO_H

#include "src/tools/commands/export/protobuf.h"

/* enum BuiltinClock. */
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
    size_t packet_position, event_position; /* of the current event */
    uint64_t tracks;                        /* number of tracks */
};

struct perfetto_track {
    const char *name;
    const char *description; /* NULL: none */
    uint64_t parent;         /* 0: none */
    int rank;                /* sort key among the tracks of a parent */
    bool is_counter;         /* of bytes */
};

/*
 * Begin a trace.  ferror() reports output errors.
 *
 * @param now_us  a time of the clock of the trace
 */
void perfetto_init(struct perfetto *trace, FILE *out, enum perfetto_clock clock, uint64_t now_us);

/* Returns false if packets are missing because of a host allocation failure. */
bool perfetto_fini(struct perfetto *trace);

/* Add a track.  Returns its ID. */
uint64_t perfetto_track(struct perfetto *trace, const struct perfetto_track *track);

/* Intern a name of events or annotations, or a value of annotations.  Each kind has separate IDs, from 1. */
void perfetto_intern_event(struct perfetto *trace, uint64_t number, const char *name);
void perfetto_intern_annotation(struct perfetto *trace, uint64_t number, const char *name);
void perfetto_intern_text(struct perfetto *trace, uint64_t number, const char *text);

void perfetto_counter(struct perfetto *trace, uint64_t time_us, uint64_t track, uint64_t value);

/*
 * Begin an event, add its annotations, and end it.
 *
 * @param name  interned; 0: none, for the end of a slice
 */
void perfetto_event_begin(struct perfetto *trace, enum perfetto_event type, uint64_t time_us,
                          uint64_t track, uint64_t name);
void perfetto_annotate_number(struct perfetto *trace, uint64_t name, uint64_t number);
void perfetto_annotate_address(struct perfetto *trace, uint64_t name, uint64_t address);
void perfetto_annotate_text(struct perfetto *trace, uint64_t name, uint64_t text);
void perfetto_event_end(struct perfetto *trace);

#endif
