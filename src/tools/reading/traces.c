/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/traces.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/array.h"

#define NO_LIST      UINT32_MAX
#define POOL_UNKNOWN UINT32_MAX /* older releases do not write it */

/* --- Entries. --- */

static enum recording_action action_of(const char *name)
{
    static const char *const names[] = {
        [RECORDING_ALLOC] = "alloc",
        [RECORDING_FREE_REQUESTED] = "free_requested",
        [RECORDING_FREE_COMPLETED] = "free_completed",
        [RECORDING_SEGMENT_ALLOC] = "segment_alloc",
        [RECORDING_SEGMENT_FREE] = "segment_free",
        [RECORDING_SEGMENT_MAP] = "segment_map",
        [RECORDING_SEGMENT_UNMAP] = "segment_unmap",
        [RECORDING_OOM] = "oom",
        [RECORDING_SNAPSHOT] = "snapshot",
        [RECORDING_ANNOTATE] = "annotate",
    };

    for (size_t i = 0; i < RECORDING_OTHER; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum recording_action)i;
    return RECORDING_OTHER;
}

static bool read_event(struct reading *reading, const struct pickle_value *value,
                       struct recording_event *out)
{
    const char *name = pickle_string(reading->pickle, reading_find(reading, value, READING_ACTION));

    if (!name)
        return reading_bad(reading, "it has no `action`");
    *out = (struct recording_event){.action = (uint8_t)action_of(name)};
    if (!reading_want(reading, value, READING_TIME_US, &out->time_us))
        return false;
    if (out->action > RECORDING_OOM)
        return true;
    if (out->action == RECORDING_OOM
            ? !reading_want(reading, value, READING_DEVICE_FREE, &out->address)
            : !reading_need(reading, value, READING_ADDR, &out->address))
        return false;
    out->pool = out->action == RECORDING_OOM ? 0 : POOL_UNKNOWN;
    if (!reading_need(reading, value, READING_SIZE, &out->bytes) ||
        !reading_want(reading, value, READING_STREAM, &out->stream) ||
        !reading_want_pool(reading, value, READING_POOL_ID, &out->pool) ||
        !reading_want_text(reading, value, READING_USER_METADATA, &out->label))
        return false;
    if (out->bytes > UINT64_MAX - out->address)
        return reading_bad(reading, "it ends beyond all addresses");
    return reading_stack(reading, reading_list(reading, value, READING_FRAMES), &out->stack);
}

/* --- Taking. --- */

void traces_init(struct traces *traces, struct reading *reading)
{
    *traces = (struct traces){.reading = reading, .last_list = NO_LIST};
}

void traces_fini(struct traces *traces)
{
    for (size_t i = 0; i < traces->count; i++)
        if (!traces->traces[i].is_given)
            free(traces->traces[i].events);
    free(traces->traces);
    idmap_fini(&traces->by_list);
}

static struct trace *find_trace(const struct traces *traces, uint32_t list)
{
    const struct idmap_entry *entry;

    if (list == traces->last_list)
        return &traces->traces[traces->last];
    entry = idmap_find(&traces->by_list, list);
    return entry ? &traces->traces[entry->number] : NULL;
}

/* The trace of a list, made if it is new; NULL without host memory. */
static struct trace *get_trace(struct traces *traces, uint32_t list)
{
    struct trace *trace = find_trace(traces, list);

    if (!trace) {
        if (!array_room((void **)&traces->traces, traces->count, sizeof(*trace)) ||
            !idmap_add(&traces->by_list, list, (uint32_t)traces->count, 1))
            return NULL;
        trace = &traces->traces[traces->count++];
        *trace = (struct trace){.events = NULL};
    }
    traces->last_list = list;
    traces->last = (size_t)(trace - traces->traces);
    return trace;
}

static bool make_room(struct traces *traces, struct trace *trace)
{
    const size_t more = trace->room ? trace->room / 2 : 16;
    struct recording_event *bigger;

    if (trace->count < trace->room)
        return true;
    if (more > (TRACES_MEMORY - traces->bytes) / sizeof(*bigger))
        return reading_bad(traces->reading, "its history needs more than 1 GiB of host memory");
    bigger = realloc(trace->events, (trace->room + more) * sizeof(*bigger));
    if (!bigger)
        return reading_lacks_memory(traces->reading);
    trace->events = bigger;
    trace->room += more;
    traces->bytes += more * sizeof(*bigger);
    return true;
}

