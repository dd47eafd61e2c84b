/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/recording.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/tools/containers/containers.h"
#include "src/tools/reading/annotations.h"
#include "src/tools/reading/file_kind.h"
#include "src/tools/reading/histories.h"
#include "src/tools/reading/pickle.h"

#define DEVICES_MAX 1024u

/* The format of the key `xseg` (src/core/report/snapshot.c). */
#define FORMAT 1u

/* --- Segments. --- */

/* Find the dictionary with the frames and the requested size of a block: before PyTorch 2.1, the first dictionary of its
 * `history`. */
static const struct pickle_value *find_latest(struct reading *reading,
                                              const struct pickle_value *value)
{
    const struct pickle_value *history = reading_list(reading, value, READING_HISTORY);

    return reading_count(history) > 0 ? pickle_item(reading->pickle, history, 0) : value;
}

static enum recording_state parse_state(const char *state)
{
    if (strcmp(state, "active_allocated") == 0)
        return RECORDING_ALLOCATED;
    return strncmp(state, "active", 6) == 0 ? RECORDING_PENDING : RECORDING_INACTIVE;
}

/* Read a block.  A block without `address` follows the previous block; without `requested_size`, the request had the size
 * of the block. */
static bool read_block(struct reading *reading, const struct pickle_value *value, uint64_t *address,
                       struct recording_block *out)
{
    const char *state = pickle_string(reading->pickle, reading_find(reading, value, READING_STATE));
    const struct pickle_value *latest = find_latest(reading, value);

    if (!state)
        return reading_fail(reading, "a block has no `state`");
    *out = (struct recording_block){.state = (uint8_t)parse_state(state)};
    if (!reading_optional(reading, value, READING_ADDRESS, address) ||
        !reading_required(reading, value, READING_SIZE, &out->bytes))
        return false;
    if (out->bytes > UINT64_MAX - *address)
        return reading_fail(reading, "a block exceeds the address space");
    out->address = *address;
    *address += out->bytes;
    out->requested = out->bytes;
    return reading_optional(reading, latest, READING_REAL_SIZE, &out->requested) &&
           reading_optional(reading, value, READING_REQUESTED_SIZE, &out->requested) &&
           reading_stack(reading, reading_list(reading, latest, READING_FRAMES), &out->stack);
}

static bool read_blocks(struct reading *reading, const struct pickle_value *list,
                        struct recording_segment *segment)
{
    struct recording *out = reading->out;
    uint64_t address = segment->address;

    segment->first = (uint32_t)out->block_count;
    segment->count = (uint32_t)reading_count(list);
    for (size_t i = 0; i < segment->count; i++) {
        /* The list was cleared if it was read as a stack. */
        if (i >= reading_count(list))
            return reading_fail(reading, "its list of blocks is also a stack");
        if (!read_block(reading, pickle_item(reading->pickle, list, i), &address,
                        &out->blocks[out->block_count++]))
            return false;
    }
    return true;
}

static bool read_segment(struct reading *reading, const struct pickle_value *value,
                         struct recording_segment *out)
{
    const char *type =
        pickle_string(reading->pickle, reading_find(reading, value, READING_SEGMENT_TYPE));
    const struct pickle_value *expandable = reading_find(reading, value, READING_IS_EXPANDABLE);

    *out = (struct recording_segment){
        .is_small = type && strcmp(type, "small") == 0,
        .is_expandable = expandable && expandable->kind == PICKLE_BOOL && expandable->number,
    };
    if (!reading_required(reading, value, READING_ADDRESS, &out->address) ||
        !reading_required(reading, value, READING_TOTAL_SIZE, &out->bytes) ||
        !reading_optional(reading, value, READING_STREAM, &out->stream) ||
        !reading_pool(reading, value, READING_SEGMENT_POOL_ID, &out->pool))
        return false;
    if (out->bytes > UINT64_MAX - out->address)
        return reading_fail(reading, "range exceeds the address space");
    return read_blocks(reading, reading_list(reading, value, READING_BLOCKS), out);
}

static size_t count_blocks(struct reading *reading, const struct pickle_value *segments)
{
    size_t count = 0;

    for (size_t i = 0; i < reading_count(segments); i++)
        count += reading_count(
            reading_list(reading, pickle_item(reading->pickle, segments, i), READING_BLOCKS));
    return count;
}

