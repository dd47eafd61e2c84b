/* SPDX-License-Identifier: MIT */
#include "src/core/trim.h"

#include "src/base/error.h"
#include "src/core/departure.h"
#include "src/core/size.h"

/* One trim of one device under way. */
struct trim {
    struct xseg_device *device;
    const struct xseg_trim_plan *plan;
    struct xseg_trimmed *done;
    xseg_status status; /* the first error of a stream */
};

/* --- Claiming: everything that could go, before the stream is asked. --- */

/* Take the whole pages of a cached block; what lies before and behind stays cached.  NULL if none. */
static struct xseg_block *claim_pages(struct xseg_arena *arena, struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const uint64_t page = segment->page_bytes;
    const uint64_t begin = segment->base + xseg_round_up(block->base - segment->base, page);
    const uint64_t end =
        segment->base + xseg_round_down(xseg_block_end(block) - segment->base, page);

    if (begin >= end)
        return NULL;
    xseg_arena_claim(arena, block);
    if (begin > block->base) {
        struct xseg_block *inner = xseg_arena_cut(arena, block, begin - block->base);

        (void)xseg_arena_settle(arena, block);
        block = inner;
    }
    if (end < xseg_block_end(block))
        (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, end - block->base));
    return block;
}

/* Take a block that can go, whole or in part, or NULL. */
static struct xseg_block *claim_part(struct xseg_arena *arena, struct xseg_block *block)
{
    if (xseg_extent_is_expandable(block->extent))
        return claim_pages(arena, block);
    if (xseg_block_is_split(block))
        return NULL;
    xseg_arena_claim(arena, block);
    return block;
}

/*
 * Claim every block of an arena that can go; they are chained through `right`, which no tree uses
 * meanwhile.  No segment and no page is smaller than 2 MiB, so the shelf is read from there on;
 * what a claim leaves behind is smaller than a page and comes earlier.
 */
static struct xseg_block *claim_all(struct xseg_arena *arena) XSEG_REQUIRES(arena->lock)
{
    struct xseg_block *claimed = NULL, *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, base = 0;

    while (xseg_arena_stock(arena, &arena->blocks, 2) &&
           (block = xseg_shelf_from(&arena->shelf, bytes, base)) != NULL) {
        bytes = block->bytes;
        base = block->base + 1;
        block = claim_part(arena, block);
        if (block != NULL) {
            block->right = claimed;
            claimed = block;
        }
    }
    return claimed;
}

/* --- Asking the stream. --- */

/* Whether the work queued on a stream has finished, waiting for it if the plan says so. */
static xseg_status is_idle(const struct trim *trim, struct xseg_known_stream *stream, bool *idle)
{
    struct xseg_context *context = &trim->device->context;
    bool can_name = true;
    xseg_status status = XSEG_OK;

    *idle = false;
    if (!xseg_stream_is_there(stream))
        return xseg_departure_is_over(trim->device, stream, trim->plan->wait, idle);
    status = xseg_streams_can_name(context, stream, &can_name);
    if (status != XSEG_OK)
        return status;
    if (!trim->plan->wait)
        return can_name ? xseg_driver_stream_done(context, stream->handle, idle) : XSEG_OK;
    /* Another thread's default stream has no name here, and a stream that cannot be waited for may
     * have been destroyed: then the whole context is waited for. */
    status = can_name ? xseg_driver_stream_wait(context, stream->handle) : XSEG_ERR_UNSUPPORTED;
    if (status != XSEG_OK && !xseg_context_is_lost(context))
        status = xseg_driver_context_wait(context);
    *idle = status == XSEG_OK;
    return status;
}

/* --- Giving back. --- */

