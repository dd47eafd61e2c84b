/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/decay.h"

#include "src/base/span.h"
#include "src/core/config/size.h"
#include "src/core/device/allocator.h"
#include "src/core/pending/pending.h"
#include "src/core/reclaim/pending_unmap.h"
#include "src/core/reclaim/reclaim.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      (1000 * MILLISECOND)

/* A pass on the request path keeps the driver busy for at most this time, in nanoseconds, but it may release one page. */
#define SLICE (200 * UINT64_C(1000))

/* The assumed cost of an unmap and a release before the first measurement; measured costs are 30 to 60 us. */
#define FIRST_PAGE_COST (60 * UINT64_C(1000))

_Static_assert(FIRST_PAGE_COST > 0 && FIRST_PAGE_COST <= SLICE,
               "the first pass on the request path can afford a page");
_Static_assert(SECOND % XSEG_DECAY_WINDOW == 0, "a window of one second divides into equal parts");

/* The span of ages without idle_ms, when only limits release memory. */
#define LIMIT_SPAN (60 * SECOND)

static const struct xseg_clock *clock_of(const struct xseg_device *device)
{
    return &device->allocator->clock;
}

/* --- The time, and the time of the next pass. --- */

static uint64_t move_on(struct xseg_decay *decay, uint64_t now)
{
    decay->time = xseg_max(decay->time, now);
    return decay->time;
}

uint64_t xseg_decay_now(struct xseg_device *device)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    return move_on(device->decay, xseg_clock_fine(clock_of(device)));
}

/* Nanoseconds between two passes: a 64th of idle_ms, which is one step of the ages. */
static uint64_t interval(const struct xseg_config *config)
{
    if (config->idle_ms < 0)
        return SECOND / 10;
    if (config->idle_ms == 0)
        return 0;
    const uint64_t step = (uint64_t)config->idle_ms * MILLISECOND / XSEG_IDLE_STEPS;
    return xseg_max(MILLISECOND, xseg_min(step, SECOND));
}

uint64_t xseg_decay_interval(const struct xseg_config *config)
{
    return xseg_max(interval(config), MILLISECOND);
}

static uint64_t span(const struct xseg_config *config)
{
    return config->idle_ms < 0 ? LIMIT_SPAN : (uint64_t)config->idle_ms * MILLISECOND;
}

/* --- The floor. --- */

/* How many parts have begun since the window was last updated, at most all of them; *part: set to the current one. */
static uint64_t passed_parts(const struct xseg_decay_window *window, uint64_t now, uint32_t seconds,
                             uint64_t *part)
{
    XSEG_ASSERT(seconds > 0);
    *part = now / (seconds * SECOND / XSEG_DECAY_WINDOW);
    return xseg_min(*part - xseg_min(*part, window->part), XSEG_DECAY_WINDOW);
}

/* The peak of the bytes in use over the last `seconds`. */
static uint64_t window_peak(const struct xseg_decay_window *window, uint64_t now, uint32_t seconds)
{
    uint64_t peak = 0, part;

    if (seconds == 0)
        return 0;
    for (uint64_t i = passed_parts(window, now, seconds, &part); i < XSEG_DECAY_WINDOW; i++)
        peak = xseg_max(peak, window->peak[(part - i) % XSEG_DECAY_WINDOW]);
    return peak;
}

/* Record the bytes in use now. */
static void record_use(struct xseg_decay_window *window, uint64_t now, uint32_t seconds,
                       uint64_t bytes)
{
    uint64_t part;

    if (seconds == 0)
        return;
    const uint64_t passed = passed_parts(window, now, seconds, &part);
    for (uint64_t i = 0; i < passed; i++)
        window->peak[(part - i) % XSEG_DECAY_WINDOW] = 0;
    window->part = part;
    uint64_t *current = &window->peak[part % XSEG_DECAY_WINDOW];
    *current = xseg_max(*current, bytes);
}

