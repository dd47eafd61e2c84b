/* SPDX-License-Identifier: MIT */
/*
 * The merge of the events of several rings into one sequence.
 *
 * Events of one ring keep their order.  Events with a sequence number (history.h) are sorted by
 * these numbers, whatever the clocks of the CPUs were.  All other events are sorted by time.
 *
 * The first two constraints are turned into constraints on time.  The time of each event is raised
 * to that of its predecessor in the ring.  The time of an event with a sequence number is raised to
 * that of the event with the previous number.  Then times do not decrease along either order, and a
 * k-way merge by (time, last sequence number so far) satisfies both.  The merge uses a binary heap
 * of runs: O(log runs) per event.
 *
 * Locking: none; the events are copies.
 */
#ifndef XSEG_CORE_HISTORY_MERGE_H
#define XSEG_CORE_HISTORY_MERGE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/core/history/ring.h"

/* The events of one ring, in their order. */
struct xseg_history_run {
    struct xseg_history_event *events; /* [count], owned by the merge */
    uint64_t *users; /* [count], owned by the merge; NULL: no event has a `user` */
    size_t count;
    size_t ordered; /* while times are raised: the next event with a sequence number */
    size_t next;    /* the next event to merge */
    uint32_t order; /* the last sequence number before `next` */
};

struct xseg_history_merge {
    struct xseg_history_run *runs; /* [count] */
    size_t count, capacity;
    size_t *heap; /* indices of runs with events left, the next event's run at the top */
    size_t heap_count;
    uint64_t user; /* of the event that was returned last; 0: none */
};

void xseg_history_merge_init(struct xseg_history_merge *merge);
void xseg_history_merge_fini(struct xseg_history_merge *merge);

/* Add a run before the merge begins.  Ownership of the arrays passes to the merge, also on host
 * allocation failure, when the result is false.  The sequence numbers of a run increase. */
bool xseg_history_merge_add(struct xseg_history_merge *merge, struct xseg_history_event *events,
                            uint64_t *users, size_t count);

/* Begin the merge after all runs have been added.  Returns false on host allocation failure. */
bool xseg_history_merge_begin(struct xseg_history_merge *merge);

/* The next event, which is valid until the merge is destroyed; NULL after the last one. */
const struct xseg_history_event *xseg_history_merge_next(struct xseg_history_merge *merge);

/* Return to the first event. */
void xseg_history_merge_restart(struct xseg_history_merge *merge);

#endif
