/* SPDX-License-Identifier: MIT */
#include "src/core/history/history.h"

#include <string.h>

void xseg_history_init(struct xseg_history *history, struct xseg_history_store *store,
                       struct xseg_observers *observers, int device)
{
    memset(history, 0, sizeof(*history));
    history->store = store;
    history->observers = observers;
    history->device = device;
}

void xseg_history_fini(struct xseg_history *history)
{
    struct xseg_history_ring *ring = atomic_load(&history->rings), *next;

    for (; ring != NULL; ring = next) {
        next = ring->next;
        xseg_history_ring_destroy(ring);
    }
    atomic_store(&history->rings, NULL);
}

/* Make an arena's ring, and list it for readers. */
static struct xseg_history_ring *make_ring(struct xseg_history *history, uint64_t capacity)
{
    struct xseg_history_ring *ring = xseg_history_ring_create(capacity);

    if (ring == NULL)
        return NULL;
    ring->next = atomic_load_explicit(&history->rings, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(&history->rings, &ring->next, ring,
                                                  memory_order_release, memory_order_relaxed)) {
    }
    return ring;
}

struct xseg_history_ring *xseg_history_fit_ring(struct xseg_history *history,
                                                struct xseg_history_ring **ring, uint64_t capacity)
{
    XSEG_ASSERT(capacity != 0);
    if (*ring == NULL) {
        *ring = make_ring(history, capacity);
        return *ring;
    }
    xseg_mutex_lock(&history->store->lock);
    (void)xseg_history_ring_resize(*ring, capacity);
    xseg_mutex_unlock(&history->store->lock);
    return *ring;
}

void xseg_history_append_with(struct xseg_history *history, struct xseg_history_ring **ring,
                              uint64_t settings, const struct xseg_history_context *context,
                              struct xseg_history_event *event, uint64_t user)
{
    const uint64_t capacity = atomic_load_explicit(&history->store->capacity, memory_order_relaxed);

    XSEG_ASSERT(capacity != 0 && event->action < XSEG_HISTORY_ACTIONS);
    if (*ring == NULL || (*ring)->capacity != capacity)
        (void)xseg_history_fit_ring(history, ring, capacity);
    if (*ring == NULL)
        return;
    if ((*ring)->users == NULL && user != 0) {
        xseg_mutex_lock(&history->store->lock);
        (void)xseg_history_ring_add_users(*ring);
        xseg_mutex_unlock(&history->store->lock);
    }
    xseg_history_fill_in(history, settings, context, event);
    xseg_history_ring_append_with(*ring, event, user);
}

bool xseg_history_append_deferred(struct xseg_history *history, uint64_t capacity,
                                  uint64_t settings, struct xseg_history_event *event)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (history->annotations == NULL)
        history->annotations = make_ring(history, capacity);
    if (history->annotations == NULL)
        return false;
    xseg_history_fill_in(history, settings, xseg_history_context(), event);
    xseg_history_ring_append(history->annotations, event);
    return true;
}

uint64_t xseg_history_host_bytes(const struct xseg_history *history)
{
    uint64_t bytes = 0;

    xseg_mutex_lock(&history->store->lock);
    for (const struct xseg_history_ring *ring = atomic_load(&history->rings); ring != NULL;
         ring = ring->next)
        bytes += xseg_history_ring_host_bytes(ring);
    xseg_mutex_unlock(&history->store->lock);
    return bytes;
}