/* Allocate the blocks of all segments.  Segments may share a list of blocks, so the number is bounded. */
static bool allocate_blocks(struct reading *reading, const struct pickle_value *segments,
                            const struct pickle_value *host_segments)
{
    const size_t count = count_blocks(reading, segments) + count_blocks(reading, host_segments);

    if (count > reading->pickle->count || count > UINT32_MAX)
        return reading_fail(reading, "segments share lists of blocks");
    reading->out->blocks = malloc((count + 1) * sizeof(*reading->out->blocks));
    return reading->out->blocks || reading_out_of_memory(reading);
}

/* Get the device with a number, created if it does not exist. */
static struct recording_device *get_device(struct reading *reading, uint64_t number)
{
    struct recording *out = reading->out;
    struct recording_device *devices;

    for (size_t i = 0; i < out->device_count; i++)
        if ((uint64_t)out->devices[i].number == number)
            return &out->devices[i];
    devices = realloc(out->devices, (out->device_count + 1) * sizeof(*devices));
    if (!devices || number >= DEVICES_MAX) {
        (void)(devices ? reading_fail(reading, "device number out of range, %" PRIu64, number)
                       : reading_out_of_memory(reading));
        out->devices = devices ? devices : out->devices;
        return NULL;
    }
    out->devices = devices;
    devices[out->device_count] = (struct recording_device){.number = (int)number};
    return &devices[out->device_count++];
}

static int compare_segments(const void *first, const void *second)
{
    const uint64_t a = ((const struct recording_segment *)first)->address;
    const uint64_t b = ((const struct recording_segment *)second)->address;

    return (a > b) - (a < b);
}

static bool add_segment(struct reading *reading, struct recording_device *device,
                        const struct recording_segment *segment)
{
    if (!array_reserve((void **)&device->segments, device->segment_count, sizeof(*segment)))
        return reading_out_of_memory(reading);
    device->segments[device->segment_count++] = *segment;
    return true;
}

static void sort_segments(struct recording_device *device)
{
    if (device->segment_count > 0)
        qsort(device->segments, device->segment_count, sizeof(*device->segments), compare_segments);
}

static bool read_segments(struct reading *reading, const struct pickle_value *segments)
{
    for (size_t i = 0; i < reading_count(segments); i++) {
        const struct pickle_value *value = pickle_item(reading->pickle, segments, i);
        struct recording_segment segment;
        struct recording_device *device;
        uint64_t number = 0;

        (void)snprintf(reading->context, sizeof(reading->context), "segment %zu: ", i + 1);
        reading->names_expandable |= reading_find(reading, value, READING_IS_EXPANDABLE) != NULL;
        if (!reading_required(reading, value, READING_DEVICE, &number) ||
            !read_segment(reading, value, &segment) || !(device = get_device(reading, number)) ||
            !add_segment(reading, device, &segment))
            return false;
    }
    for (size_t i = 0; i < reading->out->device_count; i++)
        sort_segments(&reading->out->devices[i]);
    return true;
}

static bool read_host_segments(struct reading *reading, const struct pickle_value *segments)
{
    struct recording_device *host = &reading->out->host;

    for (size_t i = 0; i < reading_count(segments); i++) {
        struct recording_segment segment;

        (void)snprintf(reading->context, sizeof(reading->context), "host segment %zu: ", i + 1);
        if (!read_segment(reading, pickle_item(reading->pickle, segments, i), &segment))
            return false;
        segment.is_expandable = false;
        if (!add_segment(reading, host, &segment))
            return false;
    }
    sort_segments(host);
    return true;
}

/* --- Events. --- */

/* Count items.  A pickle may refer to a list many times, so the number of items is limited by the number of values. */
static bool count_items(struct reading *reading, size_t count)
{
    reading->items += count;
    return reading->items <= reading->pickle->count ||
           reading_fail(reading, "the list is shared with another device");
}

static bool read_trace(struct reading *reading, struct histories *histories,
                       const struct pickle_value *list, uint64_t number)
{
    struct recording_device *device;

    if (list->kind != PICKLE_LIST)
        return reading_fail(reading, "the history of device %" PRIu64 " is not a list", number);
    if (histories_count(histories, list) == 0)
        return true;
    device = get_device(reading, number);
    return device && histories_assign(histories, list, device);
}

