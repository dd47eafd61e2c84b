/* SPDX-License-Identifier: MIT */
/*
 * Containers: growing arrays, a heap, hash tables and an ordered set.
 *
 *   array    grows by one item at a time.
 *   heap     binary heap with the smallest key first.
 *   id_map   hash table from 64-bit IDs (of blocks, streams, pools) to small records.
 *   index    hash table of item numbers; the owner stores the items and compares them.
 *   ordered  ordered set of 64-bit keys; the owner stores values in arrays by slot.
 *
 * The hash tables only grow.  They use open addressing with linear probing, have a power of two of entries, and are
 * at most half full.
 *
 * Locking: none; one thread uses a container.
 */
#ifndef TOOLS_CONTAINERS_H
#define TOOLS_CONTAINERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- Arrays. --- */

/*
 * Reserve memory for one more item.  The capacity follows from the count: 16 items, or the next power of two.
 *
 * array: address of the pointer to the items; NULL before the first.
 * count: number of items; all of them were added one at a time.
 * bytes: of one item.
 *
 * Returns: false if out of host memory; the array is unchanged then
 */
bool array_reserve(void **array, size_t count, size_t bytes);

/* --- The heap. --- */

struct heap_item {
    double key;
    uint32_t number; /* the owner's */
};

struct heap {
    struct heap_item *items; /* [count]; the first has the smallest key */
    size_t count;
};

/* Add an item.  Returns false if out of host memory; the heap is unchanged then.  Cost: O(log n). */
bool heap_add(struct heap *heap, double key, uint32_t number);

/* Remove the first item, or replace it by another one.  The heap must not be empty.  Cost: O(log n). */
struct heap_item heap_take(struct heap *heap);
void heap_replace(struct heap *heap, double key, uint32_t number);

void heap_fini(struct heap *heap);

/* --- The table of IDs. --- */

struct id_map_entry {
    uint64_t id;
    uint32_t number; /* the owner's */
    uint32_t line;   /* the owner's, at least 1; 0: the entry is empty */
};

struct id_map {
    struct id_map_entry *entries;
    size_t capacity; /* 0 or a power of two */
    size_t count;
};

/* Find the entry of an ID; NULL: none.  The entry is valid until the next id_map_add(). */
struct id_map_entry *id_map_find(const struct id_map *map, uint64_t id);

/* Add an ID that is not in the table.  Returns NULL if out of host memory; the table is unchanged then. */
struct id_map_entry *id_map_add(struct id_map *map, uint64_t id, uint32_t number, uint32_t line);

void id_map_fini(struct id_map *map);

/* --- The index. --- */

#define INDEX_NONE UINT32_MAX

struct index_entry {
    uint32_t hash;   /* the low half */
    uint32_t number; /* plus 1; 0: the entry is empty */
};

struct index {
    struct index_entry *entries; /* [capacity] */
    size_t capacity, count;      /* capacity: 0 or a power of two */
};

/* Compute the hash of a key for index_find() and index_add(). */
uint64_t index_hash(const void *bytes, size_t count);

/*
 * Find the number of an item, or INDEX_NONE.
 *
 * hash:   of the key.
 * equals: returns whether the item with a number has a key.
 */
uint32_t index_find(const struct index *index, uint64_t hash, const void *key, size_t bytes,
                    bool (*equals)(const void *owner, uint32_t number, const void *key,
                                   size_t bytes),
                    const void *owner);

/* Add the number of an item that is not in the index.  Returns false if out of host memory; the index is unchanged
 * then. */
bool index_add(struct index *index, uint64_t hash, uint32_t number);

void index_fini(struct index *index);

/* --- The ordered set. --- */

#define ORDERED_NONE UINT32_MAX

struct ordered_node {
    uint64_t key;
    /* The slots of the subtrees, or ORDERED_NONE; of a free slot, `below` is the next free slot. */
    uint32_t below, above;
};

/* A treap: a search tree by key and a heap by a hash of the slot, so the depth is logarithmic for any order of
 * insertion. */
struct ordered {
    struct ordered_node *nodes;
    uint32_t root, free, count;
    uint32_t used, capacity; /* slots that have been used, and slots that are allocated */
};

void ordered_init(struct ordered *set);
void ordered_fini(struct ordered *set);

/* Add a key that is not in the set.  Returns its slot, or ORDERED_NONE if out of host memory.  Cost: O(log n). */
uint32_t ordered_add(struct ordered *set, uint64_t key);

/* Remove a key that is in the set, and free its slot.  Cost: O(log n). */
void ordered_remove(struct ordered *set, uint64_t key);

/* Find the slot of a key, of the largest key <= `key`, or of the smallest key >= `key`; ORDERED_NONE: none.  Cost:
 * O(log n). */
uint32_t ordered_find(const struct ordered *set, uint64_t key);
uint32_t ordered_up_to(const struct ordered *set, uint64_t key);
uint32_t ordered_from(const struct ordered *set, uint64_t key);

/*
 * Grow an array by slot to the capacity of the set.  New elements are not initialized.
 *
 * capacity: elements of the array, updated.
 * bytes:    of one element.
 *
 * Returns: false if out of host memory; the array is unchanged then
 */
bool ordered_resize(const struct ordered *set, void **array, uint32_t *capacity, size_t bytes);

static inline uint64_t ordered_key(const struct ordered *set, uint32_t slot)
{
    return set->nodes[slot].key;
}

#endif
