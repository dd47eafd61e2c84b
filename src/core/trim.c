/* SPDX-License-Identifier: MIT */
#include "src/core/trim.h"

#include "src/base/error.h"
#include "src/core/departure.h"
#include "src/core/idle.h"
#include "src/core/pause.h"
#include "src/core/size.h"
#include "src/core/trace.h"

/* One trim of one device under way. */
struct trim {
    struct xseg_device *device;
    const struct xseg_trim_plan *plan;
    struct xseg_trimmed *done;
    uint64_t most;      /* bytes that are still to go */
    uint64_t reserved;  /* a sum over the arenas that are meant */
    xseg_status status; /* the first error of a stream */
};

/* --- Claiming: everything that could go, before the stream is asked. --- */

/* Of whole pages from a granule on, as few as have `most` bytes, in granules. */
static uint32_t enough_pages(const struct xseg_segment *segment, uint32_t first, uint32_t count,
                             uint64_t most)
{
    uint32_t taken = 0;

    while (taken < count && taken * segment->granule_bytes < most)
        taken += segment->length[first + taken];
    return taken;
}

struct xseg_block *xseg_trim_claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                         uint32_t first, uint32_t count)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const uint64_t begin = segment->base + first * segment->granule_bytes;
    const uint64_t end = begin + count * segment->granule_bytes;

    block = xseg_arena_claim(arena, block);
    if (begin > block->base) {
        struct xseg_block *inner = xseg_arena_cut(arena, block, begin - block->base);

        (void)xseg_arena_settle(arena, block);
        block = inner;
    }
    if (end < xseg_block_end(block))
        (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, end - block->base));
    return block;
}

/* Take whole pages of a cached block; what lies before and behind stays cached.  NULL if none. */
static struct xseg_block *claim_pages(struct xseg_arena *arena, struct xseg_block *block,
                                      uint64_t most) XSEG_REQUIRES(arena->lock)
{
    const struct xseg_segment *segment = &block->extent->segment;
    uint32_t first = 0;
    const uint32_t whole = xseg_segment_whole_pages(segment, block->base - segment->base,
                                                    xseg_block_end(block) - segment->base, &first);
    const uint32_t count = enough_pages(segment, first, whole, most);

    return count == 0 ? NULL : xseg_trim_claim_pages(arena, block, first, count);
}

bool xseg_trim_can_go(const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;
    uint32_t first = 0;

    if (!xseg_extent_is_expandable(block->extent))
        return xseg_block_is_whole(block);
    return xseg_segment_whole_pages(segment, block->base - segment->base,
                                    xseg_block_end(block) - segment->base, &first) != 0;
}

/* Take a block that can go, whole or in part, or NULL. */
static struct xseg_block *claim_part(struct xseg_arena *arena, struct xseg_block *block,
                                     uint64_t most) XSEG_REQUIRES(arena->lock)
{
    if (xseg_extent_is_expandable(block->extent))
        return claim_pages(arena, block, most);
    return xseg_block_is_whole(block) ? xseg_arena_claim(arena, block) : NULL;
}

/*
 * No segment and no page is smaller than 2 MiB, so the shelf is read from there on; what a claim
 * leaves behind is smaller than a page and comes earlier, or is enough.
 */
struct xseg_block *xseg_trim_claim(struct xseg_arena *arena, const struct xseg_trim_wish *wish,
                                   uint64_t *claimed_bytes)
{
    struct xseg_block *claimed = NULL, *block;
    uint64_t bytes = wish->least, base = 0;

    *claimed_bytes = 0;
    while (*claimed_bytes < wish->most &&
           xseg_arena_stock(arena, &arena->blocks, XSEG_ARENA_RECORDS) &&
           (block = xseg_arena_cached_from(arena, bytes, base)) != NULL) {
        bytes = block->bytes;
        base = block->base + 1;
        if (wish->wants != NULL && !wish->wants(wish->self, block))
            continue;
        block = claim_part(arena, block, wish->most - *claimed_bytes);
        if (block != NULL) {
            *claimed_bytes += block->bytes;
            block->right = claimed;
            claimed = block;
        }
    }
    return claimed;
}

/* --- Asking the stream. --- */

