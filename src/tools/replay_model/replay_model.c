/* SPDX-License-Identifier: MIT */
#include "src/tools/replay_model/replay_model.h"

#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/array.h"
#include "src/tools/output/amount.h"
#include "src/tools/output/complain.h"
#include "src/tools/output/progress.h"
#include "src/tools/replay_model/model_ranges.h"

#define QUANTUM      512u
#define SHOWN_EVENTS 32768u /* between two looks at the progress */

/* How an event is played. */
enum plan {
    PLAIN,
    SMALL_PAGES, /* memory comes that is known not to have large pages */
    LEFT_OUT,
    AT_ONCE /* a free whose completion is missing: the block goes with it */
};

/* An allocated block whose size is not what was asked for, rounded; that of the last event comes first. */
struct course_exception {
    size_t event;
    uint64_t bytes;
};

/* --- Blocks. --- */

static uint64_t round_up(uint64_t bytes)
{
    if (bytes > UINT64_MAX - QUANTUM)
        return bytes;
    return bytes == 0 ? QUANTUM : (bytes + QUANTUM - 1) / QUANTUM * QUANTUM;
}

static bool add_block(struct course *course, const struct course_block *block)
{
    const uint32_t slot = ordered_add(&course->blocks, block->address);

    if (slot == ORDERED_NONE || !ordered_follow(&course->blocks, (void **)&course->block,
                                                &course->block_room, sizeof(*block))) {
        course->lacks_memory = true;
        return false;
    }
    course->block[slot] = *block;
    *(block->is_pending ? &course->pending : &course->live) += block->bytes;
    if (course->watcher.block_comes)
        course->watcher.block_comes(course->watcher.self, slot, &course->block[slot]);
    return true;
}

static void remove_block(struct course *course, uint32_t slot)
{
    const struct course_block *block = &course->block[slot];

    *(block->is_pending ? &course->pending : &course->live) -= block->bytes;
    if (course->watcher.block_leaves)
        course->watcher.block_leaves(course->watcher.self, slot, block);
    ordered_remove(&course->blocks, block->address);
}

static void set_pending(struct course *course, uint32_t slot, bool is_pending)
{
    struct course_block *block = &course->block[slot];

    if (block->is_pending == is_pending)
        return;
    *(is_pending ? &course->live : &course->pending) -= block->bytes;
    *(is_pending ? &course->pending : &course->live) += block->bytes;
    block->is_pending = is_pending;
    block->since_us = course->now_us;
    if (is_pending && course->watcher.block_is_freed)
        course->watcher.block_is_freed(course->watcher.self, slot, block);
}

static uint32_t slot_at(const struct course *course, uint64_t address)
{
    const uint32_t slot = ordered_up_to(&course->blocks, address);

    return slot != ORDERED_NONE && address - course->block[slot].address < course->block[slot].bytes
               ? slot
               : ORDERED_NONE;
}

const struct course_block *course_block_at(const struct course *course, uint64_t address)
{
    const uint32_t slot = slot_at(course, address);

    return slot == ORDERED_NONE ? NULL : &course->block[slot];
}

static bool has_blocks(const struct course *course, uint64_t start, uint64_t end)
{
    const uint32_t slot = ordered_up_to(&course->blocks, end - 1);

    return slot != ORDERED_NONE && course->block[slot].address + course->block[slot].bytes > start;
}

/* How far memory of one kind goes from an address on, at least up to `enough`; adjacent ranges may be of several streams. */
static uint64_t memory_end(const struct course *course, uint64_t address, uint64_t enough)
{
    const struct course_range *range = course_ranges_at(course, address);
    uint64_t end = range ? range->end : address;

    while (range && range->is_expandable && end < enough) {
        range = course_ranges_at(course, end);
        if (range && range->is_expandable)
            end = range->end;
    }
    return end;
}

/* How many bytes a block at an address may have, up to as many; 0: there is no place. */
static uint64_t place_for(const struct course *course, uint64_t address, uint64_t bytes)
{
    const uint64_t enough = bytes > UINT64_MAX - address ? UINT64_MAX : address + bytes;
    const uint64_t end = memory_end(course, address, enough);
    uint32_t next;

    if (slot_at(course, address) != ORDERED_NONE)
        return 0;
    if (bytes > end - address)
        bytes = end - address;
    next = ordered_from(&course->blocks, address);
    if (next != ORDERED_NONE && course->block[next].address - address < bytes)
        bytes = course->block[next].address - address;
    return bytes;
}