enum pickle_taking traces_take(void *self, uint32_t list, uint32_t item)
{
    struct traces *traces = self;
    struct reading *reading = traces->reading;
    const struct pickle_value *value = &reading->pickle->values[item];
    struct recording_event event;
    struct trace *trace;

    if (!reading_find(reading, value, READING_ACTION) || !read_event(reading, value, &event)) {
        if (reading->lacks_memory)
            return PICKLE_STOPPED;
        /* What is wrong with it is said if its list is the history of a device. */
        reading->fault->text[0] = '\0';
        trace = find_trace(traces, list);
        if (trace && trace->left == 0)
            trace->left = trace->count + 1;
        return PICKLE_LEFT;
    }
    trace = get_trace(traces, list);
    if (!trace)
        (void)reading_lacks_memory(reading);
    if (!trace || !make_room(traces, trace))
        return PICKLE_STOPPED;
    trace->events[trace->count++] = event;
    return PICKLE_TAKEN;
}

/* --- Pools of older releases. --- */

/*
 * Which of a device's segments have been there since an event, from the last event backward: next[i] is i then, else a
 * segment further on; next[segment_count] is segment_count.
 */
struct standing {
    const struct recording_device *device;
    size_t *next;
};

/* The first segment from a number on that is there. */
static size_t standing_from(const struct standing *standing, size_t at)
{
    size_t *next = standing->next;

    while (next[at] != at)
        at = next[at] = next[next[at]];
    return at;
}

/* The first segment that ends above an address. */
static size_t segment_above(const struct recording_device *device, uint64_t address)
{
    size_t low = 0, high = device->segment_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (device->segments[middle].address + device->segments[middle].bytes > address)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* What a segment that was freed held is not known to have been in the pool of a later one. */
static void note_return(struct standing *standing, const struct recording_event *event)
{
    const struct recording_device *device = standing->device;
    size_t at = standing_from(standing, segment_above(device, event->address));

    while (at < device->segment_count &&
           device->segments[at].address < event->address + event->bytes) {
        standing->next[at] = at + 1;
        at = standing_from(standing, at);
    }
}

static uint32_t pool_at(const struct standing *standing, uint64_t address)
{
    const struct recording_device *device = standing->device;
    const size_t at = segment_above(device, address);

    return at < device->segment_count && standing->next[at] == at &&
                   device->segments[at].address <= address
               ? device->segments[at].pool
               : 0;
}

/* An event without a pool has that of the segment around its address, if that has been there since; else the default. */
static bool find_pools(struct reading *reading, struct recording_device *device)
{
    struct standing standing = {device, malloc((device->segment_count + 1) * sizeof(size_t))};

    if (!standing.next)
        return reading_lacks_memory(reading);
    for (size_t i = 0; i <= device->segment_count; i++)
        standing.next[i] = i;
    for (size_t i = device->event_count; i-- > 0;) {
        struct recording_event *event = &device->events[i];

        if (event->action == RECORDING_SEGMENT_FREE)
            note_return(&standing, event);
        if (event->pool == POOL_UNKNOWN)
            event->pool = pool_at(&standing, event->address);
    }
    free(standing.next);
    return true;
}

/* --- Giving. --- */

static uint32_t list_number(const struct traces *traces, const struct pickle_value *list)
{
    return (uint32_t)(list - traces->reading->pickle->values);
}

size_t traces_count(const struct traces *traces, const struct pickle_value *list)
{
    const struct trace *trace = find_trace(traces, list_number(traces, list));

    return reading_count(list) + (trace ? trace->count : 0);
}

bool traces_give(struct traces *traces, const struct pickle_value *list,
                 struct recording_device *device)
{
    struct reading *reading = traces->reading;
    struct trace *trace = find_trace(traces, list_number(traces, list));
    struct recording_event event;

    if (reading_count(list) > 0) {
        (void)snprintf(reading->where, sizeof(reading->where),
                       "device %d, entry %zu: ", device->number,
                       trace && trace->left ? trace->left : 1);
        return read_event(reading, pickle_item(reading->pickle, list, 0), &event)
                   ? reading_bad(reading, "it was changed after it had been put into its list")
                   : false;
    }
    if (trace->is_given)
        return reading_bad(reading, "its entries are those of another list");
    trace->is_given = true;
    device->events = realloc(trace->events, trace->count * sizeof(*trace->events));
    if (!device->events)
        device->events = trace->events;
    device->event_count = trace->count;
    return find_pools(reading, device);
}
