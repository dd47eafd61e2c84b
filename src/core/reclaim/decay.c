/* SPDX-License-Identifier: MIT */
#include "src/core/reclaim/decay.h"

#include "src/core/device/allocator.h"
#include "src/core/reclaim/idle.h"
#include "src/core/pending/pending.h"

#define MILLISECOND UINT64_C(1000000)
#define SECOND      (1000 * MILLISECOND)

/* A look on the request path keeps the driver busy for no longer than that, one page aside. */
#define SLICE (200 * UINT64_C(1000))

/* What an unmap and a release cost before any has been timed; measured figures are 30 to 60 us. */
#define FIRST_PAGE_COST (60 * UINT64_C(1000))

/* By which ages are told apart where only limits draw. */
#define LIMIT_SPAN (60 * SECOND)

static const struct xseg_clock *clock_of(const struct xseg_device *device)
{
    return &device->allocator->clock;
}

/* --- When. --- */

static uint64_t move_on(struct xseg_decay *decay, uint64_t now)
{
    decay->time = xseg_max(decay->time, now);
    return decay->time;
}

uint64_t xseg_decay_now(struct xseg_device *device)
{
    return move_on(device->decay, xseg_clock_fine(clock_of(device)));
}

/* Between two looks: a 64th of idle_ms, a step of the ages. */
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

/* Note what is in use now; returns the most of the window. */
static uint64_t note_use(struct xseg_decay_window *window, uint64_t now, uint32_t seconds,
                         uint64_t bytes)
{
    uint64_t most = bytes;

    if (seconds == 0)
        return 0;
    const uint64_t part = now / (seconds * SECOND / XSEG_DECAY_WINDOW);
    const uint64_t passed = xseg_min(part - xseg_min(part, window->part), XSEG_DECAY_WINDOW);
    for (uint64_t i = 0; i < passed; i++)
        window->peak[(part - i) % XSEG_DECAY_WINDOW] = 0;
    window->part = part;
    uint64_t *current = &window->peak[part % XSEG_DECAY_WINDOW];
    *current = xseg_max(*current, bytes);
    for (unsigned i = 0; i < XSEG_DECAY_WINDOW; i++)
        most = xseg_max(most, window->peak[i]);
    return most;
}

static uint64_t idle_bytes(const struct xseg_idle_ages *ages)
{
    uint64_t sum = 0;

    for (unsigned step = 0; step < XSEG_IDLE_ALL; step++)
        sum += ages->bytes[step];
    return sum;
}

/* The same at some time later, without noting anything. */
static uint64_t used_of_window(const struct xseg_decay_window *window, uint64_t now,
                               uint32_t seconds)
{
    uint64_t most = 0;

    if (seconds == 0)
        return 0;
    const uint64_t part = now / (seconds * SECOND / XSEG_DECAY_WINDOW);
    const uint64_t passed = xseg_min(part - xseg_min(part, window->part), XSEG_DECAY_WINDOW);
    for (uint64_t i = passed; i < XSEG_DECAY_WINDOW; i++)
        most = xseg_max(most, window->peak[(part - i) % XSEG_DECAY_WINDOW]);
    return most;
}

static uint64_t floor_of(struct xseg_device *device, const struct xseg_config *config,
                         const struct xseg_idle_ages *ages)
{
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t idle = idle_bytes(ages) - ages->fresh;
    const uint64_t used = reserved - xseg_min(reserved, idle);

    return xseg_max(xseg_bounds_keep(&device->bounds),
                    note_use(&device->decay->window, ages->now, config->keep_window_s, used));
}

/* --- How much. --- */

/* How much of what became idle a while ago is gone: 0 up to a quarter of the span, 1 after it. */
static double curve(double age)
{
    const double x = (age - 0.25) / 0.75;

    if (x <= 0)
        return 0;
    return x >= 1 ? 1 : x * x * (3 - 2 * x);
}

