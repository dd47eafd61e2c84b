/* SPDX-License-Identifier: MIT */
/*
 * Work: what is queued on streams, and when it ends on the virtual clock.
 *
 * A piece of work starts when the piece before it in its stream, and the piece of another stream
 * that it may depend on, have ended.  It takes a number of nanoseconds, or is open: it ends when
 * the host says so.  Its end is known as soon as nothing open stands before it; until then it is
 * unknown, and the piece is linked to what it waits for:
 *
 *     stream A   [10 us] -> [open] -> [5 us]
 *                             ^
 *     stream B   [3 us] -> [waits for A] -> [open]        unknown: the last two of A, two of B
 *
 * A piece is freed when nobody refers to it: a queue to its last piece, an event to what it
 * recorded, and, as long as its end is unknown, the piece to itself.
 *
 * xseg_sim_finish() ends the pieces of one stream at once and nothing else; where other streams
 * wait for work of theirs whose end was already known, they keep the time they had worked out.
 *
 * Locking: the machine's lock.
 */
#ifndef XSEG_SIM_WORK_H
#define XSEG_SIM_WORK_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_OPEN UINT64_MAX /* a duration, or an end that is unknown */

/** A stream's side of it: the order of its pieces. */
struct sim_queue {
    struct sim_work *last; /* referred to; NULL before the first */
    uint64_t queued, cut;  /* numbers of the last piece, and of the last one that was finished */
    uint64_t pieces;       /* that exist and belong to it; the queue must outlive them */
};

struct sim_work {
    struct sim_queue *queue;
    uint64_t number; /* in its queue */
    uint64_t earliest, duration, end;
    uint64_t references;
    uint64_t touches;   /* references of these (touch.h) */
    bool may_touch_all; /* one of them says nothing about where */
    /* Only while the end is unknown. */
    struct sim_work *before, *after; /* in its queue */
    struct sim_work *dependency;     /* of another queue */
    struct sim_work *waiters;        /* those whose dependency this is */
    struct sim_work *waiter_before, *waiter_after;
    uint64_t visit;                    /* of the last wait that came by */
    struct sim_work *link, *link_open; /* in lists of pieces to look at, and of open ones */
};

/**
 * Add a piece of work to a queue.
 *
 * @param dependency  work that has to end first; NULL for none
 *
 * Returns: false when there is no host memory
 */
bool sim_work_queue(struct sim_queue *queue, uint64_t duration, struct sim_work *dependency);

struct sim_work *sim_work_refer(struct sim_work *work);
void sim_work_unrefer(struct sim_work *work);

/** The host waits: everything that the work needs ends, and the clock moves to its end. */
void sim_work_wait(struct sim_work *work);

/** Everything queued so far has ended. */
void sim_queue_finish(struct sim_queue *queue);

/** A queue whose work has ended refers to nothing any more. */
void sim_queue_forget(struct sim_queue *queue);

#endif
