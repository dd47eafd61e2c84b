/* SPDX-License-Identifier: MIT */
#include "src/core/pool/pause.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/arena/recorder.h"
#include "src/core/cache/walk.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/grow/budget_wait.h"
#include "src/core/grow/growth.h"
#include "src/core/grow/oom_cause.h"
#include "src/core/pending/pending.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/discard.h"
#include "src/core/reclaim/notify.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"
#include "vmm/contents.h"
#include "vmm/evicted.h"

/* A pause or a resume of a pool. */
struct transition {
    struct xseg_device *device;
    struct xseg_pool *pool;
    struct xseg_contents *contents; /* NULL: contents are not kept */
    uint64_t offset;                /* in the contents, of the next copy */
    uint64_t bytes;                 /* sum of sum_segments() */
    xseg_status status;             /* the first error */
    bool is_notified;               /* observers were notified of the unmap */
};

/* --- Segments of a pool, in an order that does not change while the pool is paused. --- */

typedef void segment_action(struct transition *transition, struct xseg_segment *segment);

static void for_each_segment(struct transition *transition, segment_action *action)
{
    struct xseg_arena *arena =
        atomic_load_explicit(&transition->pool->arenas, memory_order_acquire);

    for (; arena != NULL; arena = atomic_load_explicit(&arena->next, memory_order_acquire))
        XSEG_LIST_FOR(node, &arena->extents)
        {
            action(transition, &XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
        }
}

static uint64_t sum_segments(struct transition *transition, segment_action *action)
{
    transition->bytes = 0;
    for_each_segment(transition, action);
    return transition->bytes;
}

static void add_mapped_bytes(struct transition *transition, struct xseg_segment *segment)
{
    bool evicted = false;

    if (!xseg_segment_is_expandable(segment)) {
        transition->bytes += atomic_load_explicit(&segment->mapped, memory_order_relaxed);
        return;
    }
    for (uint32_t at = 0, count; (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count)
        transition->bytes += count * segment->granule_bytes;
}

static void select_aliased_granules(struct transition *transition, struct xseg_segment *segment)
{
    (void)transition;
    xseg_evicted_select_aliases(segment);
}

static void add_missing_bytes(struct transition *transition, struct xseg_segment *segment)
{
    transition->bytes += xseg_evicted_unbacked_bytes(segment);
}

/* --- Blockers. --- */

struct blockers {
    struct xseg_device *device;
    uint64_t classic, pending;         /* bytes */
    uint64_t claimed;                  /* blocks */
    uint64_t fallback, fallback_bytes; /* the first block that the default pool uses; its size */
    struct xseg_segment_retained held;
    struct xseg_known_stream *stream; /* a stream with pending work */
    xseg_status status;
};

/* Mark the streams that were recorded as users of an allocated block. */
static void mark_block_streams(const struct xseg_part *part)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(part->record != NULL);
    for (const struct xseg_stream_use *use = part->record->uses; use != NULL; use = use->next)
        use->stream->is_queried = true;
}

static void find_extent_blockers(struct blockers *found, struct xseg_extent *extent)
{
    const struct xseg_segment_retained held = xseg_segment_all_retained_bytes(&extent->segment);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    found->held.pinned += held.pinned;
    found->held.exported += held.exported;
    if (!xseg_extent_is_expandable(extent))
        found->classic += extent->segment.bytes;
    XSEG_WALK(part, extent)
    {
        if (part.is_fallback && found->fallback == 0) {
            found->fallback = part.base;
            found->fallback_bytes = part.bytes;
        }
        found->claimed += part.state == XSEG_BLOCK_CLAIMED;
        found->pending += part.state == XSEG_BLOCK_PENDING_FREE ? part.bytes : 0;
        if (part.state == XSEG_BLOCK_ALLOCATED && part.has_uses)
            mark_block_streams(&part);
    }
}

/* Close an arena for allocations, and collect its blockers. */
static void close_arena(void *self, struct xseg_arena *arena)
{
    struct blockers *found = self;

    xseg_arena_lock(arena);
    arena->is_paused = true;
    found->claimed += arena->fills;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        find_extent_blockers(found, XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    if (!xseg_list_is_empty(&arena->extents))
        xseg_arena_stream(arena)->is_queried = true;
    xseg_arena_unlock(arena);
}

static void mark_range_streams(void *self, struct xseg_arena *arena)
{
    (void)self;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (extent->elastic != NULL)
            xseg_range_mark_streams(extent->elastic->range);
    }
}

static void open_arena(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    arena->is_paused = false;
    xseg_arena_unlock(arena);
}

static void query_stream(void *self, struct xseg_known_stream *stream)
{
    struct blockers *found = self;
    bool idle = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!stream->is_queried)
        return;
    stream->is_queried = false;
    if (found->status != XSEG_OK || found->stream != NULL)
        return;
    found->status = xseg_trim_is_idle(found->device, stream, false, &idle);
    if (found->status == XSEG_OK && !idle)
        found->stream = stream;
}

