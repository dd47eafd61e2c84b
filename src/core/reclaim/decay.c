/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/decay.h"

#include "src/base/clock.h"
#include "src/base/span.h"
#include "src/core/block/best_fit.h"
#include "src/core/config/config.h"
#include "src/core/device/device.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"

/* --- Idle memory. --- */

/* Minimum span in nanoseconds for the doublings of age. */
#define MIN_SPAN_NS XSEG_MILLISECOND

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
    struct xseg_idle_bytes result = {0, {0, 0}};

    if (run.count == 0)
        return result;
    result.releasable =
        xseg_segment_is_expandable(segment) ? run.count * segment->granule_bytes : bytes;
    result.retained = xseg_segment_retained_bytes(segment, run.first, run.count);
    XSEG_ASSERT(result.retained.pinned + result.retained.exported <= result.releasable &&
                result.releasable <= bytes);
    result.releasable -= result.retained.pinned + result.retained.exported;
    return result;
}

uint64_t xseg_idle_page_since(const struct xseg_segment *segment, uint32_t page)
{
    const uint32_t length = xseg_idle_page_length(segment, page);
    uint64_t since = 0;

    for (uint32_t granule = page; granule < page + length; granule++)
        since = xseg_max(since, segment->idle_since[granule]);
    return since;
}

/* --- Ages. --- */

uint32_t xseg_idle_step(const struct xseg_idle_ages *ages, uint64_t since)
{
    const uint64_t age = since < ages->now ? ages->now - since : 0;

    if (age < ages->span)
        return (uint32_t)(age * XSEG_IDLE_STEPS / ages->span);
    /* The step counts doublings of the span; the two bits below the highest bit of `multiple`
     * divide each doubling into quarters. */
    const uint64_t multiple = xseg_max(age / xseg_max(ages->span, MIN_SPAN_NS), 1);
    const unsigned doublings = xseg_log2_floor(multiple);
    const uint64_t quarter = multiple * 4 >> doublings;
    return XSEG_IDLE_STEPS + (uint32_t)xseg_min(doublings * 4 + (quarter - 4), XSEG_IDLE_OLDER - 1);
}

/* --- Counting. --- */

/* Start the time of an arena at the first count: the ages of its memory start now. */
static void start_arena_time(struct xseg_arena *arena, uint64_t now)
{
    XSEG_LIST_FOR(node, &arena->extents)
    {
        struct xseg_segment *segment = &XSEG_CONTAINER(node, struct xseg_extent, link)->segment;

        for (uint32_t granule = 0; granule < xseg_max(segment->granules, 1); granule++)
            segment->idle_since[granule] = now;
    }
}

static void count_block_pages(struct xseg_idle_ages *ages, const struct xseg_block *block,
                              uint64_t previous_count)
{
    const struct xseg_segment *segment = &block->extent->segment;
    const struct xseg_idle_run run = xseg_idle_whole_pages(segment, block->base, block->bytes);

    for (uint32_t granule = run.first; granule < run.first + run.count;
         granule += xseg_idle_page_length(segment, granule)) {
        const uint64_t since = xseg_idle_page_since(segment, granule);
        const uint64_t bytes = xseg_idle_page_bytes(segment, granule);
        const uint32_t step = xseg_idle_step(ages, since);

        XSEG_ASSERT(step < XSEG_IDLE_ALL && bytes > 0);
        if (xseg_idle_page_is_retained(segment, granule)) {
            ages->retained += bytes;
            continue;
        }

        ages->bytes[step] += bytes;
        ages->pages[step]++;
        ages->fresh += since >= previous_count ? bytes : 0;
        ages->largest = xseg_max(ages->largest, bytes);
    }
}

struct age_count {
    struct xseg_idle_ages *ages;
    const struct xseg_pool *named;
};

