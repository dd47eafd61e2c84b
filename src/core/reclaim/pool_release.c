/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/pool_release.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/core/config/size.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/idle.h"
#include "src/core/reclaim/reclaim.h"
#include "vmm/contents.h"

/* Free the virtual address ranges of a retired pool without memory.  If a capture is active, a
 * later trim frees them. */
static void free_pool_addresses(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct xseg_fail_saved kept;

    /* The caller may release the pool after a failure, whose error is preserved. */
    xseg_fail_save(&kept);
    xseg_mutex_lock(&device->memory_lock);
    if (!xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context))
        xseg_pool_visit_arenas(pool, xseg_reclaim_visit_unmapped, NULL);
    xseg_mutex_unlock(&device->memory_lock);
    xseg_fail_restore(&kept);
}

bool xseg_release_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    bool is_last = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (!xseg_pool_release_last(pool, &is_last))
        return false;
    if (!is_last)
        return true;
    /* The reference of the holders keeps the pool valid. */
    if (atomic_load(&pool->references) > 1 && atomic_load(&pool->reserved) == 0)
        free_pool_addresses(pool);
    xseg_release_pool_reference(pool);
    xseg_pools_notify(device);
    return true;
}

void xseg_release_pool_reference(struct xseg_pool *pool)
{
    if (!xseg_pool_drop_reference(pool))
        return;
    xseg_idle_return_pool_fences(pool);
    xseg_pools_destroy(pool);
}

/* --- Discard of paused pools. --- */

void xseg_discard_contents(struct xseg_contents *contents)
{
    if (contents == NULL)
        return;
    xseg_contents_close(contents);
    free(contents);
}

static void add_active_blocks(void *self, struct xseg_arena *arena)
{
    uint64_t *active = self;

    *active += xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE);
}

static void discard_paused_pool(struct xseg_pool *pool)
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
        xseg_pool_visit_arenas(pool, xseg_reclaim_visit_unmapped, NULL);
}

static void discard_paused_pools(struct xseg_device *device, bool all)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        uint64_t active = 0;

        if (pool->state != XSEG_POOL_PAUSED || (!all && !xseg_pool_is_retired(pool)))
            continue;
        xseg_pool_visit_arenas(pool, add_active_blocks, &active);
        if (all || active == 0)
            discard_paused_pool(pool);
    }
}

void xseg_discard_paused_pools(struct xseg_device *device)
{
    discard_paused_pools(device, false);
}

void xseg_discard_all_paused(struct xseg_device *device)
{
    discard_paused_pools(device, true);
}

void xseg_discard_lost_contents(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_context_is_lost(&device->context));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        xseg_discard_contents(pool->contents);
        pool->contents = NULL;
    }
}
