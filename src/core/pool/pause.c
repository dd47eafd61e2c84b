/* SPDX-License-Identifier: MIT */
#include "src/core/pool/pause.h"

#include <inttypes.h>
#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/block/block.h"
#include "src/core/block/recorder.h"
#include "src/core/budget/budget.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/grow/fallback_chain.h"
#include "src/core/grow/growth.h"
#include "src/core/pending/pending.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/mapping.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"
#include "vmm/contents.h"
#include "vmm/evicted.h"

/* --- Segments of a pool, in an order that does not change while the pool is paused. --- */

struct segment_cursor {
    struct xseg_arena *arena;
    struct xseg_list *node;       /* in `extents` of the arena */
    struct xseg_segment *segment; /* NULL: the end */
};

static void next_segment(struct segment_cursor *cursor)
{
    cursor->segment = NULL;
    while (cursor->arena != NULL && cursor->segment == NULL) {
        cursor->node = cursor->node->next;
        if (cursor->node != &cursor->arena->extents) {
            cursor->segment = &XSEG_CONTAINER(cursor->node, struct xseg_extent, link)->segment;
        } else {
            cursor->arena = atomic_load_explicit(&cursor->arena->next, memory_order_acquire);
            cursor->node = cursor->arena == NULL ? NULL : &cursor->arena->extents;
        }
    }
}

static struct segment_cursor first_segment(const struct xseg_pool *pool)
{
    struct segment_cursor cursor = {.arena =
                                        atomic_load_explicit(&pool->arenas, memory_order_acquire)};

    cursor.node = cursor.arena == NULL ? NULL : &cursor.arena->extents;
    next_segment(&cursor);
    return cursor;
}

#define FOR_SEGMENTS(cursor, pool)                                                     \
    for (struct segment_cursor cursor = first_segment(pool); (cursor).segment != NULL; \
         next_segment(&(cursor)))

static uint64_t sum_mapped_bytes(const struct xseg_pool *pool)
{
    uint64_t bytes = 0;
    bool evicted = false;

    FOR_SEGMENTS(cursor, pool)
    {
        if (!xseg_segment_is_expandable(cursor.segment))
            bytes += atomic_load_explicit(&cursor.segment->mapped, memory_order_relaxed);
        else
            for (uint32_t first = 0, count;
                 (count = xseg_evicted_next_run(cursor.segment, &first, &evicted)) != 0;
                 first += count)
                bytes += count * cursor.segment->granule_bytes;
    }
    return bytes;
}

static uint64_t sum_unbacked_bytes(const struct xseg_pool *pool)
{
    uint64_t bytes = 0;

    FOR_SEGMENTS(cursor, pool)
    {
        bytes += xseg_evicted_unbacked_bytes(cursor.segment);
    }
    return bytes;
}

/* --- Blockers. --- */

struct blockers {
    struct xseg_device *device;
    uint64_t classic, pending;              /* bytes */
    uint64_t claimed;                       /* blocks */
    uint64_t fallback_base, fallback_bytes; /* the first block that the default pool uses */
    struct xseg_segment_retained retained;
    uint64_t importers;               /* connected to segments */
    struct xseg_known_stream *stream; /* a stream with pending work */
    xseg_status status;
};

/* Mark the streams that were recorded as users of an allocated block. */
static void mark_block_streams(const struct xseg_block_view *view)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(view->record != NULL);
    for (const struct xseg_stream_use *use = view->record->uses; use != NULL; use = use->next)
        use->stream->is_queried = true;
}

static void find_extent_blockers(struct blockers *blockers, struct xseg_extent *extent)
{
    const struct xseg_segment_retained retained = xseg_segment_all_retained_bytes(&extent->segment);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    blockers->retained.pinned += retained.pinned;
    blockers->retained.exported +=
        retained.exported - xseg_segment_mapped_export_bytes(&extent->segment);
    blockers->importers += extent->segment.importers;
    if (!xseg_extent_is_expandable(extent))
        blockers->classic += extent->segment.bytes;
    XSEG_EXTENT_FOR_EACH(view, extent)
    {
        if (view.is_fallback && blockers->fallback_base == 0) {
            blockers->fallback_base = view.base;
            blockers->fallback_bytes = view.bytes;
        }
        blockers->claimed += view.state == XSEG_BLOCK_CLAIMED;
        blockers->pending += view.state == XSEG_BLOCK_PENDING_FREE ? view.bytes : 0;
        if (view.state == XSEG_BLOCK_ALLOCATED && view.has_uses)
            mark_block_streams(&view);
    }
}

