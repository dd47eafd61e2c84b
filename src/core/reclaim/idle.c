/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/idle.h"

#include "src/core/block/best_fit.h"
#include "src/core/config/size.h"
#include "src/core/pending/pending.h"

/* Minimum span in nanoseconds for the doublings of age. */
#define MIN_SPAN UINT64_C(1000000)

_Static_assert(XSEG_IDLE_OLDER % 4 == 0, "older ages have four steps to a doubling");

/* --- Pages of a cached block. --- */

struct xseg_idle_run xseg_idle_whole_pages(const struct xseg_segment *segment, uint64_t base,
                                           uint64_t bytes)
{
    struct xseg_idle_run run = {0, 0};

    if (!xseg_segment_is_expandable(segment))
        run.count = bytes == segment->bytes;
    else
        run.count = xseg_segment_pages_inside(segment, base - segment->base,
                                              base + bytes - segment->base, &run.first);
    XSEG_ASSERT(run.first + run.count <= xseg_max(segment->granules, 1));
    return run;
}

struct xseg_idle_bytes xseg_idle_whole_bytes(const struct xseg_segment *segment, uint64_t base,
                                             uint64_t bytes)
{
    const struct xseg_idle_run run = xseg_idle_whole_pages(segment, base, bytes);
    struct xseg_idle_bytes whole = {0, {0, 0}};

    if (run.count == 0)
        return whole;
    whole.releasable =
        xseg_segment_is_expandable(segment) ? run.count * segment->granule_bytes : bytes;
    whole.held = xseg_segment_retained_bytes(segment, run.first, run.count);
    XSEG_ASSERT(whole.held.pinned + whole.held.exported <= whole.releasable &&
                whole.releasable <= bytes);
    whole.releasable -= whole.held.pinned + whole.held.exported;
    return whole;
}

uint64_t xseg_idle_page_since(const struct xseg_segment *segment, uint32_t page)
{
    const uint32_t length = xseg_idle_page_length(segment, page);
    uint64_t since = 0;

    for (uint32_t at = page; at < page + length; at++)
        since = xseg_max(since, segment->idle_since[at]);
    return since;
}

/* --- Ages. --- */

uint32_t xseg_idle_step(const struct xseg_idle_ages *ages, uint64_t since)
{
    const uint64_t age = since < ages->now ? ages->now - since : 0;

    if (age < ages->span)
        return (uint32_t)(age * XSEG_IDLE_STEPS / ages->span);
    /* The step counts doublings of the span; the two bits below the highest bit divide each
     * doubling into quarters. */
    const uint64_t times = xseg_max(age / xseg_max(ages->span, MIN_SPAN), 1);
    const unsigned twice = xseg_log2_floor(times);
    const uint64_t quarter = times * 4 >> twice;
    return XSEG_IDLE_STEPS + (uint32_t)xseg_min(twice * 4 + (quarter - 4), XSEG_IDLE_OLDER - 1);
}

/* --- Counting. --- */

/* Start the time of an arena at the first count: the ages of its memory start now. */
static void start_arena_time(struct xseg_arena *arena, uint64_t now)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        for (uint32_t at = 0; at < xseg_max(segment->granules, 1); at++)
            segment->idle_since[at] = now;
    }
}

static void count_block_pages(struct xseg_idle_ages *ages, const struct xseg_block *block,
                              uint64_t before)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const struct xseg_idle_run run = xseg_idle_whole_pages(segment, block->base, block->bytes);

    for (uint32_t at = run.first; at < run.first + run.count;
         at += xseg_idle_page_length(segment, at)) {
        const uint64_t since = xseg_idle_page_since(segment, at);
        const uint64_t bytes = xseg_idle_page_bytes(segment, at);
        const uint32_t step = xseg_idle_step(ages, since);

        XSEG_ASSERT(step < XSEG_IDLE_ALL && bytes > 0);
        if (xseg_idle_page_is_held(segment, at)) {
            ages->held += bytes;
            continue;
        }

        ages->bytes[step] += bytes;
        ages->pages[step]++;
        ages->fresh += since >= before ? bytes : 0;
        ages->largest = xseg_max(ages->largest, bytes);
    }
}

struct age_count {
    struct xseg_idle_ages *ages;
    const struct xseg_pool *named;
};

