/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/discard.h"

#include <stdlib.h>

#include "src/core/config/size.h"
#include "src/core/device/device.h"
#include "src/core/reclaim/reclaim.h"
#include "src/core/reclaim/trim_steps.h"
#include "vmm/contents.h"

void xseg_discard_contents(struct xseg_contents *contents)
{
    if (contents == NULL)
        return;
    xseg_contents_close(contents);
    free(contents);
}

static void add_active(void *self, struct xseg_arena *arena)
{
    uint64_t *active = self;

    *active += xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE);
}

static void forget(struct xseg_pool *pool)
{
    const struct xseg_reclaim_policy everything = {
        .scope = XSEG_RECLAIM_ALL,
        .pool = pool,
        .bytes = UINT64_MAX,
        .min_block = XSEG_SIZE_SMALL_SEGMENT,
        .work = XSEG_RECLAIM_EVICTED,
        .cause = XSEG_HISTORY_TRIM,
    };
    struct xseg_reclaim_result result;

    XSEG_ASSERT(pool->state == XSEG_POOL_PAUSED);
    (void)xseg_reclaim(pool->device, &everything, &result);
    xseg_discard_contents(pool->contents);
    pool->contents = NULL;
    pool->state = XSEG_POOL_RUNNING;
    if (xseg_pool_is_retired(pool))
        xseg_pool_visit_arenas(pool, xseg_trim_finish_unmapped_of, NULL);
}

static void forget_some(struct xseg_device *device, bool all)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        uint64_t active = 0;

        if (pool->state != XSEG_POOL_PAUSED || (!all && !xseg_pool_is_retired(pool)))
            continue;
        xseg_pool_visit_arenas(pool, add_active, &active);
        if (all || active == 0)
            forget(pool);
    }
}

void xseg_discard_paused(struct xseg_device *device)
{
    forget_some(device, false);
}

void xseg_discard_all(struct xseg_device *device)
{
    forget_some(device, true);
}

void xseg_discard_lost(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_context_is_lost(&device->context));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        xseg_discard_contents(pool->contents);
        pool->contents = NULL;
    }
}
