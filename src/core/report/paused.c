/* SPDX-License-Identifier: MIT */
#include "src/core/report/paused.h"

#include <stdlib.h>
#include <string.h>

/* --- Absences. --- */

static bool add_absence(struct xseg_snapshot_paused *paused, struct xseg_snapshot_absence absence)
{
    if (paused->count == paused->room) {
        const size_t room = paused->room == 0 ? 16 : 2 * paused->room;
        struct xseg_snapshot_absence *absences =
            realloc(paused->absences, room * sizeof(*absences));

        if (absences == NULL)
            return false;
        paused->absences = absences;
        paused->room = room;
    }
    paused->absences[paused->count++] = absence;
    return true;
}

/* Memory is back, or other memory is there: end the open absences of a range.  What lies beside it stays away.  Sets
 * *found if there was one.  Returns false without host memory. */
static bool end_absences(struct xseg_snapshot_paused *paused, uint64_t base, uint64_t end,
                         uint64_t number, bool *found)
{
    const size_t count = paused->count;

    for (size_t i = 0; i < count; i++) {
        struct xseg_snapshot_absence rest = paused->absences[i];

        if (!rest.is_open || rest.base >= end || rest.end <= base)
            continue;
        *found = true;
        paused->absences[i].base = xseg_max(rest.base, base);
        paused->absences[i].end = xseg_min(rest.end, end);
        paused->absences[i].to = number;
        paused->absences[i].is_open = false;
        struct xseg_snapshot_absence before = rest, behind = rest;
        before.end = base;
        behind.base = end;
        if ((rest.base < base && !add_absence(paused, before)) ||
            (rest.end > end && !add_absence(paused, behind)))
            return false;
    }
    return true;
}

static bool note_absence(struct xseg_snapshot_paused *paused,
                         const struct xseg_history_event *event, uint64_t number)
{
    const uint64_t base = event->base, end = base + xseg_history_event_bytes(event);
    bool found = false;

    switch (event->action) {
    case XSEG_HISTORY_PAUSE:
        return add_absence(
            paused, (struct xseg_snapshot_absence){base, end, number, XSEG_SNAPSHOT_NEVER, true});
    case XSEG_HISTORY_RESUME:
        return end_absences(paused, base, end, number, &found) &&
               (found ||
                add_absence(paused, (struct xseg_snapshot_absence){base, end, 0, number, false}));
    case XSEG_HISTORY_SEGMENT_MAP:
    case XSEG_HISTORY_SEGMENT_ALLOC:
        return paused->count == 0 || end_absences(paused, base, end, number, &found);
    default:
        return true;
    }
}

/* Memory that is away, and whose pause is older than the events. */
static bool note_away(struct xseg_snapshot_paused *paused, const struct xseg_heap_range *run)
{
    for (size_t i = 0; i < paused->count; i++)
        if (paused->absences[i].is_open && paused->absences[i].base <= run->base &&
            run->base < paused->absences[i].end)
            return true;
    return add_absence(paused, (struct xseg_snapshot_absence){run->base, run->base + run->bytes, 0,
                                                              XSEG_SNAPSHOT_NEVER, true});
}

static bool find_absences(struct xseg_snapshot_paused *paused, struct xseg_history_merge *merge,
                          const struct xseg_heap_copy *snapshot)
{
    const struct xseg_history_event *event;
    uint64_t number = 0;

    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL)
        if (!note_absence(paused, event, number++))
            return false;
    for (size_t i = 0; i < snapshot->count; i++)
        if (snapshot->ranges[i]->is_evicted && !note_away(paused, snapshot->ranges[i]))
            return false;
    return true;
}

/* Whether an address was ever away, or is at an event. */
static bool is_watched(const struct xseg_snapshot_paused *paused, uint64_t address)
{
    for (size_t i = 0; i < paused->count; i++)
        if (paused->absences[i].base <= address && address < paused->absences[i].end)
            return true;
    return false;
}

static bool is_away(const struct xseg_snapshot_paused *paused, uint64_t address, uint64_t number)
{
    for (size_t i = 0; i < paused->count; i++) {
        const struct xseg_snapshot_absence *absence = &paused->absences[i];

        if (absence->base <= address && address < absence->end &&
            (absence->from == 0 || absence->from < number) && number < absence->to)
            return true;
    }
    return false;
}

/* --- Watched blocks. --- */

/* Watch a block, unless it is watched.  Returns false without host memory. */
static bool watch(struct xseg_snapshot_paused *paused, const struct xseg_snapshot_watched *block)
{
    if (xseg_hash_table_find(&paused->blocks, block->base) != NULL)
        return true;
    struct xseg_snapshot_watched *watched =
        xseg_hash_table_find_or_add(&paused->blocks, block->base);
    if (watched != NULL)
        *watched = *block;
    return watched != NULL;
}

