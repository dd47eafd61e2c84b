/* SPDX-License-Identifier: MIT */
#include "src/core/report/device_history.h"

#include <stdlib.h>

#include "src/base/error.h"

_Static_assert(XSEG_HISTORY_DEVICE_SHIFT + 8 <= 16,
               "the ordinal of a device fits in the flags of an event");

/* Maximum number of annotations of a device. */
#define ANNOTATION_CAPACITY 4096u

/* --- A cut. --- */

void xseg_device_history_cut_arena(struct xseg_arena *arena)
{
    struct xseg_history_ring *ring = arena->ring;

    if (ring == NULL)
        return;
    ring->cut_end = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    ring->cut_stream = (uint64_t)(uintptr_t)xseg_arena_stream(arena)->handle;
    ring->has_cut_stream = true;
}

void xseg_device_history_begin_cut(struct xseg_device *device, struct xseg_history_cut *cut)
{
    const struct xseg_history *history = &device->history;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    cut->moment = xseg_history_store_moment(history->store);
    for (struct xseg_history_ring *ring = atomic_load(&history->rings); ring != NULL;
         ring = ring->next) {
        ring->cut_end = atomic_load_explicit(&ring->recorded, memory_order_acquire);
        ring->has_cut_stream = false;
    }
}

/* Cut the ring of an arena under the arena lock, so that no append is in progress at the cut. */
static void lock_and_cut_arena(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    xseg_device_history_cut_arena(arena);
    xseg_biased_lock_unlock(&arena->lock);
}

/* Cut all rings of a device at the current moment.  A ring that is created later has no event
 * before it.  The caller holds the device memory lock. */
static void cut_rings(struct xseg_device *device, struct xseg_history_cut *cut)
{
    xseg_device_history_begin_cut(device, cut);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        lock_and_cut_arena(arena);
    }
}

bool xseg_device_history_finish_cut(struct xseg_device *device, struct xseg_history_cut *cut)
{
    const struct xseg_history_ring *first = atomic_load(&device->history.rings);
    size_t rings = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (const struct xseg_history_ring *ring = first; ring != NULL; ring = ring->next)
        rings++;
    cut->rings = malloc((rings + 1) * sizeof(*cut->rings));
    cut->count = 0;
    for (const struct xseg_history_ring *ring = first; cut->rings != NULL && ring != NULL;
         ring = ring->next)
        cut->rings[cut->count++] = (struct xseg_history_ring_cut){
            .ring = ring,
            .end = ring->cut_end,
            .stream = ring->cut_stream,
            .has_stream = ring->has_cut_stream,
        };
    return cut->rings != NULL;
}

void xseg_history_cut_fini(struct xseg_history_cut *cut)
{
    free(cut->rings);
    cut->rings = NULL;
    cut->count = 0;
}

/* --- Copies of one ring. --- */

/* Number of leading events that precede the cut.  An event with a sequence number always precedes
 * the cut, because the number was assigned under the device memory lock, which the reader held at
 * the cut.  Its time can be later than the cut if the clock of its CPU is ahead. */
static size_t count_until(const struct xseg_history_event *events, size_t count, uint64_t latest)
{
    size_t end = count;

    for (size_t at = count; at > 0 && events[at - 1].order == 0; at--)
        if (events[at - 1].time > latest)
            end = at - 1;
    return end;
}

/* Set the stream in events of segments.  After a stream was retired, another stream reuses its
 * arena.  All segments of the arena then belong to the new stream, so earlier events of these
 * segments report the new stream as well. */
static void set_segment_streams(const struct xseg_history_ring_cut *ring_cut,
                                struct xseg_history_event *events, size_t count)
{
    for (size_t i = 0; ring_cut->has_stream && i < count; i++)
        if (events[i].action > XSEG_HISTORY_FREE_COMPLETED &&
            events[i].action != XSEG_HISTORY_OOM && events[i].action != XSEG_HISTORY_BUDGET_REQUEST)
            events[i].stream = ring_cut->stream;
}

struct event_copy {
    struct xseg_history_event *events; /* [count] */
    uint64_t *users;                   /* [count], or NULL */
    size_t count;
};

/* Allocate the arrays for copies of the events of a ring.  Returns false, with nothing allocated,
 * on host allocation failure. */
static bool alloc_event_copy(const struct xseg_history_ring_cut *ring_cut, bool has_users,
                             struct event_copy *copy)
{
    const size_t max = (size_t)(ring_cut->end - ring_cut->first) + 1;

    has_users = has_users && ring_cut->ring->users != NULL;
    copy->events = malloc(max * sizeof(*copy->events));
    copy->users = has_users ? malloc(max * sizeof(*copy->users)) : NULL;
    if (copy->events != NULL && (copy->users != NULL || !has_users))
        return true;
    free(copy->events);
    free(copy->users);
    return false;
}

/* Copy the events of a ring from ring_cut->first on.  ring_cut->first increases past events that
 * are overwritten during the copy. */
