/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/forget.h"

#include <stdlib.h>

#include "src/core/config/size.h"
#include "src/core/device/device.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"
#include "vmm/contents.h"

void xseg_forget_contents(struct xseg_contents *contents)
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

/* Give back all cached memory of an arena. */
static void forget_arena(void *self, struct xseg_arena *arena)
{
    const struct xseg_trim_wish everything = {XSEG_SIZE_SMALL_SEGMENT, UINT64_MAX, NULL, NULL};
    struct xseg_block *next;
    uint64_t bytes = 0;

    (void)self;
    xseg_arena_lock(arena);
    struct xseg_block *claimed = xseg_trim_claim(arena, &everything, &bytes);
    xseg_arena_unlock(arena);
    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        (void)xseg_trim_give(block, false, XSEG_HISTORY_TRIM);
    }
}

static void end_holes(void *self, struct xseg_arena *arena)
{
    (void)self;
    (void)xseg_trim_end_holes(arena);
}

static void forget(struct xseg_pool *pool)
{
    XSEG_ASSERT(pool->state == XSEG_POOL_PAUSED);
    xseg_pool_visit_arenas(pool, forget_arena, NULL);
    xseg_forget_contents(pool->contents);
    pool->contents = NULL;
    pool->state = XSEG_POOL_RUNS;
    if (xseg_pool_is_retired(pool))
        xseg_pool_visit_arenas(pool, end_holes, NULL);
}

static void forget_some(struct xseg_device *device, bool all)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        uint64_t active = 0;

        if (pool->state != XSEG_POOL_PAUSED || (!all && !xseg_pool_is_retired(pool)))
            continue;
        xseg_pool_visit_arenas(pool, add_active, &active);
        if (all || active == 0)
            forget(pool);
    }
}

void xseg_forget_paused(struct xseg_device *device)
{
    forget_some(device, false);
}

void xseg_forget_all(struct xseg_device *device)
{
    forget_some(device, true);
}

void xseg_forget_lost(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH) && xseg_context_is_lost(&device->context));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        xseg_forget_contents(pool->contents);
        pool->contents = NULL;
    }
}