static void count_arena_pages(const struct age_count *count, struct xseg_arena *arena)
{
    struct xseg_idle_ages *ages = count->ages;
    const struct xseg_block *block;
    uint64_t bytes = XSEG_SIZE_SMALL_SEGMENT, position = 0;

    if (!xseg_idle_is_counted(arena, count->named))
        return;
    xseg_biased_lock_lock(&arena->lock);
    const uint64_t previous_count = xseg_arena_decay_time(arena);
    XSEG_ASSERT(previous_count <= ages->now);
    if (previous_count == 0)
        start_arena_time(arena, ages->now);
    xseg_arena_set_decay_time(arena, ages->now);
    ages->cached += xseg_arena_cached_bytes(arena);
    while ((block = xseg_cached_lower_bound(arena, bytes, position)) != NULL) {
        bytes = block->bytes;
        position = xseg_block_position(block) + 1;
        count_block_pages(ages, block, previous_count);
    }
    xseg_biased_lock_unlock(&arena->lock);
}

void xseg_idle_count(struct xseg_device *device, uint64_t now, uint64_t span,
                     const struct xseg_pool *named, struct xseg_idle_ages *ages)
{
    struct age_count count = {ages, named};

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    *ages = (struct xseg_idle_ages){.now = now, .span = span};
    xseg_page_cache_set_time(&device->page_cache, now);
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        count_arena_pages(&count, arena);
    }
}

void xseg_idle_select_oldest(struct xseg_idle_limit *limit, uint64_t bytes, uint32_t youngest,
                             uint64_t pages)
{
    const struct xseg_idle_ages *ages = limit->ages;
    uint64_t remaining_pages = pages;

    XSEG_ASSERT(ages != NULL && youngest < XSEG_IDLE_ALL);
    limit->pages = pages;
    for (limit->step = XSEG_IDLE_ALL - 1; limit->step > youngest; limit->step--) {
        if (ages->bytes[limit->step] > bytes || ages->pages[limit->step] > remaining_pages)
            break;
        bytes -= ages->bytes[limit->step];
        remaining_pages -= ages->pages[limit->step];
    }
    XSEG_ASSERT(limit->step >= youngest && remaining_pages <= pages);
    limit->step_bytes = bytes;
    limit->step_pages = remaining_pages;
}

