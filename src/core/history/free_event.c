/* SPDX-License-Identifier: MIT */
#include "src/core/history/free_event.h"

#include <inttypes.h>

#include "src/base/align.h"

/* Frames that a text names. */
#define FRAMES_SHOWN 6u

/* The newest free in a ring that contains an address and is not older than *out. */
static bool find_in_ring(const struct xseg_history_ring *ring, uint64_t address,
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

bool xseg_free_event_find(struct xseg_history *history, uint64_t address,
                          struct xseg_history_event *out)
{
    bool found = false;

    *out = (struct xseg_history_event){.time = 0};
    xseg_mutex_lock(&history->store->lock);
    for (const struct xseg_history_ring *ring =
             atomic_load_explicit(&history->rings, memory_order_acquire);
         ring != NULL; ring = ring->next)
        found = find_in_ring(ring, address, out) || found;
    xseg_mutex_unlock(&history->store->lock);
    return found;
}

/* Add the user's own frames, as the hook names them. */
static void add_frames(const struct xseg_history_store *store, uint32_t frames,
                       struct xseg_strbuf *text)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(store);
    char name[384] = "";

    if (frames != 0 && hook != NULL && hook->name != NULL &&
        hook->name(hook->context, frames, name, sizeof(name)))
        xseg_strbuf_printf(text, ", in %.*s", (int)sizeof(name) - 1, name);
}

bool xseg_free_event_describe(struct xseg_history *history, uint64_t address, const char *lead,
                              struct xseg_strbuf *text)
{
    const struct xseg_history_moment now = xseg_history_store_moment(history->store);
    struct xseg_history_event event;

    if (!xseg_free_event_find(history, address, &event))
        return false;
    /* Another thread may have freed it since the clock was read. */
    const uint64_t then = xseg_history_store_ns(history->store, &now, event.time);
    const uint64_t ago = now.ns - xseg_min(now.ns, then);
    xseg_strbuf_printf(text,
                       "%sfreed %" PRIu64 ".%03" PRIu64 " ms ago by thread %" PRIu32
                       " with the block of %" PRIu64 " bytes at %#" PRIx64,
                       lead, ago / 1000000, ago / 1000 % 1000, event.thread,
                       xseg_history_event_bytes(&event), (uint64_t)event.base);
    xseg_history_store_print_stack(history->store, event.stack, FRAMES_SHOWN, ", from ", text);
    add_frames(history->store, event.frames, text);
    return true;
}
