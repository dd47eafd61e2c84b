/* SPDX-License-Identifier: MIT */
#include "src/core/pool.h"

#include <string.h>

#include "src/base/error.h"
#include "src/core/device.h"

void xseg_pool_init(struct xseg_pool *pool, struct xseg_device *device,
                    const struct xseg_pool_options *options)
{
    memset(pool, 0, sizeof(*pool));
    pool->device = device;
    pool->is_private = options != NULL;
    if (options != NULL)
        pool->options = *options;
    atomic_init(&pool->limit,
                pool->options.limit_bytes == 0 ? UINT64_MAX : pool->options.limit_bytes);
    atomic_init(&pool->holders, 1);
}

void xseg_pool_fini(struct xseg_pool *pool)
{
    struct xseg_arena *arena = atomic_load(&pool->arenas), *next;

    for (; arena != NULL; arena = next) {
        next = atomic_load(&arena->next);
        xseg_arena_destroy(arena);
    }
    atomic_store(&pool->arenas, NULL);
}

/* Where an arena has moved to another pool meanwhile, that one's list goes on, with arenas that the
 * first arena of this list does not publish. */
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

/* --- Arenas of retired pools, for others. --- */

/* Take an arena out of a retired pool if nothing is in it.  GROWTH and TABLE are held. */
static struct xseg_arena *take_spent(struct xseg_pool *pool, bool is_small)
{
    _Atomic(struct xseg_arena *) *place = &pool->arenas;

    for (struct xseg_arena *arena = atomic_load(place); arena != NULL; arena = atomic_load(place)) {
        if (arena->is_small == is_small && xseg_list_is_empty(&arena->extents)) {
            atomic_store(place, atomic_load(&arena->next));
            return arena;
        }
        place = &arena->next;
    }
    return NULL;
}

/* One that is paused may come back. */
static bool is_spent(const struct xseg_pool *pool)
{
    return !pool->is_alone && xseg_pool_is_retired(pool) && pool->state == XSEG_POOL_RUNS;
}

/* The same out of any retired pool of the device; those that have none any more are buried. */
static struct xseg_arena *find_spent(struct xseg_device *device, bool is_small)
{
    _Atomic(struct xseg_pool *) *place = &device->private_pools;
    struct xseg_arena *arena = NULL;
    struct xseg_pool *pool;

    while (arena == NULL && (pool = atomic_load(place)) != NULL) {
        if (is_spent(pool))
            arena = take_spent(pool, is_small);
        if (!is_spent(pool) || atomic_load(&pool->arenas) != NULL) {
            place = &pool->next;
            continue;
        }
        /* Whoever looks at it right now goes on to the next one from there. */
        atomic_store(place, atomic_load(&pool->next));
        pool->buried = device->buried;
        device->buried = pool;
    }
    return arena;
}

/* A spent arena becomes one of another pool. */
static void move_in(struct xseg_arena *arena, struct xseg_pool *pool,
                    struct xseg_known_stream *stream)
{
    xseg_arena_lock(arena);
    arena->pool = pool;
    arena->is_paused = false;
    atomic_store_explicit(&arena->stream, stream, memory_order_release);
    arena->fenced = arena->passed = 0;
    memset(&arena->lent, 0, sizeof(arena->lent));
    for (unsigned i = 0; i < XSEG_COUNTS; i++)
        arena->up_before[i] = xseg_counts_increases(&arena->counts, (enum xseg_count)i);
    xseg_arena_unlock(arena);
}

/* A spent arena for a private pool, or NULL.  No lock is held but, perhaps, GROWTH. */
static struct xseg_arena *reuse(struct xseg_pool *pool, struct xseg_known_stream *stream,
                                bool is_small)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *arena;

    if (!pool->is_private || pool->is_alone || !xseg_lock_try(&device->growth_lock))
        return NULL;
    xseg_lock_take(&device->table_lock);
    arena = find_spent(device, is_small);
    xseg_lock_give(&device->table_lock);
    if (arena != NULL && arena->fence != NULL) {
        xseg_pending_lock(&device->pending);
        xseg_fences_put(&device->pending.fences, arena->fence);
        xseg_pending_unlock(&device->pending);
        arena->fence = NULL;
    }
    if (arena != NULL)
        move_in(arena, pool, stream);
    xseg_lock_give(&device->growth_lock);
    return arena;
}

