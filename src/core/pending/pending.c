/* SPDX-License-Identifier: MIT */
#include "src/core/pending/pending.h"

#include <stdlib.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/arena/recorder.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/pending/debug_fill.h"
#include "src/core/pending/deferred.h"

void xseg_pending_init(struct xseg_pending *pending, struct xseg_context *context)
{
    xseg_biased_lock_init(&pending->lock, XSEG_RANK_PENDING);
    xseg_fences_init(&pending->fences, context);
    xseg_list_init(&pending->streams);
    xseg_list_init(&pending->deferred);
    xseg_topology_init(&pending->topology);
    pending->ended = NULL;
    atomic_init(&pending->captures, 0);
    pending->marks = 0;
}

void xseg_pending_fini(struct xseg_pending *pending)
{
    XSEG_ASSERT(pending->ended == NULL);
    XSEG_ASSERT(xseg_list_is_empty(&pending->deferred) ||
                xseg_context_is_lost(pending->fences.context));
    /* Deferred blocks are left only on a lost device. */
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
    xseg_pending_lock(pending);
    xseg_fences_return(&pending->fences, event);
    xseg_pending_unlock(pending);
}

void xseg_pending_record_stream(struct xseg_arena *arena, struct xseg_block *block,
                                struct xseg_known_stream *stream, bool captured)
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
        use->number = stream->number;
        use->block = block;
        use->next = block->uses;
        use->outside = use->captured = use->is_shared = false;
        block->uses = use;
    }
    use->outside = use->outside || !captured;
    use->captured = use->captured || captured;
    XSEG_ASSERT(use->outside || use->captured);
}

/*
 * Record an event behind the work of a stream.  A stream that is gone has its last event.  Another
 * thread's default stream cannot be named here: the legacy stream stands for it, since that waits
 * for all streams of that kind.
 */
static xseg_status record_use(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    bool can_name = true;
    xseg_status status = XSEG_OK;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    use->is_shared = !xseg_pending_is_current(use) || !xseg_stream_is_known(use->stream);
    if (use->is_shared) {
        use->event = xseg_pending_is_current(use) ? use->stream->last : NULL; /* NULL: passed */
        return XSEG_OK;
    }
    status = xseg_streams_can_name(pending->fences.context, use->stream, &can_name);
    if (status != XSEG_OK)
        return status;
    return xseg_fences_record(&pending->fences, can_name ? use->stream->handle : NULL, &use->event);
}

/* Give back the event of a use. */
static void put_event(struct xseg_pending *pending, const struct xseg_stream_use *use)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (!use->is_shared)
        xseg_fences_return(&pending->fences, use->event);
}

/* Record an event for each use of a block; on failure the recorded ones are idle again. */
static xseg_status record_all(struct xseg_pending *pending, struct xseg_block *block)
{
    for (struct xseg_stream_use *use = block->uses; use != NULL; use = use->next) {
        const xseg_status status = record_use(pending, use);

        if (status == XSEG_OK)
            continue;
        for (struct xseg_stream_use *undo = block->uses; undo != use; undo = undo->next)
            put_event(pending, undo);
        return status;
    }
    return XSEG_OK;
}

/*
 * The place of a stream among those that are waited for: the default stream first, then the newest.
 * PyTorch's table of streams has this order for its first six streams.
 */
static uint64_t rank_of(const struct xseg_known_stream *stream)
{
    return stream->handle == NULL ? 0 : UINT64_MAX / 2 - stream->number;
}

/* Add a stream to those that are waited for, unless it is there. */
static void wait_for(struct xseg_pending *pending, struct xseg_known_stream *stream)
{
    struct xseg_list *place = pending->streams.next;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (!xseg_list_is_empty(&stream->waiting))
        return;
    /* The rank stays while the stream is listed, though the entry may become another stream's. */
    stream->rank = rank_of(stream);
    while (place != &pending->streams &&
           XSEG_CONTAINER(place, struct xseg_known_stream, waiting)->rank < stream->rank)
        place = place->next;
    xseg_list_insert(place, &stream->waiting);
}

/* Note an action on a block.  Its arena's lock is held. */
static void note(struct xseg_arena *arena, const struct xseg_block *block,
                 enum xseg_history_action action)
{
    if (xseg_recorder_is_enabled(arena))
        xseg_recorder_block(arena, block, action);
}

void xseg_pending_discard(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_stream_use *use = block->uses, *next;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->extent->arena == arena);
    note(arena, block, XSEG_HISTORY_FREE_COMPLETED);
    for (; use != NULL; use = next) {
        next = use->next;
        xseg_slab_free(&arena->uses, use);
    }
    block->uses = NULL;
    xseg_arena_free_pending(arena, block);
}