/* Bytes that stay reserved: keep_mb, or the peak of the window. */
static uint64_t floor_at(const struct xseg_device *device, const struct xseg_config *config,
                         uint64_t now)
{
    return xseg_max(xseg_device_limits_keep(&device->limits),
                    window_peak(&device->decay->window, now, config->keep_window_s));
}

static uint64_t idle_bytes(const struct xseg_idle_ages *ages)
{
    uint64_t sum = 0;

    for (unsigned step = 0; step < XSEG_IDLE_ALL; step++)
        sum += ages->bytes[step];
    return sum;
}

/* --- How much is released. --- */

/* The part of the memory of an age, in spans, that is released: 0 up to a quarter of the span, 1 from the span on. */
static double curve(double age)
{
    const double x = (age - 0.25) / 0.75;

    if (x <= 0)
        return 0;
    return x >= 1 ? 1 : x * x * (3 - 2 * x);
}

/* Bytes of the idle memory that the curve releases for the time since the last pass. */
static uint64_t let_go(const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    const double since = ages->span == 0 ? 1 : (double)elapsed / (double)ages->span;
    double bytes = 0;

    for (unsigned step = XSEG_IDLE_STEPS; step < XSEG_IDLE_ALL; step++)
        bytes += (double)ages->bytes[step];
    for (unsigned step = 0; step < XSEG_IDLE_STEPS; step++) {
        const double age = (step + 0.5) / XSEG_IDLE_STEPS;
        const double before = curve(age - since);

        XSEG_ASSERT(before < 1);
        bytes += (double)ages->bytes[step] * (curve(age) - before) / (1 - before);
    }
    return (uint64_t)bytes;
}

/* Bytes that limits demand, of memory of any age. */
static uint64_t demanded(struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t limit = xseg_min(xseg_device_limits_soft(&device->limits),
                                    xseg_device_limits_hard(&device->limits));
    uint64_t wanted = physical - xseg_min(physical, limit);
    uint64_t free = 0, total = 0;

    if (config->device_free_min_bytes != 0 && xseg_device_memory(device, &free, &total) == XSEG_OK)
        wanted = xseg_max(wanted, config->device_free_min_bytes -
                                      xseg_min(free, config->device_free_min_bytes));
    return wanted;
}

uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle)
{
    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t floor = floor_at(device, config, device->decay->time);
    const uint64_t above = config->idle_ms < 0 ? 0 : reserved - xseg_min(reserved, floor);

    return idle - xseg_min(idle, xseg_max(above, demanded(device, config)));
}

/* Bytes that the curve releases now, down to the floor. */
static uint64_t let_curve_go(struct xseg_device *device, const struct xseg_config *config,
                             const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t idle = idle_bytes(ages);

    XSEG_ASSERT(ages->fresh <= idle);
    record_use(&decay->window, ages->now, config->keep_window_s,
               reserved - xseg_min(reserved, idle - ages->fresh));
    const uint64_t floor = floor_at(device, config, ages->now);
    const uint64_t above = reserved - xseg_min(reserved, floor);

    decay->owed += config->idle_ms < 0 ? 0 : let_go(ages, elapsed);
    decay->owed = xseg_min(decay->owed, above);
    return decay->owed;
}

/* --- A pass. --- */

static void note_cost(struct xseg_decay *decay, uint64_t spent, uint64_t pages)
{
    if (pages == 0)
        return;
    decay->page_cost = (3 * decay->page_cost + spent / pages) / 4;
    decay->page_cost = xseg_max(decay->page_cost, 1);
}

/* Release the idle pages that a limit selects.  keep: they become idle pages of the device; else the driver gets them */
static xseg_status release(struct xseg_device *device, const struct xseg_idle_limit *limit,
                           bool keep, enum xseg_history_action cause,
                           struct xseg_reclaim_result *result)
{
    const struct xseg_reclaim_policy policy = {
        .scope = XSEG_RECLAIM_RELEASABLE,
        .bytes = UINT64_MAX,
        .min_block = XSEG_SIZE_SMALL_SEGMENT,
        .idle = *limit,
        .work = XSEG_RECLAIM_QUERY,
        .keep_pages = keep,
        .cause = cause,
    };

