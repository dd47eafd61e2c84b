/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/histories.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"

#define LIST_NONE    UINT32_MAX
#define POOL_UNKNOWN UINT32_MAX /* older releases do not write the pool */

/* --- Entries. --- */

static enum recording_action parse_action(const char *name)
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

/* The label of an entry, and of an allocation the compiled region; PyTorch writes `N/A` outside of one. */
static bool read_context(struct reading *reading, const struct pickle_value *value,
                         struct recording_event *out)
{
    const bool is_alloc = out->action == RECORDING_ALLOC;
    struct recording_context context = {0};

    if (!reading_text(reading, value, READING_USER_METADATA, &context.label) ||
        (is_alloc && !reading_text(reading, value, READING_COMPILE_CONTEXT, &context.region)))
        return false;
    if (context.region != 0 && strcmp(recording_text(reading->out, context.region), "N/A") == 0)
        context.region = 0;
    return (context.label == 0 && context.region == 0) ||
           recording_names_context(&reading->names, &context, &out->context) ||
           reading_out_of_memory(reading);
}

/* Get whether the allocator tagged an entry; PyTorch writes the key only in tagged entries. */
static bool is_internal(struct reading *reading, const struct pickle_value *value)
{
    const char *tag =
        pickle_string(reading->pickle, reading_find(reading, value, READING_INTERNAL_METADATA));

    return tag && tag[0] != '\0';
}

static bool read_event(struct reading *reading, const struct pickle_value *value,
                       struct recording_event *out)
{
    const char *name = pickle_string(reading->pickle, reading_find(reading, value, READING_ACTION));

    if (!name)
        return reading_fail(reading, "no `action`");
    *out = (struct recording_event){.action = (uint8_t)parse_action(name)};
    if (!reading_optional(reading, value, READING_TIME_US, &out->time_us))
        return false;
    if (out->action > RECORDING_OOM)
        return true;
    if (out->action == RECORDING_OOM
            ? !reading_optional(reading, value, READING_DEVICE_FREE, &out->address)
            : !reading_required(reading, value, READING_ADDR, &out->address))
        return false;
    out->pool = out->action == RECORDING_OOM ? 0 : POOL_UNKNOWN;
    if (!reading_required(reading, value, READING_SIZE, &out->bytes) ||
        !reading_optional(reading, value, READING_STREAM, &out->stream) ||
        !reading_pool(reading, value, READING_POOL_ID, &out->pool) ||
        !read_context(reading, value, out))
        return false;
    if (out->bytes > UINT64_MAX - out->address)
        return reading_fail(reading, "range exceeds the address space");
    out->is_internal = is_internal(reading, value);
    return reading_stack(reading, reading_list(reading, value, READING_FRAMES), &out->stack);
}

/* --- The filter. --- */

void histories_init(struct histories *histories, struct reading *reading)
{
    *histories = (struct histories){.reading = reading, .last_list = LIST_NONE};
}

void histories_fini(struct histories *histories)
{
    for (size_t i = 0; i < histories->count; i++)
        if (!histories->histories[i].is_assigned)
            free(histories->histories[i].events);
    free(histories->histories);
    id_map_fini(&histories->by_list);
}

static struct history *find_history(const struct histories *histories, uint32_t list)
{
    const struct id_map_entry *entry;

    if (list == histories->last_list)
        return &histories->histories[histories->last];
    entry = id_map_find(&histories->by_list, list);
    return entry ? &histories->histories[entry->number] : NULL;
}

/* Get the history of a list, created if it does not exist; NULL if out of host memory. */
static struct history *get_history(struct histories *histories, uint32_t list)
{
    struct history *history = find_history(histories, list);

    if (!history) {
        if (!array_reserve((void **)&histories->histories, histories->count, sizeof(*history)) ||
            !id_map_add(&histories->by_list, list, (uint32_t)histories->count, 1))
            return NULL;
        history = &histories->histories[histories->count++];
        *history = (struct history){.events = NULL};
    }
    histories->last_list = list;
    histories->last = (size_t)(history - histories->histories);
    return history;
}

