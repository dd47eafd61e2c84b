/* SPDX-License-Identifier: MIT */
/*
 * Merging the events of several rings into one sequence.
 *
 * Events of one ring keep their order.  Events that drew a number come in the order of their numbers, whatever
 * the clocks of two processors say.  Beside that, events come in the order of their times.
 *
 * How: an event's time is raised to that of the event before it in its ring, and a numbered event's to that of the
 * number before.  Then no time falls, in a ring or along the numbers, and the rings are merged by (time, the last
 * number up to here).
 *
 * Terms:
 *   run   the events of one ring, in their order
 *
 * Locking: none; the events are copies.
 */
#ifndef XSEG_CORE_HISTORY_MERGE_H
#define XSEG_CORE_HISTORY_MERGE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/core/history/event.h"

struct xseg_history_run {
    struct xseg_history_event *events; /* [count], owned by the merge */
    uint64_t *users; /* [count], owned by the merge; NULL: no event has a `user` */
    size_t count;
    size_t numbered; /* while times are raised: the next event that drew a number */
    size_t next;     /* the first that was not merged yet */
    uint32_t order;  /* the last number among the events before `next` */
};

struct xseg_history_merge {
    struct xseg_history_run *runs; /* [count]; owned by the merge */
    size_t count, capacity;
    size_t *heap; /* runs that have events left, the one with the first event at the top */
    size_t heap_count;
    uint64_t user; /* of the event that came last; 0: none */
};

void xseg_history_merge_init(struct xseg_history_merge *merge);
void xseg_history_merge_fini(struct xseg_history_merge *merge);

/* Add a run of events, and their users or NULL, which the merge frees; before it begins.  Their numbers rise.  Returns
 * false without host memory; the arrays are freed then, too. */
bool xseg_history_merge_add(struct xseg_history_merge *merge, struct xseg_history_event *events,
                            uint64_t *users, size_t count);

/* All runs are there.  Once.  Returns false without host memory. */
bool xseg_history_merge_begin(struct xseg_history_merge *merge);

/* The next event, valid until the merge ends; NULL behind the last. */
const struct xseg_history_event *xseg_history_merge_next(struct xseg_history_merge *merge);

/* Begin again with the first event. */
void xseg_history_merge_restart(struct xseg_history_merge *merge);

#endif
