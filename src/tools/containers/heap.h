/* SPDX-License-Identifier: MIT */
/*
 * A heap: of what was put into it, the item with the least key is at hand.
 *
 * Locking: none; a heap belongs to one thread.
 */
#ifndef TOOLS_HEAP_H
#define TOOLS_HEAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct heap_item {
    double key;
    uint32_t number; /* the owner's */
};

struct heap {
    struct heap_item *items; /* [count]; the first has the least key */
    size_t count;
};

/* Returns: false without host memory; the heap is as it was.  Cost: O(log n). */
bool heap_add(struct heap *heap, double key, uint32_t number);

/* Take the first item, which must be there, or put another in its place.  Cost: O(log n). */
struct heap_item heap_take(struct heap *heap);
void heap_replace(struct heap *heap, double key, uint32_t number);

void heap_fini(struct heap *heap);

#endif