xseg_status xseg_trim_is_idle(struct xseg_device *device, struct xseg_known_stream *stream,
                              bool wait, bool *idle)
{
    struct xseg_context *context = &device->context;
    bool can_name = true;
    xseg_status status = XSEG_OK;

    *idle = false;
    if (!xseg_stream_is_there(stream))
        return xseg_departure_is_over(device, stream, wait, idle);
    status = xseg_streams_can_name(context, stream, &can_name);
    if (status != XSEG_OK)
        return status;
    if (!wait)
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
    const uint64_t base = block->base, bytes = block->bytes;

    xseg_arena_lock(arena);
    xseg_arena_remove_extent(arena, extent);
    xseg_counts_down(&arena->counts, XSEG_COUNT_SEGMENT, 1);
    xseg_counts_down(&arena->counts, XSEG_COUNT_RESERVED_BYTES, bytes);
    if (extent->oversize)
        xseg_counts_down(&arena->counts, XSEG_COUNT_OVERSIZE_SEGMENT, 1);
    xseg_lock_take(device->lookup_lock);
    xseg_lookup_remove(device->lookup, extent);
    xseg_lock_give(device->lookup_lock);
    xseg_extent_fini(extent);
    xseg_arena_unlock(arena);
    (void)xseg_segment_end(&extent->segment); /* kept as a leftover if refused */
    xseg_list_insert(&device->spare_extents, &extent->link);
    xseg_pool_note_shrink(arena->pool, bytes);
    xseg_trace_note(arena, XSEG_TRACE_SEGMENT_FREE, base, bytes);
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
static uint64_t give_pages(struct xseg_arena *arena, struct xseg_block *block, bool keep)
{
    struct xseg_segment *segment = &block->extent->segment;
    const uint64_t granule = segment->granule_bytes;
    const uint64_t mapped = atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    void *spare = take_spare(arena);
    uint32_t done = 0;

    if (spare != NULL)
        (void)xseg_segment_unmap(segment, (uint32_t)((block->base - segment->base) / granule),
                                 (uint32_t)(block->bytes / granule), keep, &done);
    const uint64_t gone = done * granule;
    /* What was away was not reserved. */
    const uint64_t reserved = mapped - atomic_load_explicit(&segment->mapped, memory_order_relaxed);
    xseg_arena_lock(arena);
    if (spare != NULL)
        xseg_slab_put(&arena->blocks, spare);
    if (gone > 0) {
        if (gone < block->bytes)
            (void)xseg_arena_settle(arena, xseg_arena_cut(arena, block, gone));
        block->mapped = block->filled = false;
        xseg_counts_down(&arena->counts, XSEG_COUNT_RESERVED_BYTES, reserved);
        arena->away -= gone - reserved;
        if (reserved > 0)
            xseg_pool_note_shrink(arena->pool, reserved);
        xseg_trace_note(arena, XSEG_TRACE_SEGMENT_UNMAP, block->base, gone);
    }
    (void)xseg_arena_settle(arena, block);
    xseg_arena_unlock(arena);
    return gone;
}

uint64_t xseg_trim_give(struct xseg_block *block, bool keep)
{
    struct xseg_arena *arena = block->extent->arena;

    return xseg_extent_is_expandable(block->extent) ? give_pages(arena, block, keep)
                                                    : give_segment(arena, block);
}

static uint64_t give_all(struct xseg_block *claimed)
{
    struct xseg_block *next;
    uint64_t given = 0;

    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        given += xseg_trim_give(block, false);
    }
    return given;
}

void xseg_trim_put_back(struct xseg_arena *arena, struct xseg_block *claimed)
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

bool xseg_trim_end_hole(struct xseg_extent *extent)
{
    struct xseg_arena *arena = extent->arena;
    struct xseg_device *device = arena->device;

    if (arena->pool->state != XSEG_POOL_RUNS)
        return false;
    xseg_arena_lock(arena);
    const bool is_hole = extent->first->state == XSEG_BLOCK_HOLE && extent->first->next == NULL &&
                         extent->segment.stuck == 0;
    if (is_hole) {
        (void)xseg_arena_claim(arena, extent->first);
        xseg_arena_remove_extent(arena, extent);
        xseg_lock_take(device->lookup_lock);
        xseg_lookup_remove(device->lookup, extent);
        xseg_lock_give(device->lookup_lock);
        xseg_extent_fini(extent);
    }
    xseg_arena_unlock(arena);
    if (!is_hole)
        return false;
    atomic_fetch_sub_explicit(&device->addresses, extent->segment.reserved_bytes,
                              memory_order_relaxed);
    (void)xseg_segment_end(&extent->segment); /* what is refused is a leftover */
    xseg_list_insert(&device->spare_extents, &extent->link);
    return true;
}