static bool is_about_block(const struct xseg_history_event *event)
{
    return event->action == XSEG_HISTORY_ALLOC || event->action == XSEG_HISTORY_FREE_REQUESTED ||
           event->action == XSEG_HISTORY_FREE_COMPLETED;
}

static struct xseg_snapshot_watched block_of(const struct xseg_history_event *event)
{
    return (struct xseg_snapshot_watched){
        .base = event->base,
        .requested = event->requested,
        .stream = event->stream,
        .pool = event->pool,
        .stack = event->stack,
        .frames = event->frames,
        .label = event->label,
    };
}

/* The first event of an address says whether a block was live there at the beginning. */
static bool watch_events(struct xseg_snapshot_paused *paused, struct xseg_history_merge *merge)
{
    const struct xseg_history_event *event;

    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL) {
        struct xseg_snapshot_watched block = block_of(event);

        if (!is_about_block(event) || !is_watched(paused, event->base))
            continue;
        block.was = event->action == XSEG_HISTORY_ALLOC            ? XSEG_BLOCK_CACHED
                    : event->action == XSEG_HISTORY_FREE_REQUESTED ? XSEG_BLOCK_ALLOCATED
                                                                   : XSEG_BLOCK_PENDING_FREE;
        if (block.was != XSEG_BLOCK_CACHED) /* the stack is that of the free */
            block.stack = block.frames = block.label = 0;
        if (!watch(paused, &block))
            return false;
    }
    return true;
}

/* Blocks without an event are as they were. */
static bool watch_run(struct xseg_snapshot_paused *paused, const struct xseg_heap_range *run)
{
    for (uint32_t i = 0; i < run->count; i++) {
        const struct xseg_heap_block *block = &run->blocks[i];
        const struct xseg_snapshot_watched watched = {
            .base = block->base,
            .requested = block->requested,
            .stream = run->stream,
            .pool = run->pool,
            .stack = block->stack,
            .frames = block->frames,
            .label = block->label,
            .was = block->state,
        };

        if (block->state != XSEG_BLOCK_CACHED && is_watched(paused, block->base) &&
            !watch(paused, &watched))
            return false;
    }
    return true;
}

/* --- All of it. --- */

bool xseg_snapshot_paused_init(struct xseg_snapshot_paused *paused,
                               struct xseg_history_merge *merge,
                               const struct xseg_heap_copy *snapshot)
{
    memset(paused, 0, sizeof(*paused));
    xseg_hash_table_init(&paused->blocks, sizeof(struct xseg_snapshot_watched));
    bool has_room = find_absences(paused, merge, snapshot);
    if (has_room && paused->count > 0)
        has_room = watch_events(paused, merge);
    for (size_t i = 0; has_room && paused->count > 0 && i < snapshot->count; i++)
        has_room = watch_run(paused, snapshot->ranges[i]);
    xseg_snapshot_paused_begin(paused);
    return has_room;
}

void xseg_snapshot_paused_fini(struct xseg_snapshot_paused *paused)
{
    free(paused->absences);
    xseg_hash_table_fini(&paused->blocks);
}

void xseg_snapshot_paused_begin(struct xseg_snapshot_paused *paused)
{
    paused->next = 0;
    for (struct xseg_snapshot_watched *block = xseg_hash_table_next(&paused->blocks, NULL);
         block != NULL; block = xseg_hash_table_next(&paused->blocks, block))
        block->is = block->was;
}

bool xseg_snapshot_paused_note(struct xseg_snapshot_paused *paused,
                               const struct xseg_history_event *event)
{
    const uint64_t number = paused->next++;

    if (!is_about_block(event))
        return true;
    /* The pause is older than the events, and the pool has ended since. */
    if (!is_watched(paused, event->base))
        return (event->flags & XSEG_HISTORY_EVICTED) == 0;
    struct xseg_snapshot_watched *block = xseg_hash_table_find(&paused->blocks, event->base);
    XSEG_ASSERT(block != NULL && block->base == event->base);
    if (event->action == XSEG_HISTORY_ALLOC) {
        const uint8_t was = block->was;

        *block = block_of(event);
        block->was = was;
    }
    block->is = event->action == XSEG_HISTORY_ALLOC            ? XSEG_BLOCK_ALLOCATED
                : event->action == XSEG_HISTORY_FREE_REQUESTED ? XSEG_BLOCK_PENDING_FREE
                                                               : XSEG_BLOCK_CACHED;
    return !is_away(paused, event->base, number);
}

void xseg_snapshot_paused_visit(
    const struct xseg_snapshot_paused *paused, uint64_t base, uint64_t bytes,
    void (*visit)(void *self, const struct xseg_snapshot_watched *block), void *self)
{
    for (const struct xseg_snapshot_watched *block = xseg_hash_table_next(&paused->blocks, NULL);
         block != NULL; block = xseg_hash_table_next(&paused->blocks, block))
        if (block->is != XSEG_BLOCK_CACHED && block->base >= base && block->base - base < bytes)
            visit(self, block);
}
