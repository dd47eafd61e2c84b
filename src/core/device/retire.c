/* SPDX-License-Identifier: MIT */
#include "src/core/device/retire.h"

#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/device/device.h"
#include "src/core/device/orphan.h"
#include "src/core/device/pool_stats.h"

#define POOLS_IN_CHUNK 4095u

/* Number of retired pools examined when a pool is made or released: more than retire meanwhile. */
#define A_FEW 2u

struct xseg_retire_chunk {
    _Alignas(16) struct xseg_retire_chunk *next;
    struct xseg_pool pool[POOLS_IN_CHUNK];
};

_Static_assert(sizeof(struct xseg_retire_chunk) == (size_t)64 << 10, "it is pools, but for one");

struct xseg_departure {
    struct xseg_departure *older;
    void (*gone)(void *context, const struct xseg_statistics *last);
    void *context;
    struct xseg_statistics last;
};

static struct xseg_pool_body *body_of(struct xseg_list *node)
{
    return XSEG_CONTAINER(node, struct xseg_pool_body, retired);
}

/* Make a pool of the device's own, which no user ever holds. */
static void make_own(struct xseg_device *device, struct xseg_pool *pool,
                     struct xseg_pool_body *body)
{
    const struct xseg_pool_options plain = XSEG_POOL_OPTIONS_INIT;

    body->device = device;
    xseg_pool_init(pool, body, &plain);
    atomic_store(&pool->holders, 0);
}

void xseg_retire_init(struct xseg_device *device)
{
    struct xseg_retirement *retirement = &device->retirement;

    xseg_list_init(&retirement->retired);
    xseg_list_init(&retirement->ended);
    xseg_list_init(&retirement->spare);
    make_own(device, &retirement->nobody, &retirement->over);
    for (unsigned i = 0; i < 2; i++) {
        make_own(device, &retirement->orphans[i], &retirement->orphans_body[i]);
        retirement->orphans[i].is_orphans = true;
        xseg_lock_take(&device->table_lock);
        xseg_pool_link(&retirement->orphans_body[i]);
        xseg_lock_give(&device->table_lock);
    }
    retirement->orphans[1].has_own_memory = true;
}

static void free_bodies(struct xseg_list *list)
{
    XSEG_LIST_FOR_SAFE(node, list)
    {
        xseg_pool_fini(body_of(node));
        free(body_of(node));
    }
}

void xseg_retire_fini(struct xseg_device *device)
{
    struct xseg_retirement *retirement = &device->retirement;
    struct xseg_pool_body *body = atomic_load(&device->private_pools), *next;
    struct xseg_retire_chunk *chunk;
    struct xseg_arena *arena;

    XSEG_ASSERT(atomic_load(&retirement->visitors) == 0);
    for (; body != NULL; body = next) {
        next = atomic_load(&body->next);
        xseg_pool_fini(body);
        if (!body->pool->is_orphans)
            free(body);
    }
    free_bodies(&retirement->ended);
    free_bodies(&retirement->spare);
    for (unsigned i = 0; i < 2; i++)
        while ((arena = retirement->spent[i]) != NULL) {
            retirement->spent[i] = atomic_load(&arena->next);
            xseg_arena_destroy(arena);
        }
    while ((chunk = retirement->chunks) != NULL) {
        retirement->chunks = chunk->next;
        free(chunk);
    }
}

/* --- Making. --- */

/* Take a pool whose address was never given out.  TABLE is held. */
static struct xseg_pool *take_pool(struct xseg_retirement *retirement)
{
    struct xseg_retire_chunk *chunk = retirement->chunks;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(retirement->used <= POOLS_IN_CHUNK);
    if (chunk == NULL || retirement->used == POOLS_IN_CHUNK) {
        chunk = calloc(1, sizeof(*chunk));
        if (chunk == NULL)
            return NULL;
        chunk->next = retirement->chunks;
        retirement->chunks = chunk;
        retirement->used = 0;
        atomic_fetch_add(&retirement->host_bytes, sizeof(*chunk));
    }
    return &chunk->pool[retirement->used++];
}

/* Take a spare body, or make one.  TABLE is held. */
static struct xseg_pool_body *take_body(struct xseg_device *device)
{
    struct xseg_retirement *retirement = &device->retirement;
    struct xseg_pool_body *body;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    if (!xseg_list_is_empty(&retirement->spare)) {
        body = body_of(retirement->spare.next);
        XSEG_ASSERT(body->device == device);
        xseg_list_remove(&body->retired);
        return body;
    }
    body = calloc(1, sizeof(*body));
    if (body == NULL)
        return NULL;
    body->device = device;
    atomic_fetch_add(&retirement->host_bytes, sizeof(*body));
    return body;
}

