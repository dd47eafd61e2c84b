/* SPDX-License-Identifier: MIT */
/*
 * Event rings: the last events of one arena, in the order in which they happened.
 *
 * An event describes one action on a block or a segment in eight 64-bit words.  A ring has one
 * writer at a time, the thread that holds the arena lock, and any number of readers, which do not
 * acquire that lock.  The writer never waits for a reader: it overwrites the oldest event.
 *
 * The events of a ring are numbered from 0 on, and event n is in slot n % (capacity + 1).  The
 * extra slot is the one that the writer may be filling, so a reader always finds the last
 * `capacity` events complete.  A reader works like the read side of a sequence lock:
 *
 *     writer                                       reader
 *
 *     release fence                                copy the words of event n (relaxed)
 *     store the words of event n (relaxed)         acquire fence
 *     recorded = n + 1 (release)                   load `recorded`, and discard the copy if the
 *                                                  writer has reached the slot again
 *
 * The `user` value of an allocation is not one of the eight words, because few programs need it.  A
 * ring allocates a second array when it gets the first event with a `user`; an event whose value is
 * in that array has XSEG_HISTORY_HAS_USER.
 *
 * Both arrays are demand-zero memory, so a ring commits host memory only for slots that were
 * written.  A change of the capacity copies the newest events into new arrays.
 *
 * Invariants:
 *   RING-1  cleared <= recorded, dropped <= recorded.
 *   RING-2  The times of the events do not decrease.
 *
 * Locking: the arena lock for writing; the history lock of the store for reading, for resizing and
 * for adding the `user` array.  The writer does not hold the history lock to append: no other
 * thread replaces the arrays of its ring.
 */
#ifndef XSEG_CORE_HISTORY_RING_H
#define XSEG_CORE_HISTORY_RING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/check.h"
#include "xseg/history.h"

#define XSEG_HISTORY_EVENT_WORDS 8u

/* Sizes and addresses of blocks are multiples of 2^9 bytes, so a size below 2^49 takes 40 bits. */
#define XSEG_HISTORY_BYTES_SHIFT 9u

#define XSEG_HISTORY_SIZE_MASK (((uint64_t)1 << 40) - 1)

/* Flags of an event. */
#define XSEG_HISTORY_FALLBACK 1u /* a block of the default pool in memory of the named pool */
#define XSEG_HISTORY_HAS_USER 2u /* the ring has the event's `user` */
#define XSEG_HISTORY_EVICTED  4u /* the block's pool is paused, and its pages are unmapped */
/* From this bit on, the ordinal of the device.  A reader adds it when it merges several devices. */
#define XSEG_HISTORY_DEVICE_SHIFT 8u

struct xseg_history_event {
    uint64_t time;                    /* in ticks, see history.h */
    uint64_t base;                    /* 0: the event is not about memory */
    uint64_t requested;               /* requested bytes of a block; bytes of a segment */
    uint64_t stream;                  /* handle */
    __extension__ uint64_t size : 40; /* of the block, in units of 512 bytes */
    __extension__ uint64_t action : 8;
    __extension__ uint64_t flags : 16;
    uint32_t order;  /* sequence number among all devices, see history.h; 0: none */
    uint32_t pool;   /* ID of the pool; 0: the default pool */
    uint32_t stack;  /* ID in the stack depot; 0: none */
    uint32_t frames; /* ID that the user's hook returned for its own frames; 0: none */
    uint32_t label;  /* of the thread, see labels.h; 0: none */
    uint32_t thread; /* kernel thread ID */
};

_Static_assert(sizeof(struct xseg_history_event) == 8 * XSEG_HISTORY_EVENT_WORDS,
               "an event has the size of its slot");