/* --- The end. --- */

static void drop(struct course *course, uint64_t bytes)
{
    course->dropped.blocks++;
    course->dropped.bytes += bytes;
}

static void load_block(struct course *course, const struct recording_segment *segment,
                       const struct recording_block *block)
{
    const struct course_block loaded = {
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
        place_for(course, block->address, block->bytes) < block->bytes) {
        course->left_out++;
        drop(course, block->bytes);
    } else {
        (void)add_block(course, &loaded);
    }
}

/* Addresses of segments are even: users of a course may count on that. */
static bool is_range(uint64_t start, uint64_t bytes)
{
    return bytes > 0 && start % 2 == 0 && bytes % 2 == 0 && bytes <= UINT64_MAX - start;
}

static void load_segment(struct course *course, const struct recording *recording,
                         const struct recording_segment *segment)
{
    const struct course_range range = {
        .start = segment->address,
        .end = segment->address + segment->bytes,
        .stream = segment->stream,
        .page = segment->is_expandable && segment->is_small ? COURSE_SMALL_PAGE : 0,
        .pool = segment->pool,
        .is_expandable = segment->is_expandable,
    };

    if (!is_range(segment->address, segment->bytes) ||
        course_ranges_mapped(course, range.start, range.end, false) > 0) {
        course->left_out++;
        for (uint32_t i = 0; i < segment->count; i++)
            if (recording->blocks[segment->first + i].state != RECORDING_INACTIVE)
                drop(course, recording->blocks[segment->first + i].bytes);
        return;
    }
    if (!course_ranges_add(course, &range))
        return;
    for (uint32_t i = 0; i < segment->count && !course->lacks_memory; i++)
        load_block(course, segment, &recording->blocks[segment->first + i]);
}

/* --- Events backward. --- */

static bool note_exception(struct course *course, size_t event, uint64_t bytes)
{
    if (!array_room((void **)&course->exceptions, course->exception_count,
                    sizeof(*course->exceptions))) {
        course->lacks_memory = true;
        return false;
    }
    course->exceptions[course->exception_count++] = (struct course_exception){event, bytes};
    return true;
}

/* A pending block is one whose free_requested is missing. */
static enum plan undo_alloc(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];
    const uint32_t slot = ordered_find(&course->blocks, event->address);

    if (slot == ORDERED_NONE) {
        drop(course, event->bytes);
        return LEFT_OUT;
    }
    if (course->block[slot].bytes != round_up(event->bytes))
        (void)note_exception(course, number, course->block[slot].bytes);
    remove_block(course, slot);
    return PLAIN;
}

/* The block that a free was of.  Its stack and label are those of its allocation, which is not known yet. */
static bool bring_back(struct course *course, const struct recording_event *event, bool is_pending)
{
    const uint64_t bytes = place_for(course, event->address, round_up(event->bytes));
    const struct course_block block = {
        .address = event->address,
        .bytes = bytes,
        .stream = event->stream,
        .requested = event->bytes,
        .pool = event->pool,
        .is_pending = is_pending,
        .is_older = true,
    };

    return bytes > 0 && add_block(course, &block);
}

static enum plan undo_request(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];
    const uint32_t slot = ordered_find(&course->blocks, event->address);

    if (slot == ORDERED_NONE)
        return bring_back(course, event, false) ? AT_ONCE : LEFT_OUT;
    if (!course->block[slot].is_pending)
        return LEFT_OUT;
    set_pending(course, slot, false);
    return PLAIN;
}

/* Mapped memory may be part of a range or several; a classic segment is a range. */
static enum plan undo_arrival(struct course *course, const struct recording_event *event)
{
    const uint64_t start = event->address, end = start + event->bytes;
    const struct course_range *range = course_ranges_at(course, start);
    enum plan plan;

    if (!range || !is_range(start, event->bytes) || has_blocks(course, start, end))
        return LEFT_OUT;
    if (event->action == RECORDING_SEGMENT_MAP
            ? course_ranges_expandable(course, start, end) < event->bytes
            : range->is_expandable || range->start != start || range->end != end)
        return LEFT_OUT;
    plan = course_ranges_have_small(course, start, end) ? SMALL_PAGES : PLAIN;
    return course_ranges_remove(course, start, end) ? plan : LEFT_OUT;
}

