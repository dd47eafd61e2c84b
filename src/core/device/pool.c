/* SPDX-License-Identifier: MIT */
#include "src/core/device/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/device/device.h"
#include "src/core/history/history.h"

/* Set the label of a pool: its name in quotes, or the next ID. */
static void set_label(struct xseg_pool *pool, const char *name)
{
    /* options.name is the caller's string; the label is a copy. */
    pool->options.name = NULL;
    /* The guarded pool, which the application did not create, has no ID. */
    if (!pool->is_guarded)
        pool->id = atomic_fetch_add(&pool->device->allocator->pools_created, 1) + 1;
    if (name != NULL && name[0] != '\0')
        (void)snprintf(pool->label, sizeof(pool->label), "\"%s\"", name);
    else
        (void)snprintf(pool->label, sizeof(pool->label), "%" PRIu32, pool->id);
}

void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options)
{
    const struct xseg_pool_options defaults = {sizeof(defaults)};

    XSEG_ASSERT(device != NULL);
    pool->device = device;
    pool->options = options != NULL ? *options : defaults;
    pool->serial = atomic_fetch_add(&device->pools.serials, 1);
    pool->state = XSEG_POOL_RUNNING;
    pool->is_private = options != NULL;
    pool->has_own_memory = pool->options.memory.alloc != NULL;
    pool->visitors = 1;
    xseg_list_init(&pool->link);
    atomic_init(&pool->limit,
                pool->options.limit_bytes == 0 ? UINT64_MAX : pool->options.limit_bytes);
    atomic_init(&pool->no_split, pool->options.no_split);
    atomic_init(&pool->allows_fallback, pool->options.use_on_oom);
    atomic_init(&pool->is_single, pool->options.single_page);
    atomic_init(&pool->holders, 1);
    atomic_init(&pool->references, 1);
}

void xseg_pool_fini(struct xseg_pool *pool)
{
    struct xseg_arena *arena = atomic_load(&pool->arenas), *next;

    for (; arena != NULL; arena = next) {
        next = atomic_load(&arena->next);
        XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
        xseg_arena_destroy(arena);
    }
    atomic_store(&pool->arenas, NULL);
}

xseg_status xseg_pool_set_single(struct xseg_pool *pool, bool is_single)
{
    struct xseg_device *device = pool->device;

    /* Arenas are added under the same lock. */
    xseg_mutex_lock(&device->table_lock);
    const bool is_new = atomic_load(&pool->arenas) == NULL;
    if (is_new)
        atomic_store_explicit(&pool->is_single, is_single, memory_order_relaxed);
    xseg_mutex_unlock(&device->table_lock);
    return is_new ? XSEG_OK
                  : xseg_fail(
                        XSEG_ERR_BUSY,
                        "single_page cannot change, pool %s has served a request; set single_page "
                        "before the first request",
                        xseg_pool_label(pool));
}

unsigned xseg_pool_properties(const struct xseg_pool *pool)
{
    const bool has_rdma = pool->options.rdma && pool->device->context.has_rdma;

    return (pool->options.exportable ? XSEG_PAGE_EXPORTABLE : 0U) |
           (has_rdma ? XSEG_PAGE_RDMA : 0U);
}

struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small)
{
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        if (xseg_arena_stream(arena) == stream && arena->is_small == is_small)
            return arena;
    }
    return NULL;
}

/*
 * The arena of a stream, or NULL.  Arenas of the default pool are found through the stream entry.
 */
static struct xseg_arena *find_pool_arena(struct xseg_pool *pool,
                                          const struct xseg_known_stream *stream, bool is_small)
{
    return pool->is_private ? xseg_pool_find_arena(pool, stream, is_small)
                            : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
}

/* --- Free arenas. --- */

static struct xseg_arena *acquire_free_arena(struct xseg_device *device, bool is_small)
{
    struct xseg_arena **head = &device->pools.free_arena[!is_small];

    xseg_mutex_lock(&device->table_lock);
    struct xseg_arena *arena = *head;
    if (arena != NULL)
        *head = atomic_load(&arena->next);
    XSEG_ASSERT(arena == NULL || arena->is_small == is_small);
    xseg_mutex_unlock(&device->table_lock);
    return arena;
}

