/* SPDX-License-Identifier: MIT */
/*
 * What Python's pickle wrote, read as plain data: None, booleans, integers, floats, text, bytes, and
 * lists, tuples, sets and dictionaries of these, in the binary protocols 2 to 5.
 *
 * Nothing is looked up or called: a pickle that asks for a class or a function is refused where it
 * asks.  How deep values lie in each other costs only memory, and all memory that a pickle makes the
 * reader hold is bounded by PICKLE_MEMORY.  A container may hold itself.  Equal values may be one value.
 *
 * It is our own because nobody keeps a reader in C: Python's is part of its interpreter, and runs
 * what a pickle names.
 *
 * Locking: none; what is read changes by pickle_note() and pickle_empty() alone, so any number of threads may look at it.
 */
#ifndef TOOLS_PICKLE_H
#define TOOLS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PICKLE_MEMORY ((size_t)1 << 30) /* host memory that one pickle may take */
#define PICKLE_PROTO  0x80              /* the first byte of every pickle that is read */

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,  /* number: 0 or 1 */
    PICKLE_INT,   /* number, is_negative: the magnitude and the sign */
    PICKLE_HUGE,  /* an integer whose magnitude needs more than 64 bits; it is not kept */
    PICKLE_REAL,  /* real */
    PICKLE_TEXT,  /* count bytes of UTF-8, as they are in the pickle */
    PICKLE_BYTES, /* count bytes */
    PICKLE_LIST,  /* count values, as in a tuple and a set */
    PICKLE_TUPLE,
    PICKLE_SET,
    PICKLE_DICT /* count values: a key, what it stands for, the next key, ... */
};

/* What refers to a value, while a pickle is read: pickle_store.h. */
enum pickle_use { PICKLE_USE_ONE, PICKLE_USE_MEMO, PICKLE_USE_MANY };

struct pickle_value {
    uint8_t kind;
    uint8_t use; /* enum pickle_use */
    bool is_negative;
    bool has_room; /* there is room for as many items as the next power of two; else for count */
    uint32_t count;
    uint32_t memo; /* PICKLE_USE_MEMO: its entry */
    uint32_t note; /* pickle_note(); 0: none */
    union {
        uint64_t number;
        double real;
        size_t text;     /* where its bytes begin in all text */
        uint32_t *items; /* numbers of values */
    };
};

struct pickle {
    struct pickle_value *values;
    size_t count, capacity;
    char *text; /* all text and bytes, each followed by a NUL byte */
    size_t text_bytes, text_capacity;
    size_t held; /* bytes of host memory, the reader's own included while it reads */
    uint32_t top;
};

struct pickle_fault {
    uint64_t byte; /* where the opcode begins that is wrong, from 0 */
    char text[160];
};

/*
 * A taker is told of each item that is put into a list, while the pickle is read.  What it takes does not come into the
 * list, and host memory has it no longer, unless something else refers to it.
 */
enum pickle_taking { PICKLE_LEFT, PICKLE_TAKEN, PICKLE_STOPPED /* nothing more is read */ };

struct pickle_taker {
    void *self;
    /* list, item: numbers of values in pickle->values; that of a list of which something was taken is no other
     * list's */
    enum pickle_taking (*take)(void *self, uint32_t list, uint32_t item);
};

void pickle_fini(struct pickle *pickle);

/* The value that was pickled. */
const struct pickle_value *pickle_top(const struct pickle *pickle);

/* How many items a list, tuple, set or dictionary (keys and values) has; 0 for everything else. */
size_t pickle_count(const struct pickle_value *value);

/* How many items there is room for in one of these. */
size_t pickle_capacity(const struct pickle_value *value);

/* Item `at` of these, which must be below pickle_count(). */
const struct pickle_value *pickle_item(const struct pickle *pickle,
                                       const struct pickle_value *value, size_t at);

/* Which item of a dictionary stands behind a key that is text; 0: none, as pickle_find(). */
size_t pickle_place(const struct pickle *pickle, const struct pickle_value *value, const char *key);

/*
 * What a dictionary has under a key that is text.  NULL: it is not there, or `value` is NULL or no
 * dictionary.
 */
const struct pickle_value *pickle_find(const struct pickle *pickle,
                                       const struct pickle_value *value, const char *key);

/*
 * Note what a reader has made of a value, so that it looks at each value once.  What comes often in a pickle is one value.
 * A value with a note is not offered to the taker.
 */
static inline void pickle_note(struct pickle *pickle, const struct pickle_value *value,
                               uint32_t note)
{
    pickle->values[value - pickle->values].note = note;
}

/* Free the items of a list, which the reader knows by its note from then on. */
void pickle_empty(struct pickle *pickle, const struct pickle_value *list);

/* An integer from 0 to UINT64_MAX.  Returns false for everything else, NULL included. */
bool pickle_number(const struct pickle_value *value, uint64_t *out);

/* Text without NUL bytes, terminated.  NULL: `value` is NULL, or something else. */
const char *pickle_string(const struct pickle *pickle, const struct pickle_value *value);

#endif