/* Close an arena for allocations, and collect its blockers. */
static void close_arena(struct blockers *blockers, struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    arena->is_paused = true;
    blockers->claimed += arena->fills;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        find_extent_blockers(blockers, XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    if (!xseg_list_is_empty(&arena->extents))
        xseg_arena_stream(arena)->is_queried = true;
    xseg_biased_lock_unlock(&arena->lock);
}

static void mark_range_streams(struct xseg_arena *arena)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        const struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        if (extent->elastic != NULL)
            xseg_range_mark_streams(extent->elastic->range);
    }
}

static void open_arena(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    arena->is_paused = false;
    xseg_biased_lock_unlock(&arena->lock);
}

static void query_stream(void *self, struct xseg_known_stream *stream)
{
    struct blockers *blockers = self;
    bool idle = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!stream->is_queried)
        return;
    stream->is_queried = false;
    if (blockers->status != XSEG_OK || blockers->stream != NULL)
        return;
    blockers->status = xseg_reclaim_check_stream(blockers->device, stream, false, &idle);
    if (blockers->status == XSEG_OK && !idle)
        blockers->stream = stream;
}

xseg_status xseg_pause_fail_fallback(const struct xseg_pool *pool, uint64_t base, uint64_t bytes)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "pool %s contains a block of the default pool (use_on_oom), %" PRIu64
                     " bytes at %#" PRIx64 "; free the block first",
                     xseg_pool_label(pool), bytes, base);
}

static xseg_status check_blockers(const struct xseg_pool *pool, const struct blockers *blockers)
{
    const char *label = xseg_pool_label(pool);

    if (blockers->classic != 0)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool %s has classic segments, %" PRIu64
                         " bytes; only pools with expandable segments can be paused "
                         "(expandable_segments:True, no memory functions)",
                         label, blockers->classic);
    if (blockers->fallback_base != 0)
        return xseg_pause_fail_fallback(pool, blockers->fallback_base, blockers->fallback_bytes);
    if (blockers->retained.pinned != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is pinned, %" PRIu64 " bytes of pool %s; unpin it first",
                         blockers->retained.pinned, label);
    if (blockers->importers != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "segments of pool %s are imported, %" PRIu64
                         " importers; close the imports first, then retry",
                         label, blockers->importers);
    if (blockers->retained.exported != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "memory is exported, %" PRIu64
                         " bytes of pool %s; xseg_export_close() it first",
                         blockers->retained.exported, label);
    if (blockers->pending != 0)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "memory is pending free or held in a range, %" PRIu64
            " bytes of pool %s; synchronize the streams that use the memory, or unhold "
            "the granules",
            blockers->pending, label);
    if (blockers->claimed != 0)
        return xseg_fail(XSEG_ERR_BUSY,
                         "pool %s is in use by a call of another thread; retry after that call has "
                         "returned",
                         label);
    if (blockers->status != XSEG_OK)
        return blockers->status;
    if (blockers->stream != NULL)
        return xseg_fail(
            XSEG_ERR_BUSY,
            "stream that uses memory of pool %s has pending work, %p; synchronize the stream "
            "first",
            label, (void *)blockers->stream->handle);
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
    struct blockers blockers = {.device = pool->device, .status = XSEG_OK};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION);
    xseg_pending_poll(pool->device->pending);
    xseg_pending_unmap_poll(pool->device, false);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        close_arena(&blockers, arena);
    }
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        mark_range_streams(arena);
    }
    xseg_streams_for_each(&pool->device->streams, query_stream, &blockers);
    return check_blockers(pool, &blockers);
}