bool xseg_idle_claim(struct xseg_idle_limit *limit, uint64_t since, uint64_t bytes)
{
    const uint32_t step = xseg_idle_step(limit->ages, since);

    XSEG_ASSERT(bytes > 0);
    if (limit->pages == 0 || step < limit->step)
        return false;
    if (step == limit->step) {
        if (limit->step_pages == 0 || limit->step_bytes < (limit->rounds_up ? 1 : bytes))
            return false;
        limit->step_bytes -= xseg_min(limit->step_bytes, bytes);
        limit->step_pages--;
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
    bool is_complete = false;
    int capture_mode = 0;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (arena->fence == NULL && !xseg_streams_accepts_work(&device->context, stream))
        return arena->idle_before;
    if (xseg_driver_relax_capture_mode(&device->context, &capture_mode) != XSEG_OK)
        return arena->idle_before;
    xseg_biased_lock_lock(&device->pending->lock);
    if (arena->fence == NULL) {
        if (xseg_fences_record(fences, stream->handle, &arena->fence) == XSEG_OK)
            arena->fence_time = now;
    } else if (xseg_driver_event_query(&device->context, arena->fence, &is_complete) == XSEG_OK &&
               is_complete) {
        XSEG_ASSERT(arena->idle_before <= arena->fence_time);
        arena->idle_before = arena->fence_time;
        xseg_fences_return(fences, arena->fence);
        arena->fence = NULL;
    }
    xseg_biased_lock_unlock(&device->pending->lock);
    xseg_driver_restore_capture_mode(&device->context, capture_mode);
    return arena->idle_before;
}

static void return_arena_fence(struct xseg_arena *arena)
{
    if (arena->fence != NULL)
        xseg_pending_return_event(arena->device->pending, arena->fence);
    arena->fence = NULL;
}

void xseg_idle_return_fences(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    XSEG_DEVICE_FOR_ARENAS(arena, device)
    {
        return_arena_fence(arena);
    }
}

void xseg_idle_return_pool_fences(struct xseg_pool *pool)
{
    XSEG_ASSERT(atomic_load(&pool->references) == 0);
    XSEG_POOL_FOR_ARENAS(arena, pool)
    {
        return_arena_fence(arena);
    }
}

/* --- Decay. --- */

/* Maximum driver time of a pass on the request path, in nanoseconds; it may always release one
 * page. */
#define SLICE_NS (200 * UINT64_C(1000))

/* The assumed cost of an unmap and a release before the first measurement; measured costs are 30 to
 * 60 us. */
#define FIRST_PAGE_COST_NS (60 * UINT64_C(1000))

_Static_assert(FIRST_PAGE_COST_NS > 0 && FIRST_PAGE_COST_NS <= SLICE_NS,
               "the first pass on the request path can afford a page");
_Static_assert(XSEG_SECOND % XSEG_DECAY_WINDOW == 0,
               "a window of one second divides into equal parts");

/* The span of ages without idle_ms, when only limits release memory. */
#define LIMIT_SPAN_NS (60 * XSEG_SECOND)

static const struct xseg_clock *device_clock(const struct xseg_device *device)
{
    return &device->allocator->clock;
}

/* --- The time, and the time of the next pass. --- */

static uint64_t advance_time(struct xseg_decay *decay, uint64_t now)
{
    decay->time = xseg_max(decay->time, now);
    return decay->time;
}

uint64_t xseg_decay_now(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return advance_time(device->decay, xseg_clock_fine(device_clock(device)));
}

/* Nanoseconds between two passes: a 64th of idle_ms, which is one step of the ages. */
static uint64_t pass_interval(const struct xseg_config *config)
{
    if (config->idle_ms < 0)
        return XSEG_SECOND / 10;
    if (config->idle_ms == 0)
        return 0;
    const uint64_t step = (uint64_t)config->idle_ms * XSEG_MILLISECOND / XSEG_IDLE_STEPS;
    return xseg_max(XSEG_MILLISECOND, xseg_min(step, XSEG_SECOND));
}

uint64_t xseg_decay_interval(const struct xseg_config *config)
{
    return xseg_max(pass_interval(config), XSEG_MILLISECOND);
}

static uint64_t age_span(const struct xseg_config *config)
{
    return config->idle_ms < 0 ? LIMIT_SPAN_NS : (uint64_t)config->idle_ms * XSEG_MILLISECOND;
}

/* --- The retained minimum. --- */

/* Count the slots that began since the last update of the window, at most XSEG_DECAY_WINDOW.
 * *slot: set to the current slot */
static uint64_t count_elapsed_slots(const struct xseg_decay_window *window, uint64_t now,
                                    uint32_t seconds, uint64_t *slot)
{
    XSEG_ASSERT(seconds > 0);
    *slot = now / (seconds * XSEG_SECOND / XSEG_DECAY_WINDOW);
    return xseg_min(*slot - xseg_min(*slot, window->slot), XSEG_DECAY_WINDOW);
}

/* The peak of the bytes in use over the last `seconds`. */
static uint64_t window_peak(const struct xseg_decay_window *window, uint64_t now, uint32_t seconds)
{
    uint64_t peak = 0, slot;

    if (seconds == 0)
        return 0;
    for (uint64_t i = count_elapsed_slots(window, now, seconds, &slot); i < XSEG_DECAY_WINDOW; i++)
        peak = xseg_max(peak, window->peak[(slot - i) % XSEG_DECAY_WINDOW]);
    return peak;
}

/* Record the bytes in use now. */
static void record_bytes_in_use(struct xseg_decay_window *window, uint64_t now, uint32_t seconds,
                                uint64_t bytes)
{
    uint64_t slot;

    if (seconds == 0)
        return;
    const uint64_t elapsed_slots = count_elapsed_slots(window, now, seconds, &slot);
    for (uint64_t i = 0; i < elapsed_slots; i++)
        window->peak[(slot - i) % XSEG_DECAY_WINDOW] = 0;
    window->slot = slot;
    uint64_t *current = &window->peak[slot % XSEG_DECAY_WINDOW];
    *current = xseg_max(*current, bytes);
}

/* Compute the retained minimum in bytes: keep_mb, or the peak of the window. */
static uint64_t compute_retained_minimum(const struct xseg_device *device,
                                         const struct xseg_config *config, uint64_t now)
{
    return xseg_max(atomic_load_explicit(&device->limits.keep, memory_order_relaxed),
                    window_peak(&device->decay->window, now, config->keep_window_s));
}

static uint64_t sum_idle_bytes(const struct xseg_idle_ages *ages)
{
    uint64_t sum = 0;

    for (unsigned step = 0; step < XSEG_IDLE_ALL; step++)
        sum += ages->bytes[step];
    return sum;
}

/* --- Amounts to release. --- */

/* The fraction of the memory of an age, in spans, that is released: 0 up to a quarter of the span,
 * 1 from the span on. */
static double decay_curve(double age)
{
    const double x = (age - 0.25) / 0.75;

    if (x <= 0)
        return 0;
    return x >= 1 ? 1 : x * x * (3 - 2 * x);
}

/* Bytes of the idle memory that the curve releases for the time since the last pass. */
static uint64_t compute_decayed_bytes(const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    const double elapsed_spans = ages->span == 0 ? 1 : (double)elapsed / (double)ages->span;
    double bytes = 0;

    for (unsigned step = XSEG_IDLE_STEPS; step < XSEG_IDLE_ALL; step++)
        bytes += (double)ages->bytes[step];
    for (unsigned step = 0; step < XSEG_IDLE_STEPS; step++) {
        const double age = (step + 0.5) / XSEG_IDLE_STEPS;
        const double previously_released = decay_curve(age - elapsed_spans);

        XSEG_ASSERT(previously_released < 1);
        bytes += (double)ages->bytes[step] * (decay_curve(age) - previously_released) /
                 (1 - previously_released);
    }
    return (uint64_t)bytes;
}

/* Bytes above the limits, which passes release at any age. */
static uint64_t compute_demanded_bytes(struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t limit =
        xseg_min(atomic_load_explicit(&device->limits.soft, memory_order_relaxed),
                 atomic_load_explicit(&device->limits.hard, memory_order_relaxed));
    uint64_t target = physical - xseg_min(physical, limit);
    const uint64_t min = xseg_device_free_min(device, config);
    uint64_t free = 0, total = 0;

    if (min != 0 && xseg_device_query_memory(device, &free, &total) == XSEG_OK)
        target = xseg_max(target, min - xseg_min(free, min));
    return target;
}

uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t minimum = compute_retained_minimum(device, config, device->decay->time);
    const uint64_t above = config->idle_ms < 0 ? 0 : reserved - xseg_min(reserved, minimum);

    return idle - xseg_min(idle, xseg_max(above, compute_demanded_bytes(device, config)));
}

