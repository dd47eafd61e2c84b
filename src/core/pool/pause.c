/* SPDX-License-Identifier: MIT */
#include "src/core/pool/pause.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/arena/recorder.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/budget_wait.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"
#include "src/core/pool/blocker.h"
#include "src/core/reclaim/discard.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/trim.h"
#include "vmm/contents.h"
#include "vmm/evicted.h"

/* A pool that is being paused or resumed. */
struct move {
    struct xseg_device *device;
    struct xseg_pool *pool;
    struct xseg_contents *contents; /* NULL: contents are not kept */
    uint64_t offset;                /* in the contents, of the next copy */
    uint64_t bytes;                 /* a sum over the segments */
    xseg_status status;             /* the first error */
    bool is_told;                   /* observers were told that the memory is leaving */
};

/* --- All segments of a pool, in an order that stays while it is paused. --- */

typedef void visit(struct move *move, struct xseg_segment *segment);

static void visit_segments(struct move *move, visit *each)
{
    struct xseg_arena *arena = atomic_load_explicit(&move->pool->arenas, memory_order_acquire);

    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire))
        XSEG_LIST_FOR(node, &arena->extents)
        {
            each(move, &XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
        }
}

static uint64_t add_up(struct move *move, visit *each)
{
    move->bytes = 0;
    visit_segments(move, each);
    return move->bytes;
}

static void add_mapped(struct move *move, struct xseg_segment *segment)
{
    bool evicted = false;

    if (!xseg_segment_is_expandable(segment)) {
        move->bytes += atomic_load_explicit(&segment->mapped, memory_order_relaxed);
        return;
    }
    for (uint32_t at = 0, count; (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count)
        move->bytes += count * segment->granule_bytes;
}

static void choose_granules(struct move *move, struct xseg_segment *segment)
{
    (void)move;
    xseg_evicted_select_aliases(segment);
}

static void add_missing(struct move *move, struct xseg_segment *segment)
{
    move->bytes += xseg_evicted_unbacked_bytes(segment);
}

/* --- What stands in the way. --- */

static xseg_status check_captures(const struct xseg_device *device)
{
    return xseg_pending_captures(device->pending) ? xseg_pending_fail_capture(device->pending)
                                                  : XSEG_OK;
}

static xseg_status check_begin(const struct xseg_pool *pool)
{
    const struct xseg_device *device = pool->device;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (xseg_pool_is_retired(pool))
        return xseg_fail(XSEG_ERR_ARGUMENT, "pool has been released");
    const xseg_status status = xseg_pool_check_running(pool);
    return status == XSEG_OK ? check_captures(device) : status;
}

/* --- Accounts. --- */

/* Note an action on the evicted pages of an extent.  The arena's lock is held. */
static void note(const struct xseg_extent *extent, enum xseg_history_action action)
{
    const struct xseg_segment *segment = &extent->segment;
    bool evicted = false;

    for (uint32_t at = 0, count; (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count)
        if (evicted)
            xseg_recorder_segment(extent, action, segment->base + at * segment->granule_bytes,
                                  count * segment->granule_bytes);
}

static void note_all(const struct xseg_arena *arena, enum xseg_history_action action)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        note(XSEG_CONTAINER(node, struct xseg_extent, link), action);
    }
}

/* Note that the evicted pages of an arena are back.  Until they arrive they are told from pages that never went. */
static void note_return(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    if (xseg_recorder_is_enabled(arena))
        note_all(arena, XSEG_HISTORY_RESUME);
    xseg_arena_unlock(arena);
}

/* Count evicted bytes of an arena as not reserved. */
static void settle_arena(void *self, struct xseg_arena *arena)
{
    struct xseg_pool *pool = self;
    uint64_t evicted = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &arena->extents)
    {
        evicted += xseg_evicted_bytes(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
    xseg_arena_lock(arena);
    const uint64_t before = arena->evicted;
    arena->evicted = evicted;
    atomic_fetch_add_explicit(&pool->device->evicted, evicted - before, memory_order_relaxed);
    if (evicted > before)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, evicted - before);
    if (evicted < before)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, before - evicted);
    if (evicted > before && xseg_recorder_is_enabled(arena))
        note_all(arena, XSEG_HISTORY_PAUSE);
    xseg_arena_unlock(arena);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    if (evicted > before)
        xseg_pool_record_shrink(arena, evicted - before);
    if (evicted < before)
        xseg_pool_record_growth(arena, before - evicted);
}