static void copy_events(struct xseg_history_ring_cut *ring_cut, int device, struct event_copy *copy)
{
    uint64_t user;

    for (uint64_t number = ring_cut->first; number < ring_cut->end; number++) {
        struct xseg_history_event *event = &copy->events[copy->count];

        if (!xseg_history_ring_read_with_user(ring_cut->ring, number, event,
                                              copy->users == NULL ? &user
                                                                  : &copy->users[copy->count])) {
            /* The writer has overwritten this event.  The events that were copied so far are older,
             * so they are discarded: a copy has no gaps. */
            ring_cut->first = number + 1;
            copy->count = 0;
            continue;
        }
        event->flags |= (uint16_t)((unsigned)device << XSEG_HISTORY_DEVICE_SHIFT);
        copy->count++;
    }
}

/* Set the first event to copy to the oldest event of the ring.  HISTORY is locked. */
static void set_first_event(struct xseg_history_ring_cut *ring_cut)
{
    uint64_t end;

    xseg_history_ring_range(ring_cut->ring, &ring_cut->first, &end);
    ring_cut->first = xseg_min(ring_cut->first, ring_cut->end);
}

/*
 * Copy the events of a ring.
 *
 * latest:    ticks; later events are not copied
 * has_users: copy the user values of the events
 */
static bool copy_ring_until(struct xseg_device *device, struct xseg_history_ring_cut *ring_cut,
                            uint64_t latest, bool has_users, struct xseg_history_reader *reader)
{
    struct xseg_history_store *store = device->history.store;
    const uint64_t first = ring_cut->first;
    struct event_copy copy = {.count = 0};

    xseg_mutex_lock(&store->lock);
    const bool has_memory = alloc_event_copy(ring_cut, has_users, &copy);
    if (has_memory)
        copy_events(ring_cut, device->context.ordinal, &copy);
    reader->lost += xseg_history_ring_lost(ring_cut->ring, ring_cut->first);
    xseg_mutex_unlock(&store->lock);
    if (!has_memory)
        return false;
    copy.count = count_until(copy.events, copy.count, latest);
    set_segment_streams(ring_cut, copy.events, copy.count);
    reader->count += copy.count;
    if (ring_cut->first != first)
        reader->complete_since =
            xseg_max(reader->complete_since, copy.count == 0 ? latest : copy.events[0].time);
    return xseg_history_merge_add(&reader->merge, copy.events, copy.users, copy.count);
}

static xseg_status fail_history_copy(void)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, copy of the history");
}

xseg_status xseg_device_history_read(struct xseg_device *device, struct xseg_history_reader *reader)
{
    struct xseg_history_cut cut = {.count = 0};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->memory_lock);
    cut_rings(device, &cut);
    bool has_memory = xseg_device_history_finish_cut(device, &cut);
    xseg_mutex_unlock(&device->memory_lock);
    xseg_mutex_lock(&device->history.store->lock);
    for (size_t i = 0; has_memory && i < cut.count; i++)
        set_first_event(&cut.rings[i]);
    xseg_mutex_unlock(&device->history.store->lock);
    for (size_t i = 0; has_memory && i < cut.count; i++)
        cut.rings[i].has_stream = false; /* events keep the stream that they recorded */
    for (size_t i = 0; has_memory && i < cut.count; i++)
        has_memory = copy_ring_until(device, &cut.rings[i], cut.moment.ticks, true, reader);
    reader->moment = cut.moment;
    xseg_history_cut_fini(&cut);
    return has_memory ? XSEG_OK : fail_history_copy();
}

/* --- The newest events before a cut. --- */

/* Maximum difference between the clocks of two CPUs, in ticks. */
#define CLOCK_SKEW ((uint64_t)1 << 20)

/* Find the first event of a ring that may be as late as `since`; the end of the events if there is
 * none.  HISTORY is locked. */
