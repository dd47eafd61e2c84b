/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/reclaim.h"

#include <stdlib.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/span.h"
#include "src/core/block/best_fit.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/decay.h"
#include "src/core/reclaim/pending_unmap.h"
#include "vmm/contents.h"

/* --- Release of pools. --- */

/* Free the virtual address ranges of a retired pool without memory.  If a capture is active, a
 * later trim frees them. */
static void free_pool_addresses(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    struct xseg_fail_saved saved_error;

    /* The caller may release the pool after a failure, so preserve the error. */
    xseg_fail_save(&saved_error);
    xseg_mutex_lock(&device->memory_lock);
    if (!xseg_pending_captures(device->pending) && !xseg_context_is_lost(&device->context))
        XSEG_POOL_FOR_ARENAS(arena, pool)
        {
            (void)xseg_reclaim_destroy_all_unmapped(arena);
        }
    xseg_mutex_unlock(&device->memory_lock);
    xseg_fail_restore(&saved_error);
}

void xseg_unexport_segments(struct xseg_pool *pool)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        XSEG_LIST_FOR(node, &arena->extents)
        {
            xseg_segment_unexport_mapped(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
        }
    }
}

bool xseg_release_pool(struct xseg_pool *pool)
{
    struct xseg_device *device = pool->device;
    bool is_last = false;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    if (!xseg_pool_remove_holder(pool, &is_last))
        return false;
    if (!is_last)
        return true;
    xseg_mutex_lock(&device->memory_lock);
    xseg_unexport_segments(pool);
    xseg_mutex_unlock(&device->memory_lock);
    /* The reference of the holders keeps the pool valid. */
    if (atomic_load(&pool->references) > 1 && atomic_load(&pool->reserved) == 0)
        free_pool_addresses(pool);
    xseg_release_pool_reference(pool);
    xseg_pools_notify(device);
    return true;
}

void xseg_release_pool_reference(struct xseg_pool *pool)
{
    if (!xseg_pool_drop_reference(pool))
        return;
    xseg_idle_return_pool_fences(pool);
    xseg_pools_destroy(pool);
}

/* --- Discard of paused pools. --- */

void xseg_discard_contents(struct xseg_contents *contents)
{
    if (contents == NULL)
        return;
    xseg_contents_close(contents);
    free(contents);
}

static void discard_paused_pool(struct xseg_pool *pool)
{
    const struct xseg_reclaim_policy everything = {
        .scope = XSEG_RECLAIM_ALL,
        .pool = pool,
        .bytes = UINT64_MAX,
        .min_block = XSEG_SIZE_SMALL_SEGMENT,
        .work = XSEG_RECLAIM_EVICTED,
        .cause = XSEG_HISTORY_TRIM,
    };
    struct xseg_reclaim_result result;

    XSEG_ASSERT(pool->state == XSEG_POOL_PAUSED);
    (void)xseg_reclaim(pool->device, &everything, &result);
    xseg_discard_contents(pool->contents);
    pool->contents = NULL;
    pool->state = XSEG_POOL_RUNNING;
    if (xseg_pool_is_retired(pool))
        XSEG_POOL_FOR_ARENAS(arena, pool)
        {
            (void)xseg_reclaim_destroy_all_unmapped(arena);
        }
}

void xseg_discard_paused_pools(struct xseg_device *device, bool all)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        uint64_t active = 0;

        if (pool->state != XSEG_POOL_PAUSED || (!all && !xseg_pool_is_retired(pool)))
            continue;
        XSEG_POOL_FOR_ARENAS(arena, pool)
        {
            active += xseg_counts_read(&arena->counts, XSEG_COUNT_ACTIVE).current;
        }
        if (all || active == 0)
            discard_paused_pool(pool);
    }
}

void xseg_discard_lost_contents(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                xseg_context_is_lost(&device->context));
    for (struct xseg_pool *pool = NULL; (pool = xseg_pools_next(device, pool)) != NULL;) {
        xseg_discard_contents(pool->contents);
        pool->contents = NULL;
    }
}

/* --- Trim. --- */

