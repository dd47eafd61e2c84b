/* SPDX-License-Identifier: MIT */
/*
 * An index: numbers that are found by what they stand for.  What that is the owner keeps, and compares.
 *
 * Numbers are only ever added.  Open addressing over a power of two, at most half full.
 *
 * Locking: none; an index belongs to one thread.
 */
#ifndef TOOLS_INDEX_H
#define TOOLS_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define INDEX_NONE UINT32_MAX

struct index_place {
    uint32_t sum;    /* the low half of it */
    uint32_t number; /* and 1; 0: the place is empty */
};

struct index {
    struct index_place *places; /* [room] */
    size_t room, used;          /* room: 0 or a power of two */
};

/* The sum of some bytes, as index_find() and index_add() take it. */
uint64_t index_sum(const void *bytes, size_t count);

/*
 * The number of something, or INDEX_NONE.
 *
 * sum: of what is looked for
 * is:  whether a number stands for it
 */
uint32_t index_find(const struct index *index, uint64_t sum, const void *what, size_t bytes,
                    bool (*is)(const void *owner, uint32_t number, const void *what, size_t bytes),
                    const void *owner);

/* Add the number of something that is not there.  Returns false without host memory; nothing has changed then. */
bool index_add(struct index *index, uint64_t sum, uint32_t number);

void index_fini(struct index *index);

#endif
