/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/replay_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/message.h"
#include "src/tools/output/progress.h"

#define LARGE_MIB 20u /* large_segment_size_mb of a configuration without it */

/* --- Pages. --- */

static uint64_t find_large_page(const struct recording *recording)
{
    const char *config = recording->config ? recording_text(recording, recording->config) : "";
    const char *large = strstr(config, "large_segment_size_mb");
    const char *sizes = strstr(config, "page_size");
    uint64_t mib = LARGE_MIB;
    char word[8];

    if (sizes && sscanf(sizes, "page_size : %7[a-z]", word) == 1 && strcmp(word, "small") == 0)
        return REPLAY_MODEL_SMALL_PAGE;
    if (large && sscanf(large, "large_segment_size_mb : %6" SCNu64, &mib) != 1)
        mib = LARGE_MIB;
    return mib > 0 && mib % 2 == 0 ? mib << 20 : REPLAY_MODEL_SMALL_PAGE;
}

static uint64_t choose_page_bytes(const struct replay_model *model, uint64_t bytes)
{
    return bytes % model->large_page == 0 ? model->large_page : REPLAY_MODEL_SMALL_PAGE;
}

/* --- Ranges. --- */

static uint32_t find_range_slot(const struct replay_model *model, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&model->ranges, address);

    return slot != ORDERED_NONE && address < model->range[slot].end ? slot : ORDERED_NONE;
}

const struct replay_model_range *replay_model_range_at(const struct replay_model *model,
                                                       uint64_t address)
{
    const uint32_t slot = find_range_slot(model, address);

    return slot == ORDERED_NONE ? NULL : &model->range[slot];
}

static uint64_t get_mapped_bytes(const struct replay_model *model, uint64_t start, uint64_t end,
                                 bool only_expandable)
{
    uint64_t bytes = 0;

    while (start < end) {
        uint32_t slot = find_range_slot(model, start);

        if (slot == ORDERED_NONE) {
            slot = ordered_from(&model->ranges, start);
            if (slot == ORDERED_NONE || model->range[slot].start >= end)
                break;
            start = model->range[slot].start;
        }
        const uint64_t stop = model->range[slot].end < end ? model->range[slot].end : end;
        bytes += only_expandable && !model->range[slot].is_expandable ? 0 : stop - start;
        start = stop;
    }
    return bytes;
}

uint64_t replay_model_expandable_bytes(const struct replay_model *model, uint64_t start,
                                       uint64_t end)
{
    return get_mapped_bytes(model, start, end, true);
}

static bool insert_range(struct replay_model *model, const struct replay_model_range *range)
{
    const uint32_t slot = ordered_add(&model->ranges, range->start);

    if (slot == ORDERED_NONE || !ordered_resize(&model->ranges, (void **)&model->range,
                                                &model->range_capacity, sizeof(*range))) {
        model->out_of_memory = true;
        return false;
    }
    model->range[slot] = *range;
    return true;
}

static bool can_join(const struct replay_model_range *first,
                     const struct replay_model_range *second)
{
    return first->is_expandable && second->is_expandable && first->end == second->start &&
           first->stream == second->stream && first->pool == second->pool &&
           first->page == second->page &&
           (first->page == 0 || (first->end - first->start) % first->page == 0);
}

static bool add_range(struct replay_model *model, const struct replay_model_range *range)
{
    struct replay_model_range joined = *range;
    const uint32_t next = ordered_find(&model->ranges, range->end);
    uint32_t previous;

    if (next != ORDERED_NONE && can_join(&joined, &model->range[next])) {
        joined.end = model->range[next].end;
        ordered_remove(&model->ranges, range->end);
    }
    previous = ordered_up_to(&model->ranges, range->start);
    if (previous != ORDERED_NONE && can_join(&model->range[previous], &joined))
        model->range[previous].end = joined.end;
    else if (!insert_range(model, &joined))
        return false;
    model->reserved += range->end - range->start;
    if (model->observer.range_added)
        model->observer.range_added(model->observer.self, range);
    return true;
}