/* An active trim of one device. */
struct trim {
    struct xseg_device *device;
    const struct xseg_trim_plan *plan;
    struct xseg_trim_result *result;
    bool is_whole_device; /* the plan selects neither a pool nor a stream */
    bool keeps_idle;      /* the plan keeps idle memory because of a target size or an age */
    uint64_t max;         /* bytes that may still be released */
};

/* --- Counting. --- */

static bool plan_selects_arena(const struct xseg_trim_plan *plan, const struct xseg_arena *arena)
{
    return (plan->stream == NULL || xseg_arena_stream(arena) == plan->stream) &&
           (plan->pool == NULL || arena->pool == plan->pool);
}

/* Cached bytes of an arena in whole pages and segments. */
static struct xseg_idle_bytes sum_whole_page_bytes(struct xseg_arena *arena)
{
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;
    struct xseg_idle_bytes sum = {0, {0, 0}};
    const struct xseg_block *block;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_ARENA));
    while ((block = xseg_cached_lower_bound(arena, bytes, position)) != NULL) {
        const struct xseg_idle_bytes block_bytes =
            xseg_idle_whole_bytes(&block->extent->segment, block->base, block->bytes);

        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        sum.releasable += block_bytes.releasable;
        sum.retained.pinned += block_bytes.retained.pinned;
        sum.retained.exported += block_bytes.retained.exported;
    }
    return sum;
}

static bool arena_has_retained_pages(const struct xseg_arena *arena)
{
    bool has_retained = false;

    XSEG_LIST_FOR(node, &arena->extents)
    {
        has_retained |=
            xseg_segment_has_retained(&XSEG_CONTAINER(node, struct xseg_extent, link)->segment);
    }
    return has_retained;
}

/* Count the memory that is still reserved in an arena, by the reason why the trim kept it. */
static void count_arena_remainder(struct trim *trim, struct xseg_arena *arena)
{
    struct xseg_trim_result *result = trim->result;
    const bool is_paused = arena->is_paused;
    struct xseg_idle_bytes idle = {0, {0, 0}};

    if (!plan_selects_arena(trim->plan, arena))
        return;
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t reserved = xseg_counts_read(&arena->counts, XSEG_COUNT_RESERVED_BYTES).current;
    const uint64_t active = xseg_counts_read(&arena->counts, XSEG_COUNT_ACTIVE_BYTES).current;
    const uint64_t allocated = xseg_counts_read(&arena->counts, XSEG_COUNT_ALLOCATED_BYTES).current;
    const bool may_trim =
        xseg_pool_may_trim(arena->pool, trim->plan->pool) || trim->plan->retained_pools;
    const bool is_capturing = xseg_pending_captures(trim->device->pending);
    if (may_trim && !is_capturing && (trim->keeps_idle || arena_has_retained_pages(arena)))
        idle = sum_whole_page_bytes(arena);
    xseg_biased_lock_unlock(&arena->lock);

    XSEG_ASSERT(allocated <= active && (is_paused || active <= reserved));
    /* The memory of a paused arena is evicted. */
    const uint64_t cached = is_paused ? 0 : reserved - active;
    result->remaining += reserved;
    result->kept_pending += active - allocated;
    if (is_capturing)
        result->kept_capture += cached;
    else if (!may_trim)
        result->kept_pool += cached;
    else {
        const uint64_t releasable = trim->keeps_idle ? idle.releasable : 0;
        const uint64_t counted = releasable + idle.retained.pinned + idle.retained.exported;

        result->kept_by_options += releasable;
        result->kept_pinned += idle.retained.pinned;
        result->kept_exported += idle.retained.exported;
        result->kept_fragmented += cached - xseg_min(cached, counted);
    }
}

/* Count the memory that is still reserved in the selected arenas, and the memory that the reclaim
 * could not release. */