/* Add an arena to the free list.  The caller holds TABLE. */
static void add_free_arena(struct xseg_arena *arena)
{
    struct xseg_arena **head = &arena->device->pools.free_arena[!arena->is_small];

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents) && arena->fence == NULL);
    atomic_store(&arena->pool, NULL);
    atomic_store(&arena->next, *head);
    *head = arena;
}

static void release_free_arena(struct xseg_arena *arena)
{
    xseg_mutex_lock(&arena->device->table_lock);
    add_free_arena(arena);
    xseg_mutex_unlock(&arena->device->table_lock);
}

/* --- Creation of arenas. --- */

/* Reuse a free arena, which belonged to a destroyed pool. */
static void reuse_arena(struct xseg_arena *arena, struct xseg_pool *pool,
                        struct xseg_known_stream *stream)
{
    XSEG_ASSERT(arena->counts.totals != NULL && xseg_list_is_empty(&arena->extents));
    XSEG_ASSERT(arena->pool == NULL);
    xseg_biased_lock_lock(&arena->lock);
    arena->pool = pool;
    arena->pool_id = pool->id;
    atomic_store_explicit(&arena->stream, stream, memory_order_release);
    memset(&arena->fallback, 0, sizeof(arena->fallback));
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const uint64_t up = xseg_counts_read(&arena->counts, (enum xseg_count)i).up;

        atomic_store_explicit(&arena->up_before[i], up, memory_order_relaxed);
        atomic_store_explicit(&arena->down_before[i], up, memory_order_relaxed);
    }

    xseg_biased_lock_unlock(&arena->lock);
}

/* Get a free or a new arena, which is in no list.  Returns NULL on host allocation failure. */
static struct xseg_arena *acquire_arena(struct xseg_pool *pool, struct xseg_known_stream *stream,
                                        bool is_small)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *arena = NULL;

    if (pool->is_private && !pool->is_guarded)
        arena = acquire_free_arena(device, is_small);
    if (arena == NULL)
        return xseg_arena_create(&(struct xseg_arena_params){
            .device = device,
            .pool = pool,
            .stream = stream,
            .page_map = device->page_map,
            .history = &device->history,
            .pool_id = pool->id,
            .searches = &device->searches,
            .is_small = is_small,
            .is_private = pool->is_private,
            .is_guarded = pool->is_guarded,
        });
    XSEG_ASSERT(arena->is_small == is_small);
    reuse_arena(arena, pool, stream);
    return arena;
}

/* Dispose of an arena that acquire_arena() returned and that is in no list. */
static void dispose_arena(struct xseg_arena *arena)
{
    if (arena->counts.totals == NULL)
        xseg_arena_destroy(arena);
    else
        release_free_arena(arena);
}

/* Add an arena to its pool, or return the arena that another thread added first.  The caller holds
 * TABLE. */
static struct xseg_arena *add_arena(struct xseg_pool *pool, struct xseg_arena *arena)
{
    struct xseg_known_stream *stream = xseg_arena_stream(arena);
    struct xseg_arena *existing = find_pool_arena(pool, stream, arena->is_small);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (existing != NULL)
        return existing;
    if (arena->counts.totals == NULL) {
        xseg_counts_init(&arena->counts, &pool->device->totals, arena->is_small);
        xseg_counts_allow_suspend(&arena->counts, &arena->lock, &arena->free_actions);
    }
    atomic_store(&arena->next, atomic_load(&pool->arenas));
    atomic_store_explicit(&pool->arenas, arena, memory_order_release);
    if (!pool->is_private)
        atomic_store_explicit(&stream->arena[!arena->is_small], arena, memory_order_release);
    atomic_store_explicit(&stream->has_arenas, true, memory_order_relaxed);
    return arena;
}

static xseg_status create_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream,
                                     bool is_small, struct xseg_arena **out)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *acquired = acquire_arena(pool, stream, is_small);

    if (acquired == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, arena of a pool");
    xseg_mutex_lock(&device->table_lock);
    struct xseg_arena *arena = add_arena(pool, acquired);
    xseg_mutex_unlock(&device->table_lock);
    if (arena != acquired)
        dispose_arena(acquired);
    XSEG_ASSERT(arena->is_small == is_small && xseg_arena_stream(arena) == stream);
    *out = arena;
    return XSEG_OK;
}

xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out)
{
    struct xseg_arena *arena = find_pool_arena(pool, stream, is_small);

    if (__builtin_expect(arena == NULL, 0))
        return create_pool_arena(pool, stream, is_small, out);
    *out = arena;
    return XSEG_OK;
}

xseg_status xseg_pool_check_running(const struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (pool->state == XSEG_POOL_RUNNING)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_PAUSED,
                     pool->state == XSEG_POOL_PAUSED
                         ? "pool is paused, %s; resume the pool by xseg_pool_resume()"
                         : "pool is being paused or resumed by another thread, %s; wait for "
                           "that call to return",
                     xseg_pool_label(pool));
}

xseg_status xseg_pool_fail_released(const struct xseg_pool *pool)
{
    return xseg_fail(XSEG_ERR_ARGUMENT, "pool has been released, %s; create another one",
                     xseg_pool_label(pool));
}

static void raise_peak(atomic_uint_fast64_t *peak, uint64_t value)
{
    if (value > atomic_load_explicit(peak, memory_order_relaxed))
        atomic_store_explicit(peak, value, memory_order_relaxed);
}

void xseg_pool_record_growth(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool *pool = arena->pool;
    const unsigned size_index = !arena->is_small;
    const uint64_t reserved_of_size = atomic_fetch_add_explicit(&pool->reserved_by_size[size_index],
                                                                bytes, memory_order_relaxed) +
                                      bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t reserved =
        atomic_fetch_add_explicit(&pool->reserved, bytes, memory_order_relaxed) + bytes;
    atomic_fetch_add_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    XSEG_ASSERT(bytes != 0 && reserved >= reserved_of_size && reserved_of_size >= bytes);
    raise_peak(&pool->reserved_peak[XSEG_STAT_ALL], reserved);
    raise_peak(&pool->reserved_peak[XSEG_STAT_SMALL + size_index], reserved_of_size);
    atomic_fetch_add_explicit(&pool->device->grown, 1, memory_order_relaxed);
}

void xseg_pool_record_shrink(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool *pool = arena->pool;
    const unsigned size_index = !arena->is_small;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(atomic_load(&pool->reserved_by_size[size_index]) >= bytes);
    XSEG_ASSERT(atomic_load(&pool->device->reserved) >= bytes);
    atomic_fetch_sub_explicit(&pool->reserved, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->reserved_by_size[size_index], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->device->shrunk, 1, memory_order_relaxed);
}

bool xseg_pool_try_retain(struct xseg_pool *pool)
{
    unsigned holders = atomic_load(&pool->holders);

    while (holders != 0)
        if (atomic_compare_exchange_weak(&pool->holders, &holders, holders + 1))
            return true;
    return false;
}

/* --- Creation of private pools. --- */

static struct xseg_pool *pool_of_link(struct xseg_list *node)
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
        XSEG_ASSERT(pool_of_link(node)->visitors == 1);
        xseg_pool_fini(pool_of_link(node));
        free(pool_of_link(node));
    }
    for (unsigned i = 0; i < 2; i++)
        while ((arena = pools->free_arena[i]) != NULL) {
            pools->free_arena[i] = atomic_load(&arena->next);
            xseg_arena_destroy(arena);
        }
}

/*
 * Record the ID that the application assigned to a pool.  Returns false on host allocation failure.
 */
static bool record_pool_id(const struct xseg_pool *pool)
{
    const uint64_t *id = pool->options.id;

    return (id[0] | id[1]) == 0 ||
           xseg_history_store_add_pool_id(pool->device->history.store, pool->id, id);
}

