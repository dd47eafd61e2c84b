/* SPDX-License-Identifier: MIT */
/*
 * The trace of a snapshot: the events of one device as PyTorch's trace entries.
 *
 * A viewer starts from the segments of the snapshot and undoes the entries from the last to the
 * first.  So the trace ends at the moment at which the segments were copied.  No event is missing
 * between two entries, and every change of mapped memory is an entry of a segment.  A remap, a
 * decay pass or a trim has an event that precedes the unmap.  PyTorch has no entry for it, so the
 * trace lists the index of the unmap with its cause.
 *
 * Paused memory.  While a pool is paused, its blocks remain allocated, but their pages are evicted.
 * PyTorch's format has no such state: it shows an unmapped segment, in which no block can exist.
 * Therefore the trace shows each block of an evicted range as freed immediately before the eviction
 * and as allocated immediately after the pages are mapped again.  It hides the events of blocks
 * between the two.  The eviction filter decides which events are hidden and knows the blocks:
 *
 *   1. One pass over the events finds the evicted ranges, from PAUSE to RESUME.  A segment that is
 *      mapped at these addresses later ends the range as well, if the pool was destroyed while it
 *      was paused.  RESUME without PAUSE, or a range that is evicted in the heap copy, reveals a
 *      pause that is older than the events.
 *   2. A second pass tracks the blocks that start in such ranges.  The first event of an address
 *      reveals whether a block existed before the events; an address without events has the block
 *      of the heap copy.
 *   3. The trace applies the events one by one.  A trace may be written several times (snapshot.c),
 *      so the initial state of each block is retained.
 *
 * Events are numbered from 0 in the order of the merge.
 */
#include <stdlib.h>
#include <string.h>

#include "src/base/align.h"
#include "src/core/config/config.h"
#include "src/core/report/snapshot_writer.h"

/* --- Evicted ranges. --- */

static bool add_evicted_range(struct xseg_eviction_filter *filter, struct xseg_evicted_range range)
{
    if (filter->count == filter->capacity) {
        const size_t capacity = filter->capacity == 0 ? 16 : 2 * filter->capacity;
        struct xseg_evicted_range *ranges = realloc(filter->ranges, capacity * sizeof(*ranges));

        if (ranges == NULL)
            return false;
        filter->ranges = ranges;
        filter->capacity = capacity;
    }
    filter->ranges[filter->count++] = range;
    return true;
}

/* End the open evicted ranges in [base, end) at an event.  Parts outside [base, end) remain
 * evicted.  Sets *found if there was a range.  Returns false on host allocation failure. */
static bool end_evicted_ranges(struct xseg_eviction_filter *filter, uint64_t base, uint64_t end,
                               uint64_t number, bool *found)
{
    const size_t count = filter->count;

    for (size_t i = 0; i < count; i++) {
        const struct xseg_evicted_range range = filter->ranges[i];

        if (!range.is_open || range.base >= end || range.end <= base)
            continue;
        *found = true;
        filter->ranges[i].base = xseg_max(range.base, base);
        filter->ranges[i].end = xseg_min(range.end, end);
        filter->ranges[i].to = number;
        filter->ranges[i].is_open = false;
        struct xseg_evicted_range before = range, after = range;
        before.end = base;
        after.base = end;
        if ((range.base < base && !add_evicted_range(filter, before)) ||
            (range.end > end && !add_evicted_range(filter, after)))
            return false;
    }
    return true;
}

static bool scan_event(struct xseg_eviction_filter *filter, const struct xseg_history_event *event,
                       uint64_t number)
{
    const uint64_t base = event->base, end = base + xseg_history_event_bytes(event);
    bool found = false;

    switch (event->action) {
    case XSEG_HISTORY_PAUSE:
        return add_evicted_range(
            filter, (struct xseg_evicted_range){base, end, number, XSEG_EVICTED_TO_END, true});
    case XSEG_HISTORY_RESUME:
        return end_evicted_ranges(filter, base, end, number, &found) &&
               (found || add_evicted_range(
                             filter, (struct xseg_evicted_range){base, end, 0, number, false}));
    case XSEG_HISTORY_SEGMENT_MAP:
    case XSEG_HISTORY_SEGMENT_ALLOC:
        return filter->count == 0 || end_evicted_ranges(filter, base, end, number, &found);
    default:
        return true;
    }
}

