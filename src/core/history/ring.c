/* SPDX-License-Identifier: MIT */
#include "src/core/history/ring.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/base/host_memory.h"

#define LINE_BYTES ((size_t)64)

static size_t event_array_bytes(uint64_t capacity)
{
    return (capacity + 1) * XSEG_HISTORY_EVENT_WORDS * sizeof(uint64_t);
}

static size_t user_array_bytes(uint64_t capacity)
{
    return (capacity + 1) * sizeof(uint64_t);
}

static void free_ring_arrays(const struct xseg_history_ring *ring)
{
    xseg_demand_zero_free(ring->events, event_array_bytes(ring->capacity));
    xseg_demand_zero_free(ring->users, user_array_bytes(ring->capacity));
}

struct xseg_history_ring *xseg_history_ring_create(uint64_t capacity)
{
    struct xseg_history_ring *ring =
        aligned_alloc(LINE_BYTES, xseg_round_up(sizeof(*ring), LINE_BYTES));

    XSEG_ASSERT(capacity != 0);
    if (ring == NULL)
        return NULL;
    memset(ring, 0, sizeof(*ring));
    ring->events = xseg_demand_zero_alloc(event_array_bytes(capacity));
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
    free_ring_arrays(ring);
    free(ring);
}

/* --- Writing. --- */

void xseg_history_ring_append_with_user(struct xseg_history_ring *ring,
                                        const struct xseg_history_event *event, uint64_t user)
{
    struct xseg_history_event stored = *event;

    if (ring->users != NULL && user != 0) {
        /* The fence has the same purpose as the one in xseg_history_ring_append(). */
        atomic_thread_fence(memory_order_release);
        atomic_store_explicit(&ring->users[ring->slot], user, memory_order_relaxed);
        stored.flags |= XSEG_HISTORY_HAS_USER;
    }
    xseg_history_ring_append(ring, &stored);
}

bool xseg_history_ring_add_users(struct xseg_history_ring *ring)
{
    XSEG_ASSERT(ring->users == NULL);
    ring->users = xseg_demand_zero_alloc(user_array_bytes(ring->capacity));
    return ring->users != NULL;
}

/* Copy the events from `first` up to `end` to their slots in a ring of another capacity. */
static void copy_ring_events(const struct xseg_history_ring *from, uint64_t first, uint64_t end,
                             const struct xseg_history_ring *to)
{
    for (uint64_t number = first; number < end; number++) {
        memcpy(*xseg_history_ring_slot(to, number), *xseg_history_ring_slot(from, number),
               sizeof(from->events[0]));
        if (from->users != NULL)
            memcpy(&to->users[number % (to->capacity + 1)],
                   &from->users[number % (from->capacity + 1)], sizeof(from->users[0]));
    }
}

bool xseg_history_ring_resize(struct xseg_history_ring *ring, uint64_t capacity)
{
    struct xseg_history_ring resized = {.capacity = capacity};
    uint64_t first, end;

    XSEG_ASSERT(capacity != 0);
    resized.events = xseg_demand_zero_alloc(event_array_bytes(capacity));
    if (resized.events == NULL)
        return false;
    if (ring->users != NULL && !xseg_history_ring_add_users(&resized)) {
        free_ring_arrays(&resized);
        return false;
    }
    xseg_history_ring_range(ring, &first, &end);
    first = xseg_max(first, end - xseg_min(end, capacity));
    copy_ring_events(ring, first, end, &resized);
    free_ring_arrays(ring);
    ring->events = resized.events;
    ring->users = resized.users;
    ring->capacity = capacity;
    ring->slot = end % (capacity + 1);
    /* Slots that were never written must remain unreadable after a later increase. */
    atomic_store_explicit(&ring->dropped, first, memory_order_relaxed);
    return true;
}

void xseg_history_ring_clear(struct xseg_history_ring *ring, uint64_t end)
{
    uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);

    XSEG_ASSERT(end <= atomic_load_explicit(&ring->recorded, memory_order_relaxed));
    while (cleared < end && !atomic_compare_exchange_weak(&ring->cleared, &cleared, end)) {
    }
}

/* --- Reading. --- */

void xseg_history_ring_range(const struct xseg_history_ring *ring, uint64_t *first, uint64_t *end)
{
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_acquire);
    const uint64_t oldest = recorded - xseg_min(recorded, ring->capacity);
    const uint64_t dropped = atomic_load_explicit(&ring->dropped, memory_order_relaxed);
    const uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);

    *end = recorded;
    *first = xseg_min(xseg_max(xseg_max(oldest, dropped), cleared), *end);
}