static void open_pool(struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_RUNNING);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        open_arena(arena);
    }
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

    for (uint32_t granule = 0, count;
         (count = xseg_evicted_next_run(segment, &granule, &evicted)) != 0; granule += count)
        if (evicted)
            xseg_recorder_segment(extent, action, segment->base + granule * segment->granule_bytes,
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
static void record_resume(struct xseg_arena *arena)
{
    xseg_biased_lock_lock(&arena->lock);
    if (xseg_recorder_is_enabled(arena))
        record_evicted_pages(arena, XSEG_HISTORY_RESUME);
    xseg_biased_lock_unlock(&arena->lock);
}

/* Subtract the evicted bytes of an arena from its reserved bytes. */
static void settle_arena_counts(struct xseg_arena *arena)
{
    uint64_t evicted = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_LIST_FOR(node, &arena->extents)
    {
        evicted += xseg_evicted_bytes(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t evicted_before = arena->evicted;
    arena->evicted = evicted;
    atomic_fetch_add_explicit(&arena->device->evicted, evicted - evicted_before,
                              memory_order_relaxed);
    if (evicted > evicted_before)
        xseg_counts_decrease(&arena->counts, XSEG_COUNT_RESERVED_BYTES, evicted - evicted_before);
    if (evicted < evicted_before)
        xseg_counts_increase(&arena->counts, XSEG_COUNT_RESERVED_BYTES, evicted_before - evicted);
    if (evicted > evicted_before && xseg_recorder_is_enabled(arena))
        record_evicted_pages(arena, XSEG_HISTORY_PAUSE);
    xseg_biased_lock_unlock(&arena->lock);
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    if (evicted > evicted_before)
        xseg_pool_record_shrink(arena, evicted - evicted_before);
    if (evicted < evicted_before)
        xseg_pool_record_growth(arena, evicted_before - evicted);
}

/* End the transition of a pool in a state; a running pool is opened for allocations. */
static void settle_transition(struct xseg_pool *pool, enum xseg_pool_state state)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION && state != XSEG_POOL_TRANSITION);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        settle_arena_counts(arena);
    }
    pool->state = state;
    if (state == XSEG_POOL_RUNNING)
        open_pool(pool);
}

/* --- Contents. --- */

/* Queue the copies of a segment.
 * offset: of the segment in the contents; advanced past it */
static xseg_status copy_segment(struct xseg_contents *contents, const struct xseg_segment *segment,
                                bool is_save, uint64_t *offset)
{
    xseg_status status = XSEG_OK;
    bool evicted = false;

    for (uint32_t granule = 0, count;
         status == XSEG_OK && (count = xseg_evicted_next_run(segment, &granule, &evicted)) != 0;
         granule += count) {
        const uint64_t address = segment->base + granule * segment->granule_bytes;
        const uint64_t bytes = count * segment->granule_bytes;

        XSEG_ASSERT(bytes != 0 && address + bytes <= segment->base + segment->bytes);
        if (is_save)
            status = xseg_contents_save(contents, *offset, address, bytes);
        else if (evicted)
            status = xseg_contents_load(contents, *offset, address, bytes);
        *offset += bytes;
    }
    return status;
}

/* Save or load the contents of a pool, and wait for the copies.  No lock is held. */
static xseg_status copy_contents(const struct xseg_pool *pool, struct xseg_contents *contents,
                                 bool is_save)
{
    xseg_status status = xseg_contents_acquire_buffer(contents);
    uint64_t offset = 0;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION);
    FOR_SEGMENTS(cursor, pool)
    {
        if (status == XSEG_OK)
            status = copy_segment(contents, cursor.segment, is_save, &offset);
    }
    if (contents->buffers != 0) {
        /* Copies that are already queued use the pinned memory, so wait also after an error. */
        const xseg_status wait_status = xseg_contents_wait(contents);

        status = status == XSEG_OK ? wait_status : status;
    }
    return status;
}

/* out: set also after a failure; NULL: there is nothing to save */
static xseg_status save_contents(const struct xseg_pool *pool, enum xseg_keep keep,
                                 const char *path, struct xseg_contents **out)
{
    struct xseg_device *device = pool->device;
    const uint64_t bytes = sum_mapped_bytes(pool);
    struct xseg_contents *contents;

    *out = NULL;
    if (keep == XSEG_KEEP_NOTHING || bytes == 0)
        return XSEG_OK;
    contents = malloc(sizeof(*contents));
    if (contents == NULL)
        return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, record of saved contents");
    *out = contents;
    const xseg_status status =
        xseg_contents_open(contents, &device->unreleased, device->copy_stream, keep, path, bytes);
    return status == XSEG_OK ? copy_contents(pool, contents, true) : status;
}

/* --- Pause. --- */

/* Map all pages again, which still have their physical memory.  Returns the first error. */
static xseg_status map_pages_again(const struct xseg_pool *pool)
{
    xseg_status result = XSEG_OK;

    FOR_SEGMENTS(cursor, pool)
    {
        const xseg_status status = xseg_evicted_map(cursor.segment);

        if (status == XSEG_OK)
            xseg_evicted_finish(cursor.segment);
        else if (result == XSEG_OK)
            result = status;
    }
    return result;
}

/* Roll back after an unmap has failed.  If the rollback fails, too, the pool is paused in its
 * current state, with the saved contents. */
