/* SPDX-License-Identifier: MIT */
#include "src/core/pending/pending.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/block/arena.h"
#include "src/core/block/recorder.h"

static void increment_count(struct xseg_pending *pending)
{
    atomic_fetch_add_explicit(&pending->fences.context->slow_path, 1, memory_order_relaxed);
}

static void decrement_count(struct xseg_pending *pending)
{
    XSEG_ASSERT(xseg_pending_count(pending) != 0);
    atomic_fetch_sub_explicit(&pending->fences.context->slow_path, 1, memory_order_relaxed);
}

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context)
{
    xseg_biased_lock_init(&pending->lock, XSEG_RANK_PENDING);
    xseg_fences_init(&pending->fences, context);
    xseg_list_init(&pending->streams);
    xseg_list_init(&pending->deferred);
    xseg_topology_init(&pending->topology);
    pending->completed_blocks = NULL;
    atomic_init(&pending->captures, 0);
    pending->marks = 0;
}

void xseg_pending_fini(struct xseg_pending *pending)
{
    XSEG_ASSERT(pending->completed_blocks == NULL);
    XSEG_ASSERT(xseg_list_is_empty(&pending->deferred) ||
                xseg_context_is_lost(pending->fences.context));
    /* Deferred blocks remain only if the device is lost. */
    XSEG_LIST_FOR_SAFE(node, &pending->deferred)
    {
        free(XSEG_CONTAINER(node, struct xseg_deferred, link));
    }
    xseg_topology_fini(&pending->topology);
    xseg_fences_abandon(&pending->fences);
    xseg_biased_lock_fini(&pending->lock);
}

void xseg_pending_return_event(struct xseg_pending *pending, xseg_event event)
{
    xseg_biased_lock_lock(&pending->lock);
    xseg_fences_return(&pending->fences, event);
    xseg_biased_lock_unlock(&pending->lock);
}

void xseg_pending_record_stream(struct xseg_arena *arena, struct xseg_block *block,
                                struct xseg_known_stream *stream, bool is_captured)
{
    struct xseg_stream_use *use = block->uses;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->extent->arena == arena && block->state == XSEG_BLOCK_ALLOCATED);
    while (use != NULL && (use->stream != stream || !xseg_pending_is_current(use)))
        use = use->next;
    if (use == NULL) {
        use = xseg_slab_alloc(&arena->uses);
        XSEG_ASSERT(use != NULL);
        xseg_list_init(&use->link);
        use->stream = stream;
        use->stream_id = stream->id;
        use->block = block;
        use->next = block->uses;
        use->outside = use->captured = use->is_shared = false;
        block->uses = use;
    }
    use->outside = use->outside || !is_captured;
    use->captured = use->captured || is_captured;
    XSEG_ASSERT(use->outside || use->captured);
}

/*
 * Record an event after the work of the stream of a use.  A use of a retiring stream shares the
 * last event of the stream, and a retired stream has completed.  The calling thread cannot address
 * the per-thread default stream of another thread; an event on the legacy stream replaces it,
 * because the legacy stream waits for all streams of that kind.
 */
static xseg_status record_use_event(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    bool is_addressable = true;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    use->is_shared = !xseg_pending_is_current(use) || !xseg_stream_is_known(use->stream);
    if (use->is_shared) {
        use->event =
            xseg_pending_is_current(use) ? use->stream->retire_event : NULL; /* NULL: completed */
        return XSEG_OK;
    }
    status = xseg_streams_can_use(pending->fences.context, use->stream, &is_addressable);
    if (status != XSEG_OK)
        return status;
    return xseg_fences_record(&pending->fences, is_addressable ? use->stream->handle : NULL,
                              &use->event);
}

/* Return the event of a use, unless it is shared with the stream entry. */
static void return_use_event(struct xseg_pending *pending, const struct xseg_stream_use *use)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (!use->is_shared)
        xseg_fences_return(&pending->fences, use->event);
}

