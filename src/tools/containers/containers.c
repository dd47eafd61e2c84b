/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/containers.h"

#include <stdlib.h>

#define ARRAY_MIN   16u
#define ID_MAP_MIN  64u
#define INDEX_MIN   256u
#define ORDERED_MIN 64u

/* --- Arrays. --- */

bool array_reserve(void **array, size_t count, size_t bytes)
{
    void *grown;

    if (count != 0 && (count < ARRAY_MIN || (count & (count - 1)) != 0))
        return true;
    grown = realloc(*array, (count == 0 ? ARRAY_MIN : 2 * count) * bytes);
    if (grown)
        *array = grown;
    return grown;
}

/* --- The heap. --- */

bool heap_add(struct heap *heap, double key, uint32_t number)
{
    size_t at = heap->count;

    if (!array_reserve((void **)&heap->items, heap->count, sizeof(*heap->items)))
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

/* --- The table of IDs. --- */

/* The finalizer of MurmurHash3, 64 bits; distributes regular IDs over all entries. */
static uint64_t hash_id(uint64_t id)
{
    id ^= id >> 33;
    id *= 0xff51afd7ed558ccdu;
    id ^= id >> 33;
    id *= 0xc4ceb9fe1a85ec53u;
    return id ^ id >> 33;
}

/* Find the entry of an ID, or the empty entry for it. */
static struct id_map_entry *find_entry(const struct id_map *map, uint64_t id)
{
    size_t at = (size_t)hash_id(id) & (map->capacity - 1);

    while (map->entries[at].line != 0 && map->entries[at].id != id)
        at = (at + 1) & (map->capacity - 1);
    return &map->entries[at];
}

static bool grow_id_map(struct id_map *map)
{
    struct id_map grown = {NULL, map->capacity ? map->capacity * 2 : ID_MAP_MIN, map->count};

    grown.entries = calloc(grown.capacity, sizeof(*grown.entries));
    if (!grown.entries)
        return false;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].line != 0)
            *find_entry(&grown, map->entries[i].id) = map->entries[i];
    free(map->entries);
    *map = grown;
    return true;
}

struct id_map_entry *id_map_find(const struct id_map *map, uint64_t id)
{
    if (map->capacity == 0)
        return NULL;
    struct id_map_entry *entry = find_entry(map, id);
    return entry->line ? entry : NULL;
}

struct id_map_entry *id_map_add(struct id_map *map, uint64_t id, uint32_t number, uint32_t line)
{
    if ((map->count + 1) * 2 > map->capacity && !grow_id_map(map))
        return NULL;
    struct id_map_entry *entry = find_entry(map, id);
    *entry = (struct id_map_entry){id, number, line};
    map->count++;
    return entry;
}

void id_map_fini(struct id_map *map)
{
    free(map->entries);
    *map = (struct id_map){NULL, 0, 0};
}

/* --- The index. --- */

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
uint64_t index_hash(const void *bytes, size_t count)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++)
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 29;
}

uint32_t index_find(const struct index *index, uint64_t hash, const void *key, size_t bytes,
                    bool (*equals)(const void *owner, uint32_t number, const void *key,
                                   size_t bytes),
                    const void *owner)
{
    if (index->capacity == 0)
        return INDEX_NONE;
    for (size_t at = (uint32_t)hash & (index->capacity - 1); index->entries[at].number;
         at = (at + 1) & (index->capacity - 1)) {
        const struct index_entry *entry = &index->entries[at];

        if (entry->hash == (uint32_t)hash && equals(owner, entry->number - 1, key, bytes))
            return entry->number - 1;
    }
    return INDEX_NONE;
}

static void put_entry(struct index *index, const struct index_entry *entry)
{
    size_t at = entry->hash & (index->capacity - 1);

    while (index->entries[at].number)
        at = (at + 1) & (index->capacity - 1);
    index->entries[at] = *entry;
}

static bool grow_index(struct index *index)
{
    struct index grown = {.capacity = index->capacity ? 2 * index->capacity : INDEX_MIN,
                          .count = index->count};

    grown.entries = calloc(grown.capacity, sizeof(*grown.entries));
    if (!grown.entries)
        return false;
    for (size_t i = 0; i < index->capacity; i++)
        if (index->entries[i].number)
            put_entry(&grown, &index->entries[i]);
    free(index->entries);
    *index = grown;
    return true;
}

bool index_add(struct index *index, uint64_t hash, uint32_t number)
{
    if (2 * index->count >= index->capacity && !grow_index(index))
        return false;
    put_entry(index, &(struct index_entry){(uint32_t)hash, number + 1});
    index->count++;
    return true;
}

void index_fini(struct index *index)
{
    free(index->entries);
    *index = (struct index){0};
}

/* --- The ordered set. --- */

void ordered_init(struct ordered *set)
{
    *set = (struct ordered){.root = ORDERED_NONE, .free = ORDERED_NONE};
}

void ordered_fini(struct ordered *set)
{
    free(set->nodes);
    ordered_init(set);
}

/* Compute the priority of a slot: the finalizer of MurmurHash3, 32 bits.  It is a bijection, so priorities are different. */
static uint32_t compute_priority(uint32_t slot)
{
    slot ^= slot >> 16;
    slot *= UINT32_C(0x85ebca6b);
    slot ^= slot >> 13;
    slot *= UINT32_C(0xc2b2ae35);
    return slot ^ slot >> 16;
}

static uint32_t allocate_slot(struct ordered *set)
{
    uint32_t slot = set->free;

    if (slot != ORDERED_NONE) {
        set->free = set->nodes[slot].below;
        return slot;
    }
    if (set->used == set->capacity) {
        const uint32_t capacity = set->capacity == 0 ? ORDERED_MIN : 2 * set->capacity;
        struct ordered_node *nodes =
            capacity > set->capacity ? realloc(set->nodes, capacity * sizeof(*nodes)) : NULL;

        if (!nodes)
            return ORDERED_NONE;
        set->nodes = nodes;
        set->capacity = capacity;
    }
    return set->used++;
}

/* Split a tree into the nodes with keys < `key` and the others. */
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
    const uint32_t slot = allocate_slot(set);
    uint32_t *at = &set->root;

    if (slot == ORDERED_NONE)
        return slot;
    while (*at != ORDERED_NONE && compute_priority(*at) > compute_priority(slot))
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
        if (compute_priority(below) > compute_priority(above)) {
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

bool ordered_resize(const struct ordered *set, void **array, uint32_t *capacity, size_t bytes)
{
    void *grown;

    if (*capacity >= set->capacity)
        return true;
    grown = realloc(*array, set->capacity * bytes);
    if (!grown)
        return false;
    *array = grown;
    *capacity = set->capacity;
    return true;
}
