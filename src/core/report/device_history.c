/* SPDX-License-Identifier: MIT */
#include "src/core/report/device_history.h"

#include <stdlib.h>

#include "src/base/error.h"

_Static_assert(XSEG_HISTORY_DEVICE_SHIFT + 8 <= 16,
               "a device's number fits in the flags of an event");

/* Events that a device keeps of the user's own texts. */
#define ANNOTATIONS 4096u

/* --- The events of one moment. --- */

void xseg_device_history_cut(struct xseg_arena *arena)
{
    struct xseg_history_ring *ring = arena->ring;

    if (ring == NULL)
        return;
    ring->snapshot_end = atomic_load_explicit(&ring->recorded, memory_order_relaxed);
    ring->snapshot_stream = (uint64_t)(uintptr_t)xseg_arena_stream(arena)->handle;
    ring->has_snapshot_stream = true;
}

void xseg_device_history_begin_cut(struct xseg_device *device, struct xseg_history_ends *ends)
{
    const struct xseg_history *history = &device->history;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    ends->moment = xseg_history_store_moment(history->store);
    for (struct xseg_history_ring *ring = atomic_load(&history->rings); ring != NULL;
         ring = ring->next) {
        ring->snapshot_end = atomic_load_explicit(&ring->recorded, memory_order_acquire);
        ring->has_snapshot_stream = false;
    }
}

/* An arena's lock makes sure that all that it has noted so far can be seen. */
static void cut_arena(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    xseg_device_history_cut(arena);
    xseg_arena_unlock(arena);
}

/* Find where each ring of a device ends for now; none of a ring that is made meanwhile is before the moment.  The device memory lock
 * is held. */
static void cut(struct xseg_device *device, struct xseg_history_ends *ends)
{
    xseg_device_history_begin_cut(device, ends);
    xseg_device_visit_arenas(device, cut_arena, NULL);
}

bool xseg_device_history_list_ends(struct xseg_device *device, struct xseg_history_ends *ends)
{
    const struct xseg_history_ring *first = atomic_load(&device->history.rings);
    size_t rings = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (const struct xseg_history_ring *ring = first; ring != NULL; ring = ring->next)
        rings++;
    ends->list = malloc((rings + 1) * sizeof(*ends->list));
    ends->count = 0;
    for (const struct xseg_history_ring *ring = first; ends->list != NULL && ring != NULL;
         ring = ring->next)
        ends->list[ends->count++] = (struct xseg_history_end){
            .ring = ring,
            .end = ring->snapshot_end,
            .stream = ring->snapshot_stream,
            .has_stream = ring->has_snapshot_stream,
        };
    return ends->list != NULL;
}

void xseg_device_history_end(struct xseg_history_ends *ends)
{
    free(ends->list);
    ends->list = NULL;
    ends->count = 0;
}

/* How many of a ring's events are not later than the moment.  What drew a number is not, since the device memory lock was held at the
 * moment, even if another processor's clock is ahead. */
static size_t until(const struct xseg_history_event *events, size_t count, uint64_t latest)
{
    size_t end = count;

    for (size_t at = count; at > 0 && events[at - 1].order == 0; at--)
        if (events[at - 1].time > latest)
            end = at - 1;
    return end;
}

/* An arena whose stream is gone is another stream's in time, with its memory.  All its segments are that stream's then,
 * also in what happened before. */
static void follow_stream(const struct xseg_history_end *of, struct xseg_history_event *events,
                          size_t count)
{
    for (size_t i = 0; of->has_stream && i < count; i++)
        if (events[i].action > XSEG_HISTORY_FREE_COMPLETED &&
            events[i].action != XSEG_HISTORY_OOM && events[i].action != XSEG_HISTORY_BUDGET_REQUEST)
            events[i].stream = of->stream;
}

/* Copies of a ring's events. */
struct copy {
    struct xseg_history_event *events; /* [count] */
    uint64_t *users;                   /* [count], or NULL */
    size_t count;
};