/* Free the classic segment of a claimed block; returns its bytes. */
static uint64_t give_segment(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_device *device = arena->device;
    struct xseg_extent *extent = block->extent;
    const uint64_t bytes = block->bytes;

    xseg_arena_lock(arena);
    xseg_arena_remove_extent(arena, extent);
    xseg_counts_down(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_down(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_down(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    xseg_lock_take(device->lookup_lock);
    xseg_lookup_remove(device->lookup, extent);
    xseg_lock_give(device->lookup_lock);
    xseg_starts_fini(&extent->starts);
    xseg_arena_unlock(arena);
    (void)xseg_segment_end(&extent->segment); /* kept as a leftover if refused */
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_pool_note_shrink(arena->pool, bytes);
    return bytes;
}

/* A record for the cut that a refusal may need, taken before the driver is called; or NULL. */
static void *take_spare(struct xseg_arena *arena)
{
    void *spare = NULL;

    xseg_arena_lock(arena);
    if (xseg_arena_stock(arena, &arena->blocks, 1))
        spare = xseg_slab_take(&arena->blocks);
    xseg_arena_unlock(arena);
    return spare;
}

/* Unmap the pages of a claimed block; those that the driver refuses stay cached.  Returns the bytes. */
static uint64_t give_pages(struct xseg_arena *arena, struct xseg_block *block)
{
    struct xseg_segment *segment = &block->extent->segment;
    const uint64_t page = segment->page_bytes;
    void *spare = take_spare(arena);
    uint32_t done = 0;

    if (spare != NULL)
        (void)xseg_segment_unmap(segment, (uint32_t)((block->base - segment->base) / page),
                                 (uint32_t)(block->bytes / page), &done);
    const uint64_t gone = done * page;
    xseg_arena_lock(arena);
    if (spare != NULL)
        xseg_slab_put(&arena->blocks, spare);
    if (gone > 0) {
        if (gone < block->bytes)
            (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, gone));
        block->mapped = false;
        xseg_counts_down(&arena->counts, XSEG_COUNT_RESERVED_BYTES, gone);
        xseg_pool_note_shrink(arena->pool, gone);
    }
    (void)xseg_arena_settle(arena, block);
    xseg_arena_unlock(arena);
    return gone;
}

static uint64_t give_all(struct xseg_arena *arena, struct xseg_block *claimed)
{
    struct xseg_block *next;
    uint64_t given = 0;

    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        given += xseg_extent_is_expandable(block->extent) ? give_pages(arena, block)
                                                          : give_segment(arena, block);
    }
    return given;
}

/* The stream still works: everything stays. */
static void put_all_back(struct xseg_arena *arena, struct xseg_block *claimed)
{
    struct xseg_block *next;

    xseg_arena_lock(arena);
    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        (void)xseg_arena_settle(arena, block);
    }
    xseg_arena_unlock(arena);
}

/* --- Arenas. --- */

bool xseg_trim_end_holes(struct xseg_arena *arena)
{
    struct xseg_device *device = arena->device;
    bool all = true;

    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        struct xseg_extent *extent = XSEG_CONTAINER(node, struct xseg_extent, link);

        xseg_arena_lock(arena);
        const bool is_hole = extent->first->state == XSEG_BLOCK_HOLE &&
                             extent->first->next == NULL && extent->segment.stuck == 0;
        if (is_hole) {
            xseg_arena_claim(arena, extent->first);
            xseg_arena_remove_extent(arena, extent);
            xseg_lock_take(device->lookup_lock);
            xseg_lookup_remove(device->lookup, extent);
            xseg_lock_give(device->lookup_lock);
            xseg_starts_fini(&extent->starts);
        }
        xseg_arena_unlock(arena);
        all = all && is_hole;
        if (!is_hole)
            continue;
        atomic_fetch_sub_explicit(&device->addresses, extent->segment.reserved_bytes,
                                  memory_order_relaxed);
        (void)xseg_segment_end(&extent->segment); /* what is refused is a leftover */
        xseg_list_insert(&device->spare_extents, &extent->link);
    }
    return all;
}

static uint64_t cached_bytes(const struct xseg_arena *arena)
{
    return xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES) -
           xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES);
}

static uint64_t locked_cached_bytes(struct xseg_arena *arena)
{
    xseg_arena_lock(arena);
    const uint64_t bytes = cached_bytes(arena);
    xseg_arena_unlock(arena);
    return bytes;
}

static bool may_trim(const struct trim *trim, const struct xseg_arena *arena)
{
    return xseg_pool_may_shrink(arena->pool) || trim->plan->held_pools;
}