/* Leave the pool in a state; a pool that runs is opened. */
static void settle(struct move *move, enum xseg_pool_state state)
{
    struct xseg_pool *pool = move->pool;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION && state != XSEG_POOL_TRANSITION);
    xseg_pool_visit_arenas(pool, settle_arena, pool);
    pool->state = state;
    if (state == XSEG_POOL_RUNNING)
        xseg_blocker_open(pool);
}

/* --- Contents. --- */

static void copy_segment(struct move *move, struct xseg_segment *segment, bool saves)
{
    bool evicted = false;

    for (uint32_t at = 0, count;
         move->status == XSEG_OK && (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count) {
        const uint64_t address = segment->base + at * segment->granule_bytes;
        const uint64_t bytes = count * segment->granule_bytes;

        XSEG_ASSERT(bytes != 0 && address + bytes <= segment->base + segment->bytes);
        if (saves)
            move->status = xseg_contents_save(move->contents, move->offset, address, bytes);
        else if (evicted)
            move->status = xseg_contents_load(move->contents, move->offset, address, bytes);
        move->offset += bytes;
    }
}

static void save_segment(struct move *move, struct xseg_segment *segment)
{
    copy_segment(move, segment, true);
}

static void load_segment(struct move *move, struct xseg_segment *segment)
{
    copy_segment(move, segment, false);
}

/* Copy all segments, and wait for the copies.  The device memory lock is not held. */
static xseg_status copy_all(struct move *move, visit *each)
{
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    XSEG_ASSERT(move->contents != NULL && move->pool->state == XSEG_POOL_TRANSITION);
    move->offset = 0;
    move->status = xseg_contents_acquire_buffer(move->contents);
    if (move->status == XSEG_OK)
        visit_segments(move, each);
    if (move->contents->pieces != 0) {
        /* Copies that are queued use the pinned memory, also after an error. */
        const xseg_status status = xseg_contents_wait(move->contents);

        move->status = move->status == XSEG_OK ? status : move->status;
    }
    return move->status;
}

static xseg_status save(struct move *move, enum xseg_keep keep, const char *path)
{
    const uint64_t bytes = add_up(move, add_mapped);
    struct xseg_contents *contents;
    xseg_status status;

    XSEG_ASSERT(move->contents == NULL);
    if (keep == XSEG_KEEP_NOTHING || bytes == 0)
        return XSEG_OK;
    contents = malloc(sizeof(*contents));
    if (contents == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, record of saved contents");
    status = xseg_contents_open(contents, &move->device->unreleased, move->device->copier, keep,
                                path, bytes);
    if (status != XSEG_OK) {
        free(contents);
        return status;
    }
    move->contents = contents;
    return copy_all(move, save_segment);
}

/* --- Pausing. --- */

static void leave_segment(struct move *move, struct xseg_segment *segment)
{
    if (move->status == XSEG_OK)
        move->status = xseg_evicted_unmap(segment);
}

static void drop_segment(struct move *move, struct xseg_segment *segment)
{
    (void)move;
    xseg_evicted_release(segment);
}

/* Map a segment again whose pages still have their memory. */
static void return_segment(struct move *move, struct xseg_segment *segment)
{
    const xseg_status status = xseg_evicted_map(segment);

    if (status == XSEG_OK)
        xseg_evicted_finish(segment);
    else if (move->status == XSEG_OK)
        move->status = status;
}

/* Map segments again after the driver refused an unmap.  If that fails, too, the pool is paused
 * as it is, with the contents saved so far. */
static xseg_status undo_leave(struct move *move, xseg_status status)
{
    char reason[384];

    XSEG_ASSERT(status != XSEG_OK);
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    move->status = XSEG_OK;
    visit_segments(move, return_segment);
    if (move->status == XSEG_OK)
        return xseg_fail(status, "%s", reason);
    move->pool->contents = move->contents;
    settle(move, XSEG_POOL_PAUSED);
    return xseg_fail(status,
                     "%s; pool %s is paused with its contents because the undo failed, resume it",
                     reason, xseg_pool_label(move->pool));
}

/* Unmap all pages and give up their memory.  The device memory lock is held. */
static xseg_status leave(struct move *move)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(move->pool->contents == NULL);
    move->status = XSEG_OK;
    visit_segments(move, leave_segment);
    if (move->status != XSEG_OK)
        return undo_leave(move, move->status);
    visit_segments(move, drop_segment);
    move->pool->contents = move->contents;
    if (move->contents != NULL)
        xseg_contents_release_buffer(move->contents);
    settle(move, XSEG_POOL_PAUSED);
    return XSEG_OK;
}

/* Pause a pool in state MOVES.  The device memory lock is held, and released while contents are copied. */
static xseg_status pause(struct move *move, enum xseg_keep keep, const char *path) XSEG_UNCHECKED
{
    struct xseg_device *device = move->device;
    xseg_status status = xseg_blocker_close(move->pool);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status == XSEG_OK && keep != XSEG_KEEP_NOTHING)
        status = xseg_device_make_copier(device);
    if (status != XSEG_OK)
        return status;
    /* No page of the pool is mapped or unmapped from here on. */
    visit_segments(move, choose_granules);
    if (keep != XSEG_KEEP_NOTHING || xseg_notify_is_enabled(device)) {
        move->is_told = true;
        if (!xseg_notify_pool(move->pool, true))
            return xseg_fail(XSEG_ERR_BUSY,
                             "registration callback runs in another thread for memory of pool %s; "
                             "retry after the callback has returned",
                             xseg_pool_label(move->pool));
        xseg_mutex_unlock(&device->growth_lock);
        status = save(move, keep, path);
        xseg_mutex_lock(&device->growth_lock);
        if (status == XSEG_OK)
            status = check_captures(device);
        if (status == XSEG_OK)
            status = xseg_blocker_close(move->pool);
    }
    return status == XSEG_OK ? leave(move) : status;
}