static bool read_traces(struct reading *reading, struct histories *histories,
                        const struct pickle_value *lists)
{
    for (size_t i = 0; i < reading_count(lists); i++) {
        reading->context[0] = '\0';
        if (!read_trace(reading, histories, pickle_item(reading->pickle, lists, i), i))
            return false;
    }
    return true;
}

/* Read the entries of pinned host memory, which are one list without a device. */
static bool read_host_trace(struct reading *reading, struct histories *histories,
                            const struct pickle_value *list)
{
    reading->context[0] = '\0';
    return !list || histories_count(histories, list) == 0 ||
           histories_assign(histories, list, &reading->out->host);
}

/* Segments without the key is_expandable are classic, unless the history maps and never allocates segments. */
static void infer_expandable(struct reading *reading)
{
    struct recording *out = reading->out;

    if (reading->names_expandable)
        return;
    for (size_t i = 0; i < out->device_count; i++) {
        struct recording_device *device = &out->devices[i];
        bool maps = false, allocates = false;

        for (size_t at = 0; at < device->event_count; at++) {
            maps |= device->events[at].action == RECORDING_SEGMENT_MAP;
            allocates |= device->events[at].action == RECORDING_SEGMENT_ALLOC;
        }
        for (size_t at = 0; at < device->segment_count; at++)
            device->segments[at].is_expandable = maps && !allocates;
    }
}

/* --- Settings, and the key `xseg`. --- */

static bool read_config(struct reading *reading, const struct pickle_value *settings)
{
    const char *text = pickle_string(
        reading->pickle, reading_find(reading, settings, READING_PYTORCH_CUDA_ALLOC_CONF));
    const struct pickle_value *expandable =
        reading_find(reading, settings, READING_EXPANDABLE_SEGMENTS);
    const bool has_key = text && strstr(text, "expandable_segments") != NULL;
    const bool is_added =
        !has_key && expandable && expandable->kind == PICKLE_BOOL && expandable->number;
    char *config = NULL;
    bool success;

    if (!settings)
        return true;
    reading->out->has_config = true;
    reading->out->names_segments = has_key || (expandable && expandable->kind == PICKLE_BOOL);
    if (asprintf(&config, "%s%s%s", text ? text : "", is_added && text && text[0] ? "," : "",
                 is_added ? "expandable_segments:True" : "") < 0)
        return reading_out_of_memory(reading);
    success = recording_names_text(&reading->names, config, &reading->out->config);
    free(config);
    return success || reading_out_of_memory(reading);
}

/* Get the current name of a reason; snapshots before 0.9.0 have other names for some reasons. */
static const char *get_current_reason(const char *word)
{
    static const char *const renamed[][2] = {
        {"live", "allocated"},
        {"busy", "claimed"},
        {"floor", "keep"},
        {"borrowed", "above_share"},
    };

    for (size_t i = 0; word != NULL && i < sizeof(renamed) / sizeof(*renamed); i++)
        if (strcmp(word, renamed[i][0]) == 0)
            return renamed[i][1];
    return word;
}

static bool read_pages(struct reading *reading, const struct pickle_value *list,
                       struct recording_device *device)
{
    const size_t count = reading_count(list);

    if (!count_items(reading, count))
        return false;
    device->pages = malloc((count + 1) * sizeof(*device->pages));
    if (!device->pages)
        return reading_out_of_memory(reading);
    for (; device->page_count < count; device->page_count++) {
        const struct pickle_value *item = pickle_item(reading->pickle, list, device->page_count);
        struct recording_page *page = &device->pages[device->page_count];
        uint64_t *const numbers[] = {&page->address,   &page->bytes,  NULL,
                                     &page->allocated, &page->cached, &page->registered};
        const char *reason;
        size_t item_count;

        if (item->kind != PICKLE_LIST || pickle_count(item) < 5)
            return reading_fail(reading, "a page is not a list of at least five items");
        item_count = pickle_count(item) < 6 ? 5 : 6;
        page->registered = 0;
        for (size_t i = 0; i < item_count; i++)
            if (numbers[i] && !pickle_number(pickle_item(reading->pickle, item, i), numbers[i]))
                return reading_fail(reading, "an item of a page is not a number");
        reason = get_current_reason(
            pickle_string(reading->pickle, pickle_item(reading->pickle, item, 2)));
        if (!recording_names_text(&reading->names, reason ? reason : "", &page->reason))
            return reading_out_of_memory(reading);
    }
    return true;
}