/* Keep the name that the user has given to a pool.  False without host memory. */
static bool keep_id(const struct xseg_pool_body *body)
{
    const uint64_t *id = body->options.id;

    return (id[0] | id[1]) == 0 || xseg_pool_ids_add(body->device->history.store, body->number, id);
}

xseg_status xseg_retire_make_pool(struct xseg_device *device,
                                  const struct xseg_pool_options *options, bool is_guarded,
                                  struct xseg_pool **out)
{
    struct xseg_retirement *retirement = &device->retirement;
    struct xseg_pool *pool = NULL;

    XSEG_ASSERT(options != NULL);
    xseg_lock_take(&device->table_lock);
    struct xseg_pool_body *body = take_body(device);
    if (body != NULL)
        pool = take_pool(retirement);
    if (pool != NULL) {
        xseg_pool_init(pool, body, options);
        pool->is_guarded = is_guarded;
        xseg_pool_set_label(body, options->name);
        if (!keep_id(body)) {
            retirement->used--;
            pool = NULL;
        }
    }
    if (pool != NULL) {
        xseg_pool_link(body);
    } else if (body != NULL) {
        xseg_list_init(&body->retired);
        xseg_list_insert(&retirement->spare, &body->retired);
    }
    xseg_lock_give(&device->table_lock);
    if (pool == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "no host memory for a pool");
    XSEG_ASSERT(pool->is_private && atomic_load(&pool->holders) == 1);
    *out = pool;
    return XSEG_OK;
}

/* --- Spent arenas. --- */

struct xseg_arena *xseg_retire_take_arena(struct xseg_device *device, bool is_small)
{
    struct xseg_arena **spent = &device->retirement.spent[!is_small];

    xseg_lock_take(&device->table_lock);
    struct xseg_arena *arena = *spent;
    if (arena != NULL)
        *spent = atomic_load(&arena->next);
    XSEG_ASSERT(arena == NULL || arena->is_small == is_small);
    xseg_lock_give(&device->table_lock);
    return arena;
}

/* Add an arena to the spent ones.  TABLE is held. */
static void add_spent(struct xseg_arena *arena)
{
    struct xseg_arena **spent = &arena->device->retirement.spent[!arena->is_small];

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_TABLE));
    XSEG_ASSERT(arena->pool == &arena->device->retirement.nobody);
    atomic_store(&arena->next, *spent);
    *spent = arena;
}

/* Take an arena from its pool.  A thread that found the arena in that pool before checks its
 * pool again under the arena's lock. */
static void abandon(struct xseg_arena *arena)
{
    struct xseg_device *device = arena->device;

    XSEG_ASSERT(xseg_list_is_empty(&arena->extents));
    if (arena->fence != NULL) {
        device->retirement.put_event(device->pending, arena->fence);
    }
    arena->fence = NULL;
    arena->fenced = arena->passed = 0;
    xseg_arena_lock(arena);
    arena->pool = &device->retirement.nobody;
    arena->is_paused = false;
    xseg_arena_unlock(arena);
}

void xseg_retire_put_arena(struct xseg_arena *arena)
{
    abandon(arena);
    xseg_lock_take(&arena->device->table_lock);
    add_spent(arena);
    xseg_lock_give(&arena->device->table_lock);
}

/* --- Ending. --- */

/* Make ended bodies and their arenas available again, unless there is a visitor.  Visitors that
 * come later do not see them.  GROWTH is held. */
static void recycle(struct xseg_device *device)
{
    struct xseg_retirement *retirement = &device->retirement;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (atomic_load(&retirement->visitors) != 0)
        return;
    xseg_lock_take(&device->table_lock);
    XSEG_LIST_FOR_SAFE(node, &retirement->ended)
    {
        struct xseg_arena *arena = atomic_load(&body_of(node)->arenas), *next;

        for (; arena != NULL; arena = next) {
            next = atomic_load(&arena->next);
            add_spent(arena);
        }
        atomic_store(&body_of(node)->arenas, NULL);
        xseg_list_remove(node);
        xseg_list_insert(&retirement->spare, node);
    }
    xseg_lock_give(&device->table_lock);
}

