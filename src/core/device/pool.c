/* SPDX-License-Identifier: MIT */
#include "src/core/device/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/device/allocator.h"
#include "src/core/device/retire.h"

void xseg_pool_set_label(struct xseg_pool_body *body, const char *name)
{
    /* options.name is the caller's string; the label is a copy. */
    body->options.name = NULL;
    /* Users count the pools that they have made. */
    if (!body->pool->is_guarded)
        body->number = atomic_fetch_add(&body->device->allocator->pools_made, 1) + 1;
    if (name != NULL && name[0] != '\0')
        (void)snprintf(body->label, sizeof(body->label), "\"%s\"", name);
    else
        (void)snprintf(body->label, sizeof(body->label), "%" PRIu32, body->number);
}

/* A body may have served another pool.  A thread that found it through that pool may still read
 * its atomic members and its device, so these are not cleared. */
void xseg_pool_init(struct xseg_pool *pool, struct xseg_pool_body *body,
                    const struct xseg_pool_options *options)
{
    const struct xseg_pool_options plain = XSEG_POOL_OPTIONS_INIT;

    XSEG_ASSERT(body->device != NULL);
    xseg_list_init(&body->retired);
    body->options = options != NULL ? *options : plain;
    body->is_full = false;
    body->number = 0;
    body->state = XSEG_POOL_RUNS;
    body->contents = NULL;
    atomic_store(&body->limit,
                 body->options.limit_bytes == 0 ? UINT64_MAX : body->options.limit_bytes);
    atomic_store(&body->is_captured, false);
    atomic_store(&body->arenas, NULL);
    atomic_store(&body->reserved, 0);
    for (unsigned i = 0; i < 2; i++)
        atomic_store(&body->reserved_part[i], 0);
    for (unsigned i = 0; i < XSEG_STAT_GROUPS; i++)
        atomic_store(&body->reserved_peak[i], 0);
    xseg_recent_peak_init(&body->recent);
    atomic_store(&body->pool, pool);
    pool->is_private = options != NULL;
    atomic_store(&pool->no_split, body->options.no_split);
    atomic_store(&pool->lends, body->options.use_on_oom);
    pool->has_own_memory = body->options.memory.alloc != NULL;
    atomic_init(&pool->is_single, body->options.single_page);
    atomic_store(&pool->holders, 1);
    atomic_store(&pool->body, body);
}

void xseg_pool_link(struct xseg_pool_body *body)
{
    struct xseg_device *device = body->device;
    struct xseg_pool_body *next = atomic_load(&device->private_pools);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(next != body);
    atomic_store(&body->next, next);
    body->place = &device->private_pools;
    if (next != NULL)
        next->place = &body->next;
    atomic_store(&device->private_pools, body);
}

void xseg_pool_unlink(struct xseg_pool_body *body)
{
    struct xseg_pool_body *next = atomic_load(&body->next);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(atomic_load(body->place) == body);
    /* `next` stays: a thread that visits this pool goes on from there. */
    atomic_store(body->place, next);
    if (next != NULL)
        next->place = body->place;
}

void xseg_pool_fini(struct xseg_pool_body *body)
{
    struct xseg_arena *arena = atomic_load(&body->arenas), *next;

    for (; arena != NULL; arena = next) {
        next = atomic_load(&arena->next);
        XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
        xseg_arena_destroy(arena);
    }
    atomic_store(&body->arenas, NULL);
}

xseg_status xseg_pool_set_single(struct xseg_pool *pool, bool is_single)
{
    struct xseg_device *device = pool->body->device;

    /* Arenas are added under the same lock. */
    xseg_lock_take(&device->table_lock);
    const bool is_over = xseg_retire_is_over(pool);
    const bool is_new = !is_over && atomic_load(&pool->body->arenas) == NULL;
    if (is_new)
        atomic_store_explicit(&pool->is_single, is_single, memory_order_relaxed);
    xseg_lock_give(&device->table_lock);
    if (is_over)
        return xseg_fail(XSEG_ERR_ARGUMENT, "nobody holds the pool any more");
    return is_new ? XSEG_OK
                  : xseg_fail(XSEG_ERR_BUSY,
                              "pool %s has had a request: set single_page before the first one",
                              xseg_pool_label(pool));
}

