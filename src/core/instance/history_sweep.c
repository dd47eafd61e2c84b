/* SPDX-License-Identifier: MIT */
#include "src/core/instance/instance.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/core/block/recorder.h"
#include "src/core/report/device_history.h"

/* Number of frame IDs of the hook between two sweeps, in addition to twice the number of IDs that
 * the last sweep retained. */
#define MIN_GATHERS 65536u

/* Maximum number of events that are read while HISTORY is locked; an arena waits for HISTORY when
 * its ring is resized. */
#define BATCH_EVENTS 4096u

/* The frame IDs of the hook that are in use; unique after sort_unique_ids(). */
struct frame_ids {
    uint32_t *id; /* [capacity] */
    size_t count, capacity;
    bool has_failed; /* a host allocation has failed */
};

struct sweep {
    struct xseg_allocator *allocator;
    struct frame_ids *ids; /* NULL: frame IDs are not collected */
    bool has_labels; /* labels existed when the sweep began; newer labels are created marked */
};

/* --- Marking. --- */

static void append_id(struct frame_ids *ids, uint32_t id)
{
    /* Adjacent events usually have the same frames. */
    if (id == 0 || ids->has_failed || (ids->count != 0 && ids->id[ids->count - 1] == id))
        return;
    if (ids->count == ids->capacity) {
        const size_t capacity = ids->capacity == 0 ? 1024 : ids->capacity * 2;
        uint32_t *grown = realloc(ids->id, capacity * sizeof(*grown));

        ids->has_failed = grown == NULL;
        if (grown == NULL)
            return;
        ids->id = grown;
        ids->capacity = capacity;
    }
    ids->id[ids->count++] = id;
}

static void mark_event(void *self, uint32_t frames, uint32_t label)
{
    const struct sweep *sweep = self;

    if (sweep->has_labels)
        xseg_history_labels_mark(&sweep->allocator->history.labels, label);
    if (sweep->ids != NULL)
        append_id(sweep->ids, frames);
}

/* Mark the events of a ring.  Events that are written during the sweep have marked labels. */
static void mark_ring(struct sweep *sweep, const struct xseg_history_ring *ring)
{
    struct xseg_mutex *lock = &sweep->allocator->history.lock;
    const uint64_t recorded = atomic_load_explicit(&ring->recorded, memory_order_acquire);
    struct xseg_history_event event;
    uint64_t index = 0, first, end;

    do {
        xseg_mutex_lock(lock);
        xseg_history_ring_range(ring, &first, &end);
        index = xseg_max(index, first);
        end = xseg_min(recorded, index + BATCH_EVENTS);
        for (; index < end; index++)
            if (xseg_history_ring_read(ring, index, &event))
                mark_event(sweep, event.frames, event.label);
        xseg_mutex_unlock(lock);
    } while (index < recorded);
}

static void mark_device(struct sweep *sweep, struct xseg_device *device)
{
    xseg_mutex_lock(&device->memory_lock);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        xseg_origins_visit(arena, mark_event, sweep);
    }
    xseg_mutex_unlock(&device->memory_lock);
    for (const struct xseg_history_ring *ring = atomic_load(&device->history.rings); ring != NULL;
         ring = ring->next)
        mark_ring(sweep, ring);
}

/* Mark from all roots.  The caller holds SWEEP. */
static void mark_all(struct sweep *sweep)
{
    struct xseg_allocator *allocator = sweep->allocator;
    struct xseg_history_labels *labels = &allocator->history.labels;

    /* Under LABELS: a thread sets a new label in its context before it unlocks LABELS. */
    xseg_mutex_lock(&labels->lock);
    xseg_history_labels_begin(labels);
    sweep->has_labels = labels->count != 0;
    xseg_history_for_each_root(&allocator->history, mark_event, sweep);
    xseg_mutex_unlock(&labels->lock);
    for (int i = 0; i < allocator->device_count; i++) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, i);

        if (device != NULL)
            mark_device(sweep, device);
    }
}

/* --- Frame IDs of the hook. --- */

static int compare_ids(const void *a, const void *b)
{
    const uint32_t id_a = *(const uint32_t *)a, id_b = *(const uint32_t *)b;

    return id_a < id_b ? -1 : id_a > id_b;
}

static void sort_unique_ids(struct frame_ids *ids)
{
    size_t unique_count = 0;

    if (ids->count != 0)
        qsort(ids->id, ids->count, sizeof(*ids->id), compare_ids);
    for (size_t i = 0; i < ids->count; i++)
        if (i == 0 || ids->id[i] != ids->id[i - 1])
            ids->id[unique_count++] = ids->id[i];
    ids->count = unique_count;
}

/* Report the frame IDs in use to the hook, and determine when the next sweep is due. */
static void report_ids(struct xseg_history_store *store, const struct xseg_history_hook *hook,
                       struct frame_ids *ids)
{
    sort_unique_ids(ids);
    atomic_store_explicit(&store->sweep_at, MIN_GATHERS + 2 * ids->capacity, memory_order_relaxed);
    atomic_store_explicit(&store->gather_count, 0, memory_order_relaxed);
    if (!ids->has_failed)
        hook->discard(hook->context, ids->id, ids->count);
    free(ids->id);
}