static bool can_end(const struct xseg_pool_body *body)
{
    struct xseg_arena *arena = atomic_load(&body->arenas);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(xseg_pool_is_retired(body->pool));
    if (body->state != XSEG_POOL_RUNS ||
        (body->options.gone != NULL && atomic_load(&body->reserved) != 0))
        return false;
    while (arena != NULL && xseg_orphan_can_adopt(arena))
        arena = atomic_load(&arena->next);
    return arena == NULL;
}

/* Make what a pool that is about to end has to tell, if anything.  False without host memory. */
static bool prepare_departure(struct xseg_pool_body *body, struct xseg_departure **out)
{
    if (body->options.gone == NULL)
        return true;
    struct xseg_departure *departure = malloc(sizeof(*departure));
    if (departure == NULL)
        return false;
    departure->gone = body->options.gone;
    departure->context = body->options.gone_context;
    departure->older = NULL;
    xseg_pool_stats_read_body(body, &departure->last);
    *out = departure;
    return true;
}

static void add_departure(struct xseg_device *device, struct xseg_departure *departure)
{
    _Atomic(struct xseg_departure *) *newest = &device->retirement.departures;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    departure->older = atomic_load(newest);
    while (!atomic_compare_exchange_weak(newest, &departure->older, departure))
        ;
}

/* End a retired pool if it has nothing but cached memory.  GROWTH is held.  Returns: what it has to tell, or NULL */
static struct xseg_departure *try_to_end(struct xseg_pool_body *body)
{
    struct xseg_device *device = body->device;
    struct xseg_arena *arena = atomic_load(&body->arenas);

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    XSEG_ASSERT(!xseg_retire_is_over(body->pool));
    struct xseg_departure *departure = NULL;

    if (!can_end(body) || !prepare_departure(body, &departure))
        return NULL;
    for (; arena != NULL; arena = atomic_load(&arena->next))
        if (!xseg_orphan_adopt(arena)) {
            free(departure);
            return NULL;
        }
    xseg_lock_take(&device->table_lock);
    xseg_pool_unlink(body);
    xseg_list_remove(&body->retired);
    xseg_list_insert(&device->retirement.ended, &body->retired);
    atomic_store(&body->pool->body, &device->retirement.over);
    xseg_lock_give(&device->table_lock);
    /* From here on no arena is added; an arena that was added meanwhile is empty. */
    for (arena = atomic_load(&body->arenas); arena != NULL; arena = atomic_load(&arena->next))
        abandon(arena);
    return departure;
}

/* As try_to_end(); what the pool has to tell is told when no lock is held. */
static void examine(struct xseg_pool_body *body)
{
    struct xseg_device *device = body->device;
    struct xseg_departure *departure = try_to_end(body);

    if (departure != NULL)
        add_departure(device, departure);
}

/* The retired pool that was examined longest ago, or NULL.  GROWTH is held. */
static struct xseg_pool_body *next_retired(struct xseg_device *device)
{
    struct xseg_list *retired = &device->retirement.retired;
    struct xseg_pool_body *body = NULL;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    xseg_lock_take(&device->table_lock);
    if (!xseg_list_is_empty(retired)) {
        body = body_of(retired->next);
        xseg_list_remove(&body->retired);
        xseg_list_insert(retired, &body->retired);
    }
    xseg_lock_give(&device->table_lock);
    return body;
}

void xseg_retire_look(struct xseg_device *device)
{
    struct xseg_pool_body *body;

    if (!xseg_lock_try(&device->growth_lock))
        return;
    for (unsigned i = 0; i < A_FEW && (body = next_retired(device)) != NULL; i++)
        examine(body);
    recycle(device);
    xseg_lock_give(&device->growth_lock);
    xseg_retire_tell(device);
}

void xseg_retire_look_at_all(struct xseg_device *device)
{
    struct xseg_pool_body *body = next_retired(device);
    const struct xseg_pool_body *stays = NULL;

    /* The first pool that cannot end ends the round when its turn comes again. */
    for (; body != NULL && body != stays; body = next_retired(device)) {
        examine(body);
        if (stays == NULL && !xseg_retire_is_over(body->pool))
            stays = body;
    }
    recycle(device);
}

/* --- Telling. --- */

