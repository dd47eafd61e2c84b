/* SPDX-License-Identifier: MIT */
#include "src/core/history/store.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/stack.h"
#include "src/base/string_util.h"
#include "src/core/config/config.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

/* Numbers that a hook gives before the first sweep. */
#define FIRST_SWEEP 65536u

/* Events that take memory: those whose stacks `history_stacks:alloc` keeps. */
#define TAKING                                                                             \
    (1u << XSEG_HISTORY_ALLOC | 1u << XSEG_HISTORY_SEGMENT_ALLOC |                         \
     1u << XSEG_HISTORY_SEGMENT_MAP | 1u << XSEG_HISTORY_OOM | 1u << XSEG_HISTORY_RESUME | \
     1u << XSEG_HISTORY_BUDGET_REQUEST)
#define ALL   ((1u << XSEG_HISTORY_ACTIONS) - 1)
#define NOTED ((uint64_t)ALL) /* of the settings, the actions that are noted */

static bool has_steady_counter(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#elif defined(__aarch64__)
    return true; /* the architecture's counter, of one pace on all processors, which Linux lets programs read */
#else
    return false;
#endif
}

static uint64_t read_counter(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;

    /* Like rdtsc it may be read some instructions early: a barrier would cost more than the read. */
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

static uint64_t monotonic_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void xseg_history_store_init(struct xseg_history_store *store, const struct xseg_clock *clock)
{
    static atomic_uint_fast64_t stores;

    memset(store, 0, sizeof(*store));
    store->serial = atomic_fetch_add(&stores, 1) + 1;
    /* A thread may read new settings, and the capacity from before they changed. */
    atomic_init(&store->capacity, 1);
    xseg_mutex_init(&store->lock, XSEG_RANK_HISTORY);
    xseg_history_labels_init(&store->labels);
    xseg_mutex_init(&store->sweep_lock, XSEG_RANK_FIRST);
    store->clock = *clock;
    store->counts_cycles = clock->read == NULL && has_steady_counter();
    atomic_init(&store->sweep_after, UINT64_MAX);
    /* Nanoseconds need no other measure, and the user's clock is not read before it is needed. */
    if (store->counts_cycles) {
        store->first_ticks = read_counter();
        store->first_ns = monotonic_ns();
    }
}

void xseg_history_store_fini(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = xseg_history_store_depot(store);

    if (depot != NULL)
        xseg_stack_depot_fini(depot);
    free(depot);
    for (struct xseg_history_hooked *hook = store->hooks, *before; hook != NULL; hook = before) {
        before = hook->before;
        free(hook);
    }
    xseg_history_labels_fini(&store->labels);
    xseg_mutex_fini(&store->sweep_lock);
    xseg_pool_ids_fini(&store->pool_ids);
    xseg_mutex_fini(&store->lock);
}

static uint64_t settings_of(const struct xseg_config *config)
{
    static const uint32_t stacks[] = {
        [XSEG_HISTORY_STACKS_NONE] = 0,
        [XSEG_HISTORY_STACKS_STATE] = 0,
        [XSEG_HISTORY_STACKS_ALLOC] = TAKING,
        [XSEG_HISTORY_STACKS_ALL] = ALL,
    };
    const bool keeps_state = config->history != XSEG_HISTORY_NOTHING;
    const uint32_t recorded = config->history == XSEG_HISTORY_ALL ? ALL & ~config->history_skip : 0;
    const uint32_t taken = keeps_state ? stacks[config->history_stacks] & recorded : 0;
    uint64_t settings = 0;

    if (keeps_state)
        settings |= XSEG_HISTORY_ORIGINS;
    if (keeps_state && config->history_stacks != XSEG_HISTORY_STACKS_NONE)
        settings |= XSEG_HISTORY_ORIGIN_STACK;
    if (config->traced)
        settings |= XSEG_HISTORY_TRACED;
    if (config->block_user)
        settings |= XSEG_HISTORY_USERS;
    settings |= recorded | (uint64_t)taken << XSEG_HISTORY_STACKS_SHIFT;
    if (config->block_user || xseg_history_settings_capture(settings))
        settings |= XSEG_HISTORY_GATHERS;
    return settings;
}

/* Settings with a version of their own, unless they are those in force. */
static uint64_t with_version(uint64_t settings, uint64_t in_force)
{
    static const uint64_t versions = ((uint64_t)1 << (64 - XSEG_HISTORY_VERSION_SHIFT)) - 1;
    static atomic_uint_fast64_t drawn;

    XSEG_ASSERT(settings >> XSEG_HISTORY_VERSION_SHIFT == 0);
    if (settings == 0 || settings == (in_force & ~(versions << XSEG_HISTORY_VERSION_SHIFT)))
        return settings == 0 ? 0 : in_force;
    return settings | (atomic_fetch_add(&drawn, 1) % versions + 1) << XSEG_HISTORY_VERSION_SHIFT;
}

void xseg_history_store_follow(struct xseg_history_store *store, const struct xseg_config *config)
{
    const uint64_t in_force = xseg_history_store_settings(store);
    const uint64_t settings = with_version(settings_of(config), in_force);
    if (config->history == XSEG_HISTORY_ALL)
        atomic_store_explicit(&store->capacity, config->history_events, memory_order_relaxed);
    const bool has_more = (settings & ~in_force & NOTED) != 0;
    /* Before, so that nobody takes the settings with the time of older ones; and after, since threads take a while. */
    if (has_more)
        atomic_store_explicit(&store->whole_since, xseg_history_store_now(store),
                              memory_order_relaxed);
    atomic_store_explicit(&store->settings, settings, memory_order_release);
    if (has_more)
        atomic_store_explicit(&store->whole_since, xseg_history_store_now(store),
                              memory_order_relaxed);
}

struct xseg_stack_depot *xseg_history_store_make_depot(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = malloc(sizeof(*depot)), *other = NULL;

    XSEG_ASSERT(!xseg_lock_rank_is_any_held());
    (void)xseg_stack_prepare();
    if (depot == NULL || !xseg_stack_depot_init(depot, 0)) {
        free(depot);
        return NULL;
    }
    if (atomic_compare_exchange_strong(&store->depot, &other, depot))
        return depot;
    xseg_stack_depot_fini(depot);
    free(depot);
    return other;
}

/* The number of innermost frames in the library, which is the module of the first frame.  0 if all frames are in it, as in a
 * program that is linked with the static library. */
static uint32_t own_frames(const struct xseg_stack_depot *depot, uint32_t stack, uint32_t count)
{
    struct xseg_stack_frame first, frame;

    if (!xseg_stack_depot_frame(depot, stack, 0, &first) || first.path == NULL)
        return 0;
    for (uint32_t i = 1; i < count && xseg_stack_depot_frame(depot, stack, i, &frame); i++)
        if (frame.path == NULL || strcmp(frame.path, first.path) != 0)
            return i;
    return 0;
}

void xseg_history_store_print_stack(struct xseg_history_store *store, uint32_t stack, unsigned max,
                                    const char *lead, struct xseg_strbuf *text)
{
    const struct xseg_stack_depot *depot = xseg_history_store_depot(store);
    struct xseg_stack_view view;

    if (depot == NULL || !xseg_stack_depot_get(depot, stack, &view))
        return;
    xseg_strbuf_printf(text, "%s", lead);
    xseg_stack_depot_describe(depot, stack, own_frames(depot, stack, view.count), max, text);
}

bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls)
{
    struct xseg_history_hooked *hook = calls == NULL ? NULL : malloc(sizeof(*hook));

    if (calls != NULL && hook == NULL)
        return false;
    xseg_mutex_lock(&store->lock);
    if (hook != NULL) {
        *hook = (struct xseg_history_hooked){*calls, store->hooks};
        store->hooks = hook;
    }
    atomic_store_explicit(&store->gathers, 0, memory_order_relaxed);
    atomic_store_explicit(&store->sweep_after,
                          calls != NULL && calls->discard != NULL ? FIRST_SWEEP : UINT64_MAX,
                          memory_order_relaxed);
    atomic_store_explicit(&store->hook, hook, memory_order_release);
    xseg_mutex_unlock(&store->lock);
    return true;
}

/* --- Time. --- */

uint64_t xseg_history_store_now(const struct xseg_history_store *store)
{
    return store->counts_cycles ? read_counter() : xseg_clock_fine(&store->clock);
}

struct xseg_history_moment xseg_history_store_moment(const struct xseg_history_store *store)
{
    const uint64_t ticks = xseg_history_store_now(store);

    return (struct xseg_history_moment){ticks, store->counts_cycles ? monotonic_ns() : ticks};
}

uint64_t xseg_history_store_ns(const struct xseg_history_store *store,
                               const struct xseg_history_moment *moment, uint64_t ticks)
{
    if (!store->counts_cycles || moment->ticks <= store->first_ticks || ticks <= store->first_ticks)
        return store->counts_cycles ? store->first_ns : ticks;
    /* An hour in ticks times an hour in nanoseconds has more than 64 bits. */
    __extension__ const unsigned __int128 passed = ticks - store->first_ticks;

    return store->first_ns + (uint64_t)(passed * (moment->ns - store->first_ns) /
                                        (moment->ticks - store->first_ticks));
}