static void queue_all(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    struct xseg_stream_use *next;

    for (; use != NULL; use = next) {
        next = use->next;
        XSEG_ASSERT(xseg_list_is_empty(&use->link));
        wait_for(pending, use->stream);
        /* Uses that have passed come first: a wait goes by the last event of a queue. */
        xseg_list_insert(use->event == NULL ? use->stream->uses.next : &use->stream->uses,
                         &use->link);
        xseg_pending_count_one(pending);
    }
}

xseg_status xseg_pending_record(struct xseg_pending *pending, struct xseg_block *block)
{
    struct xseg_context *context = pending->fences.context;
    int mode = 0;
    xseg_status status = xseg_driver_relax_capture_mode(context, &mode);

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->uses != NULL);
    if (status != XSEG_OK)
        return status;
    status = record_all(pending, block);
    xseg_driver_restore_capture_mode(context, mode);
    if (status != XSEG_OK)
        return status;
    block->waits = 0;
    for (const struct xseg_stream_use *use = block->uses; use != NULL; use = use->next)
        block->waits++;
    XSEG_ASSERT(block->waits != 0);
    queue_all(pending, block->uses);
    block->uses = NULL;
    return XSEG_OK;
}

xseg_status xseg_pending_free(struct xseg_pending *pending, struct xseg_block *block,
                              bool by_topology)
{
    struct xseg_arena *arena = block->extent->arena;
    xseg_status status;

    XSEG_ASSERT(!xseg_lock_rank_is_held(XSEG_RANK_PENDING) &&
                !xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    XSEG_ASSERT(block->state == XSEG_BLOCK_CLAIMED && block->uses != NULL);
    xseg_pending_lock(pending);
    if (xseg_context_is_lost(pending->fences.context))
        status = XSEG_ERR_DEVICE_LOST;
    else if (xseg_pending_captures(pending))
        status = xseg_deferred_add(pending, block, by_topology);
    else
        status = xseg_pending_record(pending, block);
    xseg_arena_lock(arena);
    block->state = XSEG_BLOCK_ALLOCATED;
    if (status == XSEG_OK || status == XSEG_ERR_DEVICE_LOST) {
        block->state = XSEG_BLOCK_PENDING_FREE;
        note(arena, block, XSEG_HISTORY_FREE_REQUESTED);
        xseg_arena_mark_pending(arena, block);
    }
    /* On a lost device nothing runs any more, so a freed block is cached at once. */
    if (status == XSEG_ERR_DEVICE_LOST)
        xseg_pending_discard(arena, block);
    xseg_arena_unlock(arena);
    xseg_pending_unlock(pending);
    return status == XSEG_ERR_DEVICE_LOST ? XSEG_OK : status;
}

/* End a use whose event is complete; with its last use a block becomes free. */
static void finish(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    struct xseg_block *block = use->block;
    struct xseg_arena *arena = block->extent->arena;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(block->waits != 0 && block->state == XSEG_BLOCK_PENDING_FREE);
    xseg_list_remove(&use->link);
    xseg_pending_uncount_one(pending);
    put_event(pending, use);
    xseg_arena_lock(arena);
    xseg_slab_free(&arena->uses, use);
    if (block->waits == 1)
        note(arena, block, XSEG_HISTORY_FREE_COMPLETED);
    if (--block->waits == 0 && __builtin_expect(xseg_debug_fill_is_on(arena), 0)) {
        block->state = XSEG_BLOCK_CLAIMED;
        block->ended = pending->ended;
        pending->ended = block;
    } else if (block->waits == 0) {
        xseg_arena_free_pending(arena, block);
    }
    xseg_arena_unlock(arena);
}

/*
 * Record an event again whose query has failed: if it was recorded in a capture that the library
 * was not told of, it never completes.  Once the stream is out of the capture, a new event stands
 * behind the same work.
 */
static bool record_again(struct xseg_pending *pending, struct xseg_stream_use *use)
{
    xseg_event event;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    if (use->is_shared || !xseg_streams_is_open(pending->fences.context, use->stream) ||
        xseg_fences_record(&pending->fences, use->stream->handle, &event) != XSEG_OK)
        return false;
    XSEG_ASSERT(use->event != NULL);
    xseg_fences_return(&pending->fences, use->event);
    use->event = event;
    return true;
}

static inline struct xseg_stream_use *first_use(struct xseg_list *node)
{
    XSEG_ASSERT(
        !xseg_list_is_empty(&XSEG_CONTAINER(node, struct xseg_known_stream, waiting)->uses));
    return XSEG_LIST_FIRST(&XSEG_CONTAINER(node, struct xseg_known_stream, waiting)->uses,
                           struct xseg_stream_use, link);
}

/*
 * Handle an answer other than no about the first use of a stream.
 *
 * Returns: the stream to go on with
 */
static __attribute__((noinline)) struct xseg_list *hear(struct xseg_pending *pending,
                                                        struct xseg_driver_poll *questions,
                                                        struct xseg_list *node,
                                                        enum xseg_driver_poll_result answer)
{
    struct xseg_stream_use *use = first_use(node);
    struct xseg_known_stream *stream = use->stream;
    struct xseg_list *next = node->next;

    XSEG_ASSERT(answer != XSEG_DRIVER_POLL_PENDING);
    if (answer == XSEG_DRIVER_POLL_FAILED && record_again(pending, use))
        answer = xseg_driver_poll_event(questions, use->event, false);
    if (answer != XSEG_DRIVER_POLL_COMPLETED)
        return next;
    finish(pending, use);
    if (!xseg_list_is_empty(&stream->uses))
        return node;
    xseg_list_remove(node);
    return next;
}

/* Query the first event of each stream, and go on in its queue while events are complete. */
static inline void poll(struct xseg_pending *pending)
{
    struct xseg_driver_poll questions = {.context = pending->fences.context};
    struct xseg_list *node;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_PENDING));
    XSEG_ASSERT(!xseg_pending_captures(pending));
    if (__builtin_expect(!xseg_list_is_empty(&pending->deferred), 0))
        (void)xseg_deferred_settle(pending, NULL);
    node = pending->streams.next;
    while (node != &pending->streams) {
        const xseg_event event = first_use(node)->event;
        const enum xseg_driver_poll_result answer =
            event == NULL
                ? XSEG_DRIVER_POLL_COMPLETED
                : xseg_driver_poll_event(&questions, event, node->next == &pending->streams);

        node = __builtin_expect(answer == XSEG_DRIVER_POLL_PENDING, 1)
                   ? node->next
                   : hear(pending, &questions, node, answer);
    }
    if (questions.is_open)
        xseg_driver_poll_end(&questions);
}