/* Record an event for each use of a block; on failure the recorded events are returned. */
static xseg_status record_use_events(struct xseg_pending *pending, struct xseg_block *block)
{
    for (struct xseg_stream_use *use = block->uses; use != NULL; use = use->next) {
        const xseg_status status = record_use_event(pending, use);

        if (status == XSEG_OK)
            continue;
        for (struct xseg_stream_use *recorded = block->uses; recorded != use;
             recorded = recorded->next)
            return_use_event(pending, recorded);
        return status;
    }
    return XSEG_OK;
}

/* The position of a stream in the order of polls: the default stream first, then the newest.
 * PyTorch's table of streams has this order for its first six streams. */
static uint64_t stream_rank(const struct xseg_known_stream *stream)
{
    return stream->handle == NULL ? 0 : UINT64_MAX / 2 - stream->id;
}

/* Insert a stream into the list of streams with uses, unless it is in the list. */
static void add_waiting_stream(struct xseg_pending *pending, struct xseg_known_stream *stream)
{
    struct xseg_list *next = pending->streams.next;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (!xseg_list_is_empty(&stream->waiting))
        return;
    /* The rank is fixed while the stream is listed, although the entry may be reused by another
     * stream. */
    stream->rank = stream_rank(stream);
    while (next != &pending->streams &&
           XSEG_CONTAINER(next, struct xseg_known_stream, waiting)->rank < stream->rank)
        next = next->next;
    xseg_list_insert(next, &stream->waiting);
}

/* Record an action on a block in the history.  The caller holds the arena lock. */
static void record_action(struct xseg_arena *arena, const struct xseg_block *block,
                          enum xseg_history_action action)
{
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_block(arena, block, action);
}

/* Drop the uses of a pending block, and cache it. */
static void cache_pending_block(struct xseg_arena *arena, struct xseg_block *block)
    XSEG_REQUIRES(arena->lock)
{
    struct xseg_stream_use *use = block->uses, *next;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->extent->arena == arena);
    record_action(arena, block, XSEG_HISTORY_FREE_COMPLETED);
    for (; use != NULL; use = next) {
        next = use->next;
        xseg_slab_free(&arena->uses, use);
    }
    block->uses = NULL;
    xseg_arena_free_pending(arena, block);
}

static void queue_uses(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    struct xseg_stream_use *next;

    for (; use != NULL; use = next) {
        next = use->next;
        XSEG_ASSERT(xseg_list_is_empty(&use->link));
        add_waiting_stream(pending, use->stream);
        /* Completed uses are inserted first, because a wait uses the last event of a queue. */
        xseg_list_insert(use->event == NULL ? use->stream->uses.next : &use->stream->uses,
                         &use->link);
        increment_count(pending);
    }
}

/* Record an event for each use of a block, and queue the uses.  On failure nothing is changed. */
static xseg_status record_block_events(struct xseg_pending *pending, struct xseg_block *block)
{
    struct xseg_context *context = pending->fences.context;
    int mode = 0;
    xseg_status status = xseg_driver_relax_capture_mode(context, &mode);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->uses != NULL);
    if (status != XSEG_OK)
        return status;
    status = record_use_events(pending, block);
    xseg_driver_restore_capture_mode(context, mode);
    if (status != XSEG_OK)
        return status;
    block->waits = 0;
    for (const struct xseg_stream_use *use = block->uses; use != NULL; use = use->next)
        block->waits++;
    XSEG_ASSERT(block->waits != 0);
    queue_uses(pending, block->uses);
    block->uses = NULL;
    return XSEG_OK;
}

/* --- Deferred blocks: marks. --- */

/* The last graph nodes of all streams that use a block. */
struct marks {
    uint64_t capture; /* ID of the common capture of the streams; 0: not known yet */
    struct xseg_topology_mark *mark;
    size_t count, capacity;
};