/* Remove a part of a range.  Pages are unmapped as a whole, so if an end is inside a large page, the range has small
 * pages. */
static bool remove_range(struct replay_model *model, uint32_t slot, uint64_t start, uint64_t end)
{
    const struct replay_model_range range = model->range[slot];
    struct replay_model_range part = range;

    if (range.page > 0 && ((start - range.start) % range.page > 0 ||
                           (end < range.end && (end - range.start) % range.page > 0)))
        model->range[slot].page = part.page = REPLAY_MODEL_SMALL_PAGE;
    if (range.start == start)
        ordered_remove(&model->ranges, start);
    else
        model->range[slot].end = start;
    part.start = end;
    if (range.end != end && !insert_range(model, &part))
        return false;
    part.start = start;
    part.end = end;
    model->reserved -= end - start;
    if (model->observer.range_removed)
        model->observer.range_removed(model->observer.self, &part);
    return true;
}

static bool remove_memory(struct replay_model *model, uint64_t start, uint64_t end)
{
    while (start < end) {
        const uint32_t slot = find_range_slot(model, start);
        const uint64_t stop = model->range[slot].end < end ? model->range[slot].end : end;

        if (!remove_range(model, slot, start, stop))
            return false;
        start = stop;
    }
    return true;
}

static bool has_small_pages(const struct replay_model *model, uint64_t start, uint64_t end)
{
    while (start < end) {
        const struct replay_model_range *range = replay_model_range_at(model, start);

        if (range->page > 0)
            return true;
        start = range->end;
    }
    return false;
}

static void set_unknown_pages(struct replay_model *model)
{
    for (uint32_t slot = ordered_from(&model->ranges, 0); slot != ORDERED_NONE;
         slot = ordered_from(&model->ranges, model->range[slot].end)) {
        struct replay_model_range *range = &model->range[slot];

        if (range->is_expandable && range->page == 0)
            range->page = choose_page_bytes(model, range->end - range->start);
    }
}

#define BLOCK_UNIT      512u
#define PROGRESS_EVENTS 32768u

enum plan {
    PLAIN,
    SMALL_PAGES, /* the mapped memory is known to have small pages */
    OMITTED,
    IMMEDIATE /* a free whose completion is missing removes the block */
};

/* An allocation whose block does not have the rounded size of the request.  Exceptions are in reverse order of events. */
struct replay_model_exception {
    size_t event;
    uint64_t bytes;
};

/* --- Blocks. --- */

static uint64_t round_up(uint64_t bytes)
{
    if (bytes > UINT64_MAX - BLOCK_UNIT)
        return bytes;
    return bytes == 0 ? BLOCK_UNIT : (bytes + BLOCK_UNIT - 1) / BLOCK_UNIT * BLOCK_UNIT;
}

static bool add_block(struct replay_model *model, const struct replay_model_block *block)
{
    const uint32_t slot = ordered_add(&model->blocks, block->address);

    if (slot == ORDERED_NONE || !ordered_resize(&model->blocks, (void **)&model->block,
                                                &model->block_capacity, sizeof(*block))) {
        model->out_of_memory = true;
        return false;
    }
    model->block[slot] = *block;
    *(block->is_pending ? &model->pending : &model->allocated) += block->bytes;
    if (model->observer.block_added)
        model->observer.block_added(model->observer.self, slot, &model->block[slot]);
    return true;
}

static void remove_block(struct replay_model *model, uint32_t slot)
{
    const struct replay_model_block *block = &model->block[slot];

    *(block->is_pending ? &model->pending : &model->allocated) -= block->bytes;
    if (model->observer.block_removed)
        model->observer.block_removed(model->observer.self, slot, block);
    ordered_remove(&model->blocks, block->address);
}

