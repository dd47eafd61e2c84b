/* SPDX-License-Identifier: MIT */
#include "src/core/device/pools.h"

#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/device/counters.h"
#include "src/core/device/device.h"
#include "src/core/history/context.h"

static struct xseg_pool *pool_of(struct xseg_list *node)
{
    return XSEG_CONTAINER(node, struct xseg_pool, link);
}

void xseg_pools_init(struct xseg_device *device)
{
    xseg_list_init(&device->pools.list);
}

void xseg_pools_fini(struct xseg_device *device)
{
    struct xseg_pools *pools = &device->pools;
    struct xseg_arena *arena;

    XSEG_ASSERT(atomic_load(&pools->destroyed) == NULL);
    XSEG_LIST_FOR_SAFE(node, &pools->list)
    {
        XSEG_ASSERT(pool_of(node)->visitors == 1);
        xseg_pool_fini(pool_of(node));
        free(pool_of(node));
    }
    for (unsigned i = 0; i < 2; i++)
        while ((arena = pools->free_arena[i]) != NULL) {
            pools->free_arena[i] = atomic_load(&arena->next);
            xseg_arena_destroy(arena);
        }
}

/* --- Creation. --- */

/* Record the ID that the user has given to a pool.  False on host allocation failure. */
static bool keep_id(const struct xseg_pool *pool)
{
    const uint64_t *id = pool->options.id;

    return (id[0] | id[1]) == 0 ||
           xseg_history_store_add_pool_id(pool->device->history.store, pool->number, id);
}

xseg_status xseg_pools_create(struct xseg_device *device, const struct xseg_pool_options *options,
                              bool is_guarded, struct xseg_pool **out)
{
    struct xseg_pool *pool = calloc(1, sizeof(*pool));

    XSEG_ASSERT(options != NULL);
    if (pool != NULL) {
        xseg_pool_init(pool, device, options);
        pool->is_guarded = is_guarded;
        xseg_pool_set_label(pool, options->name);
    }
    if (pool == NULL || !keep_id(pool)) {
        free(pool);
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, pool");
    }
    atomic_fetch_add(&device->pools.host_bytes, sizeof(*pool));
    xseg_mutex_lock(&device->table_lock);
    xseg_list_insert(device->pools.list.next, &pool->link);
    xseg_mutex_unlock(&device->table_lock);
    *out = pool;
    return XSEG_OK;
}

/* --- Free arenas. --- */

struct xseg_arena *xseg_pools_acquire_arena(struct xseg_device *device, bool is_small)
{
    struct xseg_arena **first = &device->pools.free_arena[!is_small];

    xseg_mutex_lock(&device->table_lock);
    struct xseg_arena *arena = *first;
    if (arena != NULL)
        *first = atomic_load(&arena->next);
    XSEG_ASSERT(arena == NULL || arena->is_small == is_small);
    xseg_mutex_unlock(&device->table_lock);
    return arena;
}

/* Put an arena into the free list.  TABLE is held. */
static void add_free(struct xseg_arena *arena)
{
    struct xseg_arena **first = &arena->device->pools.free_arena[!arena->is_small];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents) && arena->fence == NULL);
    atomic_store(&arena->pool, NULL);
    atomic_store(&arena->next, *first);
    *first = arena;
}

void xseg_pools_release_arena(struct xseg_arena *arena)
{
    xseg_mutex_lock(&arena->device->table_lock);
    add_free(arena);
    xseg_mutex_unlock(&arena->device->table_lock);
}

uint64_t xseg_pools_host_bytes(struct xseg_device *device)
{
    struct xseg_pools *pools = &device->pools;
    uint64_t bytes = atomic_load(&pools->host_bytes);

    /* No thread works in a free arena, so its sizes can be read without its lock. */
    xseg_mutex_lock(&device->table_lock);
    for (unsigned i = 0; i < 2; i++)
        for (const struct xseg_arena *arena = pools->free_arena[i]; arena != NULL;
             arena = atomic_load(&arena->next))
            bytes += xseg_arena_host_bytes(arena);
    xseg_mutex_unlock(&device->table_lock);
    return bytes;
}

/* --- Visits. --- */

/* Remove a visitor; returns the pool if it is to be freed.  TABLE is held. */
static struct xseg_pool *remove_visitor(struct xseg_pool *pool)
{
    struct xseg_arena *arena = atomic_load(&pool->arenas), *next;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE) && pool->visitors > 0);
    if (--pool->visitors != 0)
        return NULL;
    XSEG_ASSERT(atomic_load(&pool->references) == 0);
    xseg_list_remove(&pool->link);
    for (; arena != NULL; arena = next) {
        next = atomic_load(&arena->next);
        add_free(arena);
    }
    atomic_fetch_sub(&pool->device->pools.host_bytes, sizeof(*pool));
    return pool;
}

