/* SPDX-License-Identifier: MIT */
#include "src/tools/reading/reading.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool reading_fail(struct reading *reading, const char *format, ...)
{
    va_list arguments;
    const int at =
        snprintf(reading->fault->text, sizeof(reading->fault->text), "%s", reading->context);

    va_start(arguments, format);
    (void)vsnprintf(reading->fault->text + at, sizeof(reading->fault->text) - (size_t)at, format,
                    arguments);
    va_end(arguments);
    return false;
}

bool reading_out_of_memory(struct reading *reading)
{
    reading->out_of_memory = true;
    reading->context[0] = '\0';
    return reading_fail(reading, "out of host memory");
}

/* --- Values. --- */

static const char *const key_names[READING_KEYS] = {
    [READING_ACTION] = "action",
    [READING_ADDR] = "addr",
    [READING_ADDRESS] = "address",
    [READING_ALLOCATOR_SETTINGS] = "allocator_settings",
    [READING_BLOCKS] = "blocks",
    [READING_BUILD_ID] = "build_id",
    [READING_CAUSES] = "causes",
    [READING_COMPILE_CONTEXT] = "compile_context",
    [READING_DEVICE] = "device",
    [READING_DEVICE_FREE] = "device_free",
    [READING_DEVICE_TRACES] = "device_traces",
    [READING_DEVICES] = "devices",
    [READING_EXPANDABLE_SEGMENTS] = "expandable_segments",
    [READING_EXTERNAL_ANNOTATIONS] = "external_annotations",
    [READING_FILENAME] = "filename",
    [READING_FORMAT] = "format",
    [READING_FRAMES] = "frames",
    [READING_HISTORY] = "history",
    [READING_HOST_SEGMENTS] = "host_segments",
    [READING_HOST_TRACES] = "host_traces",
    [READING_INTERNAL_METADATA] = "internal_metadata",
    [READING_IS_EXPANDABLE] = "is_expandable",
    [READING_LEFT_OUT] = "left_out",
    [READING_LINE] = "line",
    [READING_LOST] = "lost",
    [READING_NAME] = "name",
    [READING_PAGES] = "pages",
    [READING_POOL_ID] = "pool_id",
    [READING_PYTORCH_CUDA_ALLOC_CONF] = "PYTORCH_CUDA_ALLOC_CONF",
    [READING_REAL_SIZE] = "real_size",
    [READING_REQUESTED_SIZE] = "requested_size",
    [READING_SEGMENT_POOL_ID] = "segment_pool_id",
    [READING_SEGMENT_TYPE] = "segment_type",
    [READING_SEGMENTS] = "segments",
    [READING_SINGLE_PAGE_PADDING] = "single_page_padding",
    /* of releases before 0.9.0 */
    [READING_SINGLE_PAGE_REST] = "single_page_rest",
    [READING_SIZE] = "size",
    [READING_STAGE] = "stage",
    [READING_STATE] = "state",
    [READING_STREAM] = "stream",
    [READING_TIME_US] = "time_us",
    [READING_TOTAL_SIZE] = "total_size",
    [READING_USER_METADATA] = "user_metadata",
    [READING_XSEG] = "xseg",
};

/* The slot of a value that may be discarded can be reused for another value, so it is not recorded as the slot of the
 * key. */
const struct pickle_value *reading_find(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key)
{
    const struct pickle *pickle = reading->pickle;
    uint32_t *const key_slot = &reading->keys[key];
    size_t at;

    if (!value || value->kind != PICKLE_DICT)
        return NULL;
    for (at = value->count; *key_slot && at > 0; at -= 2)
        if (value->items[at - 2] + 1 == *key_slot)
            return pickle_item(pickle, value, at - 1);
    at = pickle_index(pickle, value, key_names[key]);
    if (at == 0)
        return NULL;
    if (pickle_item(pickle, value, at - 1)->use == PICKLE_USE_MANY)
        *key_slot = value->items[at - 1] + 1;
    return pickle_item(pickle, value, at);
}

bool reading_required(struct reading *reading, const struct pickle_value *value,
                      enum reading_key key, uint64_t *out)
{
    return pickle_number(reading_find(reading, value, key), out) ||
           reading_fail(reading, "`%s` is missing or not a number", key_names[key]);
}