static bool append_marks(struct marks *marks, const struct xseg_capture_info *info)
{
    if (marks->count + info->count > marks->capacity) {
        const size_t capacity = (marks->count + info->count) * 2;
        struct xseg_topology_mark *grown = realloc(marks->mark, capacity * sizeof(*grown));

        if (grown == NULL)
            return false;
        marks->mark = grown;
        marks->capacity = capacity;
    }
    XSEG_ASSERT(marks->count + info->count <= marks->capacity);
    for (size_t i = 0; i < info->count; i++)
        marks->mark[marks->count++] = (struct xseg_topology_mark){info->nodes[i], NULL, NULL};
    return true;
}

/* Collect the marks of a stream.  Returns false if the stream is in no capture or in another
 * capture. */
static bool collect_stream_marks(struct xseg_context *context,
                                 const struct xseg_known_stream *stream, struct marks *marks)
{
    struct xseg_capture_info info;
    bool is_addressable = true;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (stream->handle == NULL || !xseg_stream_is_known(stream) ||
        !xseg_streams_is_claimed(stream) ||
        xseg_streams_can_use(context, stream, &is_addressable) != XSEG_OK || !is_addressable ||
        xseg_driver_capture_info(context, stream->handle, &info) != XSEG_OK || info.id == 0 ||
        (marks->capture != 0 && marks->capture != info.id))
        return false;
    marks->capture = info.id;
    return append_marks(marks, &info);
}

/* Collect the marks of a block; none if the block must wait until the capture ends. */
static struct marks collect_block_marks(struct xseg_context *context,
                                        const struct xseg_block *block)
{
    struct marks marks = {0};
    bool is_complete =
        collect_stream_marks(context, xseg_arena_stream(block->extent->arena), &marks);

    /* The graph does not contain work of a use outside the capture. */
    for (const struct xseg_stream_use *use = block->uses; is_complete && use != NULL;
         use = use->next)
        is_complete = !use->outside && xseg_pending_is_current(use) &&
                      collect_stream_marks(context, use->stream, &marks);
    if (!is_complete)
        marks.count = 0;
    return marks;
}

/* --- Deferred blocks: during the capture. --- */

/* Defer a claimed block with uses that is freed during a capture.  On host allocation failure
 * nothing is changed. */
static xseg_status defer_block(struct xseg_pending *pending, struct xseg_block *block,
                               bool by_topology)
{
    struct marks marks = {0};
    struct xseg_topology_view *view = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->uses != NULL);
    XSEG_ASSERT(xseg_pending_captures(pending));
    if (by_topology)
        marks = collect_block_marks(pending->fences.context, block);
    struct xseg_deferred *deferred =
        malloc(sizeof(*deferred) + marks.count * sizeof(deferred->marks[0]));
    if (deferred == NULL) {
        free(marks.mark);
        return xseg_fail(XSEG_ERR_HOST_MEMORY,
                         "out of host memory, record of a block freed during a capture");
    }
    deferred->block = block;
    xseg_list_init(&deferred->waiter.link);
    if (marks.count > 0) {
        memcpy(deferred->marks, marks.mark, marks.count * sizeof(deferred->marks[0]));
        view = xseg_topology_get(&pending->topology, marks.capture,
                                 xseg_arena_stream(block->extent->arena));
    }
    free(marks.mark);
    /* If this host allocation fails, the block waits until the capture ends. */
    if (view != NULL)
        (void)xseg_topology_wait(view, &deferred->waiter, deferred->marks, marks.count);
    xseg_list_insert(&pending->deferred, &deferred->link);
    increment_count(pending);
    return XSEG_OK;
}

static void remove_deferred(struct xseg_pending *pending, struct xseg_deferred *deferred)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    xseg_list_remove(&deferred->waiter.link);
    xseg_list_remove(&deferred->link);
    decrement_count(pending);
    free(deferred);
}