/* A new arena, or one that was used before.  TABLE is held. */
static struct xseg_arena *add(struct xseg_pool *pool, struct xseg_known_stream *stream,
                              bool is_small, struct xseg_arena *used)
{
    struct xseg_arena *arena = used;

    if (arena == NULL) {
        arena = xseg_arena_create(pool->device, pool, stream, is_small);
        if (arena == NULL)
            return NULL;
        xseg_counts_init(&arena->counts, &pool->device->totals, is_small);
    }
    atomic_store(&arena->next, atomic_load(&pool->arenas));
    atomic_store_explicit(&pool->arenas, arena, memory_order_release);
    return arena;
}

static xseg_status make(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                        struct xseg_arena **out)
{
    struct xseg_device *device = pool->device;
    struct xseg_arena *const used = reuse(pool, stream, is_small);
    struct xseg_arena *arena;

    xseg_lock_take(&device->table_lock);
    arena = xseg_pool_find_arena(pool, stream, is_small);
    /* Where another thread was faster, the pool has one too many, which takes nothing. */
    if (arena == NULL || used != NULL)
        arena = add(pool, stream, is_small, used);
    if (arena != NULL && !pool->is_private)
        atomic_store_explicit(&stream->arena[!is_small], arena, memory_order_release);
    xseg_lock_give(&device->table_lock);
    if (arena == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a stream's pool");
    *out = arena;
    return XSEG_OK;
}

xseg_status xseg_pool_arena(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                            struct xseg_arena **out)
{
    struct xseg_arena *arena =
        pool->is_private ? xseg_pool_find_arena(pool, stream, is_small)
                         : atomic_load_explicit(&stream->arena[!is_small], memory_order_acquire);

    if (__builtin_expect(arena == NULL, 0))
        return make(pool, stream, is_small, out);
    *out = arena;
    return XSEG_OK;
}

void xseg_pool_visit_arenas(struct xseg_pool *pool,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);

    for (; arena != NULL; arena = next_arena(arena))
        visit(self, arena);
}

void xseg_pool_hand_over(struct xseg_arena *arena, struct xseg_known_stream *stream)
{
    struct xseg_known_stream *before = xseg_arena_stream(arena);

    atomic_store_explicit(&arena->stream, stream, memory_order_release);
    if (arena->pool->is_private)
        return;
    atomic_store_explicit(&before->arena[!arena->is_small], NULL, memory_order_relaxed);
    atomic_store_explicit(&stream->arena[!arena->is_small], arena, memory_order_release);
}

void xseg_pool_note_growth(struct xseg_pool *pool, uint64_t bytes)
{
    const uint64_t reserved =
        atomic_fetch_add_explicit(&pool->reserved, bytes, memory_order_relaxed) + bytes;

    if (reserved > atomic_load_explicit(&pool->reserved_peak, memory_order_relaxed))
        atomic_store_explicit(&pool->reserved_peak, reserved, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->device->grown, 1, memory_order_relaxed);
}

void xseg_pool_note_shrink(struct xseg_pool *pool, uint64_t bytes)
{
    atomic_fetch_sub_explicit(&pool->reserved, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&pool->device->reserved, bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&pool->device->shrunk, 1, memory_order_relaxed);
}

bool xseg_pool_hold(struct xseg_pool *pool)
{
    unsigned holders = atomic_load(&pool->holders);

    while (holders != 0)
        if (atomic_compare_exchange_weak(&pool->holders, &holders, holders + 1))
            return true;
    return false;
}

bool xseg_pool_let_go(struct xseg_pool *pool)
{
    unsigned holders = atomic_load(&pool->holders);

    while (holders != 0)
        if (atomic_compare_exchange_weak(&pool->holders, &holders, holders - 1))
            return true;
    return false;
}