static xseg_status roll_back_unmap(struct xseg_pool *pool, struct xseg_contents *contents,
                                   xseg_status status)
{
    char reason[384];

    XSEG_ASSERT(status != XSEG_OK);
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    if (map_pages_again(pool) == XSEG_OK)
        return xseg_fail(status, "%s", reason);
    pool->contents = contents;
    settle_transition(pool, XSEG_POOL_PAUSED);
    return xseg_fail(status,
                     "%s; pool %s is paused with its contents because the rollback failed, resume it",
                     reason, xseg_pool_label(pool));
}

/* On an integrated device, contents in host memory use memory of the device while the pages of the
 * pool still exist. */
static xseg_status check_host_copy(struct xseg_pool *pool, enum xseg_keep keep)
{
    return keep == XSEG_KEEP_HOST && pool->device->context.is_integrated
               ? xseg_growth_check_free(pool, sum_mapped_bytes(pool))
               : XSEG_OK;
}

/* Unmap all pages, then release their physical memory. */
static xseg_status evict_pool(struct xseg_pool *pool, struct xseg_contents *contents)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->contents == NULL);
    FOR_SEGMENTS(cursor, pool)
    {
        const xseg_status status = xseg_evicted_unmap(cursor.segment);

        if (status != XSEG_OK)
            return roll_back_unmap(pool, contents, status);
    }
    FOR_SEGMENTS(cursor, pool)
    {
        xseg_evicted_release(cursor.segment);
    }
    pool->contents = contents;
    if (contents != NULL)
        xseg_contents_release_buffer(contents);
    settle_transition(pool, XSEG_POOL_PAUSED);
    return XSEG_OK;
}

/*
 * Pause a pool in state TRANSITION.  The device memory lock is held on entry and return.
 *
 * contents:    set to the saved contents; the caller discards them if the pool is not paused
 * is_notified: set if observers were notified of the unmap
 */
static xseg_status run_pause(struct xseg_pool *pool, enum xseg_keep keep, const char *path,
                             struct xseg_contents **contents, bool *is_notified) XSEG_UNCHECKED
{
    struct xseg_device *device = pool->device;
    xseg_status status = close_pool(pool);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status == XSEG_OK)
        status = check_host_copy(pool, keep);
    if (status == XSEG_OK && keep != XSEG_KEEP_NOTHING)
        status = xseg_device_create_copy_stream(device);
    if (status != XSEG_OK)
        return status;
    /* From here until evict_pool() no page of the pool is mapped or unmapped. */
    FOR_SEGMENTS(cursor, pool)
    {
        xseg_evicted_select_aliases(cursor.segment);
    }
    if (keep != XSEG_KEEP_NOTHING || xseg_notify_is_enabled(device)) {
        *is_notified = true;
        if (!xseg_notify_pool(pool, true))
            return xseg_fail(XSEG_ERR_BUSY,
                             "registration callback runs in another thread for memory of pool %s; "
                             "retry after the callback has returned",
                             xseg_pool_label(pool));
        xseg_mutex_unlock(&device->memory_lock);
        status = save_contents(pool, keep, path, contents);
        xseg_mutex_lock(&device->memory_lock);
        if (status == XSEG_OK)
            status = check_captures(device);
        if (status == XSEG_OK)
            status = close_pool(pool);
    }
    if (status != XSEG_OK)
        return status;
    xseg_unexport_segments(pool);
    return evict_pool(pool, *contents);
}

static xseg_status pause_running_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    struct xseg_device *device = pool->device;
    struct xseg_contents *contents = NULL;
    bool is_notified = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    xseg_mutex_lock(&device->memory_lock);
    xseg_status status = check_pause(pool);
    if (status == XSEG_OK) {
        pool->state = XSEG_POOL_TRANSITION;
        status = run_pause(pool, keep, path, &contents, &is_notified);
        if (pool->state == XSEG_POOL_TRANSITION) {
            /* The pinned buffers are freed before observers run, which can take any time. */
            xseg_discard_contents(contents);
            if (is_notified)
                (void)xseg_notify_pool(pool, false);
            settle_transition(pool, XSEG_POOL_RUNNING);
        }
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_PAUSED);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_pause_pool(struct xseg_pool *pool, enum xseg_keep keep, const char *path)
{
    const int ordinal = pool->device->context.ordinal;

    XSEG_SPAN_BEGIN(pause, ordinal, atomic_load_explicit(&pool->reserved, memory_order_relaxed));
    const xseg_status status = pause_running_pool(pool, keep, path);
    XSEG_SPAN_END(pause, ordinal, status);
    xseg_allocator_deliver(pool->device->allocator);
    return status;
}