static xseg_status pause_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    struct xseg_device *device = pool->device;
    struct move move = {.device = device, .pool = pool};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = check_begin(pool);
    if (status == XSEG_OK) {
        pool->state = XSEG_POOL_TRANSITION;
        status = pause(&move, keep, path);
        if (pool->state == XSEG_POOL_TRANSITION) {
            if (move.is_told)
                (void)xseg_notify_pool(pool, false);
            settle(&move, XSEG_POOL_RUNNING);
            xseg_discard_contents(move.contents);
        }
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_PAUSED);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_pause_begin(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    const int device = pool->device->context.ordinal;

    XSEG_SPAN_BEGIN(pause, device, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
    const xseg_status status = pause_pool(pool, keep, path);
    XSEG_SPAN_END(pause, device, status);
    xseg_allocator_deliver(pool->device->allocator);
    return status;
}

/* --- Resuming. --- */

static void supply_segment(struct move *move, struct xseg_segment *segment)
{
    if (move->status == XSEG_OK)
        move->status = xseg_evicted_create(segment);
}

static void enter_segment(struct move *move, struct xseg_segment *segment)
{
    if (move->status == XSEG_OK)
        move->status = xseg_evicted_map(segment);
}

static void withdraw_segment(struct move *move, struct xseg_segment *segment)
{
    (void)move;
    (void)xseg_evicted_roll_back(segment);
}

static void arrive_segment(struct move *move, struct xseg_segment *segment)
{
    (void)move;
    xseg_evicted_finish(segment);
}

/* Get new memory for all pages, or for none. */
static xseg_status source(struct move *move)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    move->status = xseg_growth_check(move->pool, add_up(move, add_missing), 0);
    if (move->status != XSEG_OK)
        return move->status;
    visit_segments(move, supply_segment);
    if (move->status != XSEG_OK)
        visit_segments(move, withdraw_segment);
    return move->status;
}