static struct course_range range_of(const struct recording_event *event, uint64_t page)
{
    const bool is_expandable =
        event->action == RECORDING_SEGMENT_MAP || event->action == RECORDING_SEGMENT_UNMAP;

    return (struct course_range){
        .start = event->address,
        .end = event->address + event->bytes,
        .stream = event->stream,
        .page = is_expandable ? page : 0,
        .pool = event->pool,
        .is_expandable = is_expandable,
    };
}

static enum plan undo_departure(struct course *course, const struct recording_event *event)
{
    const bool is_small = course_ranges_page(course, event->bytes) == COURSE_SMALL_PAGE;
    const struct course_range range = range_of(event, is_small ? COURSE_SMALL_PAGE : 0);

    if (!is_range(event->address, event->bytes) ||
        course_ranges_mapped(course, range.start, range.end, false) > 0)
        return LEFT_OUT;
    return course_ranges_add(course, &range) ? PLAIN : LEFT_OUT;
}

static enum plan undo(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];

    switch ((enum recording_action)event->action) {
    case RECORDING_ALLOC:
        return undo_alloc(course, number);
    case RECORDING_FREE_REQUESTED:
        return undo_request(course, number);
    case RECORDING_FREE_COMPLETED:
        return bring_back(course, event, course->has_requests) ? PLAIN : LEFT_OUT;
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        return undo_arrival(course, event);
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        return undo_departure(course, event);
    case RECORDING_OOM:
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
    case RECORDING_OTHER:
        break;
    }
    return PLAIN;
}

/* --- Events forward. --- */

static uint64_t allocated_bytes(struct course *course, size_t number)
{
    const struct course_exception *next =
        course->exception_count > 0 ? &course->exceptions[course->exception_count - 1] : NULL;

    if (!next || next->event != number)
        return round_up(course->device->events[number].bytes);
    course->exception_count--;
    return next->bytes;
}

static void play_alloc(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];
    const struct course_block block = {
        .address = event->address,
        .bytes = allocated_bytes(course, number),
        .stream = event->stream,
        .requested = event->bytes,
        .since_us = course->now_us,
        .stack = event->stack,
        .label = event->label,
        .pool = event->pool,
    };

    (void)add_block(course, &block);
}

static void play_free(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];
    const uint32_t slot = ordered_find(&course->blocks, event->address);

    if (event->action == RECORDING_FREE_REQUESTED && course->plan[number] == PLAIN)
        set_pending(course, slot, true);
    else
        remove_block(course, slot);
}

static void play(struct course *course, size_t number)
{
    const struct recording_event *event = &course->device->events[number];
    struct course_range range;

    switch ((enum recording_action)event->action) {
    case RECORDING_ALLOC:
        play_alloc(course, number);
        break;
    case RECORDING_FREE_REQUESTED:
    case RECORDING_FREE_COMPLETED:
        play_free(course, number);
        break;
    case RECORDING_SEGMENT_ALLOC:
    case RECORDING_SEGMENT_MAP:
        range = range_of(event, course->plan[number] == SMALL_PAGES
                                    ? COURSE_SMALL_PAGE
                                    : course_ranges_page(course, event->bytes));
        (void)course_ranges_add(course, &range);
        break;
    case RECORDING_SEGMENT_FREE:
    case RECORDING_SEGMENT_UNMAP:
        (void)course_ranges_remove(course, event->address, event->address + event->bytes);
        break;
    case RECORDING_OOM:
    case RECORDING_SNAPSHOT:
    case RECORDING_ANNOTATE:
    case RECORDING_OTHER:
        break;
    }
}

uint64_t course_next_us(const struct course *course)
{
    uint64_t time_us;

    if (!course->plan || course->at == course->device->event_count)
        return course->now_us;
    time_us = course->has_times ? course->device->events[course->at].time_us : course->ticks;
    return time_us > course->now_us ? time_us : course->now_us;
}

/* Whether an event and the next one are a free that no stream delays. */
static bool is_free_at_once(const struct recording_device *device, size_t number)
{
    const struct recording_event *event = &device->events[number];

    return event->action == RECORDING_FREE_REQUESTED && number + 1 < device->event_count &&
           event[1].action == RECORDING_FREE_COMPLETED && event[1].address == event->address;
}