    /* A stream that cannot be queried counts as busy. */
    return xseg_reclaim(device, &policy, result) == XSEG_ERR_DEVICE_LOST ? XSEG_ERR_DEVICE_LOST
                                                                         : XSEG_OK;
}

/* Release what the curve and the limits demand, up to a number of pages.  *is_left: whether the next pass has more to
 * release. */
static xseg_status reclaim(struct xseg_device *device, const struct xseg_config *config,
                           uint64_t pages, uint64_t elapsed, bool *is_left)
{
    struct xseg_decay *decay = device->decay;
    struct xseg_reclaim_result result = {.released = 0};
    struct xseg_idle_ages ages;

    xseg_idle_count(device, move_on(decay, decay->last_pass), span(config), NULL, &ages);
    const uint64_t whole = idle_bytes(&ages) + ages.held;
    xseg_timestamped_set(&device->stranded, ages.now, ages.cached - xseg_min(ages.cached, whole));
    const uint64_t curved = let_curve_go(device, config, &ages, elapsed);
    uint64_t wanted = demanded(device, config);
    *is_left = pages == 0 && xseg_max(curved, wanted) != 0;
    if (pages == 0 || xseg_max(curved, wanted) == 0)
        return XSEG_OK;
    XSEG_SPAN_BEGIN(decay, device->context.ordinal, xseg_max(curved, wanted));
    const uint64_t start = xseg_clock_fine(clock_of(device));
    /* Limits are met from the page cache first. */
    const uint64_t cached = xseg_reclaim_page_cache(device, &wanted, pages);
    struct xseg_idle_limit limit = {.ages = &ages, .rounds_up = wanted > curved};
    xseg_idle_choose(&limit, xseg_max(curved, wanted), 0, pages - cached);
    const xseg_status status = release(device, &limit, wanted == 0 && config->page_cache_bytes != 0,
                                       XSEG_HISTORY_DECAY, &result);
    xseg_page_cache_shrink_unprepared(&device->page_cache, config->page_cache_bytes);
    const uint64_t released_pages = cached + result.pages;
    XSEG_ASSERT(released_pages <= pages);
    const uint64_t spent = xseg_clock_fine(clock_of(device)) - start;
    XSEG_SPAN_END(decay, device->context.ordinal, status);
    note_cost(decay, spent, released_pages);
    decay->credit -= xseg_min(decay->credit, spent);
    /* Memory whose stream was busy is counted again by the next pass, with its age. */
    decay->owed -= xseg_min(decay->owed, result.released);
    *is_left = released_pages >= pages && decay->owed > ages.largest;
    decay->owed = *is_left ? decay->owed : xseg_min(decay->owed, ages.largest);
    return status;
}

/* Add the driver time that reclaim_us_per_s grants since the last pass, up to what one second grants or one page needs. */
static void earn(struct xseg_decay *decay, const struct xseg_config *config, uint64_t elapsed)
{
    const uint64_t rate = (uint64_t)config->reclaim_us_per_s * 1000; /* a second */
    const uint64_t earned = xseg_min(elapsed, SECOND) / 1000 * rate / (SECOND / 1000);

    decay->credit = xseg_min(decay->credit + earned, xseg_max(rate, decay->page_cost));
}

/* Release prepared pages of ranges that have not been committed for idle_ms, up to a number of pages. */
static void release_prepared(struct xseg_device *device, const struct xseg_config *config,
                             uint64_t now, uint64_t pages)
{
    xseg_page_cache_set_time(&device->page_cache, now);
    if (config->idle_ms >= 0)
        (void)xseg_page_cache_release_prepared(&device->page_cache,
                                               now - xseg_min(now, span(config)), pages);
}

/* The caller of a pass: a call of the user, the background thread, or xseg_trim() with due_only. */
enum caller { ON_CALL, IN_TURN, ON_TRIM };