/* Add a range that is evicted after the last event, unless its eviction is one of the events. */
static bool scan_final_range(struct xseg_eviction_filter *filter,
                             const struct xseg_heap_range *range)
{
    for (size_t i = 0; i < filter->count; i++)
        if (filter->ranges[i].is_open && filter->ranges[i].base <= range->base &&
            range->base < filter->ranges[i].end)
            return true;
    return add_evicted_range(filter,
                             (struct xseg_evicted_range){range->base, range->base + range->bytes, 0,
                                                         XSEG_EVICTED_TO_END, true});
}

static bool find_evicted_ranges(struct xseg_eviction_filter *filter,
                                struct xseg_history_merge *merge, const struct xseg_heap_copy *heap)
{
    const struct xseg_history_event *event;
    uint64_t number = 0;

    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL)
        if (!scan_event(filter, event, number++))
            return false;
    for (size_t i = 0; i < heap->count; i++)
        if (heap->ranges[i]->is_evicted && !scan_final_range(filter, heap->ranges[i]))
            return false;
    return true;
}

/* Whether the pages of an address are evicted at any event. */
static bool is_ever_evicted(const struct xseg_eviction_filter *filter, uint64_t address)
{
    for (size_t i = 0; i < filter->count; i++)
        if (filter->ranges[i].base <= address && address < filter->ranges[i].end)
            return true;
    return false;
}

static bool is_evicted_at(const struct xseg_eviction_filter *filter, uint64_t address,
                          uint64_t number)
{
    for (size_t i = 0; i < filter->count; i++) {
        const struct xseg_evicted_range *range = &filter->ranges[i];

        if (range->base <= address && address < range->end &&
            (range->from == 0 || range->from < number) && number < range->to)
            return true;
    }
    return false;
}

/* --- Tracked blocks. --- */

/* Track a block unless its address is tracked already.  Returns false on host allocation
 * failure. */
static bool track_block(struct xseg_eviction_filter *filter, const struct xseg_tracked_block *block)
{
    if (xseg_hash_table_find(&filter->blocks, block->base) != NULL)
        return true;
    struct xseg_tracked_block *tracked = xseg_hash_table_find_or_add(&filter->blocks, block->base);
    if (tracked != NULL)
        *tracked = *block;
    return tracked != NULL;
}

static bool is_block_event(const struct xseg_history_event *event)
{
    return event->action == XSEG_HISTORY_ALLOC || event->action == XSEG_HISTORY_FREE_REQUESTED ||
           event->action == XSEG_HISTORY_FREE_COMPLETED;
}

static uint8_t state_before(const struct xseg_history_event *event)
{
    return event->action == XSEG_HISTORY_ALLOC            ? XSEG_BLOCK_CACHED
           : event->action == XSEG_HISTORY_FREE_REQUESTED ? XSEG_BLOCK_ALLOCATED
                                                          : XSEG_BLOCK_PENDING_FREE;
}

static uint8_t state_after(const struct xseg_history_event *event)
{
    return event->action == XSEG_HISTORY_ALLOC            ? XSEG_BLOCK_ALLOCATED
           : event->action == XSEG_HISTORY_FREE_REQUESTED ? XSEG_BLOCK_PENDING_FREE
                                                          : XSEG_BLOCK_CACHED;
}

static struct xseg_tracked_block block_of_event(const struct xseg_history_event *event)
{
    return (struct xseg_tracked_block){
        .base = event->base,
        .requested = event->requested,
        .stream = event->stream,
        .pool = event->pool,
        .stack = event->stack,
        .frames = event->frames,
        .label = event->label,
    };
}

static bool track_blocks_of_events(struct xseg_eviction_filter *filter,
                                   struct xseg_history_merge *merge)
{
    const struct xseg_history_event *event;

    xseg_history_merge_restart(merge);
    while ((event = xseg_history_merge_next(merge)) != NULL) {
        struct xseg_tracked_block block = block_of_event(event);

        if (!is_block_event(event) || !is_ever_evicted(filter, event->base))
            continue;
        block.initial_state = state_before(event);
        /* The call stack of the event is that of the free. */
        if (block.initial_state != XSEG_BLOCK_CACHED)
            block.stack = block.frames = block.label = 0;
        if (!track_block(filter, &block))
            return false;
    }
    return true;
}

/* Track the blocks of a range that have no event. */
static bool track_blocks_of_range(struct xseg_eviction_filter *filter,
                                  const struct xseg_heap_range *range)
{
    for (uint32_t i = 0; i < range->count; i++) {
        const struct xseg_heap_block *block = &range->blocks[i];
        const struct xseg_tracked_block tracked = {
            .base = block->base,
            .requested = block->requested,
            .stream = range->stream,
            .pool = range->pool,
            .stack = block->stack,
            .frames = block->frames,
            .label = block->label,
            .initial_state = block->state,
        };

        if (block->state != XSEG_BLOCK_CACHED && is_ever_evicted(filter, block->base) &&
            !track_block(filter, &tracked))
            return false;
    }
    return true;
}

