/* SPDX-License-Identifier: MIT */
/*
 * A ring: the last events of one arena, in the order in which they happened.
 *
 * One thread at a time writes, the one that holds the arena's lock; it never waits for a reader.  Readers copy
 * events without that lock.  An event that was overwritten while it was copied is dropped, and counts as lost.
 *
 * Terms:
 *   number   events of a ring are numbered from 0 on
 *   kept     the events that a reader can have: the last `capacity`, without those that were cleared
 *   lost     events that were overwritten before they were cleared
 *
 * Event n is in place n % (capacity + 1).  The place more is the one that is being written, so that a reader can have
 * the last `capacity` events.
 *
 * A ring may have an array of users as well, with one word a place: the `user` of the event there, if that has
 * XSEG_HISTORY_HAS_USER.  It is written and read as the event's words are, so it is dropped with them.
 *
 * Invariants:
 *   RING-1  cleared <= noted, dropped <= noted.
 *   RING-2  the times of kept events do not fall.
 *
 * Locking: ARENA of the ring's arena for writing.  HISTORY guards the memory of events and users against
 * xseg_history_ring_resize() and xseg_history_ring_add_users(): a reader holds it, a writer does not, since nobody else
 * changes its ring.
 */
#ifndef XSEG_CORE_HISTORY_RING_H
#define XSEG_CORE_HISTORY_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "src/base/check.h"
#include "src/core/history/event.h"

/* What the writer changes has cache lines of its own (xseg_history_ring_create()). */
struct xseg_history_ring {
    atomic_uint_fast64_t recorded;                            /* events so far */
    uint64_t place;                                           /* of the next event */
    atomic_uint_fast64_t (*events)[XSEG_HISTORY_EVENT_WORDS]; /* [capacity + 1] */
    atomic_uint_fast64_t *users; /* [capacity + 1]; NULL: no event has a `user` */
    uint64_t capacity;
    uint64_t coarse_ticks, coarse_ns; /* of the last reading of the coarse clock, see recorder.c */
    atomic_uint_fast64_t cleared;     /* events with lower numbers were cleared */
    atomic_uint_fast64_t dropped;     /* events with lower numbers went as the ring was resized */
    uint64_t
        cut; /* number behind the last event of a moment, see device_history.h; guarded by the device memory lock */
    uint64_t
        cut_stream; /* handle of the arena's stream at that moment; guarded by the device memory lock */
    bool
        has_cut_stream; /* the arena was in a pool at that moment; guarded by the device memory lock */
    struct xseg_history_ring *next; /* in the device's list of rings */
};

/* Returns NULL without host memory.  Memory is taken from the kernel as events are noted. */
struct xseg_history_ring *xseg_history_ring_create(uint64_t capacity);
void xseg_history_ring_destroy(struct xseg_history_ring *ring);

/*
 * Give a ring another capacity; the newest events that fit are kept.  ARENA of its arena and HISTORY are held.
 *
 * Returns: false without host memory; nothing has changed
 */
bool xseg_history_ring_resize(struct xseg_history_ring *ring, uint64_t capacity);

/*
 * Give a ring its array of users, which it keeps from then on; events so far have none.  ARENA of its arena and HISTORY
 * are held.
 *
 * Returns: false without host memory; nothing has changed
 */
bool xseg_history_ring_add_users(struct xseg_history_ring *ring);

/* Where an event is. */
static inline atomic_uint_fast64_t (*xseg_history_ring_place(
    const struct xseg_history_ring *ring, uint64_t number))[XSEG_HISTORY_EVENT_WORDS]
{
    return &ring->events[number % (ring->capacity + 1)];
}

/* Note an event without a `user`. */
static inline void xseg_history_ring_append(struct xseg_history_ring *ring,
                                            const struct xseg_history_event *event)
{
    const uint64_t number = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    atomic_uint_fast64_t *words = ring->events[ring->place];

    XSEG_ASSERT(ring->capacity != 0 && words == *xseg_history_ring_place(ring, number));
    /* A reader that sees one of the new words also sees that `noted` has come this far. */
    atomic_thread_fence(memory_order_release);
    xseg_history_event_write(event, words);
    /* A division would take longer than all of this. */
    ring->place = ring->place == ring->capacity ? 0 : ring->place + 1;
    atomic_store_explicit(&ring->recorded, number + 1, memory_order_release);
}

/* Note an event with its `user`, if the ring has users; 0: none. */
void xseg_history_ring_append_with(struct xseg_history_ring *ring,
                                   const struct xseg_history_event *event, uint64_t user);

/* The first and the number behind the last event that a reader can have now.  HISTORY is held. */
void xseg_history_ring_range(const struct xseg_history_ring *ring, uint64_t *first, uint64_t *end);

/* Copy an event.  Returns false if it has been overwritten, or went as the ring was resized.  HISTORY is held. */
bool xseg_history_ring_read(const struct xseg_history_ring *ring, uint64_t number,
                            struct xseg_history_event *out);

/* The same with its `user`, 0 if it has none. */
bool xseg_history_ring_read_with(const struct xseg_history_ring *ring, uint64_t number,
                                 struct xseg_history_event *out, uint64_t *user);

/* Forget all events up to a number. */
void xseg_history_ring_clear(struct xseg_history_ring *ring, uint64_t end);

/* How many events before `first` were lost since the last clear. */
uint64_t xseg_history_ring_lost(const struct xseg_history_ring *ring, uint64_t first);

/* Host bytes that the ring has touched.  HISTORY is held. */
uint64_t xseg_history_ring_host_bytes(const struct xseg_history_ring *ring);

/* ARENA of the ring's arena and HISTORY are held. */
bool xseg_history_ring_audit(const struct xseg_history_ring *ring,
                             struct xseg_violation *violation);

#endif
