/* SPDX-License-Identifier: MIT */
#include "src/core/inspect/pool_figures.h"

#include "src/base/check.h"
#include "src/core/device/allocator.h"
#include "src/core/registration/registrations.h"

/* The pools of a device, while they are sorted by row. */
struct pools {
    struct xseg_device *device;
    uint64_t registered; /* bytes that rows do not have yet */
    size_t own;
    struct xseg_pool *guarded; /* or NULL */
    /* Private pools: how many have been met, and the last of these, by turns. */
    size_t count;
    struct xseg_pool *last[XSEG_POOL_FIGURES_OWN];
    struct xseg_pool_figures others, ended;
};

/* --- One row. --- */

static void add_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_pool_figures *row = self;
    const struct xseg_counts *counts = &arena->counts;

    row->live += xseg_counts_current(counts, XSEG_COUNT_ALLOCATED_BYTES);
    row->pending += xseg_counts_read_row(counts, XSEG_COUNT_ACTIVE_BYTES).current;
    row->cached += xseg_arena_cached_bytes(arena);
    row->reserved += xseg_counts_current(counts, XSEG_COUNT_RESERVED_BYTES);
}

/* What is registered of a pool, of what is left of the device's. */
static uint64_t take_registered(struct pools *pools, const struct xseg_pool *pool)
{
    const struct xseg_device *device = pools->device;

    if (pools->registered == 0)
        return 0;
    /* More may have been registered between two looks. */
    const uint64_t bytes =
        xseg_min(pools->registered, xseg_registrations_pool_bytes(device->allocator->registrations,
                                                                  device->context.ordinal, pool));
    pools->registered -= bytes;
    return bytes;
}

static struct xseg_pool_figures read_pool(struct xseg_pool *pool, enum xseg_pool_figures_of of,
                                          const char *label)
{
    struct xseg_pool_figures row = {
        .of = of,
        .count = 1,
        .number = pool->number,
        .label = label,
        .limit = atomic_load_explicit(&pool->limit, memory_order_relaxed),
        .pool = pool,
    };

    xseg_pool_visit_arenas(pool, add_arena, &row);
    return row;
}

/* --- All rows. --- */

/* Private pools come with the newest first: the last ones to be met have rows, and one that they displace has none. */
static void note_private(struct pools *pools, struct xseg_pool *pool)
{
    struct xseg_pool *younger = pool;

    xseg_pool_begin_visit(pool);
    if (pools->own > 0) {
        struct xseg_pool **place = &pools->last[pools->count % pools->own];

        younger = *place;
        *place = pool;
    }
    pools->count++;
    if (younger == NULL)
        return;
    xseg_pool_visit_arenas(younger, add_arena, &pools->others);
    pools->others.registered += take_registered(pools, younger);
    pools->others.count++;
    xseg_pool_end_visit(younger);
}

static void note_pool(struct pools *pools, struct xseg_pool *pool)
{
    const struct xseg_pool_figures row = read_pool(pool, XSEG_POOL_FIGURES_ENDED, "ended");

    if (pool->is_guarded) {
        pools->guarded = pool;
    } else if (xseg_pool_is_retired(pool) && row.live == 0 && row.pending == 0) {
        pools->ended.cached += row.cached;
        pools->ended.reserved += row.reserved;
    } else {
        note_private(pools, pool);
    }
}

static void visit_pools(struct pools *pools, xseg_pool_figures_visitor *visit, void *self)
{
    struct xseg_pool_figures row;

    if (pools->guarded != NULL) {
        row = read_pool(pools->guarded, XSEG_POOL_FIGURES_GUARDED, "guarded");
        visit(self, &row);
    }
    for (size_t age = 1; age <= xseg_min(pools->count, pools->own); age++) {
        struct xseg_pool *pool = pools->last[(pools->count - age) % pools->own];

        row = read_pool(pool, XSEG_POOL_FIGURES_PRIVATE, pool->label);
        row.registered = take_registered(pools, pool);
        visit(self, &row);
        xseg_pool_end_visit(pool);
    }
    if (pools->others.count != 0)
        visit(self, &pools->others);
    pools->ended.registered = pools->registered;
    if (pools->ended.reserved != 0 || pools->ended.live != 0)
        visit(self, &pools->ended);
}

size_t xseg_pool_figures_visit(struct xseg_device *device, size_t own,
                               xseg_pool_figures_visitor *visit, void *self)
{
    struct pools pools = {
        .device = device,
        .registered =
            xseg_registrations_bytes(device->allocator->registrations, device->context.ordinal),
        .own = own,
        .others = {.of = XSEG_POOL_FIGURES_OTHERS, .label = "others", .limit = UINT64_MAX},
        .ended = {.of = XSEG_POOL_FIGURES_ENDED, .count = 1, .label = "ended", .limit = UINT64_MAX},
    };

    XSEG_ASSERT(own <= XSEG_POOL_FIGURES_OWN);
    struct xseg_pool_figures row = read_pool(&device->pool, XSEG_POOL_FIGURES_DEFAULT, "default");
    row.registered = take_registered(&pools, NULL);
    visit(self, &row);
    /* A pool that is created meanwhile comes before these in the list, and is left out. */
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        note_pool(&pools, pool);
    visit_pools(&pools, visit, self);
    return pools.count;
}