/* What the curve lets go of what there is, since the last look. */
static uint64_t let_go(const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    const double since = ages->span == 0 ? 1 : (double)elapsed / (double)ages->span;
    double bytes = 0;

    for (unsigned step = XSEG_IDLE_STEPS; step < XSEG_IDLE_ALL; step++)
        bytes += (double)ages->bytes[step];
    for (unsigned step = 0; step < XSEG_IDLE_STEPS; step++) {
        const double age = (step + 0.5) / XSEG_IDLE_STEPS;
        const double before = curve(age - since);

        bytes += (double)ages->bytes[step] * (curve(age) - before) / (1 - before);
    }
    return (uint64_t)bytes;
}

/* What limits want back, whatever its age. */
static uint64_t demanded(struct xseg_device *device, const struct xseg_config *config)
{
    const uint64_t physical = xseg_device_physical(device);
    const uint64_t limit =
        xseg_min(xseg_bounds_soft(&device->bounds), xseg_bounds_hard(&device->bounds));
    uint64_t wanted = physical - xseg_min(physical, limit);
    uint64_t free = 0, total = 0;

    if (config->device_free_min_bytes != 0 &&
        xseg_driver_memory(&device->context, &free, &total) == XSEG_OK)
        wanted = xseg_max(wanted, config->device_free_min_bytes -
                                      xseg_min(free, config->device_free_min_bytes));
    return wanted;
}

uint64_t xseg_decay_kept(struct xseg_device *device, const struct xseg_config *config,
                         uint64_t idle)
{
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t floor = xseg_max(
        xseg_bounds_keep(&device->bounds),
        used_of_window(&device->decay->window, device->decay->time, config->keep_window_s));
    const uint64_t above = config->idle_ms < 0 ? 0 : reserved - xseg_min(reserved, floor);

    return idle - xseg_min(idle, xseg_max(above, demanded(device, config)));
}

/* What is to go now by the curve, down to the floor. */
static uint64_t let_curve_go(struct xseg_device *device, const struct xseg_config *config,
                             const struct xseg_idle_ages *ages, uint64_t elapsed)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t reserved = atomic_load_explicit(&device->reserved, memory_order_relaxed);
    const uint64_t kept = floor_of(device, config, ages);
    const uint64_t above = reserved - xseg_min(reserved, kept);

    decay->owed += config->idle_ms < 0 ? 0 : let_go(ages, elapsed);
    decay->owed = xseg_min(decay->owed, above);
    return decay->owed;
}

/* --- A look. --- */

static void note_cost(struct xseg_decay *decay, uint64_t spent, uint64_t pages)
{
    if (pages == 0)
        return;
    decay->page_cost = (3 * decay->page_cost + spent / pages) / 4;
    decay->page_cost = xseg_max(decay->page_cost, 1);
}

/* What limits want back comes from the page cache first; returns how many pages went. */
static uint64_t empty_cache(struct xseg_device *device, uint64_t *wanted, uint64_t pages)
{
    const uint64_t idle = xseg_pages_bytes(&device->pages);
    const uint64_t count = xseg_pages_shrink(&device->pages, idle - xseg_min(idle, *wanted), pages);

    *wanted -= xseg_min(*wanted, idle - xseg_pages_bytes(&device->pages));
    return count;
}