static void count_arena_pages(void *self, struct xseg_arena *arena)
{
    const struct age_count *count = self;
    struct xseg_idle_ages *ages = count->ages;
    const struct xseg_block *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    if (!xseg_idle_is_counted(arena, count->named))
        return;
    xseg_arena_lock(arena);
    const uint64_t before = xseg_arena_now(arena);
    XSEG_ASSERT(before <= ages->now);
    if (before == 0)
        start_arena_time(arena, ages->now);
    xseg_arena_set_now(arena, ages->now);
    ages->cached += xseg_arena_cached_bytes(arena);
    while ((block = xseg_cached_lower_bound(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        count_block_pages(ages, block, before);
    }
    xseg_arena_unlock(arena);
}

void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages)
{
    struct age_count count = {ages, named};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *ages = (struct xseg_idle_ages){.now = now, .span = span};
    xseg_page_cache_set_time(&device->page_cache, now);
    xseg_device_visit_arenas(device, count_arena_pages, &count);
}

void xseg_idle_choose(struct xseg_idle_limit *limit, uint64_t bytes, uint32_t youngest,
                      uint64_t pages)
{
    const struct xseg_idle_ages *ages = limit->ages;
    uint64_t left = pages;

    XSEG_ASSERT(ages != NULL && youngest < XSEG_IDLE_ALL);
    limit->pages = pages;
    for (limit->step = XSEG_IDLE_ALL - 1; limit->step > youngest; limit->step--) {
        if (ages->bytes[limit->step] > bytes || ages->pages[limit->step] > left)
            break;
        bytes -= ages->bytes[limit->step];
        left -= ages->pages[limit->step];
    }
    XSEG_ASSERT(limit->step >= youngest && left <= pages);
    limit->part = bytes;
    limit->part_pages = left;
}

bool xseg_idle_claim(struct xseg_idle_limit *limit, uint64_t since, uint64_t bytes)
{
    const uint32_t step = xseg_idle_step(limit->ages, since);

    XSEG_ASSERT(bytes > 0);
    if (limit->pages == 0 || step < limit->step)
        return false;
    if (step == limit->step) {
        if (limit->part_pages == 0 || limit->part < (limit->rounds_up ? 1 : bytes))
            return false;
        limit->part -= xseg_min(limit->part, bytes);
        limit->part_pages--;
    }
    limit->pages--;
    return true;
}

/* --- Fences. --- */

uint64_t xseg_idle_poll_fence(struct xseg_arena *arena, uint64_t now)
{
    struct xseg_device *device = arena->device;
    struct xseg_known_stream *stream = xseg_arena_stream(arena);
    struct xseg_fences *fences = &device->pending->fences;
    bool done = false;
    int mode = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (arena->fence == NULL && !xseg_streams_accepts_work(&device->context, stream))
        return arena->idle_before;
    if (xseg_driver_relax_capture_mode(&device->context, &mode) != XSEG_OK)
        return arena->idle_before;
    xseg_pending_lock(device->pending);
    if (arena->fence == NULL) {
        if (xseg_fences_record(fences, stream->handle, &arena->fence) == XSEG_OK)
            arena->fence_time = now;
    } else if (xseg_driver_event_query(&device->context, arena->fence, &done) == XSEG_OK && done) {
        XSEG_ASSERT(arena->idle_before <= arena->fence_time);
        arena->idle_before = arena->fence_time;
        xseg_fences_return(fences, arena->fence);
        arena->fence = NULL;
    }
    xseg_pending_unlock(device->pending);
    xseg_driver_restore_capture_mode(&device->context, mode);
    return arena->idle_before;
}

static void return_arena_fence(void *self, struct xseg_arena *arena)
{
    (void)self;
    if (arena->fence != NULL)
        xseg_pending_return_event(arena->device->pending, arena->fence);
    arena->fence = NULL;
}

void xseg_idle_return_fences(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    xseg_device_visit_arenas(device, return_arena_fence, NULL);
}

void xseg_idle_return_pool_fences(struct xseg_pool *pool)
{
    XSEG_ASSERT(atomic_load(&pool->references) == 0);
    xseg_pool_visit_arenas(pool, return_arena_fence, NULL);
}
