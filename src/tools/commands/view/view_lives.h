/* SPDX-License-Identifier: MIT */
/*
 * The recording of a device as intervals: the lifetimes of blocks, and the mapped memory.  The state at any event consists of
 * the intervals that contain it.
 *
 * Terms:
 *   moment  the number of an event, from 1; 0 is before the first event, event count + 1 is after the last
 *   life    the lifetime of a block, from its allocation to the completion of its free
 *   span    memory that was mapped and unmapped as one; a partial unmap divides a span
 *   summed  lives that are omitted because there are too many; the sum of their bytes remains
 *
 * Invariants:
 *   LIVES-1  allocated_at < free_requested_at <= freed_at of a life, except that the first two can both be 0;
 *            mapped_at < unmapped_at of a span
 *   LIVES-2  lives are sorted by allocated_at, which is unique if it is not 0
 *   LIVES-3  spans that contain the same moment do not overlap
 *
 * The replay model (replay_model.h) omits and counts inconsistent events.
 *
 * Locking: none; intervals belong to one thread.
 */
#ifndef TOOLS_VIEW_LIVES_H
#define TOOLS_VIEW_LIVES_H

#include "src/tools/replay_model/replay_model.h"

struct view_life {
    uint64_t address, bytes, stream;
    uint32_t allocated_at, free_requested_at,
        freed_at; /* moments; freed_at: completion of the free */
    uint32_t stack, free_stack, pool, context;
};

struct view_span {
    uint64_t address, bytes, stream;
    uint32_t mapped_at, unmapped_at; /* moments */
    uint32_t pool;
    uint64_t page; /* bytes of a page; 0: classic, released as a whole */
};

struct view_lives {
    struct view_life *lives; /* [life_count] */
    struct view_span *spans; /* [span_count] */
    uint32_t *events;        /* [event_count]: indices of the events in the recording */
    /* [event_count + 1] or NULL: the maximum of the summed bytes from each moment to the next */
    uint64_t *summed;
    size_t life_count, span_count, event_count;
    size_t summed_count; /* number of summed lives */
    struct replay_model_dropped dropped;
    uint64_t unmatched; /* inconsistent events, segments and blocks */
};

/* Returns false on host allocation failure; then `out` requires no view_lives_fini(). */
bool view_lives_init(struct view_lives *out, const struct recording *recording,
                     const struct recording_device *device);
void view_lives_fini(struct view_lives *lives);

/*
 * Keep the lives with the largest product of bytes and events, and replace the others by the sum of their bytes.  Their events
 * are removed, and the remaining events are renumbered.  Between two remaining events only summed lives change, so the peak of
 * memory is exact.
 *
 * @return false on host allocation failure; view_lives_fini() is still necessary
 */
bool view_lives_reduce(struct view_lives *lives, size_t max_lives);

#endif