bool reading_optional(struct reading *reading, const struct pickle_value *value,
                      enum reading_key key, uint64_t *out)
{
    const struct pickle_value *found = reading_find(reading, value, key);

    return !found || pickle_number(found, out) ||
           reading_fail(reading, "`%s` is not a number", key_names[key]);
}

/* The tag of a string, as of a pool, frame and stack, is its index in the recording plus 1. */
bool reading_text(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint32_t *out)
{
    const struct pickle_value *found = reading_find(reading, value, key);
    const char *text;

    *out = 0;
    if (found && found->kind == PICKLE_TEXT && found->tag) {
        *out = found->tag - 1;
        return true;
    }
    text = pickle_string(reading->pickle, found);
    if (!text)
        return true;
    if (!recording_names_text(&reading->names, text, out))
        return reading_out_of_memory(reading);
    pickle_set_tag(reading->pickle, found, *out + 1);
    return true;
}

bool reading_pool(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint32_t *out)
{
    const struct pickle_value *pair = reading_find(reading, value, key);
    uint64_t id[2];

    if (!pair)
        return true;
    if (pair->kind == PICKLE_TUPLE && pair->tag) {
        *out = pair->tag - 1;
        return true;
    }
    if (pickle_count(pair) != 2 || pair->kind == PICKLE_DICT ||
        !pickle_number(pickle_item(reading->pickle, pair, 0), &id[0]) ||
        !pickle_number(pickle_item(reading->pickle, pair, 1), &id[1]))
        return reading_fail(reading, "`%s` is not a pair of numbers", key_names[key]);
    if (!recording_names_pool(&reading->names, id, out))
        return reading_out_of_memory(reading);
    if (pair->kind == PICKLE_TUPLE)
        pickle_set_tag(reading->pickle, pair, *out + 1);
    return true;
}

const struct pickle_value *reading_list(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key)
{
    const struct pickle_value *list = reading_find(reading, value, key);

    return list && list->kind == PICKLE_LIST ? list : NULL;
}

size_t reading_count(const struct pickle_value *list)
{
    return list ? pickle_count(list) : 0;
}

/* --- Stacks. --- */

static bool read_frame(struct reading *reading, const struct pickle_value *value, uint32_t *out)
{
    struct recording_frame frame = {0};

    if (value->kind == PICKLE_DICT && value->tag) {
        *out = value->tag - 1;
        return true;
    }
    if (!reading_text(reading, value, READING_NAME, &frame.name) ||
        !reading_text(reading, value, READING_FILENAME, &frame.file) ||
        !reading_text(reading, value, READING_BUILD_ID, &frame.build_id) ||
        !reading_optional(reading, value, READING_LINE, &frame.line))
        return false;
    if (!recording_symbols_frame(&reading->symbols, &reading->names, &frame, out))
        return reading_out_of_memory(reading);
    if (value->kind == PICKLE_DICT)
        pickle_set_tag(reading->pickle, value, *out + 1);
    return true;
}

static bool reserve_frames(struct reading *reading, size_t count)
{
    uint32_t *frames;

    if (count <= reading->frame_capacity)
        return true;
    frames = realloc(reading->frames, 2 * count * sizeof(*frames));
    if (!frames)
        return reading_out_of_memory(reading);
    reading->frames = frames;
    reading->frame_capacity = 2 * count;
    return true;
}

/* A list with several references is read once and cleared; its tag identifies the stack. */
bool reading_stack(struct reading *reading, const struct pickle_value *list, uint32_t *out)
{
    const size_t count = reading_count(list);

    *out = list && list->tag ? list->tag - 1 : 0;
    if (*out > 0 || count == 0)
        return true;
    if (!reserve_frames(reading, count))
        return false;
    for (size_t i = 0; i < count; i++)
        if (!read_frame(reading, pickle_item(reading->pickle, list, i), &reading->frames[i]))
            return false;
    if (!recording_names_stack(&reading->names, reading->frames, count, out))
        return reading_out_of_memory(reading);
    if (list->use != PICKLE_USE_ONE) {
        pickle_set_tag(reading->pickle, list, *out + 1);
        pickle_clear(reading->pickle, list);
    }
    return true;
}