/* Ask other processes for memory, and try again until the time is over. */
static xseg_status supply_from_others(struct move *move, xseg_status status)
{
    struct xseg_arena *arena = atomic_load_explicit(&move->pool->arenas, memory_order_acquire);
    struct xseg_budget_wait budget_wait;

    /* A pool that has had no memory misses none: it is a limit that is passed already. */
    if (arena == NULL)
        return status;
    if (xseg_budget_wait_begin(&budget_wait, arena, add_up(move, add_missing),
                               xseg_allocator_config(move->device->allocator)))
        while (xseg_oom_cause_is_memory_pressure(status) && xseg_budget_wait_retry(&budget_wait))
            if (budget_wait.grows)
                status = source(move);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/* Get new memory for all pages; where memory is short, give back idle memory first, then ask other processes. */
static xseg_status supply_somehow(struct move *move)
{
    xseg_status status = source(move);

    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    status = xseg_trim_all(move->device, true);
    if (status != XSEG_OK)
        return status;
    status = source(move);
    return xseg_oom_cause_is_memory_pressure(status) ? supply_from_others(move, status) : status;
}

/* Map new pages at the old addresses.  The device memory lock is held, and released while contents are copied. */
static xseg_status come_back(struct move *move) XSEG_UNCHECKED
{
    struct xseg_device *device = move->device;
    xseg_status status = supply_somehow(move);

    if (status != XSEG_OK)
        return status;
    visit_segments(move, enter_segment);
    if (move->status == XSEG_OK && move->contents != NULL) {
        xseg_mutex_unlock(&device->growth_lock);
        (void)copy_all(move, load_segment);
        xseg_mutex_lock(&device->growth_lock);
    }
    return move->status;
}

/* Resume a pool in state MOVES.  The device memory lock is held. */
static xseg_status resume(struct move *move)
{
    char reason[384];
    const xseg_status status = come_back(move);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(move->contents == move->pool->contents);
    if (status == XSEG_OK) {
        xseg_pool_visit_arenas(move->pool, note_return, NULL);
        visit_segments(move, arrive_segment);
        move->pool->contents = NULL;
        xseg_discard_contents(move->contents);
        (void)xseg_notify_pool(move->pool, false);
        settle(move, XSEG_POOL_RUNNING);
        return XSEG_OK;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    visit_segments(move, withdraw_segment);
    if (move->contents != NULL)
        xseg_contents_release_buffer(move->contents);
    settle(move, XSEG_POOL_PAUSED);
    return xseg_fail(status, "%s; pool %s is still paused%s", reason, xseg_pool_label(move->pool),
                     xseg_oom_cause_is_memory_pressure(status) ? ", free memory and resume it again"
                                                               : "");
}

static xseg_status resume_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct move move = {.device = device, .pool = pool};
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&device->growth_lock);
    if (xseg_context_is_lost(&device->context))
        status = xseg_driver_fail_lost(&device->context);
    else if (pool->state == XSEG_POOL_RUNNING)
        status = xseg_fail(XSEG_ERR_ARGUMENT, "pool %s is not paused", xseg_pool_label(pool));
    else if (pool->state == XSEG_POOL_TRANSITION)
        status = xseg_pool_check_running(pool);
    if (status == XSEG_OK)
        status = check_captures(device);
    if (status == XSEG_OK) {
        pool->state = XSEG_POOL_TRANSITION;
        move.contents = pool->contents;
        status = resume(&move);
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_RUNNING);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_pause_end(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    const int ordinal = device->context.ordinal;

    XSEG_SPAN_BEGIN(resume, ordinal, atomic_load_explicit(&device->evicted, memory_order_relaxed));
    const xseg_status status = resume_pool(pool);
    XSEG_SPAN_END(resume, ordinal, status);
    xseg_allocator_deliver(device->allocator);
    return status;
}