static void count_remainder(struct trim *trim, const struct xseg_reclaim_result *reclaimed)
{
    struct xseg_trim_result *result = trim->result;
    const struct xseg_trim_result before = *result;
    const uint64_t still_cached = reclaimed->busy + reclaimed->kept + reclaimed->failed;

    XSEG_DEVICE_FOR_ARENAS(arena, trim->device)
    {
        count_arena_remainder(trim, arena);
    }
    /* Memory that the reclaim kept is cached, so the walk has counted it, too: subtract it. */
    if (xseg_pending_captures(trim->device->pending))
        result->kept_capture -= xseg_min(result->kept_capture - before.kept_capture, still_cached);
    else if (trim->keeps_idle)
        result->kept_by_options -=
            xseg_min(result->kept_by_options - before.kept_by_options, still_cached);
    else
        result->kept_fragmented -=
            xseg_min(result->kept_fragmented - before.kept_fragmented, still_cached);
    result->released += reclaimed->released;
    result->kept_busy += reclaimed->busy;
    result->kept_capture += reclaimed->kept;
    result->kept_failed += reclaimed->failed;
    if (trim->is_whole_device)
        result->remaining += xseg_unreleased_bytes(&trim->device->unreleased) +
                             xseg_page_cache_bytes(&trim->device->page_cache);
}

/* --- Trim of a device. --- */

static void retry_unknown_pages(struct xseg_device *device)
{
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        XSEG_LIST_FOR(node, &arena->extents)
        {
            struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

            (void)xseg_segment_retry_unknown(segment, 0, segment->granules);
        }
    }
}

/* Set the number of bytes that may be released. */
static void set_release_limit(struct trim *trim)
{
    trim->max = UINT64_MAX;
    if (trim->plan->target_bytes == 0)
        return;
    trim->max = trim->is_whole_device ? xseg_page_cache_bytes(&trim->device->page_cache) : 0;
    XSEG_DEVICE_FOR_ARENAS(arena, trim->device)
    {
        if (plan_selects_arena(trim->plan, arena))
            trim->max += xseg_counts_read(&arena->counts, XSEG_COUNT_RESERVED_BYTES).current;
    }
    trim->max -= xseg_min(trim->max, trim->plan->target_bytes);
}

/* The age of a plan, in nanoseconds. */
static uint64_t plan_idle_ns(const struct xseg_trim_plan *plan)
{
    return xseg_min(plan->idle_ms, UINT64_MAX / XSEG_MILLISECOND) * XSEG_MILLISECOND;
}

/* Release the page cache before memory of arenas; a trim by age releases only pages of that age. */
static void trim_page_cache(struct trim *trim)
{
    struct xseg_page_cache *pages = &trim->device->page_cache;
    const uint64_t bytes_before = xseg_page_cache_bytes(pages);

    XSEG_ASSERT(trim->is_whole_device);
    if (trim->plan->idle_ms == 0) {
        (void)xseg_reclaim_page_cache(trim->device, &trim->max, UINT64_MAX);
    } else {
        const uint64_t now = xseg_decay_now(trim->device), min_age = plan_idle_ns(trim->plan);

        xseg_page_cache_set_time(pages, now);
        trim->max -= xseg_min(
            trim->max, xseg_page_cache_release_old(pages, now - xseg_min(now, min_age), trim->max));
    }
    trim->result->released += bytes_before - xseg_page_cache_bytes(pages);
    trim->result->kept_by_options += xseg_page_cache_bytes(pages);
}

static xseg_status reclaim_selected_memory(struct trim *trim, struct xseg_reclaim_result *reclaimed)
{
    const struct xseg_trim_plan *plan = trim->plan;
    struct xseg_idle_ages ages;
    struct xseg_reclaim_policy policy = {
        .scope = plan->retained_pools ? XSEG_RECLAIM_ALL : XSEG_RECLAIM_RELEASABLE,
        .stream = plan->stream,
        .pool = plan->pool,
        .bytes = trim->max,
        .min_block = XSEG_SIZE_SMALL_SEGMENT,
        .work = plan->wait ? XSEG_RECLAIM_WAIT : XSEG_RECLAIM_QUERY,
        .cause = XSEG_HISTORY_TRIM,
    };

    if (plan->idle_ms != 0) {
        xseg_idle_count(trim->device, xseg_decay_now(trim->device), plan_idle_ns(plan), plan->pool,
                        &ages);
        policy.bytes = UINT64_MAX;
        policy.idle = (struct xseg_idle_limit){.ages = &ages, .rounds_up = true};
        xseg_idle_select_oldest(&policy.idle, trim->max, XSEG_IDLE_STEPS, UINT64_MAX);
        policy.cause = XSEG_HISTORY_DECAY;
    }
    return xseg_reclaim(trim->device, &policy, reclaimed);
}