static enum recording_cause parse_cause(const char *name)
{
    static const char *const names[] = {
        [RECORDING_CAUSE_REMAP] = "remap",   [RECORDING_CAUSE_DECAY] = "decay",
        [RECORDING_CAUSE_TRIM] = "trim",     [RECORDING_CAUSE_PAUSE] = "pause",
        [RECORDING_CAUSE_RESUME] = "resume", [RECORDING_CAUSE_BUDGET_RELEASE] = "budget_release",
    };

    /* Names in snapshots before 0.9.0. */
    if (strcmp(name, "steal") == 0)
        return RECORDING_CAUSE_REMAP;
    if (strcmp(name, "give") == 0)
        return RECORDING_CAUSE_BUDGET_RELEASE;
    for (size_t i = RECORDING_CAUSE_NONE + 1; i < RECORDING_CAUSE_OTHER; i++)
        if (strcmp(name, names[i]) == 0)
            return (enum recording_cause)i;
    return RECORDING_CAUSE_OTHER;
}

/* Read the causes.  A cause is a list: the index of its entry, and a name. */
static bool read_causes(struct reading *reading, const struct pickle_value *list,
                        struct recording_device *device)
{
    const size_t count = reading_count(list);

    if (!count_items(reading, count))
        return false;
    for (size_t i = 0; i < count; i++) {
        const struct pickle_value *item = pickle_item(reading->pickle, list, i);
        const char *word;
        uint64_t entry;

        if (item->kind != PICKLE_LIST || pickle_count(item) < 2 ||
            !pickle_number(pickle_item(reading->pickle, item, 0), &entry) ||
            entry >= device->event_count ||
            !(word = pickle_string(reading->pickle, pickle_item(reading->pickle, item, 1))))
            return reading_fail(reading, "a cause is not a list of an entry and a name");
        device->events[entry].cause = (uint8_t)parse_cause(word);
    }
    return true;
}

static bool read_xseg_key(struct reading *reading, const struct pickle_value *own)
{
    const struct pickle_value *devices = reading_list(reading, own, READING_DEVICES);
    uint64_t format = FORMAT;

    reading->out->is_own = own != NULL;
    (void)snprintf(reading->context, sizeof(reading->context), "xseg: ");
    if (!reading_optional(reading, own, READING_FORMAT, &format))
        return false;
    if (format != FORMAT)
        return reading_fail(reading,
                            "unknown format of xseg's data, %" PRIu64
                            ", instead of %u; use a newer `xseg`",
                            format, FORMAT);
    for (size_t i = 0; i < reading_count(devices); i++) {
        const struct pickle_value *value = pickle_item(reading->pickle, devices, i);
        struct recording_device *device;
        uint64_t number = 0;

        if (!reading_required(reading, value, READING_DEVICE, &number) ||
            !(device = get_device(reading, number)) ||
            !reading_optional(reading, value, READING_LOST, &device->lost) ||
            !reading_optional(reading, value, READING_LEFT_OUT, &device->truncated) ||
            !reading_optional(reading, value, READING_SINGLE_PAGE_REST,
                              &device->single_page_padding) ||
            !reading_optional(reading, value, READING_SINGLE_PAGE_PADDING,
                              &device->single_page_padding) ||
            !read_causes(reading, reading_list(reading, value, READING_CAUSES), device) ||
            (!device->pages &&
             !read_pages(reading, reading_list(reading, value, READING_PAGES), device)))
            return false;
    }
    return true;
}

/* --- The whole snapshot. --- */

static int compare_devices(const void *first, const void *second)
{
    return ((const struct recording_device *)first)->number -
           ((const struct recording_device *)second)->number;
}

