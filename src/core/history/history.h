/* SPDX-License-Identifier: MIT */
/*
 * The history of a device: events, each with its time, thread, label and call stack.
 *
 * Each arena appends its events to its own ring (ring.h) under the arena lock, which the caller
 * holds anyway.  So recording takes no other lock and is ordered within an arena.  A ring is
 * created by the first event of its arena and lives as long as the device, longer than the arena.
 *
 * Readers merge the rings of a device, or of several devices, into one sequence (merge.h).  Times
 * alone cannot order the events of two arenas, because the counters of two CPUs may differ.  The
 * order matters where memory passes from one arena to another.  There both arenas record their
 * events under the device memory lock, with a sequence number.  The merge sorts by these numbers
 * first and by time second.
 *
 * What an event carries comes from three places.  The caller provides the block and the action.
 * The context of the calling thread (context.h) provides the call stack, the frames of the user's
 * hook, the label and the thread ID; they are gathered at the start of a call, before any lock is
 * held.  The store (store.h), which all devices of an allocator share, provides the settings, the
 * clock, the labels (labels.h) and the stack depot.
 *
 * Cost: the settings are one 64-bit word, which is 0 while nothing is recorded.  A call on the slow
 * path tests the word once, a hit on the fast path not at all, because the configuration excludes
 * such hits (`records_blocks`).  Appending an event takes no lock, makes no system call except for
 * the page faults of a new ring, and allocates host memory only for the first event of an arena.
 *
 * Locking: the arena lock for appending to the ring of an arena.  The device memory lock for
 * sequence numbers and for `device_ring`.  The history lock of the store (rank HISTORY) against
 * replacement of the arrays of a ring while they are read.
 */
#ifndef XSEG_CORE_HISTORY_HISTORY_H
#define XSEG_CORE_HISTORY_HISTORY_H

#include "src/core/history/context.h"
#include "src/core/history/ring.h"
#include "src/core/history/store.h"

struct xseg_observers;

struct xseg_history {
    struct xseg_history_store *store;
    struct xseg_observers *observers;
    int device;
    _Atomic(struct xseg_history_ring *) rings; /* of all arenas that have had an event */
    /* Events that belong to no arena, such as annotations; guarded by the device memory lock. */
    struct xseg_history_ring *device_ring;
};

void xseg_history_init(struct xseg_history *history, struct xseg_history_store *store,
                       struct xseg_observers *observers, int device);
void xseg_history_fini(struct xseg_history *history);

static inline uint64_t xseg_history_settings(const struct xseg_history *history)
{
    return xseg_history_store_settings(history->store);
}

/* The next sequence number, not 0, of the events of all devices.  The caller holds the device
 * memory lock. */
static inline uint32_t xseg_history_next_order(struct xseg_history *history)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return (uint32_t)(atomic_fetch_add_explicit(&history->store->order, 1, memory_order_relaxed) %
                      UINT32_MAX) +
           1;
}

/* Create the ring of an arena, or resize it to `capacity`.  On host allocation failure the ring is
 * unchanged, which includes NULL. */
struct xseg_history_ring *xseg_history_prepare_ring(struct xseg_history *history,
                                                    struct xseg_history_ring **ring,
                                                    uint64_t capacity);

/* Set the stack and the frames of an event if the settings request them for its action. */
static inline void xseg_history_set_stack(uint64_t settings,
                                          const struct xseg_history_context *context,
                                          struct xseg_history_event *event)
{
    const bool has_stack =
        xseg_history_context_is_of(context, settings) &&
        xseg_history_settings_stack(settings, (enum xseg_history_action)event->action);

    event->stack = has_stack ? context->gathered.stack : 0;
    event->frames = has_stack ? context->gathered.frames : 0;
}

/* Set the members of an event that the caller has not set: thread, label, stack, frames, time. */
static inline void xseg_history_complete_event(const struct xseg_history *history,
                                               uint64_t settings,
                                               const struct xseg_history_context *context,
                                               struct xseg_history_event *event)
{
    const struct xseg_history_store *store = history->store;

    event->thread = context->thread;
    if (event->label == 0)
        event->label = xseg_history_label_of(context, store);
    xseg_history_set_stack(settings, context, event);
    if (event->time == 0)
        event->time = xseg_history_store_now(store);
}

/*
 * Append an event to the ring of an arena.  If a new ring cannot be allocated, the event is lost.
 *
 * The function is inline so that the event stays in registers: a store to memory followed by an
 * immediate load doubles its time.
 *
 * @param ring     the ring of the arena; NULL: create it
 * @param context  the context of the calling thread
 * @param then     a second action on the same block at the same time; XSEG_HISTORY_ACTIONS: none
 */
static inline void xseg_history_append(struct xseg_history *history,
                                       struct xseg_history_ring **ring, uint64_t settings,
                                       const struct xseg_history_context *context,
                                       struct xseg_history_event event,
                                       enum xseg_history_action then)
{
    const uint64_t capacity = atomic_load_explicit(&history->store->capacity, memory_order_relaxed);
    struct xseg_history_ring *to = *ring;

    XSEG_ASSERT(capacity != 0 && event.action < XSEG_HISTORY_ACTIONS);
    if (__builtin_expect(to == NULL || to->capacity != capacity, 0))
        to = xseg_history_prepare_ring(history, ring, capacity);
    if (to == NULL)
        return;
    xseg_history_complete_event(history, settings, context, &event);
    xseg_history_ring_append(to, &event);
    if (then == XSEG_HISTORY_ACTIONS)
        return;
    event.action = (uint8_t)then;
    xseg_history_set_stack(settings, context, &event);
    xseg_history_ring_append(to, &event);
}

/* Append an event with its `user`, which may be 0, to the ring of an arena.  On host allocation
 * failure for the `user` array the event has no `user`. */
void xseg_history_append_with_user(struct xseg_history *history, struct xseg_history_ring **ring,
                                   uint64_t settings, const struct xseg_history_context *context,
                                   struct xseg_history_event *event, uint64_t user);

/* Append an event that belongs to no arena to the ring of the device, which is created with this
 * capacity.  The caller holds the device memory lock.  Returns false on host allocation failure. */
bool xseg_history_append_to_device(struct xseg_history *history, uint64_t capacity,
                                   uint64_t settings, struct xseg_history_event *event);

/* Resident host bytes of all rings.  Acquires the history lock. */
uint64_t xseg_history_host_bytes(const struct xseg_history *history);

/* Find the last recorded free of a block that contains an address.  Acquires the history lock. */
bool xseg_history_find_free(struct xseg_history *history, uint64_t address,
                            struct xseg_history_event *out);

/*
 * Print when, in which thread and from which call stack the block at an address was last freed, for
 * messages about double frees and writes after a free.  The caller holds no lock, because the
 * user's hook is called for the names of its frames.
 *
 * @param lead  printed first
 * @return false, with nothing printed, if no such free is recorded
 */
bool xseg_history_print_free(struct xseg_history *history, uint64_t address, const char *lead,
                             struct xseg_strbuf *text);

#endif
