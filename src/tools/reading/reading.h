/* SPDX-License-Identifier: MIT */
/*
 * Conversion of the values of a snapshot's pickle to a recording: keys of dictionaries, numbers, strings, pools, stacks.
 *
 * A key is compared as a string once; Python refers to it by its memo afterwards, so later comparisons are of slots.
 * Strings, pools, frames and stacks are converted once and tagged with their index in the recording.
 *
 * A function that returns false has set the fault, which begins with `context`.
 *
 * Locking: none; one thread uses a reading.
 */
#ifndef TOOLS_READING_H
#define TOOLS_READING_H

#include "src/tools/reading/pickle.h"
#include "src/tools/reading/recording_names.h"

/* Keys of dictionaries, see key_names in reading.c. */
enum reading_key {
    READING_ACTION,
    READING_ADDR,
    READING_ADDRESS,
    READING_ALLOCATOR_SETTINGS,
    READING_BLOCKS,
    READING_BUILD_ID,
    READING_CAUSES,
    READING_COMPILE_CONTEXT,
    READING_DEVICE,
    READING_DEVICE_FREE,
    READING_DEVICE_TRACES,
    READING_DEVICES,
    READING_EXPANDABLE_SEGMENTS,
    READING_EXTERNAL_ANNOTATIONS,
    READING_FILENAME,
    READING_FORMAT,
    READING_FRAMES,
    READING_HISTORY,
    READING_HOST_SEGMENTS,
    READING_HOST_TRACES,
    READING_INTERNAL_METADATA,
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
    READING_STAGE,
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
    struct recording_symbols symbols;
    struct recording_fault *fault;
    struct pickle *pickle;
    uint32_t keys[READING_KEYS]; /* slot of the string of each key, plus 1; 0: unknown */
    uint32_t *frames;            /* of the current stack, [frame_capacity] */
    size_t frame_capacity;
    size_t items;          /* pages and causes so far */
    bool names_expandable; /* a segment has the key is_expandable */
    char context[64];      /* begins the text of a fault, such as "segment 3: " */
    bool out_of_memory;
};

bool reading_fail(struct reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool reading_out_of_memory(struct reading *reading);

/* Find the value of a key in a dictionary, or NULL; reading_list(): also NULL if the value is not a list. */
const struct pickle_value *reading_find(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key);
const struct pickle_value *reading_list(struct reading *reading, const struct pickle_value *value,
                                        enum reading_key key);

/* Get the number of items of a list; 0 for NULL. */
size_t reading_count(const struct pickle_value *list);

/* Read a number, which must exist, or may be missing; if it is missing, *out is unchanged. */
bool reading_required(struct reading *reading, const struct pickle_value *value,
                      enum reading_key key, uint64_t *out);
bool reading_optional(struct reading *reading, const struct pickle_value *value,
                      enum reading_key key, uint64_t *out);

/* Read the index of a string; 0 if it is missing. */
bool reading_text(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint32_t *out);

/* Read the index of a pool; *out is unchanged if it is missing. */
bool reading_pool(struct reading *reading, const struct pickle_value *value, enum reading_key key,
                  uint32_t *out);

/* Read the index of a stack, which is a list of frames; NULL is the empty stack. */
bool reading_stack(struct reading *reading, const struct pickle_value *list, uint32_t *out);

#endif