bool xseg_trim_end_holes(struct xseg_arena *arena)
{
    bool all = true;

    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        all = xseg_trim_end_hole(XSEG_CONTAINER(node, struct xseg_extent, link)) && all;
    }
    return all;
}

void xseg_trim_end_some_holes(struct xseg_arena *arena, uint32_t most)
{
    XSEG_LIST_FOR_SAFE(node, &arena->extents)
    {
        if (most == 0)
            return;
        most -= xseg_trim_end_hole(XSEG_CONTAINER(node, struct xseg_extent, link));
    }
}

/* Of a paused arena none: it is away. */
static uint64_t cached_bytes(const struct xseg_arena *arena)
{
    if (arena->is_paused)
        return 0;
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
    return xseg_pool_may_trim(arena->pool, trim->plan->pool) || trim->plan->held_pools;
}

/* What of an arena's cached bytes could go. */
static uint64_t whole_bytes(struct xseg_arena *arena)
{
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, base = 0, sum = 0;
    const struct xseg_block *block;
    uint32_t first;

    while ((block = xseg_arena_cached_from(arena, bytes, base)) != NULL) {
        const struct xseg_segment *segment = &block->extent->segment;

        bytes = block->bytes;
        base = block->base + 1;
        if (xseg_extent_is_expandable(block->extent))
            sum += segment->granule_bytes *
                   xseg_segment_whole_pages(segment, block->base - segment->base,
                                            xseg_block_end(block) - segment->base, &first);
        else
            sum += xseg_block_is_whole(block) ? block->bytes : 0;
    }
    return sum;
}