unsigned xseg_pool_properties(const struct xseg_pool *pool)
{
    const struct xseg_pool_body *body = pool->body;
    const bool has_rdma = body->options.rdma && body->device->context.has_rdma;

    return (body->options.exportable ? XSEG_PAGE_EXPORTABLE : 0U) |
           (has_rdma ? XSEG_PAGE_RDMA : 0U);
}

/* The next arena of a list.  Where an arena has moved to another pool meanwhile, the list goes
 * on with that pool's arenas, which the first arena of this list does not publish.  Visitors
 * (retire.h) never see that. */
static struct xseg_arena *next_arena(const struct xseg_arena *arena)
{
    return atomic_load_explicit(&arena->next, memory_order_acquire);
}

struct xseg_arena *xseg_pool_find_arena(struct xseg_pool *pool,
                                        const struct xseg_known_stream *stream, bool is_small)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->body->arenas, memory_order_acquire);

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

/* --- Making arenas. --- */

/* Make an arena that was another pool's an arena of this pool. */
static void move_in(struct xseg_arena *arena, struct xseg_pool *pool,
                    struct xseg_known_stream *stream)
{
    XSEG_ASSERT(arena->counts.totals != NULL && xseg_list_is_empty(&arena->extents));
    XSEG_ASSERT(arena->pool == &pool->body->device->retirement.nobody);
    xseg_arena_lock(arena);
    arena->pool = pool;
    arena->pool_number = pool->body->number;
    atomic_store_explicit(&arena->stream, stream, memory_order_release);
    memset(&arena->lent, 0, sizeof(arena->lent));
    for (unsigned i = 0; i < XSEG_COUNTS; i++)
        arena->up_before[i] = arena->down_before[i] =
            xseg_counts_increases(&arena->counts, (enum xseg_count)i);
    xseg_arena_unlock(arena);
}

/* Get an arena that is in no list yet: a spent one, or a new one; NULL without host memory. */
static struct xseg_arena *get(struct xseg_pool *pool, struct xseg_known_stream *stream,
                              bool is_small)
{
    struct xseg_device *device = pool->body->device;
    struct xseg_arena *arena = NULL;

    if (pool->is_private && !pool->is_guarded && !pool->is_orphans)
        arena = xseg_retire_take_arena(device, is_small);
    if (arena == NULL)
        return xseg_arena_create(&(struct xseg_arena_plan){
            .device = device,
            .pool = pool,
            .stream = stream,
            .page_map = device->page_map,
            .history = &device->history,
            .pool_number = pool->body->number,
            .searches = &device->searches,
            .is_small = is_small,
            .is_private = pool->is_private,
            .is_guarded = pool->is_guarded,
            .has_cells = is_small && !pool->is_guarded && !pool->is_orphans,
        });
    XSEG_ASSERT(arena->is_small == is_small);
    move_in(arena, pool, stream);
    return arena;
}

/* Give back an arena that get() gave and that is not needed. */
static void unget(struct xseg_arena *arena)
{
    if (arena->counts.totals == NULL)
        xseg_arena_destroy(arena);
    else
        xseg_retire_put_arena(arena);
}

/* Add an arena to a pool that has not ended.  Returns the arena that another thread added first,
 * if any did.  TABLE is held. */
static struct xseg_arena *add(struct xseg_pool_body *body, struct xseg_arena *arena)
{
    struct xseg_known_stream *stream = xseg_arena_stream(arena);
    struct xseg_arena *other = find(body->pool, stream, arena->is_small);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    if (other != NULL)
        return other;
    if (arena->counts.totals == NULL) {
        xseg_counts_init(&arena->counts, &body->device->totals, arena->is_small);
        xseg_counts_let_rest(&arena->counts, &arena->lock, &arena->notes);
    }
    atomic_store(&arena->next, atomic_load(&body->arenas));
    atomic_store_explicit(&body->arenas, arena, memory_order_release);
    if (!body->pool->is_private)
        atomic_store_explicit(&stream->arena[!arena->is_small], arena, memory_order_release);
    atomic_store_explicit(&stream->has_arenas, true, memory_order_relaxed);
    return arena;
}

static xseg_status make(struct xseg_pool *pool, struct xseg_known_stream *stream, bool is_small,
                        struct xseg_arena **out)
{
    struct xseg_device *device = pool->body->device;
    struct xseg_arena *made = get(pool, stream, is_small), *arena = NULL;