/* Release the lock, and poison the blocks whose uses have ended under it. */
static void give_lock(struct xseg_pending *pending) XSEG_UNCHECKED
{
    struct xseg_block *ended = pending->ended;

    pending->ended = NULL;
    xseg_pending_unlock(pending);
    if (__builtin_expect(ended != NULL, 0))
        xseg_debug_fill_freed(ended);
}

void xseg_pending_poll(struct xseg_pending *pending) XSEG_UNCHECKED
{
    xseg_pending_lock(pending);
    if (!xseg_pending_captures(pending))
        poll(pending);
    give_lock(pending);
}

void xseg_pending_stream_synchronized(struct xseg_pending *pending,
                                      struct xseg_known_stream *stream) XSEG_UNCHECKED
{
    xseg_pending_lock(pending);
    XSEG_LIST_FOR_SAFE(node, &stream->uses)
    {
        finish(pending, XSEG_CONTAINER(node, struct xseg_stream_use, link));
    }
    XSEG_ASSERT(xseg_list_is_empty(&stream->uses));
    xseg_list_remove(&stream->waiting);
    give_lock(pending);
}

/*
 * The last event of the first stream whose rank is at least `*rank`; NULL if there is none.
 *
 * again: the event could not be waited for, and is recorded again
 */
static xseg_event last_event_from(struct xseg_pending *pending, bool again, uint64_t *rank,
                                  bool *any)
{
    xseg_event event = NULL;

    *any = false;
    xseg_pending_lock(pending);
    XSEG_LIST_FOR(node, &pending->streams)
    {
        const struct xseg_known_stream *stream =
            XSEG_CONTAINER(node, struct xseg_known_stream, waiting);
        struct xseg_stream_use *use =
            XSEG_CONTAINER(stream->uses.prev, struct xseg_stream_use, link);

        if (stream->rank < *rank)
            continue;
        XSEG_ASSERT(!xseg_list_is_empty(&stream->uses));
        *any = !again || record_again(pending, use);
        event = use->event;
        *rank = stream->rank;
        break;
    }
    xseg_pending_unlock(pending);
    return event;
}

static xseg_status wait_for_event(struct xseg_pending *pending, xseg_event event)
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
    bool any = true;

    xseg_pending_lock(pending);
    /* Blocks that were freed in a capture stay until its end, also if that has begun since the caller looked. */
    const xseg_status settled =
        xseg_pending_captures(pending) ? XSEG_OK : xseg_deferred_settle(pending, NULL);
    xseg_status status = XSEG_OK;
    xseg_pending_unlock(pending);
    xseg_pending_poll(pending);
    /* Wait once for each stream, for what is pending now: other threads may go on freeing. */
    for (; status == XSEG_OK; rank++) {
        xseg_event event = last_event_from(pending, false, &rank, &any);

        if (!any)
            break;
        /* Another thread may take the event back and record it again: then the wait is only
         * longer. */
        status = wait_for_event(pending, event);
        if (status == XSEG_OK)
            continue;
        event = last_event_from(pending, true, &rank, &any);
        if (any)
            status = wait_for_event(pending, event);
    }
    xseg_pending_poll(pending);
    return status != XSEG_OK ? status : settled;
}