/* Make room for a ring's events.  Returns false without host memory, with nothing allocated. */
static bool make_room(const struct xseg_history_end *of, bool has_users, struct copy *copy)
{
    const size_t max = (size_t)(of->end - of->first) + 1;

    has_users = has_users && of->ring->users != NULL;
    copy->events = malloc(max * sizeof(*copy->events));
    copy->users = has_users ? malloc(max * sizeof(*copy->users)) : NULL;
    if (copy->events != NULL && (copy->users != NULL || !has_users))
        return true;
    free(copy->events);
    free(copy->users);
    return false;
}

/* Copy a ring's events from of->first on, which is raised behind those that were overwritten meanwhile. */
static void copy_ring(struct xseg_history_end *of, int device, struct copy *copy)
{
    uint64_t user;

    for (uint64_t number = of->first; number < of->end; number++) {
        struct xseg_history_event *event = &copy->events[copy->count];

        if (!xseg_history_ring_read_with_user(
                of->ring, number, event, copy->users == NULL ? &user : &copy->users[copy->count])) {
            /* A writer has come round meanwhile: what was copied so far is older, and gone, too. */
            of->first = number + 1;
            copy->count = 0;
            continue;
        }
        event->flags |= (uint16_t)((unsigned)device << XSEG_HISTORY_DEVICE_SHIFT);
        copy->count++;
    }
}

/* Find where each ring begins.  HISTORY is held. */
static void find_first(struct xseg_history_end *of)
{
    uint64_t end;

    xseg_history_ring_range(of->ring, &of->first, &end);
    of->first = xseg_min(of->first, of->end);
}

/*
 * Copy the events of a ring.
 *
 * latest:    the time up to which they count
 * has_users: their users, too
 */
static bool read_ring(struct xseg_device *device, struct xseg_history_end *of, uint64_t latest,
                      bool has_users, struct xseg_history_reader *reading)
{
    struct xseg_history_store *store = device->history.store;
    const uint64_t wanted = of->first;
    struct copy copy = {.count = 0};

    xseg_mutex_lock(&store->lock);
    const bool has_room = make_room(of, has_users, &copy);
    if (has_room)
        copy_ring(of, device->context.ordinal, &copy);
    reading->lost += xseg_history_ring_lost(of->ring, of->first);
    xseg_mutex_unlock(&store->lock);
    if (!has_room)
        return false;
    copy.count = until(copy.events, copy.count, latest);
    follow_stream(of, copy.events, copy.count);
    reading->count += copy.count;
    if (of->first != wanted)
        reading->since = xseg_max(reading->since, copy.count == 0 ? latest : copy.events[0].time);
    return xseg_history_merge_add(&reading->merge, copy.events, copy.users, copy.count);
}

static xseg_status fail_to_copy(void)
{
    return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, copy of the history");
}

xseg_status xseg_device_history_read(struct xseg_device *device,
                                     struct xseg_history_reader *reading)
{
    struct xseg_history_ends ends = {.count = 0};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->growth_lock);
    cut(device, &ends);
    bool has_room = xseg_device_history_list_ends(device, &ends);
    xseg_mutex_unlock(&device->growth_lock);
    xseg_mutex_lock(&device->history.store->lock);
    for (size_t i = 0; has_room && i < ends.count; i++)
        find_first(&ends.list[i]);
    xseg_mutex_unlock(&device->history.store->lock);
    for (size_t i = 0; has_room && i < ends.count; i++)
        ends.list[i].has_stream = false; /* events are told as they were */
    for (size_t i = 0; has_room && i < ends.count; i++)
        has_room = read_ring(device, &ends.list[i], ends.moment.ticks, true, reading);
    reading->moment = ends.moment;
    xseg_device_history_end(&ends);
    return has_room ? XSEG_OK : fail_to_copy();
}

/* --- The newest events of a moment. --- */

/* Ticks by which the clocks of two processors may differ. */
#define SKEW ((uint64_t)1 << 20)

/* The first event of a ring that has to be copied to have all since then; the ring's end, if none has.  HISTORY is held. */
static uint64_t find_since(const struct xseg_history_end *of, uint64_t since)
{
    const uint64_t oldest = since - xseg_min(since, SKEW);
    struct xseg_history_event event;
    uint64_t first = of->first, end = of->end;

    while (first < end) {
        const uint64_t middle = first + (end - first) / 2;

        /* What was overwritten meanwhile is older than what is there. */
        if (!xseg_history_ring_read(of->ring, middle, &event) || event.time < oldest)
            first = middle + 1;
        else
            end = middle;
    }
    return first;
}

