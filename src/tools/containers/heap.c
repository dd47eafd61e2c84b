/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/heap.h"

#include <stdlib.h>

#include "src/tools/containers/array.h"

bool heap_add(struct heap *heap, double key, uint32_t number)
{
    size_t at = heap->count;

    if (!array_room((void **)&heap->items, heap->count, sizeof(*heap->items)))
        return false;
    for (; at > 0 && heap->items[(at - 1) / 2].key > key; at = (at - 1) / 2)
        heap->items[at] = heap->items[(at - 1) / 2];
    heap->items[at] = (struct heap_item){key, number};
    heap->count++;
    return true;
}

void heap_replace(struct heap *heap, double key, uint32_t number)
{
    struct heap_item *const items = heap->items;
    size_t at = 0;

    for (;;) {
        size_t below = 2 * at + 1;

        if (below + 1 < heap->count && items[below + 1].key < items[below].key)
            below++;
        if (below >= heap->count || items[below].key >= key)
            break;
        items[at] = items[below];
        at = below;
    }
    items[at] = (struct heap_item){key, number};
}

struct heap_item heap_take(struct heap *heap)
{
    const struct heap_item first = heap->items[0];
    const struct heap_item last = heap->items[--heap->count];

    if (heap->count > 0)
        heap_replace(heap, last.key, last.number);
    return first;
}

void heap_fini(struct heap *heap)
{
    free(heap->items);
    *heap = (struct heap){0};
}
