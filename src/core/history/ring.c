/* SPDX-License-Identifier: MIT */
#include "src/core/history/ring.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/zeroed.h"

#define LINE_BYTES ((size_t)64)

static size_t bytes_of(uint64_t capacity)
{
    return (capacity + 1) * XSEG_HISTORY_EVENT_WORDS * sizeof(uint64_t);
}

struct xseg_history_ring *xseg_history_ring_create(uint64_t capacity)
{
    struct xseg_history_ring *ring =
        aligned_alloc(LINE_BYTES, xseg_round_up(sizeof(*ring), LINE_BYTES));

    XSEG_ASSERT(capacity != 0);
    if (ring == NULL)
        return NULL;
    memset(ring, 0, sizeof(*ring));
    ring->events = xseg_zeroed_take(bytes_of(capacity));
    ring->capacity = capacity;
    if (ring->events != NULL)
        return ring;
    free(ring);
    return NULL;
}

void xseg_history_ring_destroy(struct xseg_history_ring *ring)
{
    if (ring == NULL)
        return;
    xseg_zeroed_give(ring->events, bytes_of(ring->capacity));
    free(ring);
}

void xseg_history_ring_range(const struct xseg_history_ring *ring, uint64_t *first, uint64_t *end)
{
    const uint64_t noted = atomic_load_explicit(&ring->noted, memory_order_acquire);
    const uint64_t kept = noted - xseg_min(noted, ring->capacity);
    const uint64_t gone = atomic_load_explicit(&ring->dropped, memory_order_relaxed);

    *first =
        xseg_max(xseg_max(kept, gone), atomic_load_explicit(&ring->cleared, memory_order_relaxed));
    *end = noted;
    *first = xseg_min(*first, *end);
}

bool xseg_history_ring_resize(struct xseg_history_ring *ring, uint64_t capacity)
{
    atomic_uint_fast64_t(*events)[XSEG_HISTORY_EVENT_WORDS] = xseg_zeroed_take(bytes_of(capacity));
    uint64_t first, end;

    XSEG_ASSERT(capacity != 0);
    if (events == NULL)
        return false;
    xseg_history_ring_range(ring, &first, &end);
    first = xseg_max(first, end - xseg_min(end, capacity));
    for (uint64_t number = first; number < end; number++)
        memcpy(events[number % (capacity + 1)], *xseg_history_ring_place(ring, number),
               sizeof(events[0]));
    xseg_zeroed_give(ring->events, bytes_of(ring->capacity));
    ring->events = events;
    ring->capacity = capacity;
    ring->place = end % (capacity + 1);
    /* A ring that grows again must not show places that were never written. */
    atomic_store_explicit(&ring->dropped, first, memory_order_relaxed);
    return true;
}

bool xseg_history_ring_read(const struct xseg_history_ring *ring, uint64_t number,
                            struct xseg_history_event *out)
{
    const atomic_uint_fast64_t *words = *xseg_history_ring_place(ring, number);
    uint64_t copy[XSEG_HISTORY_EVENT_WORDS];

    for (unsigned i = 0; i < XSEG_HISTORY_EVENT_WORDS; i++)
        copy[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    const uint64_t noted = atomic_load_explicit(&ring->noted, memory_order_relaxed);
    XSEG_ASSERT(number < noted);
    *out = xseg_history_event_read(copy);
    /* The writer may be at event `noted`, in the place of the event so many before it. */
    return noted < ring->capacity + 1 || number > noted - (ring->capacity + 1);
}

void xseg_history_ring_clear(struct xseg_history_ring *ring, uint64_t end)
{
    uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);

    XSEG_ASSERT(end <= atomic_load_explicit(&ring->noted, memory_order_relaxed));
    while (cleared < end && !atomic_compare_exchange_weak(&ring->cleared, &cleared, end)) {
    }
}

uint64_t xseg_history_ring_lost(const struct xseg_history_ring *ring, uint64_t first)
{
    return first - xseg_min(first, atomic_load_explicit(&ring->cleared, memory_order_relaxed));
}

uint64_t xseg_history_ring_host_bytes(const struct xseg_history_ring *ring)
{
    return sizeof(*ring) + xseg_zeroed_resident(ring->events, bytes_of(ring->capacity));
}

bool xseg_history_ring_audit(const struct xseg_history_ring *ring, struct xseg_finding *finding)
{
    const uint64_t noted = atomic_load_explicit(&ring->noted, memory_order_relaxed);
    const uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);
    const uint64_t dropped = atomic_load_explicit(&ring->dropped, memory_order_relaxed);
    uint64_t first, end, before = 0;

    XSEG_HOLDS(finding, "RING-1", cleared <= noted && dropped <= noted,
               "of %" PRIu64 " events %" PRIu64 " were cleared, %" PRIu64 " dropped", noted,
               cleared, dropped);
    xseg_history_ring_range(ring, &first, &end);
    for (uint64_t number = first; number < end; number++) {
        struct xseg_history_event event;

        (void)xseg_history_ring_read(ring, number, &event);
        XSEG_HOLDS(finding, "RING-2", event.time >= before,
                   "event %" PRIu64 " is of %" PRIu64 ", the one before of %" PRIu64, number,
                   event.time, before);
        before = event.time;
    }
    return true;
}