static uint64_t count_since(const struct xseg_history_ends *ends, uint64_t since)
{
    uint64_t count = 0;

    for (size_t i = 0; i < ends->count; i++)
        count += ends->list[i].end - find_since(&ends->list[i], since);
    return count;
}

/* The time since which a ring has lost no event before its end, whose first event becomes one that can be read. */
static uint64_t find_whole(struct xseg_history_end *of, uint64_t moment)
{
    struct xseg_history_event event;

    if (xseg_history_ring_lost(of->ring, of->first) == 0)
        return 0;
    while (of->first < of->end && !xseg_history_ring_read(of->ring, of->first, &event))
        of->first++;
    /* A ring that was overrun since its end was found has nothing left before that. */
    return of->first < of->end ? event.time + SKEW : moment;
}

/* The earliest time, not before `whole`, since which there are at most so many events. */
static uint64_t choose_since(const struct xseg_history_ends *ends, uint64_t whole, uint64_t max)
{
    uint64_t early = whole, late = UINT64_MAX;

    if (count_since(ends, early) <= max)
        return early;
    while (late - early > 1) {
        const uint64_t middle = early + (late - early) / 2;

        if (count_since(ends, middle) <= max)
            late = middle;
        else
            early = middle;
    }
    return late;
}

/* Let the ends begin where the events begin that are to be copied.  HISTORY is held. */
static uint64_t begin_since(const struct xseg_history_store *store, struct xseg_history_ends *ends,
                            uint64_t max, uint64_t *left_out)
{
    uint64_t whole = atomic_load_explicit(&store->complete_since, memory_order_relaxed);

    for (size_t i = 0; i < ends->count; i++) {
        find_first(&ends->list[i]);
        whole = xseg_max(whole, find_whole(&ends->list[i], ends->moment.ticks));
    }
    const uint64_t since = choose_since(ends, whole, max);
    for (size_t i = 0; i < ends->count; i++) {
        const uint64_t first = ends->list[i].first;

        ends->list[i].first = find_since(&ends->list[i], since);
        *left_out += ends->list[i].first - first;
    }
    return since;
}

xseg_status xseg_device_history_copy(struct xseg_device *device, struct xseg_history_ends *ends,
                                     uint64_t max, struct xseg_history_reader *reading)
{
    struct xseg_history_store *store = device->history.store;
    bool has_room = true;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&store->lock);
    reading->since = begin_since(store, ends, max, &reading->left_out);
    xseg_mutex_unlock(&store->lock);
    for (size_t i = 0; has_room && i < ends->count; i++)
        has_room = read_ring(device, &ends->list[i], UINT64_MAX, false, reading);
    /* xseg_history_ring_lost() counts what is left out, too: all events before the first one that is copied. */
    reading->lost -= has_room ? xseg_min(reading->left_out, reading->lost) : 0;
    reading->moment = ends->moment;
    return has_room ? XSEG_OK : fail_to_copy();
}

void xseg_device_history_clear(struct xseg_device *device)
{
    struct xseg_history_ends ends;

    xseg_mutex_lock(&device->growth_lock);
    cut(device, &ends);
    for (struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        xseg_history_ring_clear(ring, ring->snapshot_end);
    xseg_mutex_unlock(&device->growth_lock);
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

/* --- Texts of the user's. --- */

xseg_status xseg_device_history_annotate(struct xseg_device *device, uint32_t label)
{
    struct xseg_history *history = &device->history;
    struct xseg_history_event event = {.action = XSEG_HISTORY_ANNOTATION, .label = label};

    xseg_mutex_lock(&device->growth_lock);
    event.order = xseg_history_next_order(history);
    const bool has_room =
        xseg_history_append_to_device(history, ANNOTATIONS, xseg_history_settings(history), &event);
    xseg_mutex_unlock(&device->growth_lock);
    return has_room
               ? XSEG_OK
               : xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, annotation in the history");
}
