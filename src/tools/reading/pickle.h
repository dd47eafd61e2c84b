/* SPDX-License-Identifier: MIT */
/*
 * Python pickles as plain data: None, booleans, integers, floats, strings, bytes, and lists, tuples, sets and
 * dictionaries of these, in the binary protocols 2 to 5.
 *
 * Nothing is imported or called: a pickle that contains a class or a function is rejected.  Nesting is not limited,
 * and all host memory of the reader is bounded by PICKLE_MEMORY.  A container may contain itself.  Equal values may
 * share one slot.
 *
 * A value is identified by its slot, an index in pickle.values.  While the pickle is read, a filter may consume items
 * of lists, so that a history of millions of entries is never in memory as a whole.
 *
 * No maintained C library reads pickles.  The reader of Python is part of the interpreter, and runs code that a pickle
 * names.
 *
 * Locking: none.  Only pickle_set_tag() and pickle_clear() change a pickle, so several threads may read it otherwise.
 */
#ifndef TOOLS_PICKLE_H
#define TOOLS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/tools/reading/input.h"

#define PICKLE_MEMORY ((size_t)1 << 30) /* host memory of one pickle */
#define PICKLE_PROTO  0x80              /* the first byte of a pickle of protocol 2 or later */

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,  /* number: 0 or 1 */
    PICKLE_INT,   /* number, is_negative: magnitude and sign */
    PICKLE_HUGE,  /* an integer with a magnitude of more than 64 bits; its value is discarded */
    PICKLE_REAL,  /* real */
    PICKLE_TEXT,  /* count bytes of UTF-8 */
    PICKLE_BYTES, /* count bytes */
    PICKLE_LIST,  /* count values; also of a tuple and a set */
    PICKLE_TUPLE,
    PICKLE_SET,
    PICKLE_DICT /* count values: key, value, key, value, ... */
};

/* References to a value while the pickle is read, see pickle_store.h. */
enum pickle_use { PICKLE_USE_ONE, PICKLE_USE_MEMO, PICKLE_USE_MANY };

struct pickle_value {
    uint8_t kind;
    uint8_t use; /* enum pickle_use */
    bool is_negative;
    bool has_spare; /* the capacity is the next power of two above count; otherwise count */
    uint32_t count;
    uint32_t memo; /* PICKLE_USE_MEMO: its entry */
    uint32_t tag;  /* pickle_set_tag(); 0: none */
    union {
        uint64_t number;
        double real;
        size_t text;     /* offset in pickle.text */
        uint32_t *items; /* slots */
    };
};

struct pickle {
    struct pickle_value *values;
    size_t count, capacity;
    char *text; /* all strings and bytes, each followed by a NUL byte */
    size_t text_bytes, text_capacity;
    size_t memory_bytes; /* bytes of host memory, including the reader's own while it reads */
    uint32_t top;
};

struct pickle_fault {
    uint64_t byte; /* offset of the opcode that failed */
    char text[160];
};

/* --- Reading. --- */

/* The decision of a filter about an item: add it to the list, discard it, or stop reading. */
enum pickle_filter_result { PICKLE_KEEP, PICKLE_CONSUME, PICKLE_STOP };

/* A filter is called for each item that is appended to a list, before it is appended.  The memory of a consumed item is
 * released unless it has other references. */
struct pickle_filter {
    void *self;
    /* list, item: slots; the slot of a list with a consumed item is not reused */
    enum pickle_filter_result (*on_item)(void *self, uint32_t list, uint32_t item);
};

/*
 * Read one pickle, and the input to its end; data after the pickle is ignored.
 *
 * filter: NULL: none.
 * out:    set on success; the caller calls pickle_fini().  The filter may read it.
 * fault:  set on failure; its text is empty if the filter stopped.
 */
bool pickle_read(struct input *input, const struct pickle_filter *filter, struct pickle *out,
                 struct pickle_fault *fault);

void pickle_fini(struct pickle *pickle);

/* --- Values. --- */

/* Get the pickled value. */
const struct pickle_value *pickle_top(const struct pickle *pickle);

/* Get the number of items of a container (of a dictionary, keys and values); 0 for other values. */
size_t pickle_count(const struct pickle_value *value);

/* Get the number of items for which a container has memory. */
size_t pickle_capacity(const struct pickle_value *value);

/* Get item `at` of a container; at < pickle_count(). */
const struct pickle_value *pickle_item(const struct pickle *pickle,
                                       const struct pickle_value *value, size_t at);

/* Find the index of the value of a string key in a dictionary; 0: none, as for pickle_find(). */
size_t pickle_index(const struct pickle *pickle, const struct pickle_value *value, const char *key);

/* Find the value of a string key in a dictionary.  NULL: the key does not exist, or `value` is NULL or not a dictionary. */
const struct pickle_value *pickle_find(const struct pickle *pickle,
                                       const struct pickle_value *value, const char *key);

/* Tag a value, so that a reader can reuse the result of a value with several references.  Tagged values are not passed to the
 * filter. */
static inline void pickle_set_tag(struct pickle *pickle, const struct pickle_value *value,
                                  uint32_t tag)
{
    pickle->values[value - pickle->values].tag = tag;
}

/* Release the items of a list; the reader identifies the list by its tag from now on. */
void pickle_clear(struct pickle *pickle, const struct pickle_value *list);

/* Get an integer from 0 to UINT64_MAX.  Returns false for other values and NULL. */
bool pickle_number(const struct pickle_value *value, uint64_t *out);

/* Get a terminated string without NUL bytes.  NULL: `value` is NULL or another value. */
const char *pickle_string(const struct pickle *pickle, const struct pickle_value *value);

#endif
