/* SPDX-License-Identifier: MIT */
#include "src/core/front/label_sweep.h"

#include "src/core/arena/origins.h"
#include "src/core/block/page_map.h"

/* Events, places of blocks, or buckets of texts that a step looks at. */
#define STEP 4096u

static struct xseg_history_labels *labels_of(struct xseg_allocator *allocator)
{
    return &allocator->history.labels;
}

/* Go on with what comes behind all events, or all blocks. */
static void enter(struct xseg_allocator *allocator, enum xseg_history_labels_stage stage)
{
    struct xseg_history_sweeping *sweeping = &allocator->history.sweeping;

    sweeping->device = 0;
    sweeping->ring = NULL;
    sweeping->at = 0;
    atomic_store_explicit(&labels_of(allocator)->stage, stage, memory_order_relaxed);
}

static void begin(struct xseg_allocator *allocator)
{
    struct xseg_history_store *store = &allocator->history;

    xseg_lock_take(&store->labels.lock);
    xseg_history_labels_begin(&store->labels);
    xseg_history_contexts_mark(store);
    xseg_lock_give(&store->labels.lock);
    enter(allocator, XSEG_HISTORY_LABELS_EVENTS);
}

/* --- Events. --- */

/* Mark what the events of a ring name, from sweeping->at on. */
static void mark_events(struct xseg_allocator *allocator)
{
    struct xseg_history_sweeping *sweeping = &allocator->history.sweeping;
    struct xseg_history_labels *labels = labels_of(allocator);
    struct xseg_history_event event;
    uint64_t first, end;

    xseg_lock_take(&allocator->history.lock);
    xseg_lock_take(&labels->lock);
    xseg_history_ring_range(sweeping->ring, &first, &end);
    sweeping->at = xseg_max(sweeping->at, first);
    end = xseg_min(sweeping->end, sweeping->at + STEP);
    for (; sweeping->at < end; sweeping->at++)
        if (xseg_history_ring_read(sweeping->ring, sweeping->at, &event))
            xseg_history_labels_mark(labels, event.label);
    xseg_lock_give(&labels->lock);
    xseg_lock_give(&allocator->history.lock);
}

/* Come to a ring; what is noted in it from now on names labels that are marked.  NULL: to the next device. */
static void come_to(struct xseg_history_sweeping *sweeping, struct xseg_history_ring *ring)
{
    sweeping->ring = ring;
    sweeping->device += ring == NULL;
    sweeping->at = 0;
    sweeping->end = ring == NULL ? 0 : atomic_load_explicit(&ring->noted, memory_order_acquire);
}

static void step_events(struct xseg_allocator *allocator)
{
    struct xseg_history_sweeping *sweeping = &allocator->history.sweeping;

    if (sweeping->device == allocator->device_count) {
        enter(allocator, XSEG_HISTORY_LABELS_BLOCKS);
        return;
    }
    if (sweeping->ring == NULL) {
        struct xseg_device *device = xseg_allocator_open_device(allocator, sweeping->device);

        come_to(sweeping, device == NULL ? NULL : atomic_load(&device->history.rings));
        return;
    }
    mark_events(allocator);
    if (sweeping->at >= sweeping->end)
        come_to(sweeping, sweeping->ring->next);
}

/* --- Blocks. --- */

static void mark(void *self, uint32_t label) XSEG_UNCHECKED
{
    xseg_history_labels_mark(self, label);
}

/* Mark what a part of an extent's blocks carry.  GROWTH is held. */
static void mark_blocks(struct xseg_allocator *allocator, const struct xseg_extent *extent)
{
    struct xseg_history_sweeping *sweeping = &allocator->history.sweeping;
    struct xseg_history_labels *labels = labels_of(allocator);

    xseg_lock_take(&labels->lock);
    sweeping->at = xseg_origins_visit_labels(extent, xseg_max(sweeping->at, extent->segment.base),
                                             mark, labels);
    xseg_lock_give(&labels->lock);
}

/* waits: for GROWTH, over driver calls.  Returns: whether GROWTH was had */
static bool step_blocks(struct xseg_allocator *allocator, bool waits)
{
    const uint64_t at = allocator->history.sweeping.at;
    struct xseg_extent *extent = xseg_page_map_next(&allocator->page_map, at);

    if (extent == NULL) {
        enter(allocator, XSEG_HISTORY_LABELS_DROP);
        return true;
    }
    struct xseg_lock *growth = &((struct xseg_arena *)extent->arena)->device->growth_lock;
    if (waits)
        xseg_lock_take(growth);
    else if (!xseg_lock_try(growth))
        return false;
    /* The extent may have ended before. */
    if (xseg_page_map_next(&allocator->page_map, at) == extent)
        mark_blocks(allocator, extent);
    xseg_lock_give(growth);
    return true;
}

/* --- Dropping. --- */

/* Returns false while there are readers. */
static bool step_drop(struct xseg_allocator *allocator)
{
    struct xseg_history_labels *labels = labels_of(allocator);

    xseg_lock_take(&labels->lock);
    const bool has_readers = labels->readers != 0;
    const bool is_over = xseg_history_labels_drop(labels, STEP);
    xseg_lock_give(&labels->lock);
    if (is_over)
        enter(allocator, XSEG_HISTORY_LABELS_IDLE);
    return !has_readers;
}

/* --- All of it. --- */

/* Returns false if nothing can be done now. */
static bool step(struct xseg_allocator *allocator, bool waits)
{
    switch ((enum xseg_history_labels_stage)labels_of(allocator)->stage) {
    case XSEG_HISTORY_LABELS_IDLE:
        begin(allocator);
        return true;
    case XSEG_HISTORY_LABELS_EVENTS:
        step_events(allocator);
        return true;
    case XSEG_HISTORY_LABELS_BLOCKS:
        return step_blocks(allocator, waits);
    case XSEG_HISTORY_LABELS_DROP:
        return step_drop(allocator);
    }
    return false;
}

void xseg_label_sweep_step(struct xseg_allocator *allocator)
{
    struct xseg_lock *lock = &allocator->history.sweeping.lock;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (!xseg_history_labels_is_due(labels_of(allocator)) || !xseg_lock_try(lock))
        return;
    (void)step(allocator, false);
    xseg_lock_give(lock);
}

void xseg_label_sweep_all(struct xseg_allocator *allocator)
{
    struct xseg_lock *lock = &allocator->history.sweeping.lock;
    bool goes_on = true;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    xseg_lock_take(lock);
    /* The cycle that is under way may have marked what is not in use any more; so a whole one follows. */
    while (goes_on && labels_of(allocator)->stage != XSEG_HISTORY_LABELS_IDLE)
        goes_on = step(allocator, true);
    do
        goes_on = goes_on && step(allocator, true);
    while (goes_on && labels_of(allocator)->stage != XSEG_HISTORY_LABELS_IDLE);
    xseg_lock_give(lock);
}