xseg_status xseg_pause_fail_fallback(const struct xseg_pool *pool, uint64_t base, uint64_t bytes)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "pool %s contains a block of the default pool (use_on_oom), %" PRIu64
                     " bytes at %#" PRIx64 "; free the block first",
                     xseg_pool_label(pool), bytes, base);
}

static xseg_status check_blockers(const struct xseg_pool *pool, const struct blockers *found)
{
    const char *label = xseg_pool_label(pool);

    if (found->classic != 0)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool %s has classic segments, %" PRIu64
                         " bytes; only pools with expandable segments can be paused "
                         "(expandable_segments:True, no memory functions)",
                         label, found->classic);
    if (found->fallback != 0)
        return xseg_pause_fail_fallback(pool, found->fallback, found->fallback_bytes);
    if (found->held.pinned != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is pinned, %" PRIu64 " bytes of pool %s; unpin it first",
                         found->held.pinned, label);
    if (found->held.exported != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is exported, %" PRIu64
                         " bytes of pool %s; xseg_export_close() it first",
                         found->held.exported, label);
    if (found->pending != 0)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "memory is pending free or held in a range, %" PRIu64
            " bytes of pool %s; synchronize the streams that use the memory, or unhold "
            "the granules",
            found->pending, label);
    if (found->claimed != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "pool %s is in use by a call of another thread; retry after that call has "
                         "returned",
                         label);
    if (found->status != XSEG_OK)
        return found->status;
    if (found->stream != NULL)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "stream that uses memory of pool %s has pending work, %p; synchronize the stream "
            "first",
            label, (void *)found->stream->handle);
    return XSEG_OK;
}

/*
 * Close a pool for allocations, and check for blockers.
 *
 * Returns: XSEG_OK; XSEG_ERR_BUSY, XSEG_ERR_UNSUPPORTED, XSEG_ERR_DRIVER, XSEG_ERR_DEVICE_LOST.
 *          The pool is closed in any case
 * Cost:    one query for each stream that uses the pool
 */
static xseg_status close_pool(struct xseg_pool *pool)
{
    struct blockers found = {.device = pool->device, .status = XSEG_OK};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION);
    xseg_pending_poll(pool->device->pending);
    xseg_pending_unmap_poll(pool->device, false);
    xseg_pool_visit_arenas(pool, close_arena, &found);
    xseg_pool_visit_arenas(pool, mark_range_streams, &found);
    xseg_streams_visit(&pool->device->streams, query_stream, &found);
    return check_blockers(pool, &found);
}

static void open_pool(struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_RUNNING);
    xseg_pool_visit_arenas(pool, open_arena, NULL);
}

/* --- Checks. --- */

static xseg_status check_captures(const struct xseg_device *device)
{
    return xseg_pending_captures(device->pending) ? xseg_pending_fail_capture(device->pending)
                                                  : XSEG_OK;
}

static xseg_status check_pause(const struct xseg_pool *pool)
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

/* --- Counters and history. --- */

/* Record an action on the evicted pages of an extent.  The arena lock is held. */
static void record_evicted_runs(const struct xseg_extent *extent, enum xseg_history_action action)
{
    const struct xseg_segment *segment = &extent->segment;
    bool evicted = false;

    for (uint32_t at = 0, count; (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count)
        if (evicted)
            xseg_recorder_segment(extent, action, segment->base + at * segment->granule_bytes,
                                  count * segment->granule_bytes);
}

static void record_evicted_pages(const struct xseg_arena *arena, enum xseg_history_action action)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        record_evicted_runs(XSEG_CONTAINER(node, struct xseg_extent, link), action);
    }
}

