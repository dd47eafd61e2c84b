/* SPDX-License-Identifier: MIT */
#include "src/core/front/history_sweep.h"

#include <stdlib.h>

#include "src/core/arena/origins.h"

/* A sweep looks at every event, so at least so many numbers come between two. */
#define LEAST_GATHERS 65536u

/* The numbers that are in use, each once after finish(). */
struct numbers {
    uint32_t *number; /* [capacity] */
    size_t count, capacity;
    bool is_short; /* of host memory */
};

static void add(void *self, uint32_t number)
{
    struct numbers *numbers = self;

    /* Neighbouring events mostly have the same frames. */
    if (number == 0 || numbers->is_short ||
        (numbers->count != 0 && numbers->number[numbers->count - 1] == number))
        return;
    if (numbers->count == numbers->capacity) {
        const size_t capacity = numbers->capacity == 0 ? 1024 : numbers->capacity * 2;
        uint32_t *grown = realloc(numbers->number, capacity * sizeof(*grown));

        numbers->is_short = grown == NULL;
        if (grown == NULL)
            return;
        numbers->number = grown;
        numbers->capacity = capacity;
    }
    numbers->number[numbers->count++] = number;
}

static int compare(const void *a, const void *b)
{
    const uint32_t left = *(const uint32_t *)a, right = *(const uint32_t *)b;

    return left < right ? -1 : left > right;
}

static void finish(struct numbers *numbers)
{
    size_t kept = 0;

    if (numbers->count != 0)
        qsort(numbers->number, numbers->count, sizeof(*numbers->number), compare);
    for (size_t i = 0; i < numbers->count; i++)
        if (i == 0 || numbers->number[i] != numbers->number[i - 1])
            numbers->number[kept++] = numbers->number[i];
    numbers->count = kept;
}

static void add_arena(void *self, struct xseg_arena *arena)
{
    xseg_origins_visit_frames(arena, add, self);
}

static void add_ring(const struct xseg_history_ring *ring, struct numbers *numbers)
{
    struct xseg_history_event event;
    uint64_t first, end;

    xseg_history_ring_range(ring, &first, &end);
    for (uint64_t number = first; number < end; number++)
        if (xseg_history_ring_read(ring, number, &event))
            add(numbers, event.frames);
}

static void add_device(struct xseg_device *device, struct numbers *numbers)
{
    struct xseg_history_store *store = device->history.store;

    xseg_lock_take(&device->growth_lock);
    xseg_device_visit_arenas(device, add_arena, numbers);
    xseg_lock_give(&device->growth_lock);
    xseg_lock_take(&store->lock);
    for (const struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        add_ring(ring, numbers);
    xseg_lock_give(&store->lock);
}

void xseg_history_sweep(struct xseg_allocator *allocator)
{
    struct xseg_history_store *store = &allocator->history;
    const struct xseg_history_hook *hook = xseg_history_store_hook(store);
    struct numbers numbers = {.count = 0};

    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (hook == NULL || hook->forget == NULL || atomic_load(&store->is_sweeping) ||
        atomic_exchange(&store->is_sweeping, true))
        return;
    xseg_history_contexts_visit(add, &numbers);
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            add_device(device, &numbers);
    }
    finish(&numbers);
    /* The next sweep comes when as many numbers have been given as this one has looked at. */
    atomic_store_explicit(&store->sweep_after, LEAST_GATHERS + 2 * numbers.capacity,
                          memory_order_relaxed);
    atomic_store_explicit(&store->gathers, 0, memory_order_relaxed);
    if (!numbers.is_short)
        hook->forget(hook->context, numbers.number, numbers.count);
    atomic_store(&store->is_sweeping, false);
    free(numbers.number);
}

void xseg_history_sweep_store(struct xseg_history_store *store)
{
    xseg_history_sweep(XSEG_CONTAINER(store, struct xseg_allocator, history));
}