static void set_pending(struct replay_model *model, uint32_t slot, bool is_pending)
{
    struct replay_model_block *block = &model->block[slot];

    if (block->is_pending == is_pending)
        return;
    *(is_pending ? &model->allocated : &model->pending) -= block->bytes;
    *(is_pending ? &model->pending : &model->allocated) += block->bytes;
    block->is_pending = is_pending;
    block->since_us = model->now_us;
    if (is_pending && model->observer.block_freed)
        model->observer.block_freed(model->observer.self, slot, block);
}

static uint32_t find_block_slot(const struct replay_model *model, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&model->blocks, address);

    return slot != ORDERED_NONE && address - model->block[slot].address < model->block[slot].bytes
               ? slot
               : ORDERED_NONE;
}

const struct replay_model_block *replay_model_block_at(const struct replay_model *model,
                                                       uint64_t address)
{
    const uint32_t slot = find_block_slot(model, address);

    return slot == ORDERED_NONE ? NULL : &model->block[slot];
}

static bool has_blocks(const struct replay_model *model, uint64_t start, uint64_t end)
{
    const uint32_t slot = ordered_up_to(&model->blocks, end - 1);

    return slot != ORDERED_NONE && model->block[slot].address + model->block[slot].bytes > start;
}

/* Find the end of contiguous memory of one kind from an address, searched up to `limit`; ranges of different streams may
 * be adjacent. */
static uint64_t find_memory_end(const struct replay_model *model, uint64_t address, uint64_t limit)
{
    const struct replay_model_range *range = replay_model_range_at(model, address);
    uint64_t end = range ? range->end : address;

    while (range && range->is_expandable && end < limit) {
        range = replay_model_range_at(model, end);
        if (range && range->is_expandable)
            end = range->end;
    }
    return end;
}

/* Get the bytes that a block at an address can have, at most `bytes`; 0: the address is not free. */
static uint64_t get_free_bytes(const struct replay_model *model, uint64_t address, uint64_t bytes)
{
    const uint64_t limit = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
    const uint64_t end = find_memory_end(model, address, limit);
    uint32_t next;

    if (find_block_slot(model, address) != ORDERED_NONE)
        return 0;
    if (bytes > end - address)
        bytes = end - address;
    next = ordered_from(&model->blocks, address);
    if (next != ORDERED_NONE && model->block[next].address - address < bytes)
        bytes = model->block[next].address - address;
    return bytes;
}

/* --- The state at the end. --- */

static void count_dropped(struct replay_model *model, uint64_t bytes)
{
    model->dropped.blocks++;
    model->dropped.bytes += bytes;
}

static void load_block(struct replay_model *model, const struct recording_segment *segment,
                       const struct recording_block *block)
{
    const struct replay_model_block loaded = {
        .address = block->address,
        .bytes = block->bytes,
        .stream = segment->stream,
        .requested = block->requested,
        .stack = block->stack,
        .pool = segment->pool,
        .is_pending = block->state == RECORDING_PENDING,
        .is_older = true,
    };

    if (block->state == RECORDING_INACTIVE)
        return;
    if (block->bytes == 0 || block->address < segment->address ||
        get_free_bytes(model, block->address, block->bytes) < block->bytes) {
        model->omitted++;
        count_dropped(model, block->bytes);
    } else {
        (void)add_block(model, &loaded);
    }
}

/* Check a range.  Addresses of segments are even, as fragmentation.c requires. */
static bool is_range(uint64_t start, uint64_t bytes)
{
    return bytes > 0 && start % 2 == 0 && bytes % 2 == 0 && bytes <= UINT64_MAX - start;
}

