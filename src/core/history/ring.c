/* SPDX-License-Identifier: MIT */
#include "src/core/history/ring.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/host_memory.h"

#define LINE_BYTES ((size_t)64)

static size_t bytes_of(uint64_t capacity)
{
    return (capacity + 1) * XSEG_HISTORY_EVENT_WORDS * sizeof(uint64_t);
}

static size_t bytes_of_users(uint64_t capacity)
{
    return (capacity + 1) * sizeof(uint64_t);
}

/* Give back the arrays of a ring. */
static void give(const struct xseg_history_ring *ring)
{
    xseg_demand_zero_free(ring->events, bytes_of(ring->capacity));
    xseg_demand_zero_free(ring->users, bytes_of_users(ring->capacity));
}

struct xseg_history_ring *xseg_history_ring_create(uint64_t capacity)
{
    struct xseg_history_ring *ring =
        aligned_alloc(LINE_BYTES, xseg_round_up(sizeof(*ring), LINE_BYTES));

    XSEG_ASSERT(capacity != 0);
    if (ring == NULL)
        return NULL;
    memset(ring, 0, sizeof(*ring));
    ring->events = xseg_demand_zero_alloc(bytes_of(capacity));
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
    give(ring);
    free(ring);
}

void xseg_history_ring_append_with(struct xseg_history_ring *ring,
                                   const struct xseg_history_event *event, uint64_t user)
{
    struct xseg_history_event with = *event;

    if (ring->users != NULL && user != 0) {
        /* As in xseg_history_ring_append(), of which this is a part. */
        atomic_thread_fence(memory_order_release);
        atomic_store_explicit(&ring->users[ring->place], user, memory_order_relaxed);
        with.flags |= XSEG_HISTORY_HAS_USER;
    }
    xseg_history_ring_append(ring, &with);
}

void xseg_history_ring_range(const struct xseg_history_ring *ring, uint64_t *first, uint64_t *end)
{
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_acquire);
    const uint64_t kept = recorded - xseg_min(recorded, ring->capacity);
    const uint64_t gone = atomic_load_explicit(&ring->dropped, memory_order_relaxed);

    *first =
        xseg_max(xseg_max(kept, gone), atomic_load_explicit(&ring->cleared, memory_order_relaxed));
    *end = recorded;
    *first = xseg_min(*first, *end);
}

bool xseg_history_ring_add_users(struct xseg_history_ring *ring)
{
    XSEG_ASSERT(ring->users == NULL);
    ring->users = xseg_demand_zero_alloc(bytes_of_users(ring->capacity));
    return ring->users != NULL;
}

/* Copy the events from `first` up to `end` to the places that they have under another capacity. */
static void copy_to(const struct xseg_history_ring *ring, uint64_t first, uint64_t end,
                    const struct xseg_history_ring *to)
{
    for (uint64_t number = first; number < end; number++) {
        memcpy(*xseg_history_ring_place(to, number), *xseg_history_ring_place(ring, number),
               sizeof(ring->events[0]));
        if (ring->users != NULL)
            memcpy(&to->users[number % (to->capacity + 1)],
                   &ring->users[number % (ring->capacity + 1)], sizeof(ring->users[0]));
    }
}

bool xseg_history_ring_resize(struct xseg_history_ring *ring, uint64_t capacity)
{
    struct xseg_history_ring to = {.capacity = capacity};
    uint64_t first, end;

    XSEG_ASSERT(capacity != 0);
    to.events = xseg_demand_zero_alloc(bytes_of(capacity));
    if (to.events == NULL)
        return false;
    if (ring->users != NULL && !xseg_history_ring_add_users(&to)) {
        give(&to);
        return false;
    }
    xseg_history_ring_range(ring, &first, &end);
    first = xseg_max(first, end - xseg_min(end, capacity));
    copy_to(ring, first, end, &to);
    give(ring);
    ring->events = to.events;
    ring->users = to.users;
    ring->capacity = capacity;
    ring->place = end % (capacity + 1);
    /* A ring that grows again must not show places that were never written. */
    atomic_store_explicit(&ring->dropped, first, memory_order_relaxed);
    return true;
}

bool xseg_history_ring_read(const struct xseg_history_ring *ring, uint64_t number,
                            struct xseg_history_event *out)
{
    uint64_t user;

    return xseg_history_ring_read_with(ring, number, out, &user);
}

bool xseg_history_ring_read_with(const struct xseg_history_ring *ring, uint64_t number,
                                 struct xseg_history_event *out, uint64_t *user)
{
    const atomic_uint_fast64_t *words = *xseg_history_ring_place(ring, number);
    uint64_t copy[XSEG_HISTORY_EVENT_WORDS];

    for (unsigned i = 0; i < XSEG_HISTORY_EVENT_WORDS; i++)
        copy[i] = atomic_load_explicit(&words[i], memory_order_relaxed);
    *user = ring->users == NULL ? 0
                                : atomic_load_explicit(&ring->users[number % (ring->capacity + 1)],
                                                       memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    XSEG_ASSERT(number < recorded);
    *out = xseg_history_event_read(copy);
    if ((out->flags & XSEG_HISTORY_HAS_USER) == 0)
        *user = 0;
    /* The writer may be at event `noted`, in the place of the event so many before it. */
    return (recorded < ring->capacity + 1 || number > recorded - (ring->capacity + 1)) &&
           number >= atomic_load_explicit(&ring->dropped, memory_order_relaxed);
}

void xseg_history_ring_clear(struct xseg_history_ring *ring, uint64_t end)
{
    uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);

    XSEG_ASSERT(end <= atomic_load_explicit(&ring->recorded, memory_order_relaxed));
    while (cleared < end && !atomic_compare_exchange_weak(&ring->cleared, &cleared, end)) {
    }
}

uint64_t xseg_history_ring_lost(const struct xseg_history_ring *ring, uint64_t first)
{
    return first - xseg_min(first, atomic_load_explicit(&ring->cleared, memory_order_relaxed));
}

uint64_t xseg_history_ring_host_bytes(const struct xseg_history_ring *ring)
{
    return sizeof(*ring) + xseg_demand_zero_resident(ring->events, bytes_of(ring->capacity)) +
           (ring->users == NULL
                ? 0
                : xseg_demand_zero_resident(ring->users, bytes_of_users(ring->capacity)));
}

bool xseg_history_ring_audit(const struct xseg_history_ring *ring, struct xseg_violation *violation)
{
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    const uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);
    const uint64_t dropped = atomic_load_explicit(&ring->dropped, memory_order_relaxed);
    uint64_t first, end, before = 0;

    XSEG_INVARIANT(violation, "RING-1", cleared <= recorded && dropped <= recorded,
                   "of %" PRIu64 " events %" PRIu64 " were cleared, %" PRIu64 " dropped", recorded,
                   cleared, dropped);
    xseg_history_ring_range(ring, &first, &end);
    for (uint64_t number = first; number < end; number++) {
        struct xseg_history_event event;

        (void)xseg_history_ring_read(ring, number, &event);
        XSEG_INVARIANT(violation, "RING-2", event.time >= before,
                       "event %" PRIu64 " is of %" PRIu64 ", the one before of %" PRIu64, number,
                       event.time, before);
        before = event.time;
    }
    return true;
}