/* Claim the hook's `discard`, which one thread calls at a time.  SWEEP does not cover it, because
 * `discard` may wait for a lock of the application whose owner waits for SWEEP. */
static bool claim_discard(struct xseg_history_store *store, const struct xseg_history_hook *hook)
{
    return hook != NULL && hook->discard != NULL &&
           !atomic_load_explicit(&store->is_discarding, memory_order_relaxed) &&
           !atomic_exchange(&store->is_discarding, true);
}

static void run_sweep(struct xseg_allocator *allocator, const struct xseg_history_hook *hook,
                      bool reports)
{
    struct xseg_history_store *store = &allocator->history;
    struct frame_ids ids = {.count = 0};
    struct sweep sweep = {.allocator = allocator, .ids = reports ? &ids : NULL};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&store->sweep_lock);
    mark_all(&sweep);
    xseg_mutex_lock(&store->labels.lock);
    xseg_history_labels_drop(&store->labels);
    xseg_mutex_unlock(&store->labels.lock);
    xseg_mutex_unlock(&store->sweep_lock);
    if (reports) {
        report_ids(store, hook, &ids);
        atomic_store(&store->is_discarding, false);
    }
}

void xseg_history_sweep(struct xseg_allocator *allocator)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(&allocator->history);

    run_sweep(allocator, hook, claim_discard(&allocator->history, hook));
}

void xseg_history_sweep_frames(struct xseg_allocator *allocator)
{
    const struct xseg_history_hook *hook = xseg_history_store_hook(&allocator->history);

    if (claim_discard(&allocator->history, hook))
        run_sweep(allocator, hook, true);
}

/* --- Labels and annotations. --- */

/* A change of the label of the calling thread, or the lookup of a label for an annotation. */
struct label_change {
    const char *text;   /* NULL: no label */
    bool is_annotation; /* retain the label, and do not change that of the thread */
    bool saves_previous;
    bool is_due; /* result: whether a sweep is due */
    uint32_t label, previous;
};

static enum xseg_history_labels_outcome try_label_change(struct xseg_history_store *store,
                                                         struct label_change *change)
{
    enum xseg_history_labels_outcome outcome = XSEG_HISTORY_LABELS_FOUND;

    xseg_mutex_lock(&store->labels.lock);
    if (change->text != NULL)
        outcome = xseg_history_labels_add(&store->labels, change->text, &change->label);
    change->is_due = xseg_history_labels_is_due(&store->labels);
    if (outcome <= XSEG_HISTORY_LABELS_ADDED) {
        if (change->is_annotation)
            xseg_history_retain_label(store, change->label);
        else
            change->previous =
                xseg_history_set_label(store, change->label, change->text, change->saves_previous);
    }
    xseg_mutex_unlock(&store->labels.lock);
    return outcome;
}

static xseg_status change_label(struct xseg_allocator *allocator, struct label_change *change)
{
    struct xseg_history_store *store = &allocator->history;
    enum xseg_history_labels_outcome outcome = XSEG_HISTORY_LABELS_NO_MEMORY;

    /* A sweep must visit the context of the thread. */
    if (change->text == NULL || xseg_history_context_register())
        outcome = try_label_change(store, change);
    if (outcome == XSEG_HISTORY_LABELS_FULL) {
        xseg_history_sweep(allocator);
        outcome = try_label_change(store, change);
    } else if (outcome == XSEG_HISTORY_LABELS_ADDED && change->is_due) {
        xseg_history_sweep(allocator);
    }
    if (outcome == XSEG_HISTORY_LABELS_FULL) {
        change->text = XSEG_HISTORY_LABELS_OTHER;
        outcome = try_label_change(store, change);
    }
    if (outcome == XSEG_HISTORY_LABELS_NO_MEMORY)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, label \"%.*s\"",
                         (int)XSEG_HISTORY_LABEL_BYTES - 1, change->text);
    return XSEG_OK;
}

xseg_status xseg_label_set(struct xseg_allocator *allocator, const char *text,
                           const char **previous)
{
    struct label_change change = {.text = text, .saves_previous = previous != NULL};
    const xseg_status status = change_label(allocator, &change);

    if (status == XSEG_OK && previous != NULL)
        *previous = xseg_history_labels_text(&allocator->history.labels, change.previous);
    return status;
}

xseg_status xseg_label_annotate(struct xseg_allocator *allocator, struct xseg_device *device,
                                const char *text)
{
    struct label_change change = {.text = text, .is_annotation = true};

    if (!xseg_history_settings_record(xseg_history_store_settings(device->history.store),
                                      XSEG_HISTORY_ANNOTATION))
        return XSEG_OK;
    xseg_status status = change_label(allocator, &change);
    if (status != XSEG_OK)
        return status;
    status = xseg_device_history_annotate(device, change.label);
    xseg_history_release_label(&allocator->history, change.label);
    return status;
}
