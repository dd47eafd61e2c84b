/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/trim.h"

#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/cache/arena_blocks.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"
#include "src/core/pending/stream_retirement.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/forget.h"
#include "src/core/reclaim/idle.h"
#include "src/core/reclaim/leaving.h"
#include "src/core/reclaim/notice.h"
#include "src/core/reclaim/trim_steps.h"

/* A trim of one device under way. */
struct trim {
    struct xseg_device *device;
    const struct xseg_trim_plan *plan;
    struct xseg_trimmed *done;
    uint64_t most;      /* bytes that may still go */
    uint64_t reserved;  /* a sum over the arenas that are selected */
    xseg_status status; /* the first error of a stream */
};

/* Cached bytes of an arena; none of a paused one, whose memory is evicted. */
static uint64_t cached_bytes(const struct xseg_arena *arena)
{
    if (arena->is_paused)
        return 0;
    const uint64_t reserved = xseg_counts_current(&arena->counts, XSEG_COUNT_RESERVED_BYTES);
    const uint64_t active = xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES);
    XSEG_ASSERT(active <= reserved);
    return reserved - active;
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

struct whole {
    uint64_t loose; /* bytes of whole pages and classic segments */
    struct xseg_segment_held held;
};

static void add_whole(struct whole *sum, const struct xseg_block *block)
{
    const struct xseg_segment *segment = &block->extent->segment;
    uint32_t first = 0;

    if (!xseg_extent_is_expandable(block->extent)) {
        sum->loose += xseg_trim_can_go(block) ? block->bytes : 0;
        sum->held.pinned +=
            xseg_block_is_whole(block) && !xseg_trim_can_go(block) ? block->bytes : 0;
        return;
    }
    const uint32_t count = xseg_segment_whole_pages(segment, block->base - segment->base,
                                                    xseg_block_end(block) - segment->base, &first);
    const struct xseg_segment_held held = xseg_segment_held(segment, first, count);
    XSEG_ASSERT(held.pinned + held.exported <= count * segment->granule_bytes);
    sum->loose += count * segment->granule_bytes - held.pinned - held.exported;
    sum->held.pinned += held.pinned;
    sum->held.exported += held.exported;
}