void xseg_deferred_reuse(struct xseg_pending *pending, struct xseg_known_stream *stream)
{
    struct xseg_context *context = pending->fences.context;
    struct xseg_topology_view *view = NULL;
    struct xseg_capture_info info;

    if (stream->handle == NULL)
        return;
    xseg_biased_lock_lock(&pending->lock);
    if (xseg_driver_capture_info(context, stream->handle, &info) == XSEG_OK && info.count > 0)
        view = xseg_topology_get(&pending->topology, info.id, stream);
    if (view != NULL) {
        xseg_topology_advance(view, context, info.nodes, info.count);
        XSEG_LIST_FOR_SAFE(node, &view->ready)
        {
            struct xseg_deferred *deferred =
                XSEG_CONTAINER(node, struct xseg_deferred, waiter.link);
            struct xseg_arena *arena = deferred->block->extent->arena;

            XSEG_ASSERT(deferred->waiter.missing == 0);
            xseg_biased_lock_lock(&arena->lock);
            cache_pending_block(arena, deferred->block);
            xseg_biased_lock_unlock(&arena->lock);
            remove_deferred(pending, deferred);
        }
    }
    xseg_biased_lock_unlock(&pending->lock);
}

/* --- Deferred blocks: after the capture. --- */

void xseg_deferred_discard_marks(struct xseg_pending *pending)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    XSEG_LIST_FOR(node, &pending->deferred)
    {
        xseg_list_remove(&XSEG_CONTAINER(node, struct xseg_deferred, link)->waiter.link);
    }
    xseg_topology_fini(&pending->topology);
}

/* Drop the uses of a block that were recorded only in a capture. */
static void drop_captured_uses(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_stream_use **link = &block->uses, *use;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->state == XSEG_BLOCK_PENDING_FREE);
    while ((use = *link) != NULL) {
        if (use->outside) {
            use->captured = false;
            link = &use->next;
        } else {
            *link = use->next;
            xseg_slab_free(&arena->uses, use);
        }
    }
}

static xseg_status flush_deferred_block(struct xseg_pending *pending, struct xseg_block *block)
{
    struct xseg_arena *arena = block->extent->arena;

    xseg_biased_lock_lock(&arena->lock);
    drop_captured_uses(arena, block);
    const bool is_unused = block->uses == NULL || xseg_context_is_lost(pending->fences.context);
    if (is_unused)
        cache_pending_block(arena, block);
    xseg_biased_lock_unlock(&arena->lock);
    return is_unused ? XSEG_OK : record_block_events(pending, block);
}

xseg_status xseg_deferred_flush(struct xseg_pending *pending, const struct xseg_pool *pool)
{
    xseg_status result = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    XSEG_LIST_FOR_SAFE(node, &pending->deferred)
    {
        struct xseg_deferred *deferred = XSEG_CONTAINER(node, struct xseg_deferred, link);

        if (pool != NULL && deferred->block->extent->arena->pool != pool)
            continue;
        const xseg_status status = flush_deferred_block(pending, deferred->block);
        if (status == XSEG_OK)
            remove_deferred(pending, deferred);
        result = result == XSEG_OK ? status : result;
    }
    return result;
}

/* --- Pending blocks. --- */

xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology)
{
    struct xseg_arena *arena = block->extent->arena;
    xseg_status status;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_PENDING) &&
                !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->uses != NULL);
    xseg_biased_lock_lock(&pending->lock);
    if (xseg_context_is_lost(pending->fences.context))
        status = XSEG_ERR_DEVICE_LOST;
    else if (xseg_pending_captures(pending))
        status = defer_block(pending, block, by_topology);
    else
        status = record_block_events(pending, block);
    xseg_biased_lock_lock(&arena->lock);
    block->state = XSEG_BLOCK_ALLOCATED;
    if (status == XSEG_OK || status == XSEG_ERR_DEVICE_LOST) {
        block->state = XSEG_BLOCK_PENDING_FREE;
        record_action(arena, block, XSEG_HISTORY_FREE_REQUESTED);
        xseg_arena_mark_pending(arena, block);
    }
    /* No work runs on a lost device, so a freed block is cached immediately. */
    if (status == XSEG_ERR_DEVICE_LOST)
        cache_pending_block(arena, block);
    xseg_biased_lock_unlock(&arena->lock);
    xseg_biased_lock_unlock(&pending->lock);
    return status == XSEG_ERR_DEVICE_LOST ? XSEG_OK : status;
}

