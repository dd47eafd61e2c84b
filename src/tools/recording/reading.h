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

#include "src/tools/files/pickle.h"
#include "src/tools/recording/sources.h"

struct reading {
    struct recording *out;
    struct recording_names names;
    struct sources sources;
    struct recording_fault *fault;
    const struct pickle *pickle;
    size_t items;   /* pages and causes so far */
    char where[64]; /* what a fault is in */
    bool lacks_memory;
};

bool reading_bad(struct reading *reading, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool reading_lacks_memory(struct reading *reading);

/* What a dictionary has under a key; NULL: nothing.  A list, or NULL. */
const struct pickle_value *reading_find(const struct reading *reading,
                                        const struct pickle_value *value, const char *key);
const struct pickle_value *reading_list(const struct reading *reading,
                                        const struct pickle_value *value, const char *key);

/* How many items a list has; NULL has none. */
size_t reading_count(const struct pickle_value *list);

/* A number that must be there, and one that may be missing. */
bool reading_need(struct reading *reading, const struct pickle_value *value, const char *key,
                  uint64_t *out);
bool reading_want(struct reading *reading, const struct pickle_value *value, const char *key,
                  uint64_t *out);

/* Numbers of a text, which may be missing: 0 then; and of a pool, which may be missing: `out` is left as it is then. */
bool reading_want_text(struct reading *reading, const struct pickle_value *value, const char *key,
                       uint32_t *out);
bool reading_want_pool(struct reading *reading, const struct pickle_value *value, const char *key,
                       uint32_t *out);

/* The number of a stack, which is a list of frames; NULL is the empty one. */
bool reading_stack(struct reading *reading, const struct pickle_value *list, uint32_t *out);

#endif