/* Cached bytes of an arena in whole pages and segments: those that could go, and those that are held. */
static struct whole whole_bytes(struct xseg_arena *arena)
{
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;
    struct whole sum = {0, {0, 0}};
    const struct xseg_block *block;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_ARENA));
    while ((block = xseg_arena_cached_from(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        add_whole(&sum, block);
    }
    return sum;
}

/* Cached bytes of an arena that are held.  Without a held page in it, no block is looked at. */
static struct xseg_segment_held held_bytes(struct xseg_arena *arena)
{
    bool any = false;

    XSEG_LIST_FOR(node, &arena->extents)
    {
        any |= xseg_segment_holds(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
    return any ? whole_bytes(arena).held : (struct xseg_segment_held){0, 0};
}

static void note_held(struct xseg_trimmed *done, struct xseg_segment_held held)
{
    done->kept_pinned += held.pinned;
    done->kept_exported += held.exported;
}

/* The order of a claim list is descending; the result is ascending. */
static struct xseg_block *reverse(struct xseg_block *claimed)
{
    struct xseg_block *reversed = NULL, *next;

    for (; claimed != NULL; claimed = next) {
        next = claimed->right;
        claimed->right = reversed;
        reversed = claimed;
    }
    return reversed;
}

/* Unmap in PyTorch's order, by size, then address.  An unmapped block keeps the requested size of the block that was unmapped
 * last in it, and memory that is mapped there again inherits that size. */
static uint64_t give_all(struct xseg_block *claimed)
{
    struct xseg_block *next;
    uint64_t given = 0;

    claimed = reverse(claimed);
    for (struct xseg_block *block = claimed; block != NULL; block = next) {
        next = block->right;
        block->right = NULL;
        given += xseg_trim_give(block, false, XSEG_HISTORY_TRIM);
    }
    return given;
}

static void trim_arena(struct trim *trim, struct xseg_arena *arena)
{
    const struct xseg_trim_wish wish = {XSEG_SIZE_SMALL_SEGMENT, trim->most, NULL, NULL};
    struct xseg_block *claimed;
    uint64_t claimed_bytes = 0, cached, whole, given;
    bool idle = true;

    xseg_arena_lock(arena);
    const struct xseg_segment_held held = held_bytes(arena);
    XSEG_ASSERT(held.pinned + held.exported <= cached_bytes(arena));
    cached = cached_bytes(arena) - held.pinned - held.exported;
    note_held(trim->done, held);
    whole = trim->most == UINT64_MAX ? 0 : whole_bytes(arena).loose;
    claimed = xseg_trim_claim(arena, &wish, &claimed_bytes);
    xseg_arena_unlock(arena);
    /* The claim may have given the lock for a moment, so it may have more or fewer bytes than were counted. */
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
    if (!xseg_notice_leave(trim->device, claimed)) {
        xseg_trim_put_back(arena, claimed);
        trim->done->kept_capture += claimed_bytes;
        return;
    }
    given = give_all(claimed);
    XSEG_ASSERT(given <= claimed_bytes);
    trim->most -= xseg_min(trim->most, given);
    trim->done->returned += given;
    trim->done->kept_refused += claimed_bytes - given;
}

static uint64_t pending_bytes(struct xseg_arena *arena)
{
    xseg_arena_lock(arena);
    const uint64_t active = xseg_counts_current(&arena->counts, XSEG_COUNT_ACTIVE_BYTES);
    const uint64_t allocated = xseg_counts_current(&arena->counts, XSEG_COUNT_ALLOCATED_BYTES);
    xseg_arena_unlock(arena);
    XSEG_ASSERT(allocated <= active);
    return active - allocated;
}

/* Give the addresses of empty segments back if the arena's pool is retired. */
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
    if (xseg_pending_captures(trim->device->pending)) {
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

/* Count the memory that a trim by age has left, by the reason why it stays.  GROWTH is held. */
static void count_rest(void *self, struct xseg_arena *arena)
{
    struct trim *trim = self;

    if (!is_selected(trim->plan, arena))
        return;
    trim->done->kept_pending += pending_bytes(arena);
    xseg_arena_lock(arena);
    const uint64_t cached = cached_bytes(arena);
    const struct whole whole = whole_bytes(arena);
    xseg_arena_unlock(arena);
    if (!may_trim(trim, arena)) {
        trim->done->kept_pool += cached;
        return;
    }
    trim->done->kept_partial +=
        cached - xseg_min(cached, whole.loose + whole.held.pinned + whole.held.exported);
    trim->done->kept_asked += whole.loose;
    note_held(trim->done, whole.held);
    end_if_retired(arena);
}

/* The age of a plan, in nanoseconds. */
static uint64_t idle_time(const struct xseg_trim_plan *plan)
{
    return xseg_min(plan->idle_ms, UINT64_MAX / 1000000) * 1000000;
}

/* Trim by age: take memory that has been idle for idle_ms. */
static void trim_old(struct trim *trim)
{
    const struct xseg_trim_plan *plan = trim->plan;
    struct xseg_trimmed *done = trim->done;
    struct xseg_idle_taken taken = {0};
    struct xseg_idle_ages ages;

    XSEG_ASSERT(plan->idle_ms != 0);
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

/* Reserved bytes of the selected arenas. */
static uint64_t reserved_bytes(struct trim *trim)
{
    trim->reserved = 0;
    xseg_device_visit_arenas(trim->device, add_reserved, trim);
    return trim->reserved;
}

/* Whether a plan selects whole devices. */
static bool is_all(const struct xseg_trim_plan *plan)
{
    return plan->stream == NULL && plan->pool == NULL;
}

/* Set how many bytes may go. */
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

/* Empty the page cache, before the arenas; a trim by age takes only pages of that age. */
static void empty_cache(struct trim *trim)
{
    struct xseg_pages *pages = &trim->device->pages;
    const uint64_t had = xseg_pages_bytes(pages);

    XSEG_ASSERT(is_all(trim->plan));
    if (trim->plan->idle_ms == 0) {
        (void)xseg_pages_shrink(pages, had - xseg_min(had, trim->most), UINT64_MAX);
    } else {
        const uint64_t now = xseg_decay_now(trim->device), age = idle_time(trim->plan);

        xseg_pages_set_time(pages, now);
        (void)xseg_pages_release_old(pages, now - xseg_min(now, age), trim->most);
    }
    XSEG_ASSERT(xseg_pages_bytes(pages) <= had);
    const uint64_t gone = had - xseg_pages_bytes(pages);
    trim->most -= xseg_min(trim->most, gone);
    trim->done->returned += gone;
    trim->done->kept_asked += had - gone;
}

/* Count the bytes that are still taken in the selected arenas. */
static void add_left(struct trim *trim)
{
    trim->done->left += reserved_bytes(trim);
    if (is_all(trim->plan))
        trim->done->left +=
            xseg_leftovers_bytes(&trim->device->leftovers) + xseg_pages_bytes(&trim->device->pages);
}

static xseg_status trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                               struct xseg_trimmed *done)
{
    struct trim trim = {.device = device, .plan = plan, .done = done, .most = UINT64_MAX};
    const uint64_t returned_before = done->returned;
    xseg_status waited = XSEG_OK;

    XSEG_ASSERT(xseg_lock_is_held(XSEG_RANK_GROWTH));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (xseg_pending_captures(device->pending)) {
        xseg_device_visit_arenas(device, visit_arena, &trim);
        done->kept_capture += is_all(plan) ? xseg_pages_bytes(&device->pages) : 0;
        add_left(&trim);
        return XSEG_OK;
    }
    if (plan->wait) {
        atomic_fetch_add_explicit(&device->syncs, 1, memory_order_relaxed);
        waited = xseg_pending_wait(device->pending);
        const xseg_status left = xseg_leaving_wait(device, false);
        waited = waited == XSEG_OK ? left : waited;
        /* After another error, blocks of one stream are still pending; the memory of the others can go. */
        if (waited == XSEG_ERR_DEVICE_LOST)
            return waited;
    } else {
        xseg_pending_poll(device->pending);
        xseg_leaving_look(device, false);
    }
    (void)xseg_leftovers_retry(&device->leftovers);
    xseg_forget_paused(device);
    xseg_device_visit_arenas(device, unstick_arena, NULL);
    const uint64_t kept = xseg_leftovers_bytes(&device->leftovers);
    set_most(&trim);
    if (is_all(plan))
        empty_cache(&trim);
    if (plan->idle_ms != 0)
        trim_old(&trim);
    else
        xseg_device_visit_arenas(device, visit_arena, &trim);

    /* Memory that left the arenas without reaching the driver is a leftover. */
    XSEG_ASSERT(done->returned >= returned_before);
    const uint64_t now = xseg_leftovers_bytes(&device->leftovers);
    const uint64_t left = now - xseg_min(now, kept);
    done->returned -= xseg_min(left, done->returned - returned_before);
    done->kept_refused += kept + left;
    add_left(&trim);
    return waited != XSEG_OK ? waited : trim.status;
}

xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trimmed *done)
{
    const int ordinal = device->context.ordinal;

    XSEG_SPAN_BEGIN(trim, ordinal, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    const xseg_status status = trim_device(device, plan, done);
    XSEG_SPAN_END(trim, ordinal, status);
    return status;
}