static bool reserve_event(struct histories *histories, struct history *history)
{
    const size_t added = history->capacity ? history->capacity / 2 : 16;
    struct recording_event *grown;

    if (history->count < history->capacity)
        return true;
    if (added > (HISTORIES_MEMORY - histories->bytes) / sizeof(*grown))
        return reading_fail(histories->reading, "the history needs more than 1 GiB of host memory");
    grown = realloc(history->events, (history->capacity + added) * sizeof(*grown));
    if (!grown)
        return reading_out_of_memory(histories->reading);
    history->events = grown;
    history->capacity += added;
    histories->bytes += added * sizeof(*grown);
    return true;
}

enum pickle_filter_result histories_filter(void *self, uint32_t list, uint32_t item)
{
    struct histories *histories = self;
    struct reading *reading = histories->reading;
    const struct pickle_value *value = &reading->pickle->values[item];
    struct recording_event event;
    struct history *history;

    if (!reading_find(reading, value, READING_ACTION) || !read_event(reading, value, &event)) {
        if (reading->out_of_memory)
            return PICKLE_STOP;
        /* histories_assign() reports the item if its list is the history of a device. */
        reading->fault->text[0] = '\0';
        history = find_history(histories, list);
        if (history && history->rejected == 0)
            history->rejected = history->count + 1;
        return PICKLE_KEEP;
    }
    history = get_history(histories, list);
    if (!history)
        (void)reading_out_of_memory(reading);
    if (!history || !reserve_event(histories, history))
        return PICKLE_STOP;
    history->events[history->count++] = event;
    return PICKLE_CONSUME;
}

/* --- Synthetic events. --- */

/*
 * To allocate at an address, PyTorch allocates all memory before that address as a prefix block, allocates the block,
 * and frees the prefix block, all in one call.  It tags these entries, including the allocation of the real block.  The user's
 * free of the real block is not tagged, so the synthetic entries are the tagged frees and their tagged allocations.
 */
struct prefixes {
    struct recording_event *events;
    /* By address; number: 1 + the index of the last tagged allocation, or 0. */
    struct id_map allocated;
    uint8_t *is_synthetic; /* by event */
};

static bool has_internal_free(const struct history *history)
{
    for (size_t i = 0; i < history->count; i++)
        if (history->events[i].is_internal &&
            (history->events[i].action == RECORDING_FREE_REQUESTED ||
             history->events[i].action == RECORDING_FREE_COMPLETED))
            return true;
    return false;
}

static bool mark_synthetic(struct prefixes *prefixes, size_t number)
{
    const struct recording_event *event = &prefixes->events[number];
    struct id_map_entry *entry;

    if (event->action > RECORDING_FREE_COMPLETED)
        return true;
    entry = id_map_find(&prefixes->allocated, event->address);
    if (event->action == RECORDING_ALLOC) {
        if (entry)
            entry->number = event->is_internal ? (uint32_t)number + 1 : 0;
        return entry || !event->is_internal ||
               id_map_add(&prefixes->allocated, event->address, (uint32_t)number + 1, 1);
    }
    if (!event->is_internal)
        return true;
    prefixes->is_synthetic[number] = 1;
    if (entry && entry->number > 0) {
        prefixes->is_synthetic[entry->number - 1] = 1;
        entry->number = 0;
    }
    return true;
}

/* Remove synthetic events.  *out receives their number. */
static bool remove_synthetic(struct reading *reading, struct history *history, uint64_t *out)
{
    struct prefixes prefixes = {.events = history->events};
    size_t count = 0;
    bool success;

    if (!has_internal_free(history))
        return true;
    prefixes.is_synthetic = calloc(history->count, sizeof(*prefixes.is_synthetic));
    success = prefixes.is_synthetic != NULL;
    for (size_t i = 0; success && i < history->count; i++)
        success = mark_synthetic(&prefixes, i);
    for (size_t i = 0; success && i < history->count; i++)
        if (!prefixes.is_synthetic[i])
            history->events[count++] = history->events[i];
    id_map_fini(&prefixes.allocated);
    free(prefixes.is_synthetic);
    if (!success)
        return reading_out_of_memory(reading);
    *out = history->count - count;
    history->count = count;
    return true;
}