/* All events are taken back, and then played. */
static void show(const struct course *course, size_t done)
{
    if (done % SHOWN_EVENTS == 0)
        progress_update(done, 2 * (uint64_t)course->device->event_count);
}

bool course_step(struct course *course)
{
    if (course->lacks_memory || !course->plan || course->at == course->device->event_count)
        return false;
    course->now_us = course_next_us(course);
    if (course->plan[course->at] != LEFT_OUT)
        play(course, course->at);
    course->ticks += !is_free_at_once(course->device, course->at);
    course->at++;
    show(course, course->device->event_count + course->at);
    return !course->lacks_memory;
}

/* --- Beginning and end. --- */

static bool load(struct course *course, const struct recording *recording,
                 const struct recording_device *device)
{
    memset(course, 0, sizeof(*course));
    course->device = device;
    course->large_page = course_ranges_large_page(recording);
    ordered_init(&course->blocks);
    ordered_init(&course->ranges);
    for (size_t i = 0; i < device->segment_count && !course->lacks_memory; i++)
        load_segment(course, recording, &device->segments[i]);
    if (course->lacks_memory)
        course_fini(course);
    return !course->lacks_memory;
}

bool course_init_at_end(struct course *course, const struct recording *recording,
                        const struct recording_device *device)
{
    if (!load(course, recording, device))
        return false;
    course_ranges_set_pages(course);
    return true;
}

static bool has_requests(const struct recording_device *device)
{
    for (size_t i = 0; i < device->event_count; i++)
        if (device->events[i].action == RECORDING_FREE_REQUESTED)
            return true;
    return false;
}

/* The time of the first event that has one. */
static uint64_t first_time(const struct recording_device *device)
{
    for (size_t i = 0; i < device->event_count; i++)
        if (device->events[i].time_us > 0)
            return device->events[i].time_us;
    return 0;
}

static void set_clock(struct course *course, uint64_t now_us)
{
    course->now_us = now_us;
    course->has_times = now_us > 0;
    for (uint32_t slot = 0; slot < course->blocks.used; slot++)
        course->block[slot].since_us = now_us;
}

void course_count_events(struct course *course)
{
    set_clock(course, 0);
}

bool course_init(struct course *course, const struct recording *recording,
                 const struct recording_device *device)
{
    if (!load(course, recording, device))
        return false;
    course->has_requests = has_requests(device);
    course->plan = malloc(device->event_count + 1);
    course->lacks_memory = !course->plan;
    for (size_t i = device->event_count; i-- > 0 && !course->lacks_memory;) {
        course->plan[i] = (uint8_t)undo(course, i);
        course->left_out += course->plan[i] == LEFT_OUT;
        show(course, device->event_count - i);
    }
    if (course->lacks_memory) {
        course_fini(course);
        return false;
    }
    course_ranges_set_pages(course);
    set_clock(course, first_time(device));
    return true;
}

bool course_report_dropped(const char *file, const struct course_dropped *dropped)
{
    if (dropped->blocks == 0)
        return false;
    complain("%s: no segment of the file contains %s of %s, which the report leaves out; the file "
             "is inconsistent, or entries are missing",
             file, amount_of(dropped->blocks, "allocated block").text,
             amount_bytes(dropped->bytes).text);
    return true;
}

void course_fini(struct course *course)
{
    ordered_fini(&course->blocks);
    ordered_fini(&course->ranges);
    free(course->block);
    free(course->range);
    free(course->plan);
    free(course->exceptions);
    course->block = NULL;
    course->range = NULL;
    course->plan = NULL;
    course->exceptions = NULL;
}

void course_watch(struct course *course, const struct course_watcher *watcher)
{
    uint32_t slot;

    course->watcher = *watcher;
    for (slot = ordered_from(&course->ranges, 0); slot != ORDERED_NONE && watcher->range_comes;
         slot = ordered_from(&course->ranges, course->range[slot].end))
        watcher->range_comes(watcher->self, &course->range[slot]);
    for (slot = ordered_from(&course->blocks, 0); slot != ORDERED_NONE && watcher->block_comes;
         slot = ordered_from(&course->blocks, course->block[slot].address + 1))
        watcher->block_comes(watcher->self, slot, &course->block[slot]);
}