/* Add the bytes that the curve releases now, and return the bytes that are owed, down to the
 * retained minimum. */
static uint64_t update_owed_bytes(struct xseg_device *device, const struct xseg_config *config,
                                  const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t idle = sum_idle_bytes(ages);

    XSEG_ASSERT(ages->fresh <= idle);
    record_bytes_in_use(&decay->window, ages->now, config->keep_window_s,
                        reserved - xseg_min(reserved, idle - ages->fresh));
    const uint64_t minimum = compute_retained_minimum(device, config, ages->now);
    const uint64_t above = reserved - xseg_min(reserved, minimum);

    decay->owed += config->idle_ms < 0 ? 0 : compute_decayed_bytes(ages, elapsed);
    decay->owed = xseg_min(decay->owed, above);
    return decay->owed;
}

/* --- A pass. --- */

static void update_page_cost(struct xseg_decay *decay, uint64_t spent, uint64_t pages)
{
    if (pages == 0)
        return;
    decay->page_cost = (3 * decay->page_cost + spent / pages) / 4;
    decay->page_cost = xseg_max(decay->page_cost, 1);
}

/* Release the idle pages that a limit selects.  keep_pages: the pages move to the page cache of the
 * device; otherwise they are released to the driver */
static xseg_status release_idle_pages(struct xseg_device *device,
                                      const struct xseg_idle_limit *limit, bool keep_pages,
                                      enum xseg_history_action cause,
                                      struct xseg_reclaim_result *result)
{
    const struct xseg_reclaim_policy policy = {
        .scope = XSEG_RECLAIM_RELEASABLE,
        .bytes = UINT64_MAX,
        .min_block = XSEG_SIZE_SMALL_SEGMENT,
        .idle = *limit,
        .work = XSEG_RECLAIM_QUERY,
        .keep_pages = keep_pages,
        .cause = cause,
    };

