/* SPDX-License-Identifier: MIT */
/*
 * The values of a pickle while it is read: memory, references, and sharing of equal values.
 *
 * Equal immutable values share one slot if the lookup is cheap: None and booleans, integers below 256, short strings,
 * tuples of such values.  PyTorch writes such values again with each entry of a history.
 *
 * STORE-1  A value with PICKLE_USE_ONE is referenced by one container or one stack entry and by nothing else; a value
 *          with PICKLE_USE_MEMO by one memo entry in addition.
 * STORE-2  pickle.memory_bytes is the host memory of all values and of all arrays from pickle_store_reserve(), at most
 *          PICKLE_MEMORY.
 *
 * Locking: none; one thread uses a store.
 */
#ifndef TOOLS_PICKLE_STORE_H
#define TOOLS_PICKLE_STORE_H

#include "src/tools/reading/pickle.h"

#define PICKLE_STORE_TEXTS  4096u /* hash table of short strings; a power of two */
#define PICKLE_STORE_TUPLES 1024u
#define PICKLE_STORE_NONE   UINT32_MAX

struct pickle_store {
    struct pickle *out;
    const char *error;      /* the message of a failed call */
    uint32_t unused;        /* free list of slots, linked by number; or PICKLE_STORE_NONE */
    uint32_t constants[3];  /* False, True, None: slot + 1; 0: not created */
    uint32_t integers[256]; /* as constants */
    uint32_t texts[PICKLE_STORE_TEXTS], tuples[PICKLE_STORE_TUPLES]; /* by hash, as constants */
};

void pickle_store_init(struct pickle_store *store, struct pickle *out);

/* Grow an array to at least `needed` elements.  Returns NULL with an error; the array is unchanged then. */
void *pickle_store_reserve(struct pickle_store *store, void *array, size_t *capacity, size_t needed,
                           size_t size);

/* Add a value.  Each function returns its slot, which may be shared, or PICKLE_STORE_NONE with an error. */
uint32_t pickle_store_add(struct pickle_store *store, struct pickle_value value);
/* The string is the last string in pickle.text, followed by a NUL byte. */
uint32_t pickle_store_add_text(struct pickle_store *store, enum pickle_kind kind, size_t text,
                               uint32_t bytes);
uint32_t pickle_store_add_tuple(struct pickle_store *store, const uint32_t *items, size_t count);

/* Append items to a container.  Returns false with an error. */
bool pickle_store_fill(struct pickle_store *store, uint32_t container, const uint32_t *items,
                       size_t count);

/* Record one more reference: from the memo, or from another value. */
void pickle_store_use_memo(struct pickle_store *store, uint32_t slot, uint32_t memo);
void pickle_store_use(struct pickle_store *store, uint32_t slot);

/* Discard a value with PICKLE_USE_ONE or PICKLE_USE_MEMO, and its items that have no other reference. */
void pickle_store_discard(struct pickle_store *store, uint32_t slot);

#endif