/* Record the resume of an arena.  xseg_evicted_finish() follows, after which evicted pages can no
 * longer be distinguished from the others. */
static void record_resume(void *self, struct xseg_arena *arena)
{
    (void)self;
    xseg_arena_lock(arena);
    if (xseg_recorder_is_enabled(arena))
        record_evicted_pages(arena, XSEG_HISTORY_RESUME);
    xseg_arena_unlock(arena);
}

/* Subtract the evicted bytes of an arena from its reserved bytes. */
static void settle_arena_counts(void *self, struct xseg_arena *arena)
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
        record_evicted_pages(arena, XSEG_HISTORY_PAUSE);
    xseg_arena_unlock(arena);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    if (evicted > before)
        xseg_pool_record_shrink(arena, evicted - before);
    if (evicted < before)
        xseg_pool_record_growth(arena, before - evicted);
}

/* End the transition in a state; a running pool is opened for allocations. */
static void settle_transition(struct transition *transition, enum xseg_pool_state state)
{
    struct xseg_pool *pool = transition->pool;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION && state != XSEG_POOL_TRANSITION);
    xseg_pool_visit_arenas(pool, settle_arena_counts, pool);
    pool->state = state;
    if (state == XSEG_POOL_RUNNING)
        open_pool(pool);
}

/* --- Contents. --- */

static void copy_segment(struct transition *transition, struct xseg_segment *segment, bool saves)
{
    bool evicted = false;

    for (uint32_t at = 0, count; transition->status == XSEG_OK &&
                                 (count = xseg_evicted_next_run(segment, &at, &evicted)) != 0;
         at += count) {
        const uint64_t address = segment->base + at * segment->granule_bytes;
        const uint64_t bytes = count * segment->granule_bytes;

        XSEG_ASSERT(bytes != 0 && address + bytes <= segment->base + segment->bytes);
        if (saves)
            transition->status =
                xseg_contents_save(transition->contents, transition->offset, address, bytes);
        else if (evicted)
            transition->status =
                xseg_contents_load(transition->contents, transition->offset, address, bytes);
        transition->offset += bytes;
    }
}

static void save_segment(struct transition *transition, struct xseg_segment *segment)
{
    copy_segment(transition, segment, true);
}

static void load_segment(struct transition *transition, struct xseg_segment *segment)
{
    copy_segment(transition, segment, false);
}

/* Copy the contents of all segments, and wait for the copies.  No lock is held. */
static xseg_status copy_contents(struct transition *transition, segment_action *action)
{
    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    XSEG_ASSERT(transition->contents != NULL && transition->pool->state == XSEG_POOL_TRANSITION);
    transition->offset = 0;
    transition->status = xseg_contents_acquire_buffer(transition->contents);
    if (transition->status == XSEG_OK)
        for_each_segment(transition, action);
    if (transition->contents->pieces != 0) {
        /* Copies that are already queued use the pinned memory, so wait also after an error. */
        const xseg_status status = xseg_contents_wait(transition->contents);

        transition->status = transition->status == XSEG_OK ? status : transition->status;
    }
    return transition->status;
}