/*
 * Poll pending blocks and pending unmaps, or wait for them.  Returns the first error of a stream.
 */
static xseg_status collect_completed_blocks(struct trim *trim)
{
    struct xseg_device *device = trim->device;

    if (!trim->plan->wait) {
        xseg_pending_poll(device->pending);
        xseg_pending_unmap_poll(device, false);
        return XSEG_OK;
    }
    atomic_fetch_add_explicit(&device->syncs, 1, memory_order_relaxed);
    const xseg_status status = xseg_pending_wait(device->pending);
    const xseg_status unmap_status = xseg_pending_unmap_wait(device, false);
    return status == XSEG_OK ? unmap_status : status;
}

static xseg_status run_device_trim(struct xseg_device *device, const struct xseg_trim_plan *plan,
                                   struct xseg_trim_result *result)
{
    struct trim trim = {
        .device = device,
        .plan = plan,
        .result = result,
        .is_whole_device = plan->stream == NULL && plan->pool == NULL,
        .keeps_idle = plan->target_bytes != 0 || plan->idle_ms != 0,
        .max = UINT64_MAX,
    };
    const uint64_t released_before = result->released;
    struct xseg_reclaim_result reclaimed = {.released = 0};

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (xseg_pending_captures(device->pending)) {
        result->kept_capture +=
            trim.is_whole_device ? xseg_page_cache_bytes(&device->page_cache) : 0;
        count_remainder(&trim, &reclaimed);
        return XSEG_OK;
    }
    const xseg_status wait_status = collect_completed_blocks(&trim);
    /* After any other error, blocks of one stream are still pending; the memory of the other
     * streams can be released. */
    if (wait_status == XSEG_ERR_DEVICE_LOST)
        return wait_status;
    (void)xseg_unreleased_retry(&device->unreleased);
    xseg_discard_paused_pools(device, false);
    retry_unknown_pages(device);
    const uint64_t unreleased_before = xseg_unreleased_bytes(&device->unreleased);
    set_release_limit(&trim);
    if (trim.is_whole_device)
        trim_page_cache(&trim);
    const xseg_status status = reclaim_selected_memory(&trim, &reclaimed);
    count_remainder(&trim, &reclaimed);

    /* Memory that was unmapped but that the driver did not free is still unreleased. */
    XSEG_ASSERT(result->released >= released_before);
    const uint64_t unreleased = xseg_unreleased_bytes(&device->unreleased);
    const uint64_t newly_unreleased = unreleased - xseg_min(unreleased, unreleased_before);
    result->released -= xseg_min(newly_unreleased, result->released - released_before);
    result->kept_failed += unreleased_before + newly_unreleased;
    return wait_status != XSEG_OK ? wait_status : status;
}