bool xseg_eviction_filter_init(struct xseg_eviction_filter *filter,
                               struct xseg_history_merge *merge, const struct xseg_heap_copy *heap)
{
    memset(filter, 0, sizeof(*filter));
    xseg_hash_table_init(&filter->blocks, sizeof(struct xseg_tracked_block));
    bool has_memory = find_evicted_ranges(filter, merge, heap);
    if (has_memory && filter->count > 0)
        has_memory = track_blocks_of_events(filter, merge);
    for (size_t i = 0; has_memory && filter->count > 0 && i < heap->count; i++)
        has_memory = track_blocks_of_range(filter, heap->ranges[i]);
    xseg_eviction_filter_restart(filter);
    return has_memory;
}

void xseg_eviction_filter_fini(struct xseg_eviction_filter *filter)
{
    free(filter->ranges);
    xseg_hash_table_fini(&filter->blocks);
}

void xseg_eviction_filter_restart(struct xseg_eviction_filter *filter)
{
    filter->next = 0;
    for (struct xseg_tracked_block *block = xseg_hash_table_next(&filter->blocks, NULL);
         block != NULL; block = xseg_hash_table_next(&filter->blocks, block))
        block->state = block->initial_state;
}

bool xseg_eviction_filter_apply(struct xseg_eviction_filter *filter,
                                const struct xseg_history_event *event)
{
    const uint64_t number = filter->next++;

    if (!is_block_event(event))
        return true;
    /* An evicted block outside all evicted ranges: its pool was paused before the first event and
     * destroyed since. */
    if (!is_ever_evicted(filter, event->base))
        return (event->flags & XSEG_HISTORY_EVICTED) == 0;
    struct xseg_tracked_block *block = xseg_hash_table_find(&filter->blocks, event->base);
    XSEG_ASSERT(block != NULL && block->base == event->base);
    if (event->action == XSEG_HISTORY_ALLOC) {
        const uint8_t initial_state = block->initial_state;

        *block = block_of_event(event);
        block->initial_state = initial_state;
    }
    block->state = state_after(event);
    return !is_evicted_at(filter, event->base, number);
}

void xseg_eviction_filter_visit(const struct xseg_eviction_filter *filter, uint64_t base,
                                uint64_t bytes,
                                void (*visit)(void *self, const struct xseg_tracked_block *block),
                                void *self)
{
    for (const struct xseg_tracked_block *block = xseg_hash_table_next(&filter->blocks, NULL);
         block != NULL; block = xseg_hash_table_next(&filter->blocks, block))
        if (block->state != XSEG_BLOCK_CACHED && block->base >= base && block->base - base < bytes)
            visit(self, block);
}

/* --- Entries. --- */

void xseg_snapshot_trace_init(struct xseg_snapshot_trace *trace,
                              struct xseg_snapshot_writer *writer)
{
    memset(trace, 0, sizeof(*trace));
    trace->writer = writer;
    xseg_snapshot_trace_restart(trace);
}

void xseg_snapshot_trace_fini(struct xseg_snapshot_trace *trace)
{
    free(trace->causes);
    xseg_eviction_filter_fini(&trace->filter);
}

void xseg_snapshot_trace_restart(struct xseg_snapshot_trace *trace)
{
    trace->events = trace->entries = 0;
    trace->cause_count = 0;
    trace->cause = XSEG_HISTORY_ACTIONS;
    xseg_eviction_filter_restart(&trace->filter);
}

/* Add the cause of the next entry.  On host allocation failure the cause is omitted. */
static void add_cause(struct xseg_snapshot_trace *trace, uint8_t action)
{
    if (trace->cause_count == trace->cause_capacity) {
        const size_t capacity = trace->cause_capacity == 0 ? 64 : 2 * trace->cause_capacity;
        struct xseg_snapshot_cause *causes = realloc(trace->causes, capacity * sizeof(*causes));

        if (causes == NULL)
            return;
        trace->causes = causes;
        trace->cause_capacity = capacity;
    }
    trace->causes[trace->cause_count++] = (struct xseg_snapshot_cause){trace->entries, action};
}