/* --- Resume. --- */

static void roll_back_pages(const struct xseg_pool *pool)
{
    FOR_SEGMENTS(cursor, pool)
    {
        (void)xseg_evicted_roll_back(cursor.segment);
    }
}

/* Create new physical memory for all pages, or for none. */
static xseg_status create_pages(struct xseg_pool *pool)
{
    xseg_status status = xseg_growth_check(pool, sum_unbacked_bytes(pool), 0);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (status != XSEG_OK)
        return status;
    FOR_SEGMENTS(cursor, pool)
    {
        if (status == XSEG_OK)
            status = xseg_evicted_create(cursor.segment);
    }
    if (status != XSEG_OK)
        roll_back_pages(pool);
    return status;
}

/* Request memory from other processes, and retry until the timeout. */
static xseg_status request_from_budget(struct xseg_pool *pool, xseg_status status)
{
    struct xseg_arena *arena = atomic_load_explicit(&pool->arenas, memory_order_acquire);
    struct xseg_budget_wait budget_wait;

    /* A pool without arenas needs no memory, so the failure is due to a limit that is exceeded. */
    if (arena == NULL)
        return status;
    if (xseg_budget_wait_begin(&budget_wait, arena, sum_unbacked_bytes(pool),
                               xseg_allocator_config(pool->device->allocator)))
        while (xseg_oom_cause_is_memory_pressure(status) && xseg_budget_wait_retry(&budget_wait))
            if (budget_wait.grows)
                status = create_pages(pool);
    xseg_budget_wait_end(&budget_wait, status == XSEG_OK);
    return status;
}

/* Create new memory for all pages.  Under memory pressure release idle memory first, then request
 * memory from other processes. */
static xseg_status create_pages_with_fallback(struct xseg_pool *pool)
{
    xseg_status status = create_pages(pool);

    if (!xseg_oom_cause_is_memory_pressure(status))
        return status;
    status = xseg_trim_all(pool->device, true);
    if (status != XSEG_OK)
        return status;
    status = create_pages(pool);
    return xseg_oom_cause_is_memory_pressure(status) ? request_from_budget(pool, status) : status;
}

/* Map new pages at the addresses of the pool, and load the contents.  The device memory lock is
 * held on entry and return. */
static xseg_status map_new_pages(struct xseg_pool *pool) XSEG_UNCHECKED
{
    struct xseg_device *device = pool->device;
    xseg_status status = create_pages_with_fallback(pool);

    FOR_SEGMENTS(cursor, pool)
    {
        if (status == XSEG_OK)
            status = xseg_evicted_map(cursor.segment);
    }
    if (status == XSEG_OK && pool->contents != NULL) {
        xseg_mutex_unlock(&device->memory_lock);
        status = copy_contents(pool, pool->contents, false);
        xseg_mutex_lock(&device->memory_lock);
    }
    return status;
}

/* Resume a pool in state TRANSITION.  The device memory lock is held. */
static xseg_status run_resume(struct xseg_pool *pool)
{
    struct xseg_contents *contents = pool->contents;
    char reason[384];
    const xseg_status status = map_new_pages(pool);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(contents == pool->contents);
    if (status == XSEG_OK) {
        XSEG_POOL_FOR_ARENAS(arena, pool)
        {
            record_resume(arena);
        }
        FOR_SEGMENTS(cursor, pool)
        {
            xseg_evicted_finish(cursor.segment);
        }
        pool->contents = NULL;
        xseg_discard_contents(contents);
        (void)xseg_notify_pool(pool, false);
        settle_transition(pool, XSEG_POOL_RUNNING);
        return XSEG_OK;
    }
    (void)snprintf(reason, sizeof(reason), "%s", xseg_fail_detail());
    roll_back_pages(pool);
    if (contents != NULL)
        xseg_contents_release_buffer(contents);
    settle_transition(pool, XSEG_POOL_PAUSED);
    return xseg_fail(status, "%s; pool %s is still paused%s", reason, xseg_pool_label(pool),
                     xseg_oom_cause_is_memory_pressure(status) ? ", free memory and resume it again"
                                                               : "");
}

static xseg_status resume_paused_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    xseg_status status = XSEG_OK;

    xseg_mutex_lock(&device->memory_lock);
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
        status = run_resume(pool);
    }
    XSEG_ASSERT(status != XSEG_OK || pool->state == XSEG_POOL_RUNNING);
    xseg_mutex_unlock(&device->memory_lock);
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