static uint64_t find_event_since(const struct xseg_history_ring_cut *ring_cut, uint64_t since)
{
    const uint64_t oldest = since - xseg_min(since, CLOCK_SKEW);
    struct xseg_history_event event;
    uint64_t first = ring_cut->first, end = ring_cut->end;

    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;

        /* An event that was overwritten during the search is older than every event in the ring. */
        if (!xseg_history_ring_read(ring_cut->ring, middle, &event) || event.time < oldest)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static uint64_t count_events_since(const struct xseg_history_cut *cut, uint64_t since)
{
    uint64_t count = 0;

    for (size_t i = 0; i < cut->count; i++)
        count += cut->rings[i].end - find_event_since(&cut->rings[i], since);
    return count;
}

/* Find the time since which the ring has lost no event before its cut, and set ring_cut->first to
 * the first event that can be read. */
static uint64_t find_complete_since(struct xseg_history_ring_cut *ring_cut, uint64_t moment)
{
    struct xseg_history_event event;

    if (xseg_history_ring_lost(ring_cut->ring, ring_cut->first) == 0)
        return 0;
    while (ring_cut->first < ring_cut->end &&
           !xseg_history_ring_read(ring_cut->ring, ring_cut->first, &event))
        ring_cut->first++;
    /* The writer may have overwritten all events before the cut. */
    return ring_cut->first < ring_cut->end ? event.time + CLOCK_SKEW : moment;
}

/* Find the earliest time from `complete` on since which the rings have at most `max` events. */
static uint64_t choose_complete_since(const struct xseg_history_cut *cut, uint64_t complete,
                                      uint64_t max)
{
    uint64_t early = complete, late = UINT64_MAX;

    if (count_events_since(cut, early) <= max)
        return early;
    while (late - early > 1) {
        const uint64_t middle = early + (late - early) / 2;

        if (count_events_since(cut, middle) <= max)
            late = middle;
        else
            early = middle;
    }
    return late;
}

/* Select the events to copy: at most `max`, without gaps.  Returns the time since which they are
 * complete.  HISTORY is locked. */
static uint64_t set_first_events(const struct xseg_history_store *store,
                                 struct xseg_history_cut *cut, uint64_t max, uint64_t *omitted)
{
    uint64_t complete = atomic_load_explicit(&store->complete_since, memory_order_relaxed);

    for (size_t i = 0; i < cut->count; i++) {
        set_first_event(&cut->rings[i]);
        complete = xseg_max(complete, find_complete_since(&cut->rings[i], cut->moment.ticks));
    }
    const uint64_t since = choose_complete_since(cut, complete, max);
    for (size_t i = 0; i < cut->count; i++) {
        const uint64_t first = cut->rings[i].first;

        cut->rings[i].first = find_event_since(&cut->rings[i], since);
        *omitted += cut->rings[i].first - first;
    }
    return since;
}

xseg_status xseg_device_history_copy(struct xseg_device *device, struct xseg_history_cut *cut,
                                     uint64_t max, struct xseg_history_reader *reader)
{
    struct xseg_history_store *store = device->history.store;
    bool has_memory = true;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&store->lock);
    reader->complete_since = set_first_events(store, cut, max, &reader->omitted);
    xseg_mutex_unlock(&store->lock);
    for (size_t i = 0; has_memory && i < cut->count; i++)
        has_memory = copy_ring_until(device, &cut->rings[i], UINT64_MAX, false, reader);
    /* xseg_history_ring_lost() counts all events before the first copied one, also those that were
     * omitted. */
    reader->lost -= has_memory ? xseg_min(reader->omitted, reader->lost) : 0;
    reader->moment = cut->moment;
    return has_memory ? XSEG_OK : fail_history_copy();
}

void xseg_device_history_clear(struct xseg_device *device)
{
    struct xseg_history_cut cut;

    xseg_mutex_lock(&device->memory_lock);
    cut_rings(device, &cut);
    for (struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        xseg_history_ring_clear(ring, ring->cut_end);
    xseg_mutex_unlock(&device->memory_lock);
}

void xseg_device_history_describe(struct xseg_allocator *allocator,
                                  const struct xseg_history_moment *moment,
                                  const struct xseg_history_event *event, uint64_t user,
                                  struct xseg_history_entry *out)
{
    *out = (struct xseg_history_entry){
        .struct_size = sizeof(*out),
        .action = (enum xseg_history_action)event->action,
        .device = (int)(event->flags >> XSEG_HISTORY_DEVICE_SHIFT),
        .stream = (xseg_stream)(uintptr_t)event->stream, /* NOLINT(performance-no-int-to-ptr) */
        .pool = event->pool,
        .is_fallback = (event->flags & XSEG_HISTORY_FALLBACK) != 0,
        .base = (void *)(uintptr_t)event->base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = xseg_history_event_bytes(event),
        .requested = event->requested,
        .time_ns = xseg_history_store_ns(&allocator->history, moment, event->time),
        .order = event->order,
        .stack = event->stack,
        .frames = event->frames,
        .thread = (int)event->thread,
        .label = xseg_history_labels_text(&allocator->history.labels, event->label),
        .user = (void *)(uintptr_t)user, /* NOLINT(performance-no-int-to-ptr) */
    };
    xseg_history_store_get_pool_id(&allocator->history, event->pool, out->pool_id);
}

/* --- Annotations. --- */

xseg_status xseg_device_history_annotate(struct xseg_device *device, uint32_t label)
{
    struct xseg_history *history = &device->history;
    struct xseg_history_event event = {.action = XSEG_HISTORY_ANNOTATION, .label = label};

    xseg_mutex_lock(&device->memory_lock);
    event.order = xseg_history_next_order(history);
    const bool has_memory = xseg_history_append_to_device(
        history, ANNOTATION_CAPACITY, xseg_history_store_settings(history->store), &event);
    xseg_mutex_unlock(&device->memory_lock);
    return has_memory
               ? XSEG_OK
               : xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, annotation in the history");
}
