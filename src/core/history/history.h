/* SPDX-License-Identifier: MIT */
/*
 * The history of a device: the rings of its arenas, and the numbers by which their events are put in order.
 *
 * Events of one arena are ordered by its lock.  Where memory passes from one arena to another, both sides hold
 * the device memory lock and draw a number.  Events of several arenas are merged by these numbers first, and by time second
 * (merge.h).
 *
 * Locking: ARENA of the arena that an event is about, for noting.  The device memory lock for drawing a number.
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
    /* The rings of all arenas that have had an event; a ring lives as long as the device. */
    _Atomic(struct xseg_history_ring *) rings;
    struct xseg_history_ring *annotations; /* of no arena; written under the device memory lock */
};

void xseg_history_init(struct xseg_history *history, struct xseg_history_store *store,
                       struct xseg_observers *observers, int device);
void xseg_history_fini(struct xseg_history *history);

static inline uint64_t xseg_history_settings(const struct xseg_history *history)
{
    return xseg_history_store_settings(history->store);
}

/* Draw a number.  Numbers rise over all devices, so that their events can be merged.  The device memory lock is held. */
static inline uint32_t xseg_history_draw(struct xseg_history *history)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return (uint32_t)(atomic_fetch_add_explicit(&history->store->order, 1, memory_order_relaxed) %
                      UINT32_MAX) +
           1;
}

/* The ring of an arena, made or with the capacity in force.  Without host memory the ring as it was, which may be NULL. */
struct xseg_history_ring *xseg_history_fit_ring(struct xseg_history *history,
                                                struct xseg_history_ring **ring, uint64_t capacity);

/* Fill in an event's stack and frames, as the settings want them for its action. */
static inline void xseg_history_fill_in_stack(uint64_t settings,
                                              const struct xseg_history_context *context,
                                              struct xseg_history_event *event)
{
    const bool has_stack =
        xseg_history_context_is_of(context, settings) &&
        xseg_history_settings_stack(settings, (enum xseg_history_action)event->action);

    event->stack = has_stack ? context->gathered.stack : 0;
    event->frames = has_stack ? context->gathered.frames : 0;
}

/* Fill in an event's stack, frames, label and thread, and its time unless it has one. */
static inline void xseg_history_fill_in(const struct xseg_history *history, uint64_t settings,
                                        const struct xseg_history_context *context,
                                        struct xseg_history_event *event)
{
    const struct xseg_history_store *store = history->store;

    event->thread = context->thread;
    if (event->label == 0)
        event->label = xseg_history_label_of(context, store);
    xseg_history_fill_in_stack(settings, context, event);
    if (event->time == 0)
        event->time = xseg_history_store_now(store);
}

/*
 * Note an event in the ring of an arena.  It is filled in here.
 *
 * It is inline so that the event stays in registers: written to memory and read at once, it takes twice the time.
 *
 * ring:    the arena's; made on its first event.  Without host memory the event is left out
 * context: the calling thread's
 * then:    an action that happens to the same block at once, and is noted as well; XSEG_HISTORY_ACTIONS: none
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
        to = xseg_history_fit_ring(history, ring, capacity);
    if (to == NULL)
        return;
    xseg_history_fill_in(history, settings, context, &event);
    xseg_history_ring_append(to, &event);
    if (then == XSEG_HISTORY_ACTIONS)
        return;
    event.action = (uint8_t)then;
    xseg_history_fill_in_stack(settings, context, &event);
    xseg_history_ring_append(to, &event);
}

/* Note an event with a `user`, or 0, in the ring of an arena, which gets its array of users.  Out of line, and without a
 * second action; else as xseg_history_append().  Without host memory for the array the event has no `user`. */
void xseg_history_append_with(struct xseg_history *history, struct xseg_history_ring **ring,
                              uint64_t settings, const struct xseg_history_context *context,
                              struct xseg_history_event *event, uint64_t user);

/* Note an event that is about no arena, in a ring of so many events.  The device memory lock is held.  Returns false without host
 * memory. */
bool xseg_history_append_deferred(struct xseg_history *history, uint64_t capacity,
                                  uint64_t settings, struct xseg_history_event *event);

/* Host bytes of all rings.  HISTORY is taken inside. */
uint64_t xseg_history_host_bytes(const struct xseg_history *history);

#endif
