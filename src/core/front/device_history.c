/* SPDX-License-Identifier: MIT */
#include "src/core/front/device_history.h"

#include <stdlib.h>

#include "src/base/error.h"

_Static_assert(XSEG_HISTORY_DEVICE_SHIFT + 8 <= 16,
               "a device's number fits in the flags of an event");

/* Events that a device keeps of the user's own texts. */
#define ANNOTATIONS 4096u

/* --- The events of one moment. --- */

/* An arena's lock makes sure that all that it has noted so far can be seen. */
static void cut_arena(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    if (arena->ring != NULL)
        arena->ring->cut = atomic_load_explicit(&arena->ring->noted, memory_order_relaxed);
    xseg_arena_unlock(arena);
}

/* Find where each ring of a device ends for now; none of a ring that is made meanwhile is before the moment.  GROWTH
 * is held.  Returns the moment. */
static struct xseg_history_moment cut(struct xseg_device *device)
{
    struct xseg_history *history = &device->history;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    const struct xseg_history_moment moment = xseg_history_store_moment(history->store);
    /* Rings of arenas that are in no pool any more get no more events. */
    for (struct xseg_history_ring *ring = atomic_load(&history->rings); ring != NULL;
         ring = ring->next)
        ring->cut = atomic_load_explicit(&ring->noted, memory_order_acquire);
    xseg_device_visit_arenas(device, cut_arena, NULL);
    return moment;
}

/* Where one ring ends. */
struct end {
    const struct xseg_history_ring *ring;
    uint64_t end;
};

/* Find the moment, and where each ring ends.  Returns NULL without host memory, else what the caller frees. */
static struct end *list_ends(struct xseg_device *device, struct xseg_history_moment *moment,
                             size_t *count)
{
    size_t rings = 0;

    xseg_lock_take(&device->growth_lock);
    *moment = cut(device);
    const struct xseg_history_ring *first = atomic_load(&device->history.rings);
    for (const struct xseg_history_ring *ring = first; ring != NULL; ring = ring->next)
        rings++;
    struct end *ends = malloc((rings + 1) * sizeof(*ends));
    *count = 0;
    for (const struct xseg_history_ring *ring = first; ends != NULL && ring != NULL;
         ring = ring->next)
        ends[(*count)++] = (struct end){ring, ring->cut};
    xseg_lock_give(&device->growth_lock);
    return ends;
}

/* How many of a ring's events are not later than the moment.  What drew a number is not, since GROWTH was held at the
 * moment, even if another processor's clock is ahead. */
static size_t until(const struct xseg_history_event *events, size_t count, uint64_t latest)
{
    size_t end = count;

    for (size_t at = count; at > 0 && events[at - 1].order == 0; at--)
        if (events[at - 1].time > latest)
            end = at - 1;
    return end;
}

/* Copy a ring's events of a moment. */
static struct xseg_history_event *copy_ring(const struct end *of, int device, uint64_t latest,
                                            size_t *count, uint64_t *lost)
{
    uint64_t first, end;

    xseg_history_ring_range(of->ring, &first, &end);
    end = of->end;
    first = xseg_min(first, end);
    *lost += xseg_history_ring_lost(of->ring, first);
    *count = 0;
    struct xseg_history_event *events = malloc((end - first + 1) * sizeof(*events));
    for (uint64_t number = first; events != NULL && number < end; number++) {
        struct xseg_history_event *event = &events[*count];

        if (!xseg_history_ring_read(of->ring, number, event)) {
            /* A writer has come round meanwhile: what was copied so far is older, and gone, too. */
            *lost += *count + 1;
            *count = 0;
            continue;
        }
        event->flags |= (uint16_t)((unsigned)device << XSEG_HISTORY_DEVICE_SHIFT);
        ++*count;
    }
    *count = events == NULL ? 0 : until(events, *count, latest);
    return events;
}

xseg_status xseg_device_history_read(struct xseg_device *device,
                                     struct xseg_history_reading *reading)
{
    struct xseg_history_store *store = device->history.store;
    size_t rings = 0;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    struct end *ends = list_ends(device, &reading->moment, &rings);
    bool has_room = ends != NULL;
    for (size_t i = 0; has_room && i < rings; i++) {
        size_t count = 0;

        xseg_lock_take(&store->lock);
        struct xseg_history_event *events = copy_ring(
            &ends[i], device->context.ordinal, reading->moment.ticks, &count, &reading->lost);
        xseg_lock_give(&store->lock);
        has_room = events != NULL && xseg_history_merge_add(&reading->merge, events, count);
        reading->count += count;
    }
    free(ends);
    return has_room ? XSEG_OK
                    : xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a copy of the history");
}

void xseg_device_history_clear(struct xseg_device *device)
{
    xseg_lock_take(&device->growth_lock);
    (void)cut(device);
    for (struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        xseg_history_ring_clear(ring, ring->cut);
    xseg_lock_give(&device->growth_lock);
}

void xseg_device_history_describe(struct xseg_allocator *allocator,
                                  const struct xseg_history_moment *moment,
                                  const struct xseg_history_event *event,
                                  struct xseg_history_entry *out)
{
    *out = (struct xseg_history_entry){
        .struct_bytes = sizeof(*out),
        .action = (enum xseg_history_action)event->action,
        .device = (int)(event->flags >> XSEG_HISTORY_DEVICE_SHIFT),
        .stream = (xseg_stream)(uintptr_t)event->stream, /* NOLINT(performance-no-int-to-ptr) */
        .pool = event->pool,
        .is_lent = (event->flags & XSEG_HISTORY_LENT) != 0,
        .base = (void *)(uintptr_t)event->base, /* NOLINT(performance-no-int-to-ptr) */
        .bytes = xseg_history_event_bytes(event),
        .requested = event->requested,
        .time_ns = xseg_history_store_ns(&allocator->history, moment, event->time),
        .order = event->order,
        .stack = event->stack,
        .frames = event->frames,
        .thread = (int)event->thread,
        .label = xseg_history_store_text(&allocator->history, event->label),
    };
}

/* --- Texts of the user's. --- */

xseg_status xseg_device_history_annotate(struct xseg_device *device, const char *text)
{
    struct xseg_history *history = &device->history;
    const uint64_t settings = xseg_history_settings(history);

    if (!xseg_history_settings_note(settings, XSEG_HISTORY_ANNOTATION))
        return XSEG_OK;
    struct xseg_history_event event = {
        .action = XSEG_HISTORY_ANNOTATION,
        .label = xseg_history_store_label(history->store, text),
    };
    if (event.label == 0)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a text in the history");
    xseg_lock_take(&device->growth_lock);
    event.order = xseg_history_draw(history);
    const bool has_room = xseg_history_note_aside(history, ANNOTATIONS, settings, &event);
    xseg_lock_give(&device->growth_lock);
    return has_room ? XSEG_OK
                    : xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for texts in the history");
}
