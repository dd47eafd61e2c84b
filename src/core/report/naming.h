/* SPDX-License-Identifier: MIT */
/*
 * What a snapshot calls pools and moments: PyTorch's two numbers of a pool, and microseconds since 1970.
 *
 * Locking: HISTORY is taken for pools.  A naming belongs to one thread.
 */
#ifndef XSEG_CORE_SNAPSHOT_NAMING_H
#define XSEG_CORE_SNAPSHOT_NAMING_H

#include "src/core/history/store.h"

#define XSEG_SNAPSHOT_POOLS 64u /* that are remembered */

struct xseg_snapshot_naming {
    struct xseg_history_store *store;
    int64_t epoch_ns; /* to add to a time; 0: the user's clock stands as it is */
    struct xseg_pool_id
        pools[XSEG_SNAPSHOT_POOLS]; /* by number % XSEG_SNAPSHOT_POOLS; number 0: none */
};

void xseg_snapshot_naming_init(struct xseg_snapshot_naming *naming,
                               struct xseg_history_store *store);

/* The name of a pool: its user's, else (0, number); (0, 0) is the default pool. */
const uint64_t *xseg_snapshot_naming_pool(struct xseg_snapshot_naming *naming, uint32_t number);

/* The time of an event in microseconds. */
uint64_t xseg_snapshot_naming_us(const struct xseg_snapshot_naming *naming,
                                 const struct xseg_history_moment *moment, uint64_t ticks);

#endif