void xseg_pool_end_visit(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;

    xseg_mutex_lock(&device->table_lock);
    struct xseg_pool *unused = remove_visitor(pool);
    xseg_mutex_unlock(&device->table_lock);
    free(unused);
}

struct xseg_pool *xseg_pools_next(struct xseg_device *device, struct xseg_pool *pool)
{
    struct xseg_list *list = &device->pools.list;
    struct xseg_pool *next = NULL, *unused = NULL;

    xseg_mutex_lock(&device->table_lock);
    struct xseg_list *node = pool == NULL ? list->next : pool->link.next;
    while (node != list && atomic_load(&pool_of(node)->references) == 0)
        node = node->next;
    if (node != list) {
        next = pool_of(node);
        next->visitors++;
    }
    if (pool != NULL)
        unused = remove_visitor(pool);
    xseg_mutex_unlock(&device->table_lock);
    free(unused);
    return next;
}

/* --- Destruction. --- */

/* Make an arena ready for another pool. */
static void reset(void *self, struct xseg_arena *arena)
{
    (void)self;
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents) && arena->fence == NULL);
    arena->fenced = arena->passed = 0;
    xseg_arena_lock(arena);
    arena->is_paused = false;
    xseg_arena_unlock(arena);
}

/* Without segments, no other thread works in the arenas of the pool. */
void xseg_pools_destroy(struct xseg_pool *pool)
{
    _Atomic(struct xseg_pool *) *newest = &pool->device->pools.destroyed;

    XSEG_ASSERT(atomic_load(&pool->references) == 0 && xseg_pool_is_retired(pool));
    XSEG_ASSERT(atomic_load(&pool->reserved) == 0);
    xseg_pool_visit_arenas(pool, reset, NULL);
    if (pool->options.on_destroy == NULL) {
        xseg_pool_end_visit(pool);
        return;
    }
    pool->notified = atomic_load(newest);
    while (!atomic_compare_exchange_weak(newest, &pool->notified, pool))
        ;
}

void xseg_pool_add_reference(struct xseg_pool *pool)
{
    const unsigned before = atomic_fetch_add(&pool->references, 1);

    XSEG_ASSERT(before != 0);
    (void)before;
}

bool xseg_pool_drop_reference(struct xseg_pool *pool)
{
    const unsigned before = atomic_fetch_sub(&pool->references, 1);

    XSEG_ASSERT(before != 0 && !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    return before == 1;
}

bool xseg_pool_release_last(struct xseg_pool *pool, bool *is_last)
{
    unsigned holders = atomic_load(&pool->holders);

    do {
        if (holders == 0)
            return false;
    } while (!atomic_compare_exchange_weak(&pool->holders, &holders, holders - 1));
    *is_last = holders == 1;
    return true;
}

/* --- Callbacks. --- */

static void notify(struct xseg_pool *pool)
{
    struct xseg_statistics last;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_counters_read_pool(pool, &last);
    pool->options.on_destroy(pool->options.on_destroy_context, &last);
}

/* Call the callbacks of destroyed pools, in the order in which they were destroyed, and free the pools. */
static void notify_destroyed(struct xseg_device *device)
{
    struct xseg_pool *newest = atomic_exchange(&device->pools.destroyed, NULL);
    struct xseg_pool *first = NULL, *next;

    for (; newest != NULL; newest = next) {
        next = newest->notified;
        newest->notified = first;
        first = newest;
    }
    for (; first != NULL; first = next) {
        next = first->notified;
        notify(first);
        xseg_pool_end_visit(first);
    }
}

void xseg_pools_notify(struct xseg_device *device)
{
    struct xseg_fail_saved kept;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (__builtin_expect(
            atomic_load_explicit(&device->pools.destroyed, memory_order_relaxed) == NULL, 1))
        return;
    /* The calling function may have failed or be repeated, and a callback may use this or another allocator. */
    const struct xseg_history_gathered gathered = xseg_history_context_save();
    xseg_fail_save(&kept);
    notify_destroyed(device);
    xseg_history_context_restore(&gathered);
    xseg_fail_restore(&kept);
}

void xseg_pools_notify_all(struct xseg_device *device)
{
    xseg_pools_notify(device);
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        if (pool->options.on_destroy != NULL)
            notify(pool);
}
