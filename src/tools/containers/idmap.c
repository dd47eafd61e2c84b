/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/idmap.h"

#include <stdlib.h>

/* Every bit of the name reaches the low bits, so that regular names spread, too. */
static uint64_t hash_of(uint64_t name)
{
    name ^= name >> 33;
    name *= 0xff51afd7ed558ccdu;
    name ^= name >> 33;
    name *= 0xc4ceb9fe1a85ec53u;
    return name ^ name >> 33;
}

/* Where a name is, or where it would go. */
static struct idmap_entry *place_of(const struct idmap *map, uint64_t name)
{
    size_t at = (size_t)hash_of(name) & (map->capacity - 1);

    while (map->entries[at].line != 0 && map->entries[at].name != name)
        at = (at + 1) & (map->capacity - 1);
    return &map->entries[at];
}

static int grow(struct idmap *map)
{
    struct idmap bigger = {NULL, map->capacity ? map->capacity * 2 : 64, map->count};

    bigger.entries = calloc(bigger.capacity, sizeof(*bigger.entries));
    if (!bigger.entries)
        return 0;
    for (size_t i = 0; i < map->capacity; i++)
        if (map->entries[i].line != 0)
            *place_of(&bigger, map->entries[i].name) = map->entries[i];
    free(map->entries);
    *map = bigger;
    return 1;
}

struct idmap_entry *idmap_find(const struct idmap *map, uint64_t name)
{
    if (map->capacity == 0)
        return NULL;
    struct idmap_entry *entry = place_of(map, name);
    return entry->line ? entry : NULL;
}

struct idmap_entry *idmap_add(struct idmap *map, uint64_t name, uint32_t number, uint32_t line)
{
    if ((map->count + 1) * 2 > map->capacity && !grow(map))
        return NULL;
    struct idmap_entry *entry = place_of(map, name);
    *entry = (struct idmap_entry){name, number, line};
    map->count++;
    return entry;
}

void idmap_fini(struct idmap *map)
{
    free(map->entries);
    *map = (struct idmap){NULL, 0, 0};
}