    if (made == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a stream's pool");
    xseg_lock_take(&device->table_lock);
    if (!xseg_retire_is_over(pool))
        arena = add(pool->body, made);
    xseg_lock_give(&device->table_lock);
    if (arena != made)
        unget(made);
    if (arena == NULL)
        return xseg_fail(XSEG_ERR_ARGUMENT, "nobody holds the pool any more");
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
    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (pool->body->state == XSEG_POOL_RUNS)
        return XSEG_OK;
    return xseg_fail(XSEG_ERR_PAUSED,
                     pool->body->state == XSEG_POOL_PAUSED
                         ? "pool %s is paused: xseg_pool_resume() brings its memory back"
                         : "pool %s is being paused or resumed by another thread",
                     xseg_pool_label(pool));
}

void xseg_pool_visit_arenas(struct xseg_pool_body *body,
                            void (*visit)(void *self, struct xseg_arena *arena), void *self)
{
    struct xseg_arena *arena = atomic_load_explicit(&body->arenas, memory_order_acquire);

    for (; arena != NULL; arena = next_arena(arena))
        visit(self, arena);
}

static void raise_peak(atomic_uint_fast64_t *peak, uint64_t value)
{
    if (value > atomic_load_explicit(peak, memory_order_relaxed))
        atomic_store_explicit(peak, value, memory_order_relaxed);
}

/* Add to a figure, which falls if `more` is negative, and note the change for its recent peak. */
static void change(atomic_uint_fast64_t *figure, struct xseg_recent_peak *recent, uint64_t now,
                   int64_t more)
{
    const uint64_t before = atomic_fetch_add_explicit(figure, (uint64_t)more, memory_order_relaxed);

    xseg_recent_peak_note(recent, now, before, before + (uint64_t)more);
}

/* Change what a pool and its device have reserved. */
static void change_reserved(struct xseg_pool_body *body, int64_t more)
{
    struct xseg_device *device = body->device;
    const uint64_t now = xseg_clock_coarse(&device->allocator->clock);

    change(&body->reserved, &body->recent, now, more);
    change(&device->reserved, &device->recent, now, more);
}

void xseg_pool_note_growth(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool_body *body = arena->pool->body;
    const unsigned part = !arena->is_small;
    const uint64_t own =
        atomic_fetch_add_explicit(&body->reserved_part[part], bytes, memory_order_relaxed) + bytes;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    change_reserved(body, (int64_t)bytes);
    const uint64_t reserved = atomic_load_explicit(&body->reserved, memory_order_relaxed);
    XSEG_ASSERT(bytes != 0 && reserved >= own && own >= bytes);
    raise_peak(&body->reserved_peak[XSEG_STAT_ALL], reserved);
    raise_peak(&body->reserved_peak[XSEG_STAT_SMALL + part], own);
    atomic_fetch_add_explicit(&body->device->grown, 1, memory_order_relaxed);
}

void xseg_pool_note_shrink(struct xseg_arena *arena, uint64_t bytes)
{
    struct xseg_pool_body *body = arena->pool->body;
    const unsigned part = !arena->is_small;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(atomic_load(&body->reserved_part[part]) >= bytes);
    XSEG_ASSERT(atomic_load(&body->device->reserved) >= bytes);
    change_reserved(body, -(int64_t)bytes);
    atomic_fetch_sub_explicit(&body->reserved_part[part], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&body->device->shrunk, 1, memory_order_relaxed);
}

void xseg_pool_move_reserved(struct xseg_arena *from, struct xseg_arena *to, uint64_t bytes)
{
    const unsigned part = !from->is_small;
    struct xseg_pool_body *source = from->pool->body, *target = to->pool->body;
    const uint64_t now = xseg_clock_coarse(&source->device->allocator->clock);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(source != target && from->is_small == to->is_small);
    XSEG_ASSERT(atomic_load(&source->reserved_part[part]) >= bytes);
    change(&source->reserved, &source->recent, now, -(int64_t)bytes);
    atomic_fetch_sub_explicit(&source->reserved_part[part], bytes, memory_order_relaxed);
    change(&target->reserved, &target->recent, now, (int64_t)bytes);
    atomic_fetch_add_explicit(&target->reserved_part[part], bytes, memory_order_relaxed);
}

bool xseg_pool_hold(struct xseg_pool *pool)
{
    unsigned holders = atomic_load(&pool->holders);

    while (holders != 0)
        if (atomic_compare_exchange_weak(&pool->holders, &holders, holders + 1))
            return true;
    return false;
}