static void trim_arena(struct trim *trim, struct xseg_arena *arena)
{
    const struct xseg_trim_wish wish = {XSEG_SIZE_SMALL_SEGMENT, trim->most, NULL, NULL};
    struct xseg_block *claimed;
    uint64_t claimed_bytes = 0, cached, whole, given;
    bool idle = true;

    xseg_arena_lock(arena);
    cached = cached_bytes(arena);
    whole = trim->most == UINT64_MAX ? 0 : whole_bytes(arena);
    claimed = xseg_trim_claim(arena, &wish, &claimed_bytes);
    xseg_arena_unlock(arena);
    /* Claiming may have let go of the lock for a moment. */
    trim->done->kept_partial += cached - xseg_min(cached, xseg_max(whole, claimed_bytes));
    trim->done->kept_asked += whole - xseg_min(whole, claimed_bytes);
    if (claimed != NULL) {
        const xseg_status status =
            xseg_trim_is_idle(trim->device, xseg_arena_stream(arena), trim->plan->wait, &idle);

        if (status != XSEG_OK && trim->status == XSEG_OK)
            trim->status = status;
    }
    if (!idle) {
        xseg_trim_put_back(arena, claimed);
        trim->done->kept_busy += claimed_bytes;
        return;
    }
    given = give_all(claimed);
    trim->most -= xseg_min(trim->most, given);
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

static bool is_selected(const struct xseg_trim_plan *plan, const struct xseg_arena *arena)
{
    return (plan->stream == NULL || xseg_arena_stream(arena) == plan->stream) &&
           (plan->pool == NULL || arena->pool == plan->pool);
}

static void visit_arena(void *self, struct xseg_arena *arena)
{
    struct trim *trim = self;

    if (!is_selected(trim->plan, arena))
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

/* Say of what is left why it is there; GROWTH is held. */
static void count_rest(void *self, struct xseg_arena *arena)
{
    struct trim *trim = self;

    if (!is_selected(trim->plan, arena))
        return;
    trim->done->kept_pending += pending_bytes(arena);
    xseg_arena_lock(arena);
    const uint64_t cached = cached_bytes(arena), whole = whole_bytes(arena);
    xseg_arena_unlock(arena);
    if (!may_trim(trim, arena)) {
        trim->done->kept_pool += cached;
        return;
    }
    trim->done->kept_partial += cached - xseg_min(cached, whole);
    trim->done->kept_asked += whole;
    end_if_retired(arena);
}

/* In nanoseconds. */
static uint64_t idle_time(const struct xseg_trim_plan *plan)
{
    return xseg_min(plan->idle_ms, UINT64_MAX / 1000000) * 1000000;
}

/* Trim by age. */
static void trim_old(struct trim *trim)
{
    const struct xseg_trim_plan *plan = trim->plan;
    struct xseg_trimmed *done = trim->done;
    struct xseg_idle_taken taken = {0};
    struct xseg_idle_ages ages;

    xseg_idle_count(trim->device, xseg_decay_now(trim->device), idle_time(plan), plan->pool, &ages);
    struct xseg_idle_wish wish = {
        .ages = &ages,
        .stream = plan->stream,
        .pool = plan->pool,
        .rounds_up = true,
        .wait = plan->wait,
    };
    xseg_idle_choose(&wish, trim->most, XSEG_IDLE_STEPS, UINT64_MAX);
    trim->status = xseg_idle_take(trim->device, &wish, &taken);
    done->returned += taken.returned;
    done->kept_busy += taken.busy;
    done->kept_refused += taken.refused;
    xseg_device_visit_arenas(trim->device, count_rest, trim);
    done->kept_asked -= xseg_min(done->kept_asked, taken.busy + taken.refused);
}

static void add_reserved(void *self, struct xseg_arena *arena)
{
    struct trim *trim = self;

    if (!is_selected(trim->plan, arena))
        return;
    xseg_arena_lock(arena);
    trim->reserved += xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES);
    xseg_arena_unlock(arena);
}

/* What is reserved in what is meant. */
static uint64_t reserved_bytes(struct trim *trim)
{
    trim->reserved = 0;
    xseg_device_visit_arenas(trim->device, add_reserved, trim);
    return trim->reserved;
}

/* Whether whole devices are meant. */
static bool is_all(const struct xseg_trim_plan *plan)
{
    return plan->stream == NULL && plan->pool == NULL;
}

/* How much is to go at the most. */
static void set_most(struct trim *trim)
{
    trim->most = UINT64_MAX;
    if (trim->plan->leave == 0)
        return;
    trim->most = reserved_bytes(trim);
    if (is_all(trim->plan))
        trim->most += xseg_pages_bytes(&trim->device->pages);
    trim->most -= xseg_min(trim->most, trim->plan->leave);
}

/* The page cache goes first; of a trim by age what is as old. */
static void empty_cache(struct trim *trim)
{
    struct xseg_pages *pages = &trim->device->pages;
    const uint64_t had = xseg_pages_bytes(pages);

    if (trim->plan->idle_ms == 0) {
        (void)xseg_pages_shrink(pages, had - xseg_min(had, trim->most), UINT64_MAX);
    } else {
        const uint64_t now = xseg_decay_now(trim->device), age = idle_time(trim->plan);

        xseg_pages_set_time(pages, now);
        (void)xseg_pages_release_old(pages, now - xseg_min(now, age), trim->most);
    }
    const uint64_t gone = had - xseg_pages_bytes(pages);
    trim->most -= xseg_min(trim->most, gone);
    trim->done->returned += gone;
    trim->done->kept_asked += had - gone;
}

/* What is still taken of what was meant. */
static void add_left(struct trim *trim)
{
    trim->done->left += reserved_bytes(trim);
    if (is_all(trim->plan))
        trim->done->left +=
            xseg_leftovers_bytes(&trim->device->leftovers) + xseg_pages_bytes(&trim->device->pages);
}

xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trimmed *done)
{
    struct trim trim = {.device = device, .plan = plan, .done = done, .most = UINT64_MAX};
    const uint64_t returned_before = done->returned;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (xseg_pending_captures(&device->pending)) {
        xseg_device_visit_arenas(device, visit_arena, &trim);
        done->kept_capture += is_all(plan) ? xseg_pages_bytes(&device->pages) : 0;
        add_left(&trim);
        return XSEG_OK;
    }
    if (plan->wait) {
        atomic_fetch_add_explicit(&device->syncs, 1, memory_order_relaxed);
        trim.status = xseg_pending_wait(&device->pending);
        if (trim.status != XSEG_OK)
            return trim.status;
    } else if (!plan->pending_as_it_is) {
        xseg_pending_poll(&device->pending);
    }
    (void)xseg_leftovers_retry(&device->leftovers);
    xseg_pause_forget(device);
    xseg_device_visit_arenas(device, unstick_arena, NULL);
    const uint64_t kept = xseg_leftovers_bytes(&device->leftovers);
    set_most(&trim);
    if (is_all(plan))
        empty_cache(&trim);
    if (plan->idle_ms != 0)
        trim_old(&trim);
    else
        xseg_device_visit_arenas(device, visit_arena, &trim);

    /* What left the arenas without reaching the driver is a leftover. */
    const uint64_t left = xseg_leftovers_bytes(&device->leftovers) - kept;
    done->returned -= xseg_min(left, done->returned - returned_before);
    done->kept_refused += kept + left;
    add_left(&trim);
    return trim.status;
}