/* A ring has its own cache lines, because its writer changes it with every event. */
struct xseg_history_ring {
    atomic_uint_fast64_t recorded;                            /* number of events so far */
    uint64_t slot;                                            /* of the next event */
    atomic_uint_fast64_t (*events)[XSEG_HISTORY_EVENT_WORDS]; /* [capacity + 1] */
    atomic_uint_fast64_t *users; /* [capacity + 1]; NULL: no event has a `user` */
    uint64_t capacity;
    uint64_t coarse_ticks, coarse_ns; /* cached coarse time and when it was read (recorder.c) */
    atomic_uint_fast64_t cleared;     /* events with lower numbers were cleared */
    atomic_uint_fast64_t dropped;     /* events with lower numbers were dropped by a resize */
    /* At the moment of a snapshot (device_history.h): the number of events, and the stream of the
     * arena if the arena existed.  Guarded by the device memory lock. */
    uint64_t cut_end;
    uint64_t cut_stream;
    bool has_cut_stream;
    struct xseg_history_ring *next; /* in the list of rings of the device */
};

/* Pack an event into the words of its slot. */
static inline void xseg_history_event_write(const struct xseg_history_event *event,
                                            atomic_uint_fast64_t *words)
{
    const uint64_t kind = (uint64_t)event->flags << 48 | (uint64_t)event->action << 40;

    XSEG_ASSERT(event->size <= XSEG_HISTORY_SIZE_MASK);
    atomic_store_explicit(&words[0], event->time, memory_order_relaxed);
    atomic_store_explicit(&words[1], event->base, memory_order_relaxed);
    atomic_store_explicit(&words[2], event->requested, memory_order_relaxed);
    atomic_store_explicit(&words[3], event->stream, memory_order_relaxed);
    atomic_store_explicit(&words[4], event->size | kind, memory_order_relaxed);
    atomic_store_explicit(&words[5], event->order | (uint64_t)event->pool << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&words[6], event->stack | (uint64_t)event->frames << 32,
                          memory_order_relaxed);
    atomic_store_explicit(&words[7], event->label | (uint64_t)event->thread << 32,
                          memory_order_relaxed);
}

/* Unpack an event from a copy of its words. */
static inline struct xseg_history_event
xseg_history_event_read(const uint64_t words[XSEG_HISTORY_EVENT_WORDS])
{
    return (struct xseg_history_event){
        .time = words[0],
        .base = words[1],
        .requested = words[2],
        .stream = words[3],
        .size = words[4] & XSEG_HISTORY_SIZE_MASK,
        .action = (uint8_t)(words[4] >> 40),
        .flags = (uint16_t)(words[4] >> 48),
        .order = (uint32_t)words[5],
        .pool = (uint32_t)(words[5] >> 32),
        .stack = (uint32_t)words[6],
        .frames = (uint32_t)(words[6] >> 32),
        .label = (uint32_t)words[7],
        .thread = (uint32_t)(words[7] >> 32),
    };
}

static inline uint64_t xseg_history_event_bytes(const struct xseg_history_event *event)
{
    return event->size << XSEG_HISTORY_BYTES_SHIFT;
}

static inline uint64_t xseg_history_event_size(uint64_t bytes)
{
    XSEG_ASSERT(bytes % (1u << XSEG_HISTORY_BYTES_SHIFT) == 0 && bytes < (uint64_t)1 << 49);
    return bytes >> XSEG_HISTORY_BYTES_SHIFT;
}

/* Create an empty ring.  Returns NULL on host allocation failure. */
struct xseg_history_ring *xseg_history_ring_create(uint64_t capacity);
void xseg_history_ring_destroy(struct xseg_history_ring *ring);

/*
 * Change the capacity, and keep the newest events that fit.  The caller holds the arena lock and
 * the history lock.  On host allocation failure the ring is unchanged and the result is false.
 */
bool xseg_history_ring_resize(struct xseg_history_ring *ring, uint64_t capacity);

/*
 * Add the `user` array to a ring without one.  The caller holds the arena lock and the history
 * lock.  On host allocation failure the ring is unchanged and the result is false.
 */
bool xseg_history_ring_add_users(struct xseg_history_ring *ring);