/* The name of an action in PyTorch; XSEG_SNAPSHOT_EMPTY if the action has no entry. */
static unsigned action_string(uint8_t action)
{
    static const unsigned strings[XSEG_HISTORY_ACTIONS] = {
        [XSEG_HISTORY_ALLOC] = XSEG_SNAPSHOT_ALLOC,
        [XSEG_HISTORY_FREE_REQUESTED] = XSEG_SNAPSHOT_FREE_REQUESTED,
        [XSEG_HISTORY_FREE_COMPLETED] = XSEG_SNAPSHOT_FREE_COMPLETED,
        [XSEG_HISTORY_SEGMENT_ALLOC] = XSEG_SNAPSHOT_SEGMENT_ALLOC,
        [XSEG_HISTORY_SEGMENT_FREE] = XSEG_SNAPSHOT_SEGMENT_FREE,
        [XSEG_HISTORY_SEGMENT_MAP] = XSEG_SNAPSHOT_SEGMENT_MAP,
        [XSEG_HISTORY_SEGMENT_UNMAP] = XSEG_SNAPSHOT_SEGMENT_UNMAP,
        [XSEG_HISTORY_OOM] = XSEG_SNAPSHOT_OOM,
        [XSEG_HISTORY_REMAP] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_DECAY] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_TRIM] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_PAUSE] = XSEG_SNAPSHOT_SEGMENT_UNMAP,
        [XSEG_HISTORY_RESUME] = XSEG_SNAPSHOT_SEGMENT_MAP,
        [XSEG_HISTORY_ANNOTATION] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_BUDGET_REQUEST] = XSEG_SNAPSHOT_EMPTY,
        [XSEG_HISTORY_BUDGET_RELEASE] = XSEG_SNAPSHOT_EMPTY,
    };

    return action < XSEG_HISTORY_ACTIONS ? strings[action] : XSEG_SNAPSHOT_EMPTY;
}

/* Write the label of a thread, which users of PyTorch set with _set_memory_metadata(). */
static void write_label(struct xseg_snapshot_writer *writer, uint32_t label)
{
    const char *text = xseg_history_labels_text(&writer->store->labels, label);

    xseg_pickle_key(&writer->pickle, XSEG_SNAPSHOT_USER_METADATA);
    if (text == NULL)
        xseg_pickle_interned(&writer->pickle, XSEG_SNAPSHOT_EMPTY);
    else
        xseg_pickle_string(&writer->pickle, text, strlen(text));
}

static void write_entry(struct xseg_snapshot_trace *trace, const struct xseg_history_event *event,
                        unsigned action)
{
    struct xseg_snapshot_writer *writer = trace->writer;
    struct xseg_pickle_writer *pickle = &writer->pickle;
    const bool is_oom = event->action == XSEG_HISTORY_OOM;
    const uint64_t *pool = xseg_snapshot_pool_id(writer, event->pool);

    xseg_pickle_open_dict(pickle);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_ACTION);
    xseg_pickle_interned(pickle, action);
    xseg_snapshot_write_number(writer, is_oom ? XSEG_SNAPSHOT_DEVICE_FREE : XSEG_SNAPSHOT_ADDR,
                               is_oom ? xseg_history_event_bytes(event) : event->base);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_SIZE,
                               is_oom ? xseg_round_up(event->requested, XSEG_SIZE_UNIT)
                                      : event->requested);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_STREAM, event->stream);
    xseg_snapshot_write_number(writer, XSEG_SNAPSHOT_TIME_US,
                               xseg_snapshot_time_us(writer, &trace->moment, event->time));
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_POOL_ID);
    xseg_pickle_pair(pickle, pool[0], pool[1]);
    write_label(writer, event->label);
    xseg_pickle_key(pickle, XSEG_SNAPSHOT_COMPILE_CONTEXT);
    xseg_pickle_interned(pickle, XSEG_SNAPSHOT_NOT_COMPILED);
    if ((event->stack | event->frames) != 0) {
        xseg_pickle_key(pickle, XSEG_SNAPSHOT_FRAMES);
        xseg_snapshot_write_stack(writer, event->stack, event->frames);
    }
    xseg_pickle_close(pickle);
    trace->entries++;
}

/* Add the cause of an entry that maps or unmaps memory, if it is known. */
static void add_cause_of_event(struct xseg_snapshot_trace *trace,
                               const struct xseg_history_event *event)
{
    switch (event->action) {
    case XSEG_HISTORY_PAUSE:
    case XSEG_HISTORY_RESUME:
        add_cause(trace, event->action);
        break;
    case XSEG_HISTORY_SEGMENT_UNMAP:
    case XSEG_HISTORY_SEGMENT_FREE:
        if (trace->cause != XSEG_HISTORY_ACTIONS && trace->cause_base == event->base)
            add_cause(trace, trace->cause);
        trace->cause = XSEG_HISTORY_ACTIONS;
        break;
    default:
        break;
    }
}