static xseg_status save_contents(struct transition *transition, enum xseg_keep keep,
                                 const char *path)
{
    const uint64_t bytes = sum_segments(transition, add_mapped_bytes);
    struct xseg_contents *contents;
    xseg_status status;

    XSEG_ASSERT(transition->contents == NULL);
    if (keep == XSEG_KEEP_NOTHING || bytes == 0)
        return XSEG_OK;
    contents = malloc(sizeof(*contents));
    if (contents == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, record of saved contents");
    status = xseg_contents_open(contents, &transition->device->unreleased,
                                transition->device->copier, keep, path, bytes);
    if (status != XSEG_OK) {
        free(contents);
        return status;
    }
    transition->contents = contents;
    return copy_contents(transition, save_segment);
}

/* --- Pause. --- */

static void unmap_segment(struct transition *transition, struct xseg_segment *segment)
{
    if (transition->status == XSEG_OK)
        transition->status = xseg_evicted_unmap(segment);
}

static void release_segment(struct transition *transition, struct xseg_segment *segment)
{
    (void)transition;
    xseg_evicted_release(segment);
}

/* Map the pages of a segment again, which still have their memory. */
static void map_back_segment(struct transition *transition, struct xseg_segment *segment)
{
    const xseg_status status = xseg_evicted_map(segment);

    if (status == XSEG_OK)
        xseg_evicted_finish(segment);
    else if (transition->status == XSEG_OK)
        transition->status = status;
}

/* Map the segments again after an unmap failed.  If that fails, too, the pool is paused in its
 * current state, with the saved contents. */
static xseg_status roll_back_unmap(struct transition *transition, xseg_status status)
{
    char reason[384];

    XSEG_ASSERT(status != XSEG_OK);
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    transition->status = XSEG_OK;
    for_each_segment(transition, map_back_segment);
    if (transition->status == XSEG_OK)
        return xseg_fail(status, "%s", reason);
    transition->pool->contents = transition->contents;
    settle_transition(transition, XSEG_POOL_PAUSED);
    return xseg_fail(status,
                     "%s; pool %s is paused with its contents because the undo failed, resume it",
                     reason, xseg_pool_label(transition->pool));
}

/* Unmap all pages, then release their physical memory. */
static xseg_status evict_pool(struct transition *transition)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(transition->pool->contents == NULL);
    transition->status = XSEG_OK;
    for_each_segment(transition, unmap_segment);
    if (transition->status != XSEG_OK)
        return roll_back_unmap(transition, transition->status);
    for_each_segment(transition, release_segment);
    transition->pool->contents = transition->contents;
    if (transition->contents != NULL)
        xseg_contents_release_buffer(transition->contents);
    settle_transition(transition, XSEG_POOL_PAUSED);
    return XSEG_OK;
}

/* Pause a pool in state TRANSITION.  The device memory lock is held on entry and return. */
static xseg_status run_pause(struct transition *transition, enum xseg_keep keep,
                             const char *path) XSEG_UNCHECKED
{
    struct xseg_device *device = transition->device;
    xseg_status status = close_pool(transition->pool);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status == XSEG_OK && keep != XSEG_KEEP_NOTHING)
        status = xseg_device_make_copier(device);
    if (status != XSEG_OK)
        return status;
    /* No page of the pool is mapped or unmapped from here on. */
    for_each_segment(transition, select_aliased_granules);
    if (keep != XSEG_KEEP_NOTHING || xseg_notify_is_enabled(device)) {
        transition->is_notified = true;
        if (!xseg_notify_pool(transition->pool, true))
            return xseg_fail(XSEG_ERR_BUSY,
                             "registration callback runs in another thread for memory of pool %s; "
                             "retry after the callback has returned",
                             xseg_pool_label(transition->pool));
        xseg_mutex_unlock(&device->growth_lock);
        status = save_contents(transition, keep, path);
        xseg_mutex_lock(&device->growth_lock);
        if (status == XSEG_OK)
            status = check_captures(device);
        if (status == XSEG_OK)
            status = close_pool(transition->pool);
    }
    return status == XSEG_OK ? evict_pool(transition) : status;
}

static xseg_status pause_running_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    struct xseg_device *device = pool->device;
    struct transition transition = {.device = device, .pool = pool};

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->growth_lock);
    xseg_status status = check_pause(pool);
    if (status == XSEG_OK) {
        pool->state = XSEG_POOL_TRANSITION;
        status = run_pause(&transition, keep, path);
        if (pool->state == XSEG_POOL_TRANSITION) {
            if (transition.is_notified)
                (void)xseg_notify_pool(pool, false);
            settle_transition(&transition, XSEG_POOL_RUNNING);
            xseg_discard_contents(transition.contents);
        }
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_PAUSED);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_pause_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    const int device = pool->device->context.ordinal;

    XSEG_SPAN_BEGIN(pause, device, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
    const xseg_status status = pause_running_pool(pool, keep, path);
    XSEG_SPAN_END(pause, device, status);
    xseg_allocator_deliver(pool->device->allocator);
    return status;
}

/* --- Resume. --- */

static void create_segment_pages(struct transition *transition, struct xseg_segment *segment)
{
    if (transition->status == XSEG_OK)
        transition->status = xseg_evicted_create(segment);
}

static void map_segment(struct transition *transition, struct xseg_segment *segment)
{
    if (transition->status == XSEG_OK)
        transition->status = xseg_evicted_map(segment);
}

