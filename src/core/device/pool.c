/* SPDX-License-Identifier: MIT */
#include "src/core/device/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/device/device.h"

void xseg_pool_set_label(struct xseg_pool *pool, const char *name)
{
    /* options.name is the caller's string; the label is a copy. */
    pool->options.name = NULL;
    /* Users count the pools that they have created. */
    if (!pool->is_guarded)
        pool->number = atomic_fetch_add(&pool->device->allocator->pools_made, 1) + 1;
    if (name != NULL && name[0] != '\0')
        (void)snprintf(pool->label, sizeof(pool->label), "\"%s\"", name);
    else
        (void)snprintf(pool->label, sizeof(pool->label), "%" PRIu32, pool->number);
}

void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options)
{
    const struct xseg_pool_options plain = {sizeof(plain)};

    XSEG_ASSERT(device != NULL);
    pool->device = device;
    pool->options = options != NULL ? *options : plain;
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

static struct xseg_arena *next_arena(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->next, memory_order_acquire);
}

struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    while (arena != NULL && (xseg_arena_stream(arena) != stream || arena->is_small != is_small))
        arena = next_arena(arena);
    return arena;
}

/* Find the arena of a stream in the fastest way; NULL if there is none. */
static struct xseg_arena *find(struct xseg_pool *pool, const struct xseg_known_stream *stream,
                               bool is_small)
{
    return pool->is_private ? xseg_pool_find_arena(pool, stream, is_small)
                            : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);
}

/* --- Creating arenas. --- */

/* Make an arena that a destroyed pool had an arena of this pool. */
static void reuse(struct xseg_arena *arena, struct xseg_pool *pool,
                  struct xseg_known_stream *stream)
{
    XSEG_ASSERT(arena->counts.totals != NULL && xseg_list_is_empty(&arena->extents));
    XSEG_ASSERT(arena->pool == NULL);
    xseg_arena_lock(arena);
    arena->pool = pool;
    arena->pool_number = pool->number;
    atomic_store_explicit(&arena->stream, stream, memory_order_release);
    memset(&arena->fallback, 0, sizeof(arena->fallback));
    for (unsigned i = 0; i < XSEG_COUNTS; i++) {
        const uint64_t up = xseg_counts_increases(&arena->counts, (enum xseg_count)i);

        atomic_store_explicit(&arena->up_before[i], up, memory_order_relaxed);
        atomic_store_explicit(&arena->down_before[i], up, memory_order_relaxed);
    }

    xseg_arena_unlock(arena);
}

/* Get an arena that is in no list yet, a free one or a new one; NULL on host allocation failure. */
static struct xseg_arena *get(struct xseg_pool *pool, struct xseg_known_stream *stream,
                              bool is_small)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *arena = NULL;

    if (pool->is_private && !pool->is_guarded)
        arena = xseg_pools_acquire_arena(device, is_small);
    if (arena == NULL)
        return xseg_arena_create(&(struct xseg_arena_plan){
            .device = device,
            .pool = pool,
            .stream = stream,
            .page_map = device->page_map,
            .history = &device->history,
            .pool_number = pool->number,
            .searches = &device->searches,
            .is_small = is_small,
            .is_private = pool->is_private,
            .is_guarded = pool->is_guarded,
            .has_cells = is_small && !pool->is_guarded,
        });
    XSEG_ASSERT(arena->is_small == is_small);
    reuse(arena, pool, stream);
    return arena;
}

/* Dispose of an arena that get() returned and that is in no list. */
static void unget(struct xseg_arena *arena)
{
    if (arena->counts.totals == NULL)
        xseg_arena_destroy(arena);
    else
        xseg_pools_release_arena(arena);
}

/* Add an arena to its pool.  Returns the arena that another thread added first, if any did.  TABLE is held. */
static struct xseg_arena *add(struct xseg_pool *pool, struct xseg_arena *arena)
{
    struct xseg_known_stream *stream = xseg_arena_stream(arena);
    struct xseg_arena *other = find(pool, stream, arena->is_small);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_TABLE));
    if (other != NULL)
        return other;
    if (arena->counts.totals == NULL) {
        xseg_counts_init(&arena->counts, &pool->device->totals, arena->is_small);
        xseg_counts_suspend(&arena->counts, &arena->lock, &arena->notes);
    }
    atomic_store(&arena->next, atomic_load(&pool->arenas));
    atomic_store_explicit(&pool->arenas, arena, memory_order_release);
    if (!pool->is_private)
        atomic_store_explicit(&stream->arena[!arena->is_small], arena, memory_order_release);
    atomic_store_explicit(&stream->has_arenas, true, memory_order_relaxed);
    return arena;
}

static xseg_status make(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                        struct xseg_arena **out)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *made = get(pool, stream, is_small);

    if (made == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, arena of a pool");
    xseg_mutex_lock(&device->table_lock);
    struct xseg_arena *arena = add(pool, made);
    xseg_mutex_unlock(&device->table_lock);
    if (arena != made)
        unget(made);
    XSEG_ASSERT(arena->is_small == is_small && xseg_arena_stream(arena) == stream);
    *out = arena;
    return XSEG_OK;
}

xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out)
{
    struct xseg_arena *arena = find(pool, stream, is_small);

    if (__builtin_expect(arena == NULL, 0))
        return make(pool, stream, is_small, out);
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

void xseg_pool_visit_arenas(struct xseg_pool *pool,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    for (; arena != NULL; arena = next_arena(arena))
        visit(self, arena);
}

static void raise_peak(atomic_uint_fast64_t *peak, uint64_t value)
{
    if (value > atomic_load_explicit(peak, memory_order_relaxed))
        atomic_store_explicit(peak, value, memory_order_relaxed);
}

void xseg_pool_record_growth(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool *pool = arena->pool;
    const unsigned part = !arena->is_small;
    const uint64_t own =
        atomic_fetch_add_explicit(&pool->reserved_part[part], bytes, memory_order_relaxed) + bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t reserved =
        atomic_fetch_add_explicit(&pool->reserved, bytes, memory_order_relaxed) + bytes;
    atomic_fetch_add_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    XSEG_ASSERT(bytes != 0 && reserved >= own && own >= bytes);
    raise_peak(&pool->reserved_peak[XSEG_STAT_ALL], reserved);
    raise_peak(&pool->reserved_peak[XSEG_STAT_SMALL + part], own);
    atomic_fetch_add_explicit(&pool->device->grown, 1, memory_order_relaxed);
}

void xseg_pool_record_shrink(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool *pool = arena->pool;
    const unsigned part = !arena->is_small;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(atomic_load(&pool->reserved_part[part]) >= bytes);
    XSEG_ASSERT(atomic_load(&pool->device->reserved) >= bytes);
    atomic_fetch_sub_explicit(&pool->reserved, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->reserved_part[part], bytes, memory_order_relaxed);
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