/* --- Blocks of evicted ranges. --- */

/* A trace with the event that evicts pages or maps them again. */
struct eviction {
    struct xseg_snapshot_trace *trace;
    const struct xseg_history_event *event;
};

/* An event of a block at the time of an eviction or its end. */
static struct xseg_history_event block_event(const struct eviction *eviction,
                                             const struct xseg_tracked_block *block,
                                             enum xseg_history_action action)
{
    return (struct xseg_history_event){
        .time = eviction->event->time,
        .base = block->base,
        .requested = block->requested,
        .stream = block->stream,
        .pool = block->pool,
        .stack = block->stack,
        .frames = block->frames,
        .label = block->label,
        .action = (uint8_t)action,
    };
}

static void write_evicted_block(void *self, const struct xseg_tracked_block *block)
{
    const struct eviction *eviction = self;
    struct xseg_history_event event = block_event(eviction, block, XSEG_HISTORY_FREE_REQUESTED);

    if (block->state == XSEG_BLOCK_ALLOCATED)
        write_entry(eviction->trace, &event, XSEG_SNAPSHOT_FREE_REQUESTED);
    event.action = XSEG_HISTORY_FREE_COMPLETED;
    write_entry(eviction->trace, &event, XSEG_SNAPSHOT_FREE_COMPLETED);
}

static void write_restored_block(void *self, const struct xseg_tracked_block *block)
{
    const struct eviction *eviction = self;
    struct xseg_history_event event = block_event(eviction, block, XSEG_HISTORY_ALLOC);

    write_entry(eviction->trace, &event, XSEG_SNAPSHOT_ALLOC);
    event.action = XSEG_HISTORY_FREE_REQUESTED;
    if (block->state == XSEG_BLOCK_PENDING_FREE)
        write_entry(eviction->trace, &event, XSEG_SNAPSHOT_FREE_REQUESTED);
}

/* --- All events. --- */

static void write_event(struct xseg_snapshot_trace *trace, const struct xseg_history_event *event)
{
    struct eviction eviction = {trace, event};
    const uint64_t bytes = xseg_history_event_bytes(event);

    if (event->action == XSEG_HISTORY_PAUSE)
        xseg_eviction_filter_visit(&trace->filter, event->base, bytes, write_evicted_block,
                                   &eviction);
    add_cause_of_event(trace, event);
    write_entry(trace, event, action_string(event->action));
    if (event->action == XSEG_HISTORY_RESUME)
        xseg_eviction_filter_visit(&trace->filter, event->base, bytes, write_restored_block,
                                   &eviction);
}

void xseg_snapshot_trace_write(struct xseg_snapshot_trace *trace,
                               const struct xseg_history_event *event, bool skip)
{
    const bool is_visible = xseg_eviction_filter_apply(&trace->filter, event);

    if (skip)
        return;
    trace->events++;
    if (action_string(event->action) != XSEG_SNAPSHOT_EMPTY) {
        if (is_visible)
            write_event(trace, event);
    } else if (event->action != XSEG_HISTORY_ANNOTATION &&
               event->action != XSEG_HISTORY_BUDGET_REQUEST) {
        trace->cause = event->action;
        trace->cause_base = event->base;
    }
}

static unsigned cause_string(uint8_t action)
{
    switch (action) {
    case XSEG_HISTORY_REMAP:
        return XSEG_SNAPSHOT_REMAP;
    case XSEG_HISTORY_DECAY:
        return XSEG_SNAPSHOT_DECAY;
    case XSEG_HISTORY_TRIM:
        return XSEG_SNAPSHOT_TRIM;
    case XSEG_HISTORY_BUDGET_RELEASE:
        return XSEG_SNAPSHOT_BUDGET_RELEASE;
    case XSEG_HISTORY_PAUSE:
        return XSEG_SNAPSHOT_PAUSE;
    default:
        XSEG_ASSERT(action == XSEG_HISTORY_RESUME);
        return XSEG_SNAPSHOT_RESUME;
    }
}

void xseg_snapshot_trace_write_causes(const struct xseg_snapshot_trace *trace)
{
    struct xseg_pickle_writer *pickle = &trace->writer->pickle;

    xseg_pickle_open_list(pickle);
    for (size_t i = 0; i < trace->cause_count; i++) {
        xseg_pickle_open_list(pickle);
        xseg_pickle_uint(pickle, trace->causes[i].entry);
        xseg_pickle_interned(pickle, cause_string(trace->causes[i].action));
        xseg_pickle_close(pickle);
    }
    xseg_pickle_close(pickle);
}
