/* SPDX-License-Identifier: MIT */
#include "src/core/history/history.h"

#include <inttypes.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/string_util.h"

/* Frames of a call stack that a message about a free contains. */
#define FRAMES_SHOWN 6u

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

/* --- Appending. --- */

/* Create a ring, and publish it to readers. */
static struct xseg_history_ring *create_ring(struct xseg_history *history, uint64_t capacity)
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

struct xseg_history_ring *xseg_history_prepare_ring(struct xseg_history *history,
                                                    struct xseg_history_ring **ring,
                                                    uint64_t capacity)
{
    XSEG_ASSERT(capacity != 0);
    if (*ring == NULL) {
        *ring = create_ring(history, capacity);
        return *ring;
    }
    xseg_mutex_lock(&history->store->lock);
    (void)xseg_history_ring_resize(*ring, capacity);
    xseg_mutex_unlock(&history->store->lock);
    return *ring;
}

void xseg_history_append_with_user(struct xseg_history *history, struct xseg_history_ring **ring,
                                   uint64_t settings, const struct xseg_history_context *context,
                                   struct xseg_history_event *event, uint64_t user)
{
    const uint64_t capacity = atomic_load_explicit(&history->store->capacity, memory_order_relaxed);

    XSEG_ASSERT(capacity != 0 && event->action < XSEG_HISTORY_ACTIONS);
    if (*ring == NULL || (*ring)->capacity != capacity)
        (void)xseg_history_prepare_ring(history, ring, capacity);
    if (*ring == NULL)
        return;
    if ((*ring)->users == NULL && user != 0) {
        xseg_mutex_lock(&history->store->lock);
        (void)xseg_history_ring_add_users(*ring);
        xseg_mutex_unlock(&history->store->lock);
    }
    xseg_history_complete_event(history, settings, context, event);
    xseg_history_ring_append_with_user(*ring, event, user);
}

bool xseg_history_append_to_device(struct xseg_history *history, uint64_t capacity,
                                   uint64_t settings, struct xseg_history_event *event)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (history->device_ring == NULL)
        history->device_ring = create_ring(history, capacity);
    if (history->device_ring == NULL)
        return false;
    xseg_history_complete_event(history, settings, xseg_history_context(), event);
    xseg_history_ring_append(history->device_ring, event);
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

/* --- The last free of an address. --- */

/* Find the newest free in a ring that contains an address and is not older than *out. */
static bool find_free_in_ring(const struct xseg_history_ring *ring, uint64_t address,
                              struct xseg_history_event *out)
{
    struct xseg_history_event event;
    uint64_t first, end;

    xseg_history_ring_range(ring, &first, &end);
    while (end > first) {
        if (!xseg_history_ring_read(ring, --end, &event) || event.time < out->time)
            return false;
        if (event.action == XSEG_HISTORY_FREE_REQUESTED &&
            address - event.base < xseg_history_event_bytes(&event)) {
            *out = event;
            return true;
        }
    }
    return false;
}

bool xseg_history_find_free(struct xseg_history *history, uint64_t address,
                            struct xseg_history_event *out)
{
    bool found = false;

    *out = (struct xseg_history_event){.time = 0};
    xseg_mutex_lock(&history->store->lock);
    for (const struct xseg_history_ring *ring =
             atomic_load_explicit(&history->rings, memory_order_acquire);
         ring != NULL; ring = ring->next)
        found = find_free_in_ring(ring, address, out) || found;
    xseg_mutex_unlock(&history->store->lock);
    return found;
}

/* Print the user's own frames, which the hook names. */
static void print_hook_frames(const struct xseg_history_store *store, uint32_t frames,
                              struct xseg_strbuf *text)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(store);
    char name[384] = "";

    if (frames != 0 && hook != NULL && hook->name != NULL &&
        hook->name(hook->context, frames, name, sizeof(name)))
        xseg_strbuf_printf(text, ", in %.*s", (int)sizeof(name) - 1, name);
}

bool xseg_history_print_free(struct xseg_history *history, uint64_t address, const char *lead,
                             struct xseg_strbuf *text)
{
    const struct xseg_history_moment now = xseg_history_store_moment(history->store);
    struct xseg_history_event event;

    if (!xseg_history_find_free(history, address, &event))
        return false;
    const uint64_t freed_ns = xseg_history_store_ns(history->store, &now, event.time);
    /* The difference is 0 if another thread freed the block after the clock was read. */
    const uint64_t ago = now.ns - xseg_min(now.ns, freed_ns);
    xseg_strbuf_printf(text,
                       "%sfreed %" PRIu64 ".%03" PRIu64 " ms ago by thread %" PRIu32
                       " with the block of %" PRIu64 " bytes at %#" PRIx64,
                       lead, ago / 1000000, ago / 1000 % 1000, event.thread,
                       xseg_history_event_bytes(&event), (uint64_t)event.base);
    xseg_history_store_print_stack(history->store, event.stack, FRAMES_SHOWN, ", from ", text);
    print_hook_frames(history->store, event.frames, text);
    return true;
}