static void trim_arena(struct trim *trim, struct xseg_arena *arena)
{
    struct xseg_block *claimed;
    uint64_t claimed_bytes = 0, cached, given;
    bool idle = true;

    xseg_arena_lock(arena);
    cached = cached_bytes(arena);
    claimed = claim_all(arena);
    for (const struct xseg_block *block = claimed; block != NULL; block = block->right)
        claimed_bytes += block->bytes;
    xseg_arena_unlock(arena);
    /* Claiming may have let go of the lock for a moment. */
    trim->done->kept_partial += cached - xseg_min(cached, claimed_bytes);
    if (claimed != NULL) {
        const xseg_status status = is_idle(trim, xseg_arena_stream(arena), &idle);

        if (status != XSEG_OK && trim->status == XSEG_OK)
            trim->status = status;
    }
    if (!idle) {
        put_all_back(arena, claimed);
        trim->done->kept_busy += claimed_bytes;
        return;
    }
    given = give_all(arena, claimed);
    trim->done->returned += given;
    trim->done->kept_refused += claimed_bytes - given;
}

static uint64_t pending_bytes(struct xseg_arena *arena)
{
    xseg_arena_lock(arena);
    const uint64_t bytes = xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES) -
                           xseg_counts_current(&arena->counts, XSEG_COUNT_ALLOCATED_BYTES);
    xseg_arena_unlock(arena);
    return bytes;
}

/* A retired pool needs its addresses no more. */
static void end_if_retired(struct xseg_arena *arena)
{
    if (xseg_pool_is_retired(arena->pool))
        (void)xseg_trim_end_holes(arena);
}

static void visit_arena(void *self, struct xseg_arena *arena)
{
    struct trim *trim = self;
    const struct xseg_trim_plan *plan = trim->plan;

    if ((plan->stream != NULL && xseg_arena_stream(arena) != plan->stream) ||
        (plan->pool != NULL && arena->pool != plan->pool))
        return;
    trim->done->kept_pending += pending_bytes(arena);
    if (xseg_pending_captures(&trim->device->pending)) {
        trim->done->kept_capture += locked_cached_bytes(arena);
        return;
    }
    if (!may_trim(trim, arena)) {
        trim->done->kept_pool += locked_cached_bytes(arena);
        return;
    }
    trim_arena(trim, arena);
    end_if_retired(arena);
}

static void unstick_arena(void *self, struct xseg_arena *arena)
{
    (void)self;
    XSEG_LIST_FOR(node, &arena->extents)
    {
        (void)xseg_segment_unstick(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
}

/* Poll, or wait; then give back what can go.  No capture is under way on the device. */
static xseg_status trim_idle(struct trim *trim)
{
    struct xseg_device *device = trim->device;
    struct xseg_trimmed *done = trim->done;
    const uint64_t returned_before = done->returned;

    if (trim->plan->wait) {
        atomic_fetch_add_explicit(&device->syncs, 1, memory_order_relaxed);
        trim->status = xseg_pending_wait(&device->pending);
        if (trim->status != XSEG_OK)
            return trim->status;
    } else {
        xseg_pending_poll(&device->pending);
    }
    (void)xseg_leftovers_retry(&device->leftovers);
    xseg_device_visit_arenas(device, unstick_arena, NULL);
    const uint64_t kept = xseg_leftovers_bytes(&device->leftovers);
    xseg_device_visit_arenas(device, visit_arena, trim);

    /* What left the arenas without reaching the driver is a leftover. */
    const uint64_t left = xseg_leftovers_bytes(&device->leftovers) - kept;
    done->returned -= xseg_min(left, done->returned - returned_before);
    done->kept_refused += kept + left;
    return trim->status;
}

xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trimmed *done)
{
    struct trim trim = {device, plan, done, XSEG_OK};
    xseg_status status = XSEG_OK;
    int mode = 0;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (xseg_pending_captures(&device->pending)) {
        xseg_device_visit_arenas(device, visit_arena, &trim);
        return XSEG_OK;
    }
    /* The thread may be capturing on another device: what is asked here must not spoil that. */
    status = xseg_driver_relax(&device->context, &mode);
    if (status != XSEG_OK)
        return status;
    status = trim_idle(&trim);
    xseg_driver_unrelax(&device->context, mode);
    return status;
}
