/* SPDX-License-Identifier: MIT */
#include "src/tools/recording/reading.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool reading_bad(struct reading *reading, const char *format, ...)
{
    va_list arguments;
    const int at =
        snprintf(reading->fault->text, sizeof(reading->fault->text), "%s", reading->where);

    va_start(arguments, format);
    (void)vsnprintf(reading->fault->text + at, sizeof(reading->fault->text) - (size_t)at, format,
                    arguments);
    va_end(arguments);
    return false;
}

bool reading_lacks_memory(struct reading *reading)
{
    reading->lacks_memory = true;
    reading->where[0] = '\0';
    return reading_bad(reading, "no host memory is left to read the snapshot");
}

/* --- Values. --- */

const struct pickle_value *reading_find(const struct reading *reading,
                                        const struct pickle_value *value, const char *key)
{
    return pickle_find(reading->pickle, value, key);
}

/* A number that must be there, and be one. */
bool reading_need(struct reading *reading, const struct pickle_value *value, const char *key,
                  uint64_t *out)
{
    return pickle_number(reading_find(reading, value, key), out) ||
           reading_bad(reading, "`%s` is missing, or no number", key);
}

/* A number that may be missing. */
bool reading_want(struct reading *reading, const struct pickle_value *value, const char *key,
                  uint64_t *out)
{
    const struct pickle_value *found = reading_find(reading, value, key);

    return !found || pickle_number(found, out) || reading_bad(reading, "`%s` is no number", key);
}

bool reading_want_text(struct reading *reading, const struct pickle_value *value, const char *key,
                       uint32_t *out)
{
    const char *text = pickle_string(reading->pickle, reading_find(reading, value, key));

    *out = 0;
    return !text || recording_names_text(&reading->names, text, out) ||
           reading_lacks_memory(reading);
}

bool reading_want_pool(struct reading *reading, const struct pickle_value *value, const char *key,
                       uint32_t *out)
{
    const struct pickle_value *pair = reading_find(reading, value, key);
    uint64_t id[2];

    if (!pair)
        return true;
    if (pickle_count(pair) != 2 || pair->kind == PICKLE_DICT ||
        !pickle_number(pickle_item(reading->pickle, pair, 0), &id[0]) ||
        !pickle_number(pickle_item(reading->pickle, pair, 1), &id[1]))
        return reading_bad(reading, "`%s` is no pair of numbers", key);
    return recording_names_pool(&reading->names, id, out) || reading_lacks_memory(reading);
}

const struct pickle_value *reading_list(const struct reading *reading,
                                        const struct pickle_value *value, const char *key)
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

    if (!reading_want_text(reading, value, "name", &frame.name) ||
        !reading_want_text(reading, value, "filename", &frame.file) ||
        !reading_want_text(reading, value, "build_id", &frame.build_id) ||
        !reading_want(reading, value, "line", &frame.line))
        return false;
    return sources_frame(&reading->sources, &reading->names, &frame, out) ||
           reading_lacks_memory(reading);
}

/* Stacks that are one list in the pickle are read once. */
bool reading_stack(struct reading *reading, const struct pickle_value *list, uint32_t *out)
{
    const size_t count = reading_count(list);
    uint32_t number = 0; /* of the list, if it may come again */
    uint32_t *frames;
    bool fine = true;

    *out = 0;
    if (count == 0)
        return true;
    if (list->use != PICKLE_USE_ONE)
        number = (uint32_t)(list - reading->pickle->values) + 1;
    if (recording_names_known_stack(&reading->names, number, out))
        return true;
    frames = malloc(count * sizeof(*frames));
    if (!frames)
        return reading_lacks_memory(reading);
    for (size_t i = 0; fine && i < count; i++)
        fine = read_frame(reading, pickle_item(reading->pickle, list, i), &frames[i]);
    if (fine && !recording_names_stack(&reading->names, number, frames, count, out))
        fine = reading_lacks_memory(reading);
    free(frames);
    return fine;
}