/* Give back what is to go, up to some pages; whether something is left for the next look. */
static xseg_status reclaim(struct xseg_device *device, const struct xseg_config *config,
                           uint64_t pages, uint64_t elapsed, bool *is_left)
{
    struct xseg_decay *decay = device->decay;
    struct xseg_idle_taken taken = {0};
    struct xseg_idle_ages ages;

    xseg_idle_count(device, move_on(decay, decay->looked), span(config), NULL, &ages);
    const uint64_t curved = let_curve_go(device, config, &ages, elapsed);
    uint64_t wanted = demanded(device, config);
    *is_left = pages == 0 && xseg_max(curved, wanted) != 0;
    if (pages == 0 || xseg_max(curved, wanted) == 0)
        return XSEG_OK;
    const uint64_t start = xseg_clock_fine(clock_of(device));
    taken.pages = empty_cache(device, &wanted, pages);
    struct xseg_idle_wish wish = {
        .ages = &ages,
        .rounds_up = wanted > curved,
        .keep = wanted == 0 && config->page_cache_bytes != 0,
    };
    xseg_idle_choose(&wish, xseg_max(curved, wanted), 0, pages - taken.pages);
    const xseg_status status = xseg_idle_take(device, &wish, &taken);
    (void)xseg_pages_shrink(&device->pages, config->page_cache_bytes, UINT64_MAX);
    const uint64_t spent = xseg_clock_fine(clock_of(device)) - start;
    note_cost(decay, spent, taken.pages);
    decay->credit -= xseg_min(decay->credit, spent);
    /* What was held up by its stream comes again with its age. */
    decay->owed -= xseg_min(decay->owed, taken.returned);
    *is_left = taken.pages >= pages && decay->owed > ages.largest;
    decay->owed = *is_left ? decay->owed : xseg_min(decay->owed, ages.largest);
    return status;
}

/* What reclaim_us_per_s has brought in since the last look; a second's is saved up, or a page's. */
static void earn(struct xseg_decay *decay, const struct xseg_config *config, uint64_t elapsed)
{
    const uint64_t rate = (uint64_t)config->reclaim_us_per_s * 1000; /* a second */
    const uint64_t earned = xseg_min(elapsed, SECOND) / 1000 * rate / (SECOND / 1000);

    decay->credit = xseg_min(decay->credit + earned, xseg_max(rate, decay->page_cost));
}

/* Who makes a look. */
enum looker { ON_CALL, IN_TURN, ON_TICK };

/* How many pages may go: of a tick as its budget says, else as was earned. */
static uint64_t affordable(const struct xseg_decay *decay, enum looker who, uint64_t budget)
{
    const uint64_t cost = decay->page_cost;

    if (who == ON_TICK)
        return xseg_max(budget / cost, 1);
    return (who == ON_CALL ? xseg_min(decay->credit, xseg_max(SLICE, cost)) : decay->credit) / cost;
}

/* A look.  GROWTH is held.  Without time that has passed there is nothing to see. */
static xseg_status look(struct xseg_device *device, const struct xseg_config *config,
                        enum looker who, uint64_t now, uint64_t budget)
{
    struct xseg_decay *decay = device->decay;
    const uint64_t elapsed = decay->looked == 0 ? 0 : now - decay->looked;
    bool is_left = false;

    if (xseg_context_is_lost(&device->context))
        return xseg_driver_fail_lost(&device->context);
    if (now <= decay->looked || xseg_pending_captures(device->pending))
        return XSEG_OK;
    if (decay->looked == 0)
        decay->page_cost = FIRST_PAGE_COST;
    decay->looked = now;
    xseg_pending_poll(device->pending);
    earn(decay, config, elapsed);
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
        !xseg_lock_try(&device->growth_lock))
        return;
    (void)look(device, config, ON_CALL, now, 0);
    xseg_lock_give(&device->growth_lock);
}

/* A look that waits for GROWTH. */
static xseg_status look_now(struct xseg_device *device, const struct xseg_config *config,
                            enum looker who, uint64_t budget)
{
    xseg_lock_take(&device->growth_lock);
    const xseg_status status = look(device, config, who, xseg_clock_fine(clock_of(device)), budget);
    xseg_lock_give(&device->growth_lock);
    return status;
}

xseg_status xseg_decay_turn(struct xseg_device *device, const struct xseg_config *config)
{
    return look_now(device, config, IN_TURN, 0);
}

xseg_status xseg_decay_tick(struct xseg_device *device, const struct xseg_config *config,
                            uint64_t budget)
{
    return look_now(device, config, ON_TICK, budget);
}
