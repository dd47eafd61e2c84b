/* SPDX-License-Identifier: MIT */
/*
 * A recording on its way out of a pickle: what its dictionaries have under a key, as numbers of the recording.
 *
 * A function that returns false has written the fault, which begins with `where`.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_READING_H
#define TOOLS_READING_H

#include "src/tools/reading/pickle.h"
#include "src/tools/reading/sources.h"

/* Keys of dictionaries; their texts are those of the format. */
enum reading_key {
    READING_ACTION,
    READING_ADDR,
    READING_ADDRESS,
    READING_ALLOCATOR_SETTINGS,
    READING_BLOCKS,
    READING_BUILD_ID,
    READING_CAUSES,
    READING_DEVICE,
    READING_DEVICE_FREE,
    READING_DEVICE_TRACES,
    READING_DEVICES,
    READING_EXPANDABLE_SEGMENTS,
    READING_FILENAME,
    READING_FORMAT,
    READING_FRAMES,
    READING_HISTORY,
    READING_IS_EXPANDABLE,
    READING_LEFT_OUT,
    READING_LINE,
    READING_LOST,
    READING_NAME,
    READING_PAGES,
    READING_POOL_ID,
    READING_PYTORCH_CUDA_ALLOC_CONF,
    READING_REAL_SIZE,
    READING_REQUESTED_SIZE,
    READING_SEGMENT_POOL_ID,
    READING_SEGMENT_TYPE,
    READING_SEGMENTS,
    READING_SINGLE_PAGE_PADDING,
    READING_SINGLE_PAGE_REST,
    READING_SIZE,
    READING_STATE,
    READING_STREAM,
    READING_TIME_US,
    READING_TOTAL_SIZE,
    READING_USER_METADATA,
    READING_XSEG,
    READING_KEYS
};

struct reading {
    struct recording *out;
    struct recording_names names;
    struct sources sources;
    struct recording_fault *fault;
    struct pickle *pickle;
    uint32_t keys[READING_KEYS]; /* of the text of each key: its number, from 1; 0: not known */
    uint32_t *frames;            /* of the stack that is read, [frame_room] */
    size_t frame_room;
    size_t items;          /* pages and causes so far */
    bool names_expandable; /* a segment has the key is_expandable */
    char where[64];        /* what a fault is in */
    bool lacks_memory;
};

bool reading_bad(struct reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool reading_lacks_memory(struct reading *reading);

/* What a dictionary has under a key; NULL: nothing.  A list, or NULL. */
const struct pickle_value *reading_find(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key);
const struct pickle_value *reading_list(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key);

/* How many items a list has; NULL has none. */
size_t reading_count(const struct pickle_value *list);

/* A number that must be there, and one that may be missing. */
bool reading_need(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint64_t *out);
bool reading_want(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint64_t *out);

/* Numbers of a text, which may be missing: 0 then; and of a pool, which may be missing: `out` is left as it is then. */
bool reading_want_text(struct reading *reading, const struct pickle_value *value,
                       enum reading_key key, uint32_t *out);
bool reading_want_pool(struct reading *reading, const struct pickle_value *value,
                       enum reading_key key, uint32_t *out);

/* The number of a stack, which is a list of frames; NULL is the empty one. */
bool reading_stack(struct reading *reading, const struct pickle_value *list, uint32_t *out);

#endif