    /* A stream that cannot be queried counts as busy. */
    return xseg_reclaim(device, &policy, result) == XSEG_ERR_DEVICE_LOST ? XSEG_ERR_DEVICE_LOST
                                                                         : XSEG_OK;
}

/* Release the memory above the curve and the limits, at most a number of pages.  *has_more: set to
 * whether the next pass continues */
static xseg_status release_due_memory(struct xseg_device *device, const struct xseg_config *config,
                                      uint64_t pages, uint64_t elapsed, bool *has_more)
{
    struct xseg_decay *decay = device->decay;
    struct xseg_reclaim_result result = {.released = 0};
    struct xseg_idle_ages ages;

    xseg_idle_count(device, advance_time(decay, decay->last_pass), age_span(config), NULL, &ages);
    const uint64_t whole_page_bytes = sum_idle_bytes(&ages) + ages.retained;
    xseg_timestamped_set(&device->fragmented, ages.now,
                         ages.cached - xseg_min(ages.cached, whole_page_bytes));
    const uint64_t owed = update_owed_bytes(device, config, &ages, elapsed);
    uint64_t target = compute_demanded_bytes(device, config);
    *has_more = pages == 0 && xseg_max(owed, target) != 0;
    if (pages == 0 || xseg_max(owed, target) == 0)
        return XSEG_OK;
    XSEG_SPAN_BEGIN(decay, device->context.ordinal, xseg_max(owed, target));
    const uint64_t start = xseg_clock_fine(device_clock(device));
    /* The page cache is released first. */
    const uint64_t cache_pages = xseg_reclaim_page_cache(device, &target, pages);
    struct xseg_idle_limit limit = {.ages = &ages, .rounds_up = target > owed};
    xseg_idle_select_oldest(&limit, xseg_max(owed, target), 0, pages - cache_pages);
    const xseg_status status = release_idle_pages(
        device, &limit, target == 0 && config->page_cache_bytes != 0, XSEG_HISTORY_DECAY, &result);
    xseg_page_cache_shrink_unprepared(&device->page_cache, config->page_cache_bytes);
    const uint64_t released_pages = cache_pages + result.pages;
    XSEG_ASSERT(released_pages <= pages);
    const uint64_t spent = xseg_clock_fine(device_clock(device)) - start;
    XSEG_SPAN_END(decay, device->context.ordinal, status);
    update_page_cost(decay, spent, released_pages);
    decay->credit -= xseg_min(decay->credit, spent);
    /* The next pass counts memory of busy streams again, with its age. */
    decay->owed -= xseg_min(decay->owed, result.released);
    *has_more = released_pages >= pages && decay->owed > ages.largest;
    decay->owed = *has_more ? decay->owed : xseg_min(decay->owed, ages.largest);
    return status;
}

/* Add the driver time that reclaim_us_per_s grants since the last pass.  The credit is at most the
 * grant of one second, or the cost of one page. */
static void add_credit(struct xseg_decay *decay, const struct xseg_config *config, uint64_t elapsed)
{
    const uint64_t rate = (uint64_t)config->reclaim_us_per_s * 1000; /* a second */
    const uint64_t earned = xseg_min(elapsed, XSEG_SECOND) / 1000 * rate / (XSEG_SECOND / 1000);

    decay->credit = xseg_min(decay->credit + earned, xseg_max(rate, decay->page_cost));
}

/* Release prepared pages that no commit has used for idle_ms, up to a number of pages. */
static void release_prepared_pages(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t now, uint64_t pages)
{
    xseg_page_cache_set_time(&device->page_cache, now);
    if (config->idle_ms >= 0)
        (void)xseg_page_cache_release_prepared(&device->page_cache,
                                               now - xseg_min(now, age_span(config)), pages);
}