/* What is to be told so far, the oldest first. */
static struct xseg_departure *take_departures(struct xseg_device *device)
{
    struct xseg_departure *newest = atomic_exchange(&device->retirement.departures, NULL);
    struct xseg_departure *first = NULL, *older;

    for (; newest != NULL; newest = older) {
        older = newest->older;
        newest->older = first;
        first = newest;
    }
    return first;
}

/* Tell of departures, and free them.  No lock is held. */
static void tell(struct xseg_departure *departure)
{
    struct xseg_departure *next;
    struct xseg_fail_kept kept;

    XSEG_ASSERT(!xseg_lock_is_any_held());
    /* The call that tells may have failed, and who is told may use another allocator. */
    xseg_fail_keep(&kept);
    for (; departure != NULL; departure = next) {
        next = departure->older;
        departure->gone(departure->context, &departure->last);
        free(departure);
    }
    xseg_fail_restore(&kept);
}

void xseg_retire_tell(struct xseg_device *device)
{
    XSEG_ASSERT(!xseg_lock_is_any_held());
    if (atomic_load_explicit(&device->retirement.departures, memory_order_relaxed) != NULL)
        tell(take_departures(device));
}

void xseg_retire_tell_all(struct xseg_device *device)
{
    struct xseg_statistics last;

    xseg_retire_tell(device);
    for (struct xseg_pool_body *body = atomic_load(&device->private_pools); body != NULL;
         body = atomic_load(&body->next)) {
        if (body->options.gone == NULL)
            continue;
        xseg_pool_stats_read_body(body, &last);
        body->options.gone(body->options.gone_context, &last);
    }
}

/* Add a body to the retired ones, as the first that is examined. */
static void add_retired(struct xseg_pool_body *body)
{
    struct xseg_device *device = body->device;

    xseg_lock_take(&device->table_lock);
    xseg_list_insert(device->retirement.retired.next, &body->retired);
    xseg_lock_give(&device->table_lock);
}

/* A pool that tells of its end, and has no memory, ends at once, whatever other threads do. */
static bool ends_at_once(const struct xseg_pool_body *body)
{
    return body->options.gone != NULL && atomic_load(&body->reserved) == 0;
}

bool xseg_retire_release(struct xseg_pool *pool)
{
    unsigned holders = atomic_load(&pool->holders);

    XSEG_ASSERT(!xseg_lock_is_any_held());
    do {
        if (holders == 0)
            return false;
    } while (!atomic_compare_exchange_weak(&pool->holders, &holders, holders - 1));
    if (holders > 1)
        return true;
    /* The pool is not in the list of retired pools yet, so no other thread can end it. */
    struct xseg_pool_body *body = pool->body;
    struct xseg_device *device = body->device;

    XSEG_ASSERT(xseg_list_is_empty(&body->retired) && !xseg_retire_is_over(pool));
    if (ends_at_once(body)) {
        xseg_lock_take(&device->growth_lock);
        add_retired(body);
        struct xseg_departure *departure = try_to_end(body);
        xseg_lock_give(&device->growth_lock);
        if (departure != NULL)
            tell(departure);
    } else {
        add_retired(body);
    }
    xseg_retire_look(device);
    return true;
}

/* --- Visitors. --- */

void xseg_retire_begin_visit(struct xseg_device *device)
{
    atomic_fetch_add(&device->retirement.visitors, 1);
}

void xseg_retire_end_visit(struct xseg_device *device)
{
    XSEG_ASSERT(atomic_load(&device->retirement.visitors) != 0);
    atomic_fetch_sub(&device->retirement.visitors, 1);
}

uint64_t xseg_retire_host_bytes(struct xseg_device *device)
{
    struct xseg_retirement *retirement = &device->retirement;
    uint64_t bytes = atomic_load(&retirement->host_bytes);

    /* No thread works in a spent arena, so its sizes can be read without its lock. */
    xseg_lock_take(&device->table_lock);
    for (unsigned i = 0; i < 2; i++)
        for (const struct xseg_arena *arena = retirement->spent[i]; arena != NULL;
             arena = atomic_load(&arena->next))
            bytes += xseg_arena_host_bytes(arena);
    XSEG_LIST_FOR(node, &retirement->ended)
    {
        const struct xseg_arena *arena = atomic_load(&body_of(node)->arenas);

        for (; arena != NULL; arena = atomic_load(&arena->next))
            bytes += xseg_arena_host_bytes(arena);
    }
    xseg_lock_give(&device->table_lock);
    return bytes;
}