bool xseg_history_ring_read(const struct xseg_history_ring *ring, uint64_t number,
                            struct xseg_history_event *out)
{
    uint64_t user;

    return xseg_history_ring_read_with_user(ring, number, out, &user);
}

bool xseg_history_ring_read_with_user(const struct xseg_history_ring *ring, uint64_t number,
                                      struct xseg_history_event *out, uint64_t *user)
{
    const atomic_uint_fast64_t *words = *xseg_history_ring_slot(ring, number);
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
    /* The writer may be storing event `recorded`, whose slot is that of the event capacity + 1
     * before it. */
    return (recorded < ring->capacity + 1 || number > recorded - (ring->capacity + 1)) &&
           number >= atomic_load_explicit(&ring->dropped, memory_order_relaxed);
}

uint64_t xseg_history_ring_lost(const struct xseg_history_ring *ring, uint64_t first)
{
    return first - xseg_min(first, atomic_load_explicit(&ring->cleared, memory_order_relaxed));
}

uint64_t xseg_history_ring_host_bytes(const struct xseg_history_ring *ring)
{
    uint64_t bytes = sizeof(*ring);

    bytes += xseg_demand_zero_resident(ring->events, event_array_bytes(ring->capacity));
    if (ring->users != NULL)
        bytes += xseg_demand_zero_resident(ring->users, user_array_bytes(ring->capacity));
    return bytes;
}

bool xseg_history_ring_audit(const struct xseg_history_ring *ring, struct xseg_violation *violation)
{
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    const uint64_t cleared = atomic_load_explicit(&ring->cleared, memory_order_relaxed);
    const uint64_t dropped = atomic_load_explicit(&ring->dropped, memory_order_relaxed);
    uint64_t first, end, last_time = 0;

    XSEG_INVARIANT(violation, "RING-1", cleared <= recorded && dropped <= recorded,
                   "ring: recorded %" PRIu64 " events, cleared %" PRIu64 ", dropped %" PRIu64,
                   recorded, cleared, dropped);
    xseg_history_ring_range(ring, &first, &end);
    for (uint64_t number = first; number < end; number++) {
        struct xseg_history_event event;

        (void)xseg_history_ring_read(ring, number, &event);
        XSEG_INVARIANT(violation, "RING-2", event.time >= last_time,
                       "ring: event %" PRIu64 " has time %" PRIu64 ", the previous event %" PRIu64,
                       number, event.time, last_time);
        last_time = event.time;
    }
    return true;
}

/* --- Merge of rings. --- */

void xseg_history_merge_init(struct xseg_history_merge *merge)
{
    memset(merge, 0, sizeof(*merge));
}

void xseg_history_merge_fini(struct xseg_history_merge *merge)
{
    for (size_t i = 0; i < merge->count; i++) {
        free(merge->runs[i].events);
        free(merge->runs[i].users);
    }
    free(merge->runs);
    free(merge->heap);
    memset(merge, 0, sizeof(*merge));
}

bool xseg_history_merge_add(struct xseg_history_merge *merge, struct xseg_history_event *events,
                            uint64_t *users, size_t count)
{
    XSEG_ASSERT(events != NULL && merge->heap == NULL);
    if (merge->count == merge->capacity) {
        const size_t capacity = merge->capacity == 0 ? 16 : merge->capacity * 2;
        struct xseg_history_run *runs = realloc(merge->runs, capacity * sizeof(*runs));

        if (runs == NULL) {
            free(events);
            free(users);
            return false;
        }
        merge->runs = runs;
        merge->capacity = capacity;
    }
    merge->runs[merge->count++] =
        (struct xseg_history_run){.events = events, .users = users, .count = count};
    return true;
}

/* --- The heap. --- */

/* Whether run `left` precedes run `right` in the order of the heap. */
typedef bool run_precedes(const struct xseg_history_merge *merge, size_t left, size_t right);

/* Whether the next event of a run is before that of another run. */
static bool has_earlier_event(const struct xseg_history_merge *merge, size_t left, size_t right)
{
    const struct xseg_history_run *a = &merge->runs[left], *b = &merge->runs[right];
    const struct xseg_history_event *first = &a->events[a->next], *second = &b->events[b->next];

    if (first->time != second->time)
        return first->time < second->time;
    return (first->order != 0 ? first->order : a->order) <
           (second->order != 0 ? second->order : b->order);
}

