/* SPDX-License-Identifier: MIT */
/*
 * The users' own names of pools: two numbers for the number of a pool, kept until the allocator closes, since events
 * outlive their pools.  24 bytes of host memory for each pool that was given such a name.
 *
 * Locking: HISTORY of the store is taken.
 */
#ifndef XSEG_CORE_POOL_IDS_H
#define XSEG_CORE_POOL_IDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct xseg_history_store;

struct xseg_pool_id {
    uint32_t number;
    uint64_t id[2];
};

struct xseg_pool_ids {
    struct xseg_pool_id *known; /* [count], by number */
    size_t count, room;
};

void xseg_pool_ids_fini(struct xseg_pool_ids *ids);

/* Keep the name of a pool.  False without host memory. */
bool xseg_pool_ids_add(struct xseg_history_store *store, uint32_t number, const uint64_t id[2]);

/* Get the name of a pool; {0, 0} where it has none. */
void xseg_pool_ids_find(struct xseg_history_store *store, uint32_t number, uint64_t id[2]);

#endif