/* Report the kind of a pickle without segments. */
static bool reject_pickle(struct reading *reading, struct input *input)
{
    static const char *const kinds[] = {
        [PICKLE_NONE] = "None",     [PICKLE_BOOL] = "a boolean",   [PICKLE_INT] = "a number",
        [PICKLE_HUGE] = "a number", [PICKLE_REAL] = "a number",    [PICKLE_TEXT] = "a string",
        [PICKLE_BYTES] = "bytes",   [PICKLE_LIST] = "a list",      [PICKLE_TUPLE] = "a tuple",
        [PICKLE_SET] = "a set",     [PICKLE_DICT] = "a dictionary"};
    const uint8_t kind = pickle_top(reading->pickle)->kind;

    if (file_kind_describe(input, reading->fault->text, sizeof(reading->fault->text)))
        return false;
    return reading_fail(
        reading, "no memory snapshot, a pickle of %s without %s; " FILE_KIND_SNAPSHOT " writes one",
        kinds[kind], kind == PICKLE_LIST ? "segments" : "`segments`");
}

/* Find the list of segments: the value of its key, or the pickled value itself; NULL: none. */
static const struct pickle_value *find_segments(struct reading *reading)
{
    const struct pickle_value *top = pickle_top(reading->pickle);

    if (top->kind != PICKLE_LIST)
        return reading_list(reading, top, READING_SEGMENTS);
    for (size_t i = 0; i < pickle_count(top); i++)
        if (!reading_find(reading, pickle_item(reading->pickle, top, i), READING_TOTAL_SIZE))
            return NULL;
    return top;
}

static bool read_snapshot(struct reading *reading, struct histories *histories, struct input *input)
{
    const struct pickle_value *top = pickle_top(reading->pickle);
    const struct pickle_value *segments = find_segments(reading);
    const struct pickle_value *host_segments = reading_list(reading, top, READING_HOST_SEGMENTS);

    if (!segments)
        return reject_pickle(reading, input);
    if (!allocate_blocks(reading, segments, host_segments) || !read_segments(reading, segments) ||
        !read_host_segments(reading, host_segments) ||
        !read_traces(reading, histories, reading_list(reading, top, READING_DEVICE_TRACES)) ||
        !read_host_trace(reading, histories, reading_list(reading, top, READING_HOST_TRACES)))
        return false;
    infer_expandable(reading);
    if (!annotations_read(reading, reading_list(reading, top, READING_EXTERNAL_ANNOTATIONS)))
        return false;
    reading->context[0] = '\0';
    if (!read_config(reading, reading_find(reading, top, READING_ALLOCATOR_SETTINGS)) ||
        !read_xseg_key(reading, reading_find(reading, top, READING_XSEG)))
        return false;
    if (reading->out->device_count > 0)
        qsort(reading->out->devices, reading->out->device_count, sizeof(*reading->out->devices),
              compare_devices);
    return true;
}

/* Read the pickle with the histories as filter, then its other values. */
static bool read_pickle(struct reading *reading, struct histories *histories, struct input *input)
{
    const struct pickle_filter filter = {histories, histories_filter};
    struct pickle_fault fault;
    struct pickle pickle;
    bool success;

    reading->pickle = &pickle;
    (void)input_peek(input); /* keeps the first bytes for file_kind_describe() */
    if (!pickle_read(input, &filter, &pickle, &fault)) {
        if (fault.text[0] &&
            !file_kind_describe(input, reading->fault->text, sizeof(reading->fault->text)))
            (void)snprintf(reading->fault->text, sizeof(reading->fault->text),
                           "cannot be read as a memory snapshot: byte %" PRIu64 ": %s", fault.byte,
                           fault.text);
        return false;
    }
    success = read_snapshot(reading, histories, input);
    pickle_fini(&pickle);
    return success;
}

bool recording_read(struct input *input, const char *name, struct symbols *symbols,
                    struct recording *out, struct recording_fault *fault)
{
    struct reading reading = {.out = out, .fault = fault};
    struct histories histories;
    bool success;

    *out = (struct recording){.host.number = RECORDING_HOST};
    fault->text[0] = '\0';
    histories_init(&histories, &reading);
    recording_symbols_init(&reading.symbols, symbols);
    out->name = strdup(name);
    success = recording_names_init(&reading.names, out) && out->name
                  ? read_pickle(&reading, &histories, input)
                  : reading_out_of_memory(&reading);
    histories_fini(&histories);
    recording_names_fini(&reading.names);
    free(reading.frames);
    recording_symbols_fini(&reading.symbols);
    if (!success)
        recording_fini(out);
    return success;
}