/* Complete a use.  The last use caches its block. */
static void complete_use(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    struct xseg_block *block = use->block;
    struct xseg_arena *arena = block->extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->waits != 0 && block->state == XSEG_BLOCK_PENDING_FREE);
    xseg_list_remove(&use->link);
    decrement_count(pending);
    return_use_event(pending, use);
    xseg_biased_lock_lock(&arena->lock);
    xseg_slab_free(&arena->uses, use);
    if (block->waits == 1)
        record_action(arena, block, XSEG_HISTORY_FREE_COMPLETED);
    if (--block->waits == 0 && __builtin_expect(xseg_debug_fill_is_on(arena), 0)) {
        block->state = XSEG_BLOCK_CLAIMED;
        block->chain = pending->completed_blocks;
        pending->completed_blocks = block;
    } else if (block->waits == 0) {
        xseg_arena_free_pending(arena, block);
    }
    xseg_biased_lock_unlock(&arena->lock);
}

/*
 * Record an event again after its query has failed.  An event that was recorded in a capture
 * without a notification never completes.  After the capture of the stream, a new event follows the
 * same work.
 */
static bool rerecord_event(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    xseg_event event;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (use->is_shared || !xseg_streams_accepts_work(pending->fences.context, use->stream) ||
        xseg_fences_record(&pending->fences, use->stream->handle, &event) != XSEG_OK)
        return false;
    XSEG_ASSERT(use->event != NULL);
    xseg_fences_return(&pending->fences, use->event);
    use->event = event;
    return true;
}

static inline struct xseg_stream_use *first_queued_use(struct xseg_list *node)
{
    XSEG_ASSERT(
        !xseg_list_is_empty(&XSEG_CONTAINER(node, struct xseg_known_stream, waiting)->uses));
    return XSEG_LIST_FIRST(&XSEG_CONTAINER(node, struct xseg_known_stream, waiting)->uses,
                           struct xseg_stream_use, link);
}

/*
 * Handle a query of the first use of a stream that did not return "not complete".
 *
 * Returns: the stream to poll next
 */
static __attribute__((noinline)) struct xseg_list *
handle_query_result(struct xseg_pending *pending, struct xseg_driver_poll *queries,
                    struct xseg_list *node, enum xseg_driver_poll_result result)
{
    struct xseg_stream_use *use = first_queued_use(node);
    struct xseg_known_stream *stream = use->stream;
    struct xseg_list *next = node->next;

    XSEG_ASSERT(result != XSEG_DRIVER_POLL_PENDING);
    if (result == XSEG_DRIVER_POLL_FAILED && rerecord_event(pending, use))
        result = xseg_driver_poll_event(queries, use->event, false);
    if (result != XSEG_DRIVER_POLL_COMPLETED)
        return next;
    complete_use(pending, use);
    if (!xseg_list_is_empty(&stream->uses))
        return node;
    xseg_list_remove(node);
    return next;
}

/* Query the events in the queue of each stream, up to the first that has not completed. */
static inline void poll_queues(struct xseg_pending *pending)
{
    struct xseg_driver_poll queries = {.context = pending->fences.context};
    struct xseg_list *node;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    if (__builtin_expect(!xseg_list_is_empty(&pending->deferred), 0))
        (void)xseg_deferred_flush(pending, NULL);
    node = pending->streams.next;
    while (node != &pending->streams) {
        const xseg_event event = first_queued_use(node)->event;
        const enum xseg_driver_poll_result result =
            event == NULL
                ? XSEG_DRIVER_POLL_COMPLETED
                : xseg_driver_poll_event(&queries, event, node->next == &pending->streams);

        node = __builtin_expect(result == XSEG_DRIVER_POLL_PENDING, 1)
                   ? node->next
                   : handle_query_result(pending, &queries, node, result);
    }
    if (queries.is_open)
        xseg_driver_poll_end(&queries);
}

/* Unlock PENDING, and write the debug pattern to the blocks whose last use completed under the
 * lock. */
