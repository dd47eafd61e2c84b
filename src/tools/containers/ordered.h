/* SPDX-License-Identifier: MIT */
/*
 * An ordered set of numbers, each with a slot for what its owner knows of it.
 *
 * It is a treap: a search tree by key and a heap by a hash of the slot, so its depth is logarithmic whatever the order
 * of keys.  Slots are numbers from 0 that are used again; the owner keeps arrays by slot.
 *
 * Locking: none; a set belongs to one thread.
 */
#ifndef TOOLS_ORDERED_H
#define TOOLS_ORDERED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ORDERED_NONE UINT32_MAX

struct ordered_node {
    uint64_t key;
    uint32_t below, above; /* slots, or ORDERED_NONE; of a free slot, below is the next free one */
};

struct ordered {
    struct ordered_node *nodes;
    uint32_t root, free, count;
    uint32_t used, room; /* slots that were ever used; that there is memory for */
};

void ordered_init(struct ordered *set);
void ordered_fini(struct ordered *set);

/* Add a key that is not there.  Returns its slot, or ORDERED_NONE without host memory.  Cost: O(log n). */
uint32_t ordered_add(struct ordered *set, uint64_t key);

/* Remove a key that is there; its slot is free then.  Cost: O(log n). */
void ordered_remove(struct ordered *set, uint64_t key);

/* The slot of a key, of the largest key up to one, of the smallest from one on; or ORDERED_NONE.  Cost: O(log n). */
uint32_t ordered_find(const struct ordered *set, uint64_t key);
uint32_t ordered_up_to(const struct ordered *set, uint64_t key);
uint32_t ordered_from(const struct ordered *set, uint64_t key);

/*
 * Make an array by slot as long as the set has room; what is new in it has no value yet.
 *
 * @param room   how many elements the array has, each of so many bytes
 *
 * Returns: false without host memory; the array is as it was
 */
bool ordered_follow(const struct ordered *set, void **array, uint32_t *room, size_t bytes);

static inline uint64_t ordered_key(const struct ordered *set, uint32_t slot)
{
    return set->nodes[slot].key;
}

#endif