/* --- Pools of older releases. --- */

/*
 * The segments of a device that have existed since an event, while events are visited from the last one backward.  As
 * in a disjoint-set forest, next[i] is i for such a segment, and a later segment otherwise; next[segment_count] is
 * segment_count.
 */
struct survivors {
    const struct recording_device *device;
    size_t *next;
};

/* Find the first surviving segment whose number is at least `at`. */
static size_t find_survivor(const struct survivors *survivors, size_t at)
{
    size_t *next = survivors->next;

    while (next[at] != at)
        at = next[at] = next[next[at]];
    return at;
}

/* Find the first segment that ends above an address. */
static size_t find_segment_above(const struct recording_device *device, uint64_t address)
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

/* Remove the segments at the addresses of a freed segment: their pools do not apply to blocks before the event. */
static void remove_survivors(struct survivors *survivors, const struct recording_event *event)
{
    const struct recording_device *device = survivors->device;
    size_t at = find_survivor(survivors, find_segment_above(device, event->address));

    while (at < device->segment_count &&
           device->segments[at].address < event->address + event->bytes) {
        survivors->next[at] = at + 1;
        at = find_survivor(survivors, at);
    }
}

static uint32_t find_pool(const struct survivors *survivors, uint64_t address)
{
    const struct recording_device *device = survivors->device;
    const size_t at = find_segment_above(device, address);

    return at < device->segment_count && survivors->next[at] == at &&
                   device->segments[at].address <= address
               ? device->segments[at].pool
               : 0;
}

/* Set the pool of each event without a pool: the pool of the surviving segment at its address, else the default pool. */
static bool infer_pools(struct reading *reading, struct recording_device *device)
{
    struct survivors survivors = {device, malloc((device->segment_count + 1) * sizeof(size_t))};

    if (!survivors.next)
        return reading_out_of_memory(reading);
    for (size_t i = 0; i <= device->segment_count; i++)
        survivors.next[i] = i;
    for (size_t i = device->event_count; i-- > 0;) {
        struct recording_event *event = &device->events[i];

        if (event->action == RECORDING_SEGMENT_FREE)
            remove_survivors(&survivors, event);
        if (event->pool == POOL_UNKNOWN)
            event->pool = find_pool(&survivors, event->address);
    }
    free(survivors.next);
    return true;
}

/* --- Devices. --- */

static uint32_t get_list_slot(const struct histories *histories, const struct pickle_value *list)
{
    return (uint32_t)(list - histories->reading->pickle->values);
}

size_t histories_count(const struct histories *histories, const struct pickle_value *list)
{
    const struct history *history = find_history(histories, get_list_slot(histories, list));

    return reading_count(list) + (history ? history->count : 0);
}

bool histories_assign(struct histories *histories, const struct pickle_value *list,
                      struct recording_device *device)
{
    struct reading *reading = histories->reading;
    struct history *history = find_history(histories, get_list_slot(histories, list));
    struct recording_event event;

    if (reading_count(list) > 0) {
        const size_t number = history && history->rejected ? history->rejected : 1;

        if (device->number == RECORDING_HOST)
            (void)snprintf(reading->context, sizeof(reading->context),
                           "pinned host memory, entry %zu: ", number);
        else
            (void)snprintf(reading->context, sizeof(reading->context),
                           "device %d, entry %zu: ", device->number, number);
        return read_event(reading, pickle_item(reading->pickle, list, 0), &event)
                   ? reading_fail(reading,
                                  "the entry was changed after it was appended to its list")
                   : false;
    }
    if (history->is_assigned)
        return reading_fail(reading, "the list is shared with another device");
    if (!remove_synthetic(reading, history, &device->synthetic))
        return false;
    history->is_assigned = true;
    device->events = realloc(history->events, (history->count + 1) * sizeof(*history->events));
    if (!device->events)
        device->events = history->events;
    device->event_count = history->count;
    return infer_pools(reading, device);
}
