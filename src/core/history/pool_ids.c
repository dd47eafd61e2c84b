/* SPDX-License-Identifier: MIT */
#include "src/core/history/pool_ids.h"

#include <stdlib.h>

#include "src/base/check.h"
#include "src/core/history/store.h"

#define ROOM_AT_FIRST 16u

void xseg_pool_ids_fini(struct xseg_pool_ids *ids)
{
    free(ids->known);
    *ids = (struct xseg_pool_ids){.known = NULL};
}

static bool make_room(struct xseg_pool_ids *ids)
{
    const size_t room = ids->room == 0 ? ROOM_AT_FIRST : 2 * ids->room;
    struct xseg_pool_id *known;

    if (ids->count < ids->room)
        return true;
    known = realloc(ids->known, room * sizeof(*known));
    if (known == NULL)
        return false;
    ids->known = known;
    ids->room = room;
    return true;
}

/* The place of a number: behind all lower ones. */
static size_t place_of(const struct xseg_pool_ids *ids, uint32_t number)
{
    size_t low = 0, high = ids->count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (ids->known[middle].number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool xseg_pool_ids_add(struct xseg_history_store *store, uint32_t number, const uint64_t id[2])
{
    struct xseg_pool_ids *ids = &store->pool_ids;

    XSEG_ASSERT(number != 0 && (id[0] | id[1]) != 0);
    xseg_mutex_lock(&store->lock);
    const bool has_room = make_room(ids);
    if (has_room) {
        /* Pools of several devices draw numbers at the same time, so the last few may come late. */
        size_t at = ids->count++;

        for (; at > 0 && ids->known[at - 1].number > number; at--)
            ids->known[at] = ids->known[at - 1];
        ids->known[at] = (struct xseg_pool_id){number, {id[0], id[1]}};
    }
    xseg_mutex_unlock(&store->lock);
    return has_room;
}

void xseg_pool_ids_find(struct xseg_history_store *store, uint32_t number, uint64_t id[2])
{
    const struct xseg_pool_ids *ids = &store->pool_ids;

    id[0] = id[1] = 0;
    if (number == 0)
        return;
    xseg_mutex_lock(&store->lock);
    const size_t at = place_of(ids, number);
    if (at < ids->count && ids->known[at].number == number) {
        id[0] = ids->known[at].id[0];
        id[1] = ids->known[at].id[1];
    }
    xseg_mutex_unlock(&store->lock);
}