/* The caller of a pass: the request path, the background thread, or xseg_trim() with due_only. */
enum caller { FROM_CALL, FROM_BACKGROUND, FROM_TRIM };

/* The maximum number of pages of a pass, from the time limit of a trim or the credit of driver
 * time. */
static uint64_t compute_max_pages(const struct xseg_decay *decay, enum caller caller,
                                  uint64_t max_ns)
{
    const uint64_t cost = decay->page_cost;

    XSEG_ASSERT(cost > 0);
    if (caller == FROM_TRIM)
        return xseg_max(max_ns / cost, 1);
    return (caller == FROM_CALL ? xseg_min(decay->credit, xseg_max(SLICE_NS, cost))
                                : decay->credit) /
           cost;
}

/* Run a pass.  The caller holds the device memory lock.  Does nothing if no time has passed since
 * the last pass. */
static xseg_status run_decay_pass(struct xseg_device *device, const struct xseg_config *config,
                                  enum caller caller, uint64_t now, uint64_t max_ns)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t elapsed = decay->last_pass == 0 ? 0 : now - decay->last_pass;
    bool has_more = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (now <= decay->last_pass || xseg_pending_captures(device->pending))
        return XSEG_OK;
    if (decay->last_pass == 0)
        decay->page_cost = FIRST_PAGE_COST_NS;
    decay->last_pass = now;
    xseg_pending_poll(device->pending);
    xseg_pending_unmap_poll(device, false);
    add_credit(decay, config, elapsed);
    release_prepared_pages(device, config, now, compute_max_pages(decay, caller, max_ns));
    const xseg_status status = release_due_memory(
        device, config, compute_max_pages(decay, caller, max_ns), elapsed, &has_more);
    atomic_store_explicit(&decay->due, now + (has_more ? XSEG_MILLISECOND : pass_interval(config)),
                          memory_order_relaxed);
    return status;
}

void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t now = xseg_clock_coarse(device_clock(device));

    if (now < atomic_load_explicit(&decay->due, memory_order_relaxed) ||
        !xseg_mutex_trylock(&device->memory_lock))
        return;
    (void)run_decay_pass(device, config, FROM_CALL, now, 0);
    xseg_mutex_unlock(&device->memory_lock);
}

xseg_status xseg_decay_background_pass(struct xseg_device *device, const struct xseg_config *config)
{
    xseg_mutex_lock(&device->memory_lock);
    const xseg_status status =
        run_decay_pass(device, config, FROM_BACKGROUND, xseg_clock_fine(device_clock(device)), 0);
    xseg_mutex_unlock(&device->memory_lock);
    return status;
}

xseg_status xseg_decay_release_due(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t max_ns, uint64_t *released)
{
    xseg_mutex_lock(&device->memory_lock);
    const uint64_t before = xseg_device_physical(device);
    const xseg_status status =
        run_decay_pass(device, config, FROM_TRIM, xseg_clock_fine(device_clock(device)), max_ns);
    const uint64_t after = xseg_device_physical(device);
    xseg_mutex_unlock(&device->memory_lock);
    *released += before - xseg_min(before, after);
    return status;
}

uint64_t xseg_decay_release(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t bytes)
{
    const uint64_t before = xseg_device_physical(device);
    struct xseg_reclaim_result result;
    struct xseg_idle_ages ages;
    uint64_t target = bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_pending_captures(device->pending));
    xseg_pending_poll(device->pending);
    xseg_pending_unmap_poll(device, false);
    (void)xseg_reclaim_page_cache(device, &target, UINT64_MAX);
    if (target != 0) {
        xseg_idle_count(device, xseg_decay_now(device), age_span(config), NULL, &ages);
        struct xseg_idle_limit limit = {.ages = &ages, .rounds_up = true};
        xseg_idle_select_oldest(&limit, target, 0, UINT64_MAX);
        (void)release_idle_pages(device, &limit, false, XSEG_HISTORY_BUDGET_RELEASE, &result);
    }
    return before - xseg_min(before, xseg_device_physical(device));
}