xseg_status xseg_pools_create(struct xseg_device *device, const struct xseg_pool_options *options,
                              bool is_guarded, struct xseg_pool **out)
{
    struct xseg_pool *pool = calloc(1, sizeof(*pool));

    XSEG_ASSERT(options != NULL);
    if (pool != NULL) {
        xseg_pool_init(pool, device, options);
        pool->is_guarded = is_guarded;
        set_label(pool, options->name);
    }
    if (pool == NULL || !record_pool_id(pool)) {
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

uint64_t xseg_pools_host_bytes(struct xseg_device *device)
{
    struct xseg_pools *pools = &device->pools;
    uint64_t bytes = atomic_load(&pools->host_bytes);

    /* No thread uses a free arena, so its sizes can be read without its lock. */
    xseg_mutex_lock(&device->table_lock);
    for (unsigned i = 0; i < 2; i++)
        for (const struct xseg_arena *arena = pools->free_arena[i]; arena != NULL;
             arena = atomic_load(&arena->next))
            bytes += xseg_arena_host_bytes(arena);
    xseg_mutex_unlock(&device->table_lock);
    return bytes;
}

/* --- Visits. --- */

/* Remove a visitor.  Returns the pool if the caller must free it.  The caller holds TABLE. */
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
        add_free_arena(arena);
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
    while (node != list && atomic_load(&pool_of_link(node)->references) == 0)
        node = node->next;
    if (node != list) {
        next = pool_of_link(node);
        next->visitors++;
    }
    if (pool != NULL)
        unused = remove_visitor(pool);
    xseg_mutex_unlock(&device->table_lock);
    free(unused);
    return next;
}

/* --- Destruction. --- */

/* Prepare an arena for reuse by another pool. */
static void reset_arena(struct xseg_arena *arena)
{
    XSEG_ASSERT(xseg_list_is_empty(&arena->extents) && arena->fence == NULL);
    arena->fence_time = arena->idle_before = 0;
    xseg_biased_lock_lock(&arena->lock);
    arena->is_paused = false;
    xseg_biased_lock_unlock(&arena->lock);
}

/* No other thread uses the arenas of a pool without segments. */
void xseg_pools_destroy(struct xseg_pool *pool)
{
    _Atomic(struct xseg_pool *) *newest = &pool->device->pools.destroyed;

    XSEG_ASSERT(atomic_load(&pool->references) == 0 && xseg_pool_is_retired(pool));
    XSEG_ASSERT(atomic_load(&pool->reserved) == 0);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        reset_arena(arena);
    }
    if (pool->options.on_destroy == NULL) {
        xseg_pool_end_visit(pool);
        return;
    }
    pool->next_destroyed = atomic_load(newest);
    while (!atomic_compare_exchange_weak(newest, &pool->next_destroyed, pool))
        ;
}

void xseg_pool_add_reference(struct xseg_pool *pool)
{
    const unsigned references_before = atomic_fetch_add(&pool->references, 1);

    XSEG_ASSERT(references_before != 0);
    (void)references_before;
}

bool xseg_pool_drop_reference(struct xseg_pool *pool)
{
    const unsigned references_before = atomic_fetch_sub(&pool->references, 1);

    XSEG_ASSERT(references_before != 0 && !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    return references_before == 1;
}

bool xseg_pool_remove_holder(struct xseg_pool *pool, bool *is_last)
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

static void notify_pool_destroyed(struct xseg_pool *pool)
{
    struct xseg_statistics final_stats;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_counters_read_pool(pool, &final_stats);
    pool->options.on_destroy(pool->options.on_destroy_context, &final_stats);
}

/* Call the callbacks of destroyed pools, in the order in which they were destroyed, and free the
 * pools. */
static void notify_destroyed_pools(struct xseg_device *device)
{
    struct xseg_pool *newest = atomic_exchange(&device->pools.destroyed, NULL);
    struct xseg_pool *first = NULL, *next;

    for (; newest != NULL; newest = next) {
        next = newest->next_destroyed;
        newest->next_destroyed = first;
        first = newest;
    }
    for (; first != NULL; first = next) {
        next = first->next_destroyed;
        notify_pool_destroyed(first);
        xseg_pool_end_visit(first);
    }
}

void xseg_pools_notify(struct xseg_device *device)
{
    struct xseg_fail_saved saved_error;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (__builtin_expect(
            atomic_load_explicit(&device->pools.destroyed, memory_order_relaxed) == NULL, 1))
        return;
    /* Preserve the error and the history context of the caller: a callback may use this or another
     * allocator. */
    const struct xseg_history_gathered saved_context = xseg_history_context_save();
    xseg_fail_save(&saved_error);
    notify_destroyed_pools(device);
    xseg_history_context_restore(&saved_context);
    xseg_fail_restore(&saved_error);
}

void xseg_pools_notify_all(struct xseg_device *device)
{
    xseg_pools_notify(device);
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;)
        if (pool->options.on_destroy != NULL)
            notify_pool_destroyed(pool);
}