/* The slot of an event. */
static inline atomic_uint_fast64_t (*xseg_history_ring_slot(
    const struct xseg_history_ring *ring, uint64_t number))[XSEG_HISTORY_EVENT_WORDS]
{
    return &ring->events[number % (ring->capacity + 1)];
}

/* Append an event without a `user`. */
static inline void xseg_history_ring_append(struct xseg_history_ring *ring,
                                            const struct xseg_history_event *event)
{
    const uint64_t number = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    atomic_uint_fast64_t *words = ring->events[ring->slot];

    XSEG_ASSERT(ring->capacity != 0 && words == *xseg_history_ring_slot(ring, number));
    /* A reader that sees one of the new words also sees the value of `recorded` before them. */
    atomic_thread_fence(memory_order_release);
    xseg_history_event_write(event, words);
    /* A division by the capacity would take longer than all other steps. */
    ring->slot = ring->slot == ring->capacity ? 0 : ring->slot + 1;
    atomic_store_explicit(&ring->recorded, number + 1, memory_order_release);
}

/* Append an event with its `user`.  A ring without a `user` array, or user 0, records none. */
void xseg_history_ring_append_with_user(struct xseg_history_ring *ring,
                                        const struct xseg_history_event *event, uint64_t user);

/* Get the numbers of the readable events, [*first, *end).  The caller holds the history lock. */
void xseg_history_ring_range(const struct xseg_history_ring *ring, uint64_t *first, uint64_t *end);

/* Copy an event.  Returns false if the event was overwritten, or dropped by a resize.  The caller
 * holds the history lock. */
bool xseg_history_ring_read(const struct xseg_history_ring *ring, uint64_t number,
                            struct xseg_history_event *out);

/* Copy an event, as xseg_history_ring_read(), and its `user`, 0 if the event has none. */
bool xseg_history_ring_read_with_user(const struct xseg_history_ring *ring, uint64_t number,
                                      struct xseg_history_event *out, uint64_t *user);

/* Clear the events with numbers below `end`: they are no longer readable. */
void xseg_history_ring_clear(struct xseg_history_ring *ring, uint64_t end);

/* The number of events before `first` that were overwritten or dropped since the last clear. */
uint64_t xseg_history_ring_lost(const struct xseg_history_ring *ring, uint64_t first);

/* Resident host bytes of the ring.  The caller holds the history lock. */
uint64_t xseg_history_ring_host_bytes(const struct xseg_history_ring *ring);

/* Check RING-1 and RING-2.  The caller holds the arena lock and the history lock. */
bool xseg_history_ring_audit(const struct xseg_history_ring *ring,
                             struct xseg_violation *violation);

/* --- Merge of rings. --- */

/*
 * The merge of the events of several rings into one sequence.
 *
 * Events of one ring keep their order.  Events with a sequence number (history.h) are sorted by
 * these numbers, independently of the clocks of the CPUs.  All other events are sorted by time.
 *
 * The first two constraints are turned into constraints on time.  The time of each event is raised
 * to that of its predecessor in the ring.  The time of an event with a sequence number is raised to
 * that of the event with the previous number.  Then times do not decrease along either order, and a
 * k-way merge by (time, last sequence number so far) satisfies both.  The merge uses a binary heap
 * of runs: O(log runs) per event.
 *
 * Locking: none; the events are copies.
 */

/* The events of one ring, in their order. */
struct xseg_history_run {
    struct xseg_history_event *events; /* [count], owned by the merge */
    uint64_t *users; /* [count], owned by the merge; NULL: no event has a `user` */
    size_t count;
    size_t next_ordered; /* while times are raised: the next event with a sequence number */
    size_t next;         /* the next event to merge */
    uint32_t order;      /* the last sequence number before `next` */
};

struct xseg_history_merge {
    struct xseg_history_run *runs; /* [count] */
    size_t count, capacity;
    size_t *heap; /* indices of runs with remaining events; at the top the run of the next event */
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