xseg_status xseg_trim_device(struct xseg_device *device, const struct xseg_trim_plan *plan,
                             struct xseg_trim_result *result)
{
    const int ordinal = device->context.ordinal;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_SPAN_BEGIN(trim, ordinal, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    const xseg_status status = run_device_trim(device, plan, result);
    XSEG_SPAN_END(trim, ordinal, status);
    return status;
}

xseg_status xseg_trim_all(struct xseg_device *device, bool wait)
{
    const struct xseg_trim_plan everything = {.wait = wait};
    struct xseg_trim_result result = {sizeof(result)};

    return xseg_trim_device(device, &everything, &result) == XSEG_ERR_DEVICE_LOST
               ? XSEG_ERR_DEVICE_LOST
               : XSEG_OK;
}

/* --- Trim to the limits. --- */

void xseg_trim_to_limits(struct xseg_device *device)
{
    const uint64_t limit = xseg_device_limit(device);
    struct xseg_trim_result result = {sizeof(result)};
    const uint64_t cache_bytes = xseg_allocator_config(device->allocator)->page_cache_bytes;

    xseg_mutex_lock(&device->memory_lock);
    if (!xseg_pending_captures(device->pending))
        xseg_page_cache_shrink_unprepared(&device->page_cache, cache_bytes);
    const uint64_t unreleased = xseg_unreleased_bytes(&device->unreleased);
    /* A target of 0 releases all idle memory, which is correct if unreleased memory alone reaches
     * the limit.  The loss of a device is reported to the next call of the application. */
    const struct xseg_trim_plan plan = {.target_bytes = limit - xseg_min(limit, unreleased)};
    if (xseg_device_physical(device) > limit)
        (void)xseg_trim_device(device, &plan, &result);
    xseg_mutex_unlock(&device->memory_lock);
}

/* --- Oversize segments. --- */

bool xseg_trim_oversize(struct xseg_arena *arena, uint64_t min, uint64_t needed)
{
    struct xseg_reclaim_policy policy = {
        .scope = XSEG_RECLAIM_ARENA,
        .arena = arena,
        .bytes = 1,
        .min_block = needed,
        .classic_only = true,
        .all_or_nothing = true,
        .work = XSEG_RECLAIM_WAIT_TO_UNMAP,
        .cause = XSEG_HISTORY_TRIM,
    };
    struct xseg_reclaim_result result;

    XSEG_ASSERT(min > 0 && needed >= min);
    (void)xseg_reclaim(arena->device, &policy, &result);
    if (!result.is_complete && result.kept == 0) {
        policy.bytes = needed;
        policy.min_block = min;
        policy.largest_first = true;
        (void)xseg_reclaim(arena->device, &policy, &result);
    }
    return result.is_complete;
}

/* --- Garbage collection by age. --- */

/* The ages of the blocks that could be released. */
struct garbage {
    uint32_t searches;
    uint64_t age_sum, count; /* the sum of the ages, and the number of blocks */
};

static void add_block_ages(struct garbage *garbage, struct xseg_arena *arena)
{
    const struct xseg_block *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    if (arena->pool != &arena->device->pool || arena->is_small)
        return;
    xseg_biased_lock_lock(&arena->lock);
    while ((block = xseg_cached_lower_bound(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        if (xseg_idle_whole_bytes(&block->extent->segment, block->base, bytes).releasable == 0)
            continue;
        garbage->age_sum += garbage->searches - block->gc_count_base;
        garbage->count++;
    }
    xseg_biased_lock_unlock(&arena->lock);
}

/* Release old blocks until at most `trigger` bytes are reserved, or no block can be released. */
static void collect_garbage(struct xseg_device *device, uint64_t trigger)
{
    struct xseg_reclaim_result result = {.released = 1};

    while (result.released != 0 && xseg_device_physical(device) > trigger) {
        struct garbage garbage = {.searches = atomic_load(&device->searches)};

        XSEG_DEVICE_FOR_ARENAS(arena, device)
        {
            add_block_ages(&garbage, arena);
        }
        if (garbage.count == 0)
            return;
        const struct xseg_reclaim_policy policy = {
            .scope = XSEG_RECLAIM_LARGE,
            .bytes = UINT64_MAX,
            .min_block = XSEG_SIZE_SMALL_SEGMENT,
            .searches = garbage.searches,
            /* The average, rounded up, because ages are integers. */
            .min_searches = (uint32_t)((garbage.age_sum + garbage.count - 1) / garbage.count),
            .work = XSEG_RECLAIM_WAIT_TO_UNMAP,
            .cause = XSEG_HISTORY_TRIM,
        };
        (void)xseg_reclaim(device, &policy, &result);
    }
}

void xseg_trim_garbage(struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t trigger =
        (uint64_t)(config->garbage_collection_threshold * (double)xseg_device_limit(device));
    const int ordinal = device->context.ordinal;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                config->garbage_collection_threshold > 0);
    if (xseg_pending_captures(device->pending) || xseg_device_physical(device) <= trigger)
        return;
    XSEG_SPAN_BEGIN(trim, ordinal, atomic_load_explicit(&device->reserved, memory_order_relaxed));
    collect_garbage(device, trigger);
    XSEG_SPAN_END(trim, ordinal, XSEG_OK);
}
