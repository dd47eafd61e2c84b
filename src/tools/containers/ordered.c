/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/ordered.h"

#include <stdlib.h>

void ordered_init(struct ordered *set)
{
    *set = (struct ordered){.root = ORDERED_NONE, .free = ORDERED_NONE};
}

void ordered_fini(struct ordered *set)
{
    free(set->nodes);
    ordered_init(set);
}

/* The finalizer of MurmurHash3, 32 bits.  Different slots have different priorities. */
static uint32_t priority(uint32_t slot)
{
    slot ^= slot >> 16;
    slot *= UINT32_C(0x85ebca6b);
    slot ^= slot >> 13;
    slot *= UINT32_C(0xc2b2ae35);
    return slot ^ slot >> 16;
}

static uint32_t take_slot(struct ordered *set)
{
    uint32_t slot = set->free;

    if (slot != ORDERED_NONE) {
        set->free = set->nodes[slot].below;
        return slot;
    }
    if (set->used == set->room) {
        const uint32_t room = set->room == 0 ? 64 : 2 * set->room;
        struct ordered_node *nodes =
            room > set->room ? realloc(set->nodes, room * sizeof(*nodes)) : NULL;

        if (!nodes)
            return ORDERED_NONE;
        set->nodes = nodes;
        set->room = room;
    }
    return set->used++;
}

/* Split a tree into the keys below one and those above it. */
static void split(struct ordered *set, uint32_t tree, uint64_t key, uint32_t *below,
                  uint32_t *above)
{
    while (tree != ORDERED_NONE) {
        struct ordered_node *node = &set->nodes[tree];

        if (node->key < key) {
            *below = tree;
            below = &node->above;
            tree = *below;
        } else {
            *above = tree;
            above = &node->below;
            tree = *above;
        }
    }
    *below = *above = ORDERED_NONE;
}

uint32_t ordered_add(struct ordered *set, uint64_t key)
{
    const uint32_t slot = take_slot(set);
    uint32_t *at = &set->root;

    if (slot == ORDERED_NONE)
        return slot;
    while (*at != ORDERED_NONE && priority(*at) > priority(slot))
        at = key < set->nodes[*at].key ? &set->nodes[*at].below : &set->nodes[*at].above;
    set->nodes[slot].key = key;
    split(set, *at, key, &set->nodes[slot].below, &set->nodes[slot].above);
    *at = slot;
    set->count++;
    return slot;
}

void ordered_remove(struct ordered *set, uint64_t key)
{
    uint32_t *at = &set->root;
    uint32_t slot, below, above;

    while (set->nodes[*at].key != key)
        at = key < set->nodes[*at].key ? &set->nodes[*at].below : &set->nodes[*at].above;
    slot = *at;
    below = set->nodes[slot].below;
    above = set->nodes[slot].above;
    while (below != ORDERED_NONE && above != ORDERED_NONE) {
        if (priority(below) > priority(above)) {
            *at = below;
            at = &set->nodes[below].above;
            below = *at;
        } else {
            *at = above;
            at = &set->nodes[above].below;
            above = *at;
        }
    }
    *at = below != ORDERED_NONE ? below : above;
    set->nodes[slot].below = set->free;
    set->free = slot;
    set->count--;
}

uint32_t ordered_find(const struct ordered *set, uint64_t key)
{
    uint32_t at = set->root;

    while (at != ORDERED_NONE && set->nodes[at].key != key)
        at = key < set->nodes[at].key ? set->nodes[at].below : set->nodes[at].above;
    return at;
}

uint32_t ordered_up_to(const struct ordered *set, uint64_t key)
{
    uint32_t found = ORDERED_NONE;

    for (uint32_t at = set->root; at != ORDERED_NONE;) {
        if (set->nodes[at].key <= key) {
            found = at;
            at = set->nodes[at].above;
        } else {
            at = set->nodes[at].below;
        }
    }
    return found;
}

uint32_t ordered_from(const struct ordered *set, uint64_t key)
{
    uint32_t found = ORDERED_NONE;

    for (uint32_t at = set->root; at != ORDERED_NONE;) {
        if (set->nodes[at].key >= key) {
            found = at;
            at = set->nodes[at].below;
        } else {
            at = set->nodes[at].above;
        }
    }
    return found;
}

bool ordered_follow(const struct ordered *set, void **array, uint32_t *room, size_t bytes)
{
    void *bigger;

    if (*room >= set->room)
        return true;
    bigger = realloc(*array, set->room * bytes);
    if (!bigger)
        return false;
    *array = bigger;
    *room = set->room;
    return true;
}
