/* SPDX-License-Identifier: MIT */
#include "src/core/pool/blocker.h"

#include <inttypes.h>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/core/cache/walk.h"
#include "src/core/pending/pending.h"
#include "src/core/range/range.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/trim.h"
#include "src/core/reclaim/trim_steps.h"

/* Obstacles found in the arenas of a pool as they close. */
struct obstacles {
    uint64_t classic, pending, busy;   /* bytes, except `busy`: blocks */
    uint64_t fallback, fallback_bytes; /* the first block that the default pool holds; its size */
    struct xseg_segment_retained held;
    struct xseg_known_stream *stream; /* a stream that still works, or cannot be queried */
    xseg_status status;
};

/* Mark the streams that use a live block of another stream. */
static void mark_uses(const struct xseg_part *part)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(part->record != NULL);
    for (const struct xseg_stream_use *use = part->record->uses; use != NULL; use = use->next)
        use->stream->is_queried = true;
}

static void look_at_extent(struct obstacles *found, struct xseg_extent *extent)
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
        found->busy += part.state == XSEG_BLOCK_CLAIMED;
        found->pending += part.state == XSEG_BLOCK_PENDING_FREE ? part.bytes : 0;
        if (part.state == XSEG_BLOCK_ALLOCATED && part.has_uses)
            mark_uses(&part);
    }
}

/* Close an arena, so that it hands out nothing, and collect its obstacles. */
static void close_arena(void *self, struct xseg_arena *arena)
{
    struct obstacles *found = self;

    xseg_arena_lock(arena);
    arena->is_paused = true;
    found->busy += arena->fills;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        look_at_extent(found, XSEG_CONTAINER(node, struct xseg_extent, link));
    }
    if (!xseg_list_is_empty(&arena->extents))
        xseg_arena_stream(arena)->is_queried = true;
    xseg_arena_unlock(arena);
}

/* Mark the streams that use ranges. */
static void look_at_ranges(void *self, struct xseg_arena *arena)
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

struct questions {
    struct xseg_device *device;
    struct obstacles *found;
};

static void ask_stream(void *self, struct xseg_known_stream *stream)
{
    struct questions *questions = self;
    struct obstacles *found = questions->found;
    bool idle = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (!stream->is_queried)
        return;
    stream->is_queried = false;
    if (found->status != XSEG_OK || found->stream != NULL)
        return;
    found->status = xseg_trim_is_idle(questions->device, stream, false, &idle);
    if (found->status == XSEG_OK && !idle)
        found->stream = stream;
}

xseg_status xseg_blocker_fail_fallback(const struct xseg_pool *pool, uint64_t base, uint64_t bytes)
{
    return xseg_fail(XSEG_ERR_BUSY,
                     "pool %s contains a block of the default pool (use_on_oom), %" PRIu64
                     " bytes at %#" PRIx64 "; free the block first",
                     xseg_pool_label(pool), bytes, base);
}

static xseg_status judge(const struct xseg_pool *pool, const struct obstacles *found)
{
    const char *label = xseg_pool_label(pool);

    if (found->classic != 0)
        return xseg_fail(XSEG_ERR_UNSUPPORTED,
                         "pool %s has classic segments, %" PRIu64
                         " bytes; only pools with expandable segments can be paused "
                         "(expandable_segments:True, no memory functions)",
                         label, found->classic);
    if (found->fallback != 0)
        return xseg_blocker_fail_fallback(pool, found->fallback, found->fallback_bytes);
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
    if (found->busy != 0)
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

xseg_status xseg_blocker_close(struct xseg_pool *pool)
{
    struct obstacles found = {.status = XSEG_OK};
    struct questions questions = {pool->device, &found};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_TRANSITION);
    xseg_pending_poll(pool->device->pending);
    xseg_pending_unmap_poll(pool->device, false);
    xseg_pool_visit_arenas(pool, close_arena, &found);
    xseg_pool_visit_arenas(pool, look_at_ranges, &found);
    xseg_streams_visit(&pool->device->streams, ask_stream, &questions);
    return judge(pool, &found);
}

void xseg_blocker_open(struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_ASSERT(pool->state == XSEG_POOL_RUNNING);
    xseg_pool_visit_arenas(pool, open_arena, NULL);
}
