/* SPDX-License-Identifier: MIT */
#include "src/tools/containers/index.h"

#include <stdlib.h>

#define FIRST_ROOM 256u

/* FNV-1a, 64 bits: http://www.isthe.com/chongo/tech/comp/fnv/ */
uint64_t index_sum(const void *bytes, size_t count)
{
    uint64_t sum = UINT64_C(0xcbf29ce484222325);

    for (size_t i = 0; i < count; i++)
        sum = (sum ^ ((const unsigned char *)bytes)[i]) * UINT64_C(0x100000001b3);
    return sum ^ sum >> 29;
}

uint32_t index_find(const struct index *index, uint64_t sum, const void *what, size_t bytes,
                    bool (*is)(const void *owner, uint32_t number, const void *what, size_t bytes),
                    const void *owner)
{
    if (index->room == 0)
        return INDEX_NONE;
    for (size_t at = (uint32_t)sum & (index->room - 1); index->places[at].number;
         at = (at + 1) & (index->room - 1)) {
        const struct index_place *place = &index->places[at];

        if (place->sum == (uint32_t)sum && is(owner, place->number - 1, what, bytes))
            return place->number - 1;
    }
    return INDEX_NONE;
}

static void put(struct index *index, const struct index_place *place)
{
    size_t at = place->sum & (index->room - 1);

    while (index->places[at].number)
        at = (at + 1) & (index->room - 1);
    index->places[at] = *place;
}

static bool grow(struct index *index)
{
    struct index bigger = {.room = index->room ? 2 * index->room : FIRST_ROOM, .used = index->used};

    bigger.places = calloc(bigger.room, sizeof(*bigger.places));
    if (!bigger.places)
        return false;
    for (size_t i = 0; i < index->room; i++)
        if (index->places[i].number)
            put(&bigger, &index->places[i]);
    free(index->places);
    *index = bigger;
    return true;
}

bool index_add(struct index *index, uint64_t sum, uint32_t number)
{
    if (2 * index->used >= index->room && !grow(index))
        return false;
    put(index, &(struct index_place){(uint32_t)sum, number + 1});
    index->used++;
    return true;
}

void index_fini(struct index *index)
{
    free(index->places);
    *index = (struct index){0};
}
