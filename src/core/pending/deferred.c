/* SPDX-License-Identifier: MIT */
#include "src/core/pending/deferred.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"

/* --- Marks: the last nodes of all streams that use a block. --- */

struct marks {
    uint64_t capture; /* the capture that all streams take part in; 0: not known yet */
    struct xseg_topology_mark *mark;
    size_t count, capacity;
};

static bool add_marks(struct marks *marks, const struct xseg_capture_info *info)
{
    if (marks->count + info->count > marks->capacity) {
        const size_t capacity = (marks->count + info->count) * 2;
        struct xseg_topology_mark *larger = realloc(marks->mark, capacity * sizeof(*larger));

        if (larger == NULL)
            return false;
        marks->mark = larger;
        marks->capacity = capacity;
    }
    XSEG_ASSERT(marks->count + info->count <= marks->capacity);
    for (size_t i = 0; i < info->count; i++)
        marks->mark[marks->count++] = (struct xseg_topology_mark){info->nodes[i], NULL, NULL};
    return true;
}

/* Add the marks of a stream; false if the stream takes part in no capture, or in another one. */
static bool mark_stream(struct xseg_context *context, const struct xseg_known_stream *stream,
                        struct marks *marks)
{
    struct xseg_capture_info info;
    bool can_name = true;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (stream->handle == NULL || !xseg_stream_is_known(stream) ||
        !xseg_streams_is_claimed(stream) ||
        xseg_streams_can_name(context, stream, &can_name) != XSEG_OK || !can_name ||
        xseg_driver_capture_info(context, stream->handle, &info) != XSEG_OK || info.id == 0 ||
        (marks->capture != 0 && marks->capture != info.id))
        return false;
    marks->capture = info.id;
    return add_marks(marks, &info);
}

/* Collect the marks of a block; none if the block has to wait for the end of the capture. */
static struct marks mark_block(struct xseg_context *context, const struct xseg_block *block)
{
    struct marks marks = {0};
    bool all = mark_stream(context, xseg_arena_stream(block->extent->arena), &marks);

    /* A use outside the capture is real work, of which the graph knows nothing. */
    for (const struct xseg_stream_use *use = block->uses; all && use != NULL; use = use->next)
        all = !use->outside && xseg_pending_is_current(use) &&
              mark_stream(context, use->stream, &marks);
    if (!all)
        marks.count = 0;
    return marks;
}

/* --- Deferring. --- */

xseg_status xseg_deferred_add(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology)
{
    struct marks marks = {0};
    struct xseg_topology_view *view = NULL;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->uses != NULL);
    XSEG_ASSERT(xseg_pending_captures(pending));
    if (by_topology)
        marks = mark_block(pending->fences.context, block);
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
    /* Without host memory to wait for the marks, the block waits for the end of the capture. */
    if (view != NULL)
        (void)xseg_topology_wait(view, &deferred->waiter, deferred->marks, marks.count);
    xseg_list_insert(&pending->deferred, &deferred->link);
    xseg_pending_count_one(pending);
    return XSEG_OK;
}

static void end_deferred(struct xseg_pending *pending, struct xseg_deferred *deferred)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    xseg_list_remove(&deferred->waiter.link);
    xseg_list_remove(&deferred->link);
    xseg_pending_uncount_one(pending);
    free(deferred);
}

void xseg_deferred_reuse(struct xseg_pending *pending, struct xseg_known_stream *stream)
{
    struct xseg_context *context = pending->fences.context;
    struct xseg_topology_view *view = NULL;
    struct xseg_capture_info info;

    if (stream->handle == NULL)
        return;
    xseg_pending_lock(pending);
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
            xseg_arena_lock(arena);
            xseg_pending_discard(arena, deferred->block);
            xseg_arena_unlock(arena);
            end_deferred(pending, deferred);
        }
    }
    xseg_pending_unlock(pending);
}

/* --- After the capture. --- */

void xseg_deferred_unmark(struct xseg_pending *pending)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    XSEG_LIST_FOR(node, &pending->deferred)
    {
        xseg_list_remove(&XSEG_CONTAINER(node, struct xseg_deferred, link)->waiter.link);
    }
    xseg_topology_fini(&pending->topology);
}

/* End the uses of a block that were noted only in a capture. */
static void drop_captured(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_stream_use **place = &block->uses, *use;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->state == XSEG_BLOCK_PENDING_FREE);
    while ((use = *place) != NULL) {
        if (use->outside) {
            use->captured = false;
            place = &use->next;
        } else {
            *place = use->next;
            xseg_slab_free(&arena->uses, use);
        }
    }
}

static xseg_status settle(struct xseg_pending *pending, struct xseg_block *block)
{
    struct xseg_arena *arena = block->extent->arena;

    xseg_arena_lock(arena);
    drop_captured(arena, block);
    const bool free = block->uses == NULL || xseg_context_is_lost(pending->fences.context);
    if (free)
        xseg_pending_discard(arena, block);
    xseg_arena_unlock(arena);
    return free ? XSEG_OK : xseg_pending_record(pending, block);
}

xseg_status xseg_deferred_settle(struct xseg_pending *pending, const struct xseg_pool *pool)
{
    xseg_status first = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    XSEG_LIST_FOR_SAFE(node, &pending->deferred)
    {
        struct xseg_deferred *deferred = XSEG_CONTAINER(node, struct xseg_deferred, link);

        if (pool != NULL && deferred->block->extent->arena->pool != pool)
            continue;
        const xseg_status status = settle(pending, deferred->block);
        if (status == XSEG_OK)
            end_deferred(pending, deferred);
        first = first == XSEG_OK ? status : first;
    }
    return first;
}