static void roll_back_segment(struct transition *transition, struct xseg_segment *segment)
{
    (void)transition;
    (void)xseg_evicted_roll_back(segment);
}

static void finish_segment(struct transition *transition, struct xseg_segment *segment)
{
    (void)transition;
    xseg_evicted_finish(segment);
}

/* Create new memory for all pages, or for none. */
static xseg_status create_pages(struct transition *transition)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    transition->status =
        xseg_growth_check(transition->pool, sum_segments(transition, add_missing_bytes), 0);
    if (transition->status != XSEG_OK)
        return transition->status;
    for_each_segment(transition, create_segment_pages);
    if (transition->status != XSEG_OK)
        for_each_segment(transition, roll_back_segment);
    return transition->status;
}

/* Request memory from other processes, and retry until the timeout. */
static xseg_status request_from_budget(struct transition *transition, xseg_status status)
{
    struct xseg_arena *arena =
        atomic_load_explicit(&transition->pool->arenas, memory_order_acquire);
    struct xseg_budget_wait budget_wait;

    /* A pool without arenas needs no memory: the failure is that of a limit that is exceeded. */
    if (arena == NULL)
        return status;
    if (xseg_budget_wait_begin(&budget_wait, arena, sum_segments(transition, add_missing_bytes),
                               xseg_allocator_config(transition->device->allocator)))
        while (xseg_oom_cause_is_memory_pressure(status) && xseg_budget_wait_retry(&budget_wait))
            if (budget_wait.grows)
                status = create_pages(transition);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/* Create new memory for all pages.  Under memory pressure release idle memory first, then request
 * memory from other processes. */
static xseg_status create_pages_with_fallback(struct transition *transition)
{
    xseg_status status = create_pages(transition);

    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    status = xseg_trim_all(transition->device, true);
    if (status != XSEG_OK)
        return status;
    status = create_pages(transition);
    return xseg_oom_cause_is_memory_pressure(status) ? request_from_budget(transition, status)
                                                     : status;
}

/* Map new pages at the addresses of the pool and load the contents.  The device memory lock is held
 * on entry and return. */
static xseg_status map_new_pages(struct transition *transition) XSEG_UNCHECKED
{
    struct xseg_device *device = transition->device;
    xseg_status status = create_pages_with_fallback(transition);

    if (status != XSEG_OK)
        return status;
    for_each_segment(transition, map_segment);
    if (transition->status == XSEG_OK && transition->contents != NULL) {
        xseg_mutex_unlock(&device->growth_lock);
        (void)copy_contents(transition, load_segment);
        xseg_mutex_lock(&device->growth_lock);
    }
    return transition->status;
}

/* Resume a pool in state TRANSITION.  The device memory lock is held. */
static xseg_status run_resume(struct transition *transition)
{
    char reason[384];
    const xseg_status status = map_new_pages(transition);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(transition->contents == transition->pool->contents);
    if (status == XSEG_OK) {
        xseg_pool_visit_arenas(transition->pool, record_resume, NULL);
        for_each_segment(transition, finish_segment);
        transition->pool->contents = NULL;
        xseg_discard_contents(transition->contents);
        (void)xseg_notify_pool(transition->pool, false);
        settle_transition(transition, XSEG_POOL_RUNNING);
        return XSEG_OK;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    for_each_segment(transition, roll_back_segment);
    if (transition->contents != NULL)
        xseg_contents_release_buffer(transition->contents);
    settle_transition(transition, XSEG_POOL_PAUSED);
    return xseg_fail(
        status, "%s; pool %s is still paused%s", reason, xseg_pool_label(transition->pool),
        xseg_oom_cause_is_memory_pressure(status) ? ", free memory and resume it again" : "");
}

static xseg_status resume_paused_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct transition transition = {.device = device, .pool = pool};
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
        transition.contents = pool->contents;
        status = run_resume(&transition);
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_RUNNING);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_resume_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    const int ordinal = device->context.ordinal;

    XSEG_SPAN_BEGIN(resume, ordinal, atomic_load_explicit(&device->evicted, memory_order_relaxed));
    const xseg_status status = resume_paused_pool(pool);
    XSEG_SPAN_END(resume, ordinal, status);
    xseg_allocator_deliver(device->allocator);
    return status;
}
