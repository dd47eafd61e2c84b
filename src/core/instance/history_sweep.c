/* SPDX-License-Identifier: MIT */
#include "src/core/instance/history_sweep.h"

#include <stdlib.h>

#include "src/core/arena/origins.h"

/* Numbers of the hook between two sweeps, in addition to twice those that the last sweep kept. */
#define MIN_GATHERS 65536u

/* Events that are read under one hold of HISTORY, for which an arena waits when its ring is resized. */
#define BATCH 4096u

/* The hook's numbers in use, each once after finish(). */
struct numbers {
    uint32_t *number; /* [capacity] */
    size_t count, capacity;
    bool is_short; /* a host allocation has failed */
};

struct sweep {
    struct xseg_allocator *allocator;
    struct numbers *numbers; /* NULL: they are not collected */
    bool has_labels;         /* there were labels when the sweep began; later ones are marked */
};

/* --- Marking. --- */

static void add(struct numbers *numbers, uint32_t number)
{
    /* Adjacent events mostly have the same frames. */
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

static void mark(void *self, uint32_t frames, uint32_t label)
{
    const struct sweep *sweep = self;

    if (sweep->has_labels)
        xseg_history_labels_mark(&sweep->allocator->history.labels, label);
    if (sweep->numbers != NULL)
        add(sweep->numbers, frames);
}

static void mark_arena(void *self, struct xseg_arena *arena)
{
    xseg_origins_visit(arena, mark, self);
}

/* Mark the events of a ring.  Events that are written meanwhile have marked labels. */
static void mark_ring(struct sweep *sweep, const struct xseg_history_ring *ring)
{
    struct xseg_mutex *lock = &sweep->allocator->history.lock;
    const uint64_t last = atomic_load_explicit(&ring->recorded, memory_order_acquire);
    struct xseg_history_event event;
    uint64_t number = 0, first, end;

    do {
        xseg_mutex_lock(lock);
        xseg_history_ring_range(ring, &first, &end);
        number = xseg_max(number, first);
        end = xseg_min(last, number + BATCH);
        for (; number < end; number++)
            if (xseg_history_ring_read(ring, number, &event))
                mark(sweep, event.frames, event.label);
        xseg_mutex_unlock(lock);
    } while (number < last);
}

static void mark_device(struct sweep *sweep, struct xseg_device *device)
{
    xseg_mutex_lock(&device->growth_lock);
    xseg_device_visit_arenas(device, mark_arena, sweep);
    xseg_mutex_unlock(&device->growth_lock);
    for (const struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        mark_ring(sweep, ring);
}

/* Mark from all roots.  SWEEP is held. */
static void mark_all(struct sweep *sweep)
{
    struct xseg_allocator *allocator = sweep->allocator;
    struct xseg_history_labels *labels = &allocator->history.labels;

    /* Under LABELS: a thread sets a new label in its context before it unlocks LABELS. */
    xseg_mutex_lock(&labels->lock);
    xseg_history_labels_begin(labels);
    sweep->has_labels = labels->count != 0;
    xseg_history_for_each_root(&allocator->history, mark, sweep);
    xseg_mutex_unlock(&labels->lock);
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            mark_device(sweep, device);
    }
}

/* --- The numbers of the hook. --- */

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

/* Report the numbers in use to the hook, and determine when the next sweep is due. */
static void report(struct xseg_history_store *store, const struct xseg_history_hook *hook,
                   struct numbers *numbers)
{
    finish(numbers);
    atomic_store_explicit(&store->sweep_at, MIN_GATHERS + 2 * numbers->capacity,
                          memory_order_relaxed);
    atomic_store_explicit(&store->gather_count, 0, memory_order_relaxed);
    if (!numbers->is_short)
        hook->discard(hook->context, numbers->number, numbers->count);
    free(numbers->number);
}

/* Claim the hook's `discard`, which one thread calls at a time.  SWEEP does not cover it, because `discard` may wait for an
 * application lock that a thread holds while it waits for SWEEP. */
static bool claim_discard(struct xseg_history_store *store, const struct xseg_history_hook *hook)
{
    return hook != NULL && hook->discard != NULL &&
           !atomic_load_explicit(&store->is_discarding, memory_order_relaxed) &&
           !atomic_exchange(&store->is_discarding, true);
}

static void sweep_with(struct xseg_allocator *allocator, const struct xseg_history_hook *hook,
                       bool reports)
{
    struct xseg_history_store *store = &allocator->history;
    struct numbers numbers = {.count = 0};
    struct sweep sweep = {.allocator = allocator, .numbers = reports ? &numbers : NULL};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&store->sweep_lock);
    mark_all(&sweep);
    xseg_mutex_lock(&store->labels.lock);
    xseg_history_labels_drop(&store->labels);
    xseg_mutex_unlock(&store->labels.lock);
    xseg_mutex_unlock(&store->sweep_lock);
    if (reports) {
        report(store, hook, &numbers);
        atomic_store(&store->is_discarding, false);
    }
}

void xseg_history_sweep(struct xseg_allocator *allocator)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(&allocator->history);

    sweep_with(allocator, hook, claim_discard(&allocator->history, hook));
}

void xseg_history_sweep_numbers(struct xseg_allocator *allocator)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(&allocator->history);

    if (claim_discard(&allocator->history, hook))
        sweep_with(allocator, hook, true);
}