/* Whether the next sequence number of a run is below that of another run. */
static bool has_lower_order(const struct xseg_history_merge *merge, size_t left, size_t right)
{
    const struct xseg_history_run *a = &merge->runs[left], *b = &merge->runs[right];

    return a->events[a->next_ordered].order < b->events[b->next_ordered].order;
}

static void sift_run_down(struct xseg_history_merge *merge, run_precedes *precedes, size_t parent)
{
    for (;;) {
        size_t min = parent;

        for (size_t child = 2 * parent + 1; child <= 2 * parent + 2 && child < merge->heap_count;
             child++)
            if (precedes(merge, merge->heap[child], merge->heap[min]))
                min = child;
        if (min == parent)
            return;
        const size_t run = merge->heap[parent];
        merge->heap[parent] = merge->heap[min];
        merge->heap[min] = run;
        parent = min;
    }
}

static void build_run_heap(struct xseg_history_merge *merge, run_precedes *precedes)
{
    for (size_t i = merge->heap_count; i-- > 0;)
        sift_run_down(merge, precedes, i);
}

/* Restore the heap after the run at the top has advanced; remove the run if it has ended. */
static void update_top_run(struct xseg_history_merge *merge, run_precedes *precedes, bool has_ended)
{
    if (has_ended)
        merge->heap[0] = merge->heap[--merge->heap_count];
    sift_run_down(merge, precedes, 0);
}

/* --- Monotonic times. --- */

/* Raise the times of the events of a run, up to and including `index`, to those of their
 * predecessors, and the time of event `index` to `min`.  Returns the time of that event. */
static uint64_t raise_run_times(struct xseg_history_run *run, size_t index, uint64_t min)
{
    for (; run->next <= index && run->next < run->count; run->next++) {
        const uint64_t last_time = run->next == 0 ? 0 : run->events[run->next - 1].time;

        run->events[run->next].time = xseg_max(run->events[run->next].time, last_time);
    }
    struct xseg_history_event *event = &run->events[index];
    XSEG_ASSERT(index < run->count && run->next > index);
    event->time = xseg_max(event->time, min);
    return event->time;
}

/* Find the next event of a run with a sequence number, from index `from` on. */
static bool find_ordered_event(struct xseg_history_run *run, size_t from)
{
    for (run->next_ordered = from; run->next_ordered < run->count; run->next_ordered++)
        if (run->events[run->next_ordered].order != 0)
            return true;
    return false;
}

/* Raise the times of all events so that they do not decrease in a ring nor with the sequence
 * numbers. */
static void raise_all_times(struct xseg_history_merge *merge)
{
    uint64_t time = 0;

    for (size_t i = 0; i < merge->count; i++)
        if (find_ordered_event(&merge->runs[i], 0))
            merge->heap[merge->heap_count++] = i;
    build_run_heap(merge, has_lower_order);
    while (merge->heap_count > 0) {
        struct xseg_history_run *run = &merge->runs[merge->heap[0]];

        time = raise_run_times(run, run->next_ordered, time);
        update_top_run(merge, has_lower_order, !find_ordered_event(run, run->next_ordered + 1));
    }
    for (size_t i = 0; i < merge->count; i++) {
        struct xseg_history_run *run = &merge->runs[i];

        if (run->count != 0)
            (void)raise_run_times(run, run->count - 1, 0);
    }
}

bool xseg_history_merge_begin(struct xseg_history_merge *merge)
{
    XSEG_ASSERT(merge->heap == NULL);
    merge->heap = malloc((merge->count + 1) * sizeof(*merge->heap));
    if (merge->heap == NULL)
        return false;
    raise_all_times(merge);
    xseg_history_merge_restart(merge);
    return true;
}

void xseg_history_merge_restart(struct xseg_history_merge *merge)
{
    XSEG_ASSERT(merge->heap != NULL);
    merge->heap_count = 0;
    for (size_t i = 0; i < merge->count; i++) {
        merge->runs[i].next = 0;
        merge->runs[i].order = 0;
        if (merge->runs[i].count != 0)
            merge->heap[merge->heap_count++] = i;
    }
    build_run_heap(merge, has_earlier_event);
}

const struct xseg_history_event *xseg_history_merge_next(struct xseg_history_merge *merge)
{
    if (merge->heap_count == 0)
        return NULL;
    struct xseg_history_run *run = &merge->runs[merge->heap[0]];
    const struct xseg_history_event *event = &run->events[run->next];
    XSEG_ASSERT(run->next < run->count);
    merge->user = run->users == NULL ? 0 : run->users[run->next];
    run->next++;
    if (event->order != 0)
        run->order = event->order;
    update_top_run(merge, has_earlier_event, run->next == run->count);
    return event;
}