static void load_segment(struct replay_model *model, const struct recording *recording,
                         const struct recording_segment *segment)
{
    const struct replay_model_range range = {
        .start = segment->address,
        .end = segment->address + segment->bytes,
        .stream = segment->stream,
        .page = segment->is_expandable && segment->is_small ? REPLAY_MODEL_SMALL_PAGE : 0,
        .pool = segment->pool,
        .is_expandable = segment->is_expandable,
    };

    if (!is_range(segment->address, segment->bytes) ||
        get_mapped_bytes(model, range.start, range.end, false) > 0) {
        model->omitted++;
        for (uint32_t i = 0; i < segment->count; i++)
            if (recording->blocks[segment->first + i].state != RECORDING_INACTIVE)
                count_dropped(model, recording->blocks[segment->first + i].bytes);
        return;
    }
    if (!add_range(model, &range))
        return;
    for (uint32_t i = 0; i < segment->count && !model->out_of_memory; i++)
        load_block(model, segment, &recording->blocks[segment->first + i]);
}

/* --- Undo. --- */

static bool record_exception(struct replay_model *model, size_t event, uint64_t bytes)
{
    if (!array_reserve((void **)&model->exceptions, model->exception_count,
                       sizeof(*model->exceptions))) {
        model->out_of_memory = true;
        return false;
    }
    model->exceptions[model->exception_count++] = (struct replay_model_exception){event, bytes};
    return true;
}

/* Undo an allocation.  The block may be pending if its free_requested is missing. */
static enum plan undo_alloc(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];
    const uint32_t slot = ordered_find(&model->blocks, event->address);

    if (slot == ORDERED_NONE) {
        count_dropped(model, event->bytes);
        return OMITTED;
    }
    if (model->block[slot].bytes != round_up(event->bytes))
        (void)record_exception(model, number, model->block[slot].bytes);
    remove_block(model, slot);
    return PLAIN;
}

/* Add the block that an event freed.  Its stack and context are not known before its allocation. */
static bool restore_block(struct replay_model *model, const struct recording_event *event,
                          bool is_pending)
{
    const uint64_t bytes = get_free_bytes(model, event->address, round_up(event->bytes));
    const struct replay_model_block block = {
        .address = event->address,
        .bytes = bytes,
        .stream = event->stream,
        .requested = event->bytes,
        .pool = event->pool,
        .is_pending = is_pending,
        .is_older = true,
    };

    return bytes > 0 && add_block(model, &block);
}

static enum plan undo_request(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];
    const uint32_t slot = ordered_find(&model->blocks, event->address);

    if (slot == ORDERED_NONE)
        return restore_block(model, event, false) ? IMMEDIATE : OMITTED;
    if (!model->block[slot].is_pending)
        return OMITTED;
    set_pending(model, slot, false);
    return PLAIN;
}

/* Undo a segment_map or segment_alloc.  Mapped memory may be a part of one range or of several; a classic segment is one
 * range. */
static enum plan undo_map(struct replay_model *model, const struct recording_event *event)
{
    const uint64_t start = event->address, end = start + event->bytes;
    const struct replay_model_range *range = replay_model_range_at(model, start);
    enum plan plan;

    if (!range || !is_range(start, event->bytes) || has_blocks(model, start, end))
        return OMITTED;
    if (event->action == RECORDING_SEGMENT_MAP
            ? replay_model_expandable_bytes(model, start, end) < event->bytes
            : range->is_expandable || range->start != start || range->end != end)
        return OMITTED;
    plan = has_small_pages(model, start, end) ? SMALL_PAGES : PLAIN;
    return remove_memory(model, start, end) ? plan : OMITTED;
}

static struct replay_model_range make_range(const struct recording_event *event, uint64_t page)
{
    const bool is_expandable =
        event->action == RECORDING_SEGMENT_MAP || event->action == RECORDING_SEGMENT_UNMAP;

    return (struct replay_model_range){
        .start = event->address,
        .end = event->address + event->bytes,
        .stream = event->stream,
        .page = is_expandable ? page : 0,
        .pool = event->pool,
        .is_expandable = is_expandable,
    };
}

static enum plan undo_unmap(struct replay_model *model, const struct recording_event *event)
{
    const bool is_small = choose_page_bytes(model, event->bytes) == REPLAY_MODEL_SMALL_PAGE;
    const struct replay_model_range range =
        make_range(event, is_small ? REPLAY_MODEL_SMALL_PAGE : 0);

