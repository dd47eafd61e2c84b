/* SPDX-License-Identifier: MIT */
/*
 * The values of a pickle that is being read: their room, who refers to them, and which of them are one.
 *
 * Values that cannot change and are equal are one value, where that is quick to find: None and booleans, integers below
 * 256, short texts, tuples of such values.  PyTorch writes each of these anew with each entry of a history.
 *
 * Terms:
 *   slot  the number of a value in pickle.values
 *   use   a reference to a value: from the stack, a container or the memo
 *
 * STORE-1  A value with the use PICKLE_USE_ONE is referred to by one container or one place of the stack, and by
 *          nothing else; one with PICKLE_USE_MEMO by one entry of the memo besides.
 * STORE-2  The host memory of all values, and what pickle_store_room() gave, is in pickle.held, and at most PICKLE_MEMORY.
 *
 * Locking: none; it belongs to one thread.
 */
#ifndef TOOLS_PICKLE_STORE_H
#define TOOLS_PICKLE_STORE_H

#include "src/tools/reading/pickle.h"

#define PICKLE_STORE_TEXTS   4096u /* equal ones of these are found; a power of two */
#define PICKLE_STORE_TUPLES  1024u
#define PICKLE_STORE_NOWHERE UINT32_MAX

struct pickle_store {
    struct pickle *out;
    const char *problem;    /* why a call failed: a sentence */
    uint32_t unused;        /* a slot without a value, which has the next one; or NOWHERE */
    uint32_t constants[3];  /* False, True, None: slot + 1; 0: not yet */
    uint32_t integers[256]; /* as constants */
    uint32_t texts[PICKLE_STORE_TEXTS], tuples[PICKLE_STORE_TUPLES]; /* by a hash */
};

void pickle_store_init(struct pickle_store *store, struct pickle *out);

/* An array of at least `needed` elements, or NULL with a problem; then the old one is as it was. */
void *pickle_store_room(struct pickle_store *store, void *array, size_t *capacity, size_t needed,
                        size_t size);

/* Add a value; each returns its slot, which may be that of an equal one, or NOWHERE with a problem. */
uint32_t pickle_store_add(struct pickle_store *store, struct pickle_value value);
/* What comes last in all text, with the NUL byte behind it. */
uint32_t pickle_store_add_text(struct pickle_store *store, enum pickle_kind kind, size_t text,
                               uint32_t bytes);
uint32_t pickle_store_add_tuple(struct pickle_store *store, const uint32_t *items, size_t count);

/* Put items behind those of a container.  Returns: false with a problem. */
bool pickle_store_fill(struct pickle_store *store, uint32_t container, const uint32_t *items,
                       size_t count);

/* Note a use more: by an entry of the memo, or another one. */
void pickle_store_use_memo(struct pickle_store *store, uint32_t slot, uint32_t memo);
void pickle_store_use(struct pickle_store *store, uint32_t slot);

/* Forget a value that has the use PICKLE_USE_ONE or _MEMO, and of its items those that nothing else refers to. */
void pickle_store_forget(struct pickle_store *store, uint32_t slot);

#endif
