/* SPDX-License-Identifier: MIT */
/*
 * What a device's history says, as intervals: which blocks lived from which event to which, and which memory was
 * mapped.  The state at any event is the intervals that hold it.
 *
 * Terms:
 *   moment  a number of an event, from 1; 0 is before the first of them, event count + 1 is after the last
 *   life    a block, from its allocation to the end of its free
 *   span    memory that was mapped and unmapped as one; where a part is unmapped, the parts are spans of their own
 *   summed  of a history with more lives than a page can have: what is left of the others is their bytes
 *
 * Invariants:
 *   LIVES-1  a life's born < freed <= died, but both born and freed may be 0; a span's born < died
 *   LIVES-2  lives are in the order of their births, and no two with born > 0 have one moment
 *   LIVES-3  spans that hold one moment do not overlap
 *
 * The history is played by course.h: what does not fit is left out and counted.
 *
 * Locking: none; intervals belong to one thread.
 */
#ifndef TOOLS_VIEW_LIVES_H
#define TOOLS_VIEW_LIVES_H

#include "src/tools/replay_model/replay_model.h"

struct view_life {
    uint64_t address, bytes, stream;
    uint32_t born, freed, died; /* moments: allocated, free requested, free completed */
    uint32_t stack, free_stack, pool, label;
};

struct view_span {
    uint64_t address, bytes, stream;
    uint32_t born, died; /* moments */
    uint32_t pool;
    uint64_t page; /* bytes of each page; 0: classic, given back as a whole */
};

struct view_lives {
    struct view_life *lives; /* [life_count] */
    struct view_span *spans; /* [span_count] */
    uint32_t *events;        /* [event_count]: which entry of the history each event is */
    uint64_t *
        summed; /* [event_count + 1] or NULL: the most that summed lives had from each moment to the next */
    size_t life_count, span_count, event_count;
    size_t summed_count; /* lives that are summed */
    struct replay_model_dropped dropped;
    uint64_t unmatched; /* events, segments and blocks that contradict what is around them */
};

/* Returns false without host memory; there is nothing to end then. */
bool view_lives_init(struct view_lives *out, const struct recording *recording,
                     const struct recording_device *device);
void view_lives_fini(struct view_lives *lives);

#endif