/* The maximum number of pages of a pass: by the time limit of a trim, else by the driver time that was earned. */
static uint64_t affordable(const struct xseg_decay *decay, enum caller who, uint64_t budget)
{
    const uint64_t cost = decay->page_cost;

    XSEG_ASSERT(cost > 0);
    if (who == ON_TRIM)
        return xseg_max(budget / cost, 1);
    return (who == ON_CALL ? xseg_min(decay->credit, xseg_max(SLICE, cost)) : decay->credit) / cost;
}

/* Run a pass.  The caller holds the device memory lock.  Does nothing if no time has passed since the last pass. */
static xseg_status run_pass(struct xseg_device *device, const struct xseg_config *config,
                            enum caller who, uint64_t now, uint64_t budget)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t elapsed = decay->last_pass == 0 ? 0 : now - decay->last_pass;
    bool is_left = false;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY));
    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (now <= decay->last_pass || xseg_pending_captures(device->pending))
        return XSEG_OK;
    if (decay->last_pass == 0)
        decay->page_cost = FIRST_PAGE_COST;
    decay->last_pass = now;
    xseg_pending_poll(device->pending);
    xseg_pending_unmap_poll(device, false);
    earn(decay, config, elapsed);
    release_prepared(device, config, now, affordable(decay, who, budget));
    const xseg_status status =
        reclaim(device, config, affordable(decay, who, budget), elapsed, &is_left);
    atomic_store_explicit(&decay->due, now + (is_left ? MILLISECOND : interval(config)),
                          memory_order_relaxed);
    return status;
}

void xseg_decay_pass(struct xseg_device *device, const struct xseg_config *config)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t now = xseg_clock_coarse(clock_of(device));

    if (now < atomic_load_explicit(&decay->due, memory_order_relaxed) ||
        !xseg_mutex_trylock(&device->growth_lock))
        return;
    (void)run_pass(device, config, ON_CALL, now, 0);
    xseg_mutex_unlock(&device->growth_lock);
}

xseg_status xseg_decay_round(struct xseg_device *device, const struct xseg_config *config)
{
    xseg_mutex_lock(&device->growth_lock);
    const xseg_status status =
        run_pass(device, config, IN_TURN, xseg_clock_fine(clock_of(device)), 0);
    xseg_mutex_unlock(&device->growth_lock);
    return status;
}

xseg_status xseg_decay_release_due(struct xseg_device *device, const struct xseg_config *config,
                                   uint64_t max_ns, uint64_t *released)
{
    xseg_mutex_lock(&device->growth_lock);
    const uint64_t before = xseg_device_physical(device);
    const xseg_status status =
        run_pass(device, config, ON_TRIM, xseg_clock_fine(clock_of(device)), max_ns);
    const uint64_t after = xseg_device_physical(device);
    xseg_mutex_unlock(&device->growth_lock);
    *released += before - xseg_min(before, after);
    return status;
}

uint64_t xseg_decay_release(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t bytes)
{
    const uint64_t before = xseg_device_physical(device);
    struct xseg_reclaim_result result;
    struct xseg_idle_ages ages;
    uint64_t wanted = bytes;

    XSEG_ASSERT(xseg_lock_rank_is_held(XSEG_RANK_DEVICE_MEMORY) &&
                !xseg_pending_captures(device->pending));
    xseg_pending_poll(device->pending);
    xseg_pending_unmap_poll(device, false);
    (void)xseg_reclaim_page_cache(device, &wanted, UINT64_MAX);
    if (wanted != 0) {
        xseg_idle_count(device, xseg_decay_now(device), span(config), NULL, &ages);
        struct xseg_idle_limit limit = {.ages = &ages, .rounds_up = true};
        xseg_idle_choose(&limit, wanted, 0, UINT64_MAX);
        (void)release(device, &limit, false, XSEG_HISTORY_BUDGET_RELEASE, &result);
    }
    return before - xseg_min(before, xseg_device_physical(device));
}