    if (!is_range(event->address, event->bytes) ||
        get_mapped_bytes(model, range.start, range.end, false) > 0)
        return OMITTED;
    return add_range(model, &range) ? PLAIN : OMITTED;
}

static enum plan undo_event(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];

    switch ((enum recording_action)event->action) {
    case RECORDING_ALLOC:
        return undo_alloc(model, number);
    case RECORDING_FREE_REQUESTED:
        return undo_request(model, number);
    case RECORDING_FREE_COMPLETED:
        return restore_block(model, event, model->has_requests) ? PLAIN : OMITTED;
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        return undo_map(model, event);
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        return undo_unmap(model, event);
    case RECORDING_OOM:
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
    case RECORDING_OTHER:
        break;
    }
    return PLAIN;
}

/* --- Replay. --- */

static uint64_t take_block_bytes(struct replay_model *model, size_t number)
{
    const struct replay_model_exception *next =
        model->exception_count > 0 ? &model->exceptions[model->exception_count - 1] : NULL;

    if (!next || next->event != number)
        return round_up(model->device->events[number].bytes);
    model->exception_count--;
    return next->bytes;
}

static void replay_alloc(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];
    const struct replay_model_block block = {
        .address = event->address,
        .bytes = take_block_bytes(model, number),
        .stream = event->stream,
        .requested = event->bytes,
        .since_us = model->now_us,
        .stack = event->stack,
        .context = event->context,
        .pool = event->pool,
    };

    (void)add_block(model, &block);
}

static void replay_free(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];
    const uint32_t slot = ordered_find(&model->blocks, event->address);

    if (event->action == RECORDING_FREE_REQUESTED && model->plan[number] == PLAIN)
        set_pending(model, slot, true);
    else
        remove_block(model, slot);
}

static void replay_event(struct replay_model *model, size_t number)
{
    const struct recording_event *event = &model->device->events[number];
    struct replay_model_range range;

    switch ((enum recording_action)event->action) {
    case RECORDING_ALLOC:
        replay_alloc(model, number);
        break;
    case RECORDING_FREE_REQUESTED:
    case RECORDING_FREE_COMPLETED:
        replay_free(model, number);
        break;
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        range = make_range(event, model->plan[number] == SMALL_PAGES
                                      ? REPLAY_MODEL_SMALL_PAGE
                                      : choose_page_bytes(model, event->bytes));
        (void)add_range(model, &range);
        break;
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        (void)remove_memory(model, event->address, event->address + event->bytes);
        break;
    case RECORDING_OOM:
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
    case RECORDING_OTHER:
        break;
    }
}

uint64_t replay_model_next_us(const struct replay_model *model)
{
    uint64_t time_us;

    if (!model->plan || model->at == model->device->event_count)
        return model->now_us;
    time_us = model->has_times ? model->device->events[model->at].time_us : model->ticks;
    return time_us > model->now_us ? time_us : model->now_us;
}

/* Get whether an event and the next event are a free that waits for no stream. */
static bool is_immediate_free(const struct recording_device *device, size_t number)
{
    const struct recording_event *event = &device->events[number];

    return event->action == RECORDING_FREE_REQUESTED && number + 1 < device->event_count &&
           event[1].action == RECORDING_FREE_COMPLETED && event[1].address == event->address;
}

/* Update the progress: each event is undone and replayed. */
static void update_progress(const struct replay_model *model, size_t done)
{
    if (done % PROGRESS_EVENTS == 0)
        progress_update(done, 2 * (uint64_t)model->device->event_count);
}

bool replay_model_step(struct replay_model *model)
{
    if (model->out_of_memory || !model->plan || model->at == model->device->event_count)
        return false;
    model->now_us = replay_model_next_us(model);
    if (model->plan[model->at] != OMITTED)
        replay_event(model, model->at);
    model->ticks += !is_immediate_free(model->device, model->at);
    model->at++;
    update_progress(model, model->device->event_count + model->at);
    return !model->out_of_memory;
}