static void unlock_and_fill_freed(struct xseg_pending *pending) XSEG_UNCHECKED
{
    struct xseg_block *completed = pending->completed_blocks;

    pending->completed_blocks = NULL;
    xseg_biased_lock_unlock(&pending->lock);
    if (__builtin_expect(completed != NULL, 0))
        xseg_debug_fill_freed(completed);
}

void xseg_pending_poll(struct xseg_pending *pending) XSEG_UNCHECKED
{
    xseg_biased_lock_lock(&pending->lock);
    if (!xseg_pending_captures(pending))
        poll_queues(pending);
    unlock_and_fill_freed(pending);
}

void xseg_pending_stream_synchronized(struct xseg_pending *pending,
                                      struct xseg_known_stream *stream) XSEG_UNCHECKED
{
    xseg_biased_lock_lock(&pending->lock);
    XSEG_LIST_FOR_SAFE(node, &stream->uses)
    {
        complete_use(pending, XSEG_CONTAINER(node, struct xseg_stream_use, link));
    }
    XSEG_ASSERT(xseg_list_is_empty(&stream->uses));
    xseg_list_remove(&stream->waiting);
    unlock_and_fill_freed(pending);
}

/*
 * Find the first stream whose rank is at least `*rank`, and set `*rank` to its rank.  Returns the
 * event of the last use of the stream; NULL if that use has completed.
 *
 * rerecord: the wait for the event failed, so the event is recorded again
 * found:    set to whether there is such a stream, and with `rerecord` whether the event was
 *           recorded
 */
static xseg_event find_last_event(struct xseg_pending *pending, bool rerecord, uint64_t *rank,
                                  bool *found)
{
    xseg_event event = NULL;

    *found = false;
    xseg_biased_lock_lock(&pending->lock);
    XSEG_LIST_FOR(node, &pending->streams)
    {
        const struct xseg_known_stream *stream =
            XSEG_CONTAINER(node, struct xseg_known_stream, waiting);
        struct xseg_stream_use *use =
            XSEG_CONTAINER(stream->uses.prev, struct xseg_stream_use, link);

        if (stream->rank < *rank)
            continue;
        XSEG_ASSERT(!xseg_list_is_empty(&stream->uses));
        *found = !rerecord || rerecord_event(pending, use);
        event = use->event;
        *rank = stream->rank;
        break;
    }
    xseg_biased_lock_unlock(&pending->lock);
    return event;
}

static xseg_status synchronize_use_event(struct xseg_pending *pending, xseg_event event)
{
    return event == NULL ? XSEG_OK : xseg_driver_event_synchronize(pending->fences.context, event);
}

xseg_status xseg_pending_fail_capture(const struct xseg_pending *pending)
{
    return xseg_fail(XSEG_ERR_BUSY, "capture is active on device %d; end it first",
                     pending->fences.context->ordinal);
}

xseg_status xseg_pending_wait(struct xseg_pending *pending)
{
    uint64_t rank = 0;
    bool found = true;

    xseg_biased_lock_lock(&pending->lock);
    /* A capture may have begun since the check of the caller.  Then deferred blocks remain. */
    const xseg_status flush_status =
        xseg_pending_captures(pending) ? XSEG_OK : xseg_deferred_flush(pending, NULL);
    xseg_status status = XSEG_OK;
    xseg_biased_lock_unlock(&pending->lock);
    xseg_pending_poll(pending);
    /* Wait for each stream once, because other threads may continue to free blocks. */
    for (; status == XSEG_OK; rank++) {
        xseg_event event = find_last_event(pending, false, &rank, &found);

        if (!found)
            break;
        /* If another thread returns the event and records it again, the wait is only longer. */
        status = synchronize_use_event(pending, event);
        if (status == XSEG_OK)
            continue;
        event = find_last_event(pending, true, &rank, &found);
        if (found)
            status = synchronize_use_event(pending, event);
    }
    xseg_pending_poll(pending);
    return status != XSEG_OK ? status : flush_status;
}