/* --- Setup. --- */

static bool load_segments(struct replay_model *model, const struct recording *recording,
                          const struct recording_device *device)
{
    memset(model, 0, sizeof(*model));
    model->device = device;
    model->large_page = find_large_page(recording);
    ordered_init(&model->blocks);
    ordered_init(&model->ranges);
    for (size_t i = 0; i < device->segment_count && !model->out_of_memory; i++)
        load_segment(model, recording, &device->segments[i]);
    if (model->out_of_memory)
        replay_model_fini(model);
    return !model->out_of_memory;
}

bool replay_model_init_at_end(struct replay_model *model, const struct recording *recording,
                              const struct recording_device *device)
{
    if (!load_segments(model, recording, device))
        return false;
    set_unknown_pages(model);
    return true;
}

static bool has_requests(const struct recording_device *device)
{
    for (size_t i = 0; i < device->event_count; i++)
        if (device->events[i].action == RECORDING_FREE_REQUESTED)
            return true;
    return false;
}

/* Find the time of the first event with a time; 0: none. */
static uint64_t find_first_time(const struct recording_device *device)
{
    for (size_t i = 0; i < device->event_count; i++)
        if (device->events[i].time_us > 0)
            return device->events[i].time_us;
    return 0;
}

static void set_clock(struct replay_model *model, uint64_t now_us)
{
    model->now_us = now_us;
    model->has_times = now_us > 0;
    for (uint32_t slot = 0; slot < model->blocks.used; slot++)
        model->block[slot].since_us = now_us;
}

void replay_model_count_events(struct replay_model *model)
{
    set_clock(model, 0);
}

bool replay_model_init(struct replay_model *model, const struct recording *recording,
                       const struct recording_device *device)
{
    if (!load_segments(model, recording, device))
        return false;
    model->has_requests = has_requests(device);
    model->plan = malloc(device->event_count + 1);
    model->out_of_memory = !model->plan;
    for (size_t i = device->event_count; i-- > 0 && !model->out_of_memory;) {
        model->plan[i] = (uint8_t)undo_event(model, i);
        model->omitted += model->plan[i] == OMITTED;
        update_progress(model, device->event_count - i);
    }
    if (model->out_of_memory) {
        replay_model_fini(model);
        return false;
    }
    set_unknown_pages(model);
    set_clock(model, find_first_time(device));
    return true;
}

bool replay_model_report_dropped(const char *file, const struct replay_model_dropped *dropped)
{
    if (dropped->blocks == 0)
        return false;
    message_print("%s: no segment of the file contains %s of %s, which the report omits; the file "
                  "is inconsistent, or entries are missing",
                  file, amount_of(dropped->blocks, "allocated block").text,
                  amount_bytes(dropped->bytes).text);
    return true;
}

void replay_model_fini(struct replay_model *model)
{
    ordered_fini(&model->blocks);
    ordered_fini(&model->ranges);
    free(model->block);
    free(model->range);
    free(model->plan);
    free(model->exceptions);
    model->block = NULL;
    model->range = NULL;
    model->plan = NULL;
    model->exceptions = NULL;
}

void replay_model_observe(struct replay_model *model, const struct replay_model_observer *observer)
{
    uint32_t slot;

    model->observer = *observer;
    for (slot = ordered_from(&model->ranges, 0); slot != ORDERED_NONE && observer->range_added;
         slot = ordered_from(&model->ranges, model->range[slot].end))
        observer->range_added(observer->self, &model->range[slot]);
    for (slot = ordered_from(&model->blocks, 0); slot != ORDERED_NONE && observer->block_added;
         slot = ordered_from(&model->blocks, model->block[slot].address + 1))
        observer->block_added(observer->self, slot, &model->block[slot]);
}
