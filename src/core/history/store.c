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

/* Frame IDs of a hook before the first sweep. */
#define FIRST_SWEEP 65536u

/* The actions whose call stacks `history_stacks:alloc` records: those that allocate memory. */
#define ALLOCATING                                                                         \
    (1u << XSEG_HISTORY_ALLOC | 1u << XSEG_HISTORY_SEGMENT_ALLOC |                         \
     1u << XSEG_HISTORY_SEGMENT_MAP | 1u << XSEG_HISTORY_OOM | 1u << XSEG_HISTORY_RESUME | \
     1u << XSEG_HISTORY_BUDGET_REQUEST)
#define ALL ((1u << XSEG_HISTORY_ACTIONS) - 1)
/* The bits of the settings that are recorded actions. */
#define RECORDED ((uint64_t)ALL)

#define FIRST_POOL_IDS 16u

/* --- Clocks. --- */

/* Whether the time stamp counter has the same constant rate on all CPUs. */
static bool has_invariant_counter(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#elif defined(__aarch64__)
    return true; /* the generic timer, which Linux makes readable in user mode */
#else
    return false;
#endif
}

static uint64_t read_cycle_counter(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#elif defined(__aarch64__)
    uint64_t ticks;

    /* As with rdtsc, the read may be reordered by some instructions.  A barrier would cost more
     * than the read. */
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
}

static uint64_t read_monotonic_ns(void)
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
    /* A thread may load new settings and then an old capacity, so the capacity is never 0. */
    atomic_init(&store->capacity, 1);
    xseg_mutex_init(&store->lock, XSEG_RANK_HISTORY);
    xseg_history_labels_init(&store->labels);
    xseg_mutex_init(&store->sweep_lock, XSEG_RANK_FIRST);
    store->clock = *clock;
    store->uses_cycle_counter = clock->read == NULL && has_invariant_counter();
    atomic_init(&store->sweep_at, UINT64_MAX);
    /* Nanoseconds need no conversion, and the user's clock is not read before it is needed. */
    if (store->uses_cycle_counter) {
        store->first_ticks = read_cycle_counter();
        store->first_ns = read_monotonic_ns();
    }
}

void xseg_history_store_fini(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = xseg_history_store_depot(store);

    if (depot != NULL)
        xseg_stack_depot_fini(depot);
    free(depot);
    for (struct xseg_history_hook_node *hook = store->hooks, *older; hook != NULL; hook = older) {
        older = hook->older;
        free(hook);
    }
    xseg_history_labels_fini(&store->labels);
    xseg_mutex_fini(&store->sweep_lock);
    free(store->pool_ids);
    xseg_mutex_fini(&store->lock);
}

/* --- Settings. --- */

static uint64_t settings_of(const struct xseg_config *config)
{
    static const uint32_t stacks[] = {
        [XSEG_HISTORY_STACKS_NONE] = 0,
        [XSEG_HISTORY_STACKS_STATE] = 0,
        [XSEG_HISTORY_STACKS_ALLOC] = ALLOCATING,
        [XSEG_HISTORY_STACKS_ALL] = ALL,
    };
    const bool has_origins = config->history != XSEG_HISTORY_NOTHING;
    const uint32_t recorded = config->history == XSEG_HISTORY_ALL ? ALL & ~config->history_skip : 0;
    const uint32_t captured = has_origins ? stacks[config->history_stacks] & recorded : 0;
    uint64_t settings = 0;

    if (has_origins)
        settings |= XSEG_HISTORY_ORIGINS;
    if (has_origins && config->history_stacks != XSEG_HISTORY_STACKS_NONE)
        settings |= XSEG_HISTORY_ORIGIN_STACK;
    if (config->traced)
        settings |= XSEG_HISTORY_TRACED;
    if (config->block_user)
        settings |= XSEG_HISTORY_USERS;
    settings |= recorded | (uint64_t)captured << XSEG_HISTORY_STACKS_SHIFT;
    if (config->block_user || xseg_history_settings_capture(settings))
        settings |= XSEG_HISTORY_GATHERS;
    return settings;
}

/* Add a new version to settings, or the current version if they are the current settings. */
static uint64_t add_version(uint64_t settings, uint64_t current)
{
    static const uint64_t versions = ((uint64_t)1 << (64 - XSEG_HISTORY_VERSION_SHIFT)) - 1;
    static atomic_uint_fast64_t last_version;

    XSEG_ASSERT(settings >> XSEG_HISTORY_VERSION_SHIFT == 0);
    if (settings == 0 || settings == (current & ~(versions << XSEG_HISTORY_VERSION_SHIFT)))
        return settings == 0 ? 0 : current;
    return settings | (atomic_fetch_add(&last_version, 1) % versions + 1)
                          << XSEG_HISTORY_VERSION_SHIFT;
}

void xseg_history_store_configure(struct xseg_history_store *store,
                                  const struct xseg_config *config)
{
    const uint64_t current = xseg_history_store_settings(store);
    const uint64_t settings = add_version(settings_of(config), current);
    if (config->history == XSEG_HISTORY_ALL)
        atomic_store_explicit(&store->capacity, config->history_events, memory_order_relaxed);
    const bool has_new_actions = (settings & ~current & RECORDED) != 0;
    /* The time is set twice: before the settings, so that no reader combines new settings with an
     * old time; and after them, because the new actions are recorded only from then on. */
    if (has_new_actions)
        atomic_store_explicit(&store->complete_since, xseg_history_store_now(store),
                              memory_order_relaxed);
    atomic_store_explicit(&store->settings, settings, memory_order_release);
    if (has_new_actions)
        atomic_store_explicit(&store->complete_since, xseg_history_store_now(store),
                              memory_order_relaxed);
}

/* --- Stacks and the hook. --- */

struct xseg_stack_depot *xseg_history_store_create_depot(struct xseg_history_store *store)
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

/* The number of innermost frames that are in the library, which is the module of the first frame.
 * 0 if all frames are in that module, as in a program that is linked with the static library. */
static uint32_t count_library_frames(const struct xseg_stack_depot *depot, uint32_t stack,
                                     uint32_t count)
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
    xseg_stack_depot_describe(depot, stack, count_library_frames(depot, stack, view.count), max,
                              text);
}

bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls)
{
    struct xseg_history_hook_node *hook = calls == NULL ? NULL : malloc(sizeof(*hook));

    if (calls != NULL && hook == NULL)
        return false;
    xseg_mutex_lock(&store->lock);
    if (hook != NULL) {
        *hook = (struct xseg_history_hook_node){*calls, store->hooks};
        store->hooks = hook;
    }
    atomic_store_explicit(&store->gather_count, 0, memory_order_relaxed);
    atomic_store_explicit(&store->sweep_at,
                          calls != NULL && calls->discard != NULL ? FIRST_SWEEP : UINT64_MAX,
                          memory_order_relaxed);
    atomic_store_explicit(&store->hook, hook, memory_order_release);
    xseg_mutex_unlock(&store->lock);
    return true;
}

/* --- IDs of pools. --- */

static bool reserve_pool_id(struct xseg_history_store *store)
{
    const size_t capacity =
        store->pool_id_capacity == 0 ? FIRST_POOL_IDS : 2 * store->pool_id_capacity;
    struct xseg_pool_id *grown;

    if (store->pool_id_count < store->pool_id_capacity)
        return true;
    grown = realloc(store->pool_ids, capacity * sizeof(*grown));
    if (grown == NULL)
        return false;
    store->pool_ids = grown;
    store->pool_id_capacity = capacity;
    return true;
}

/* The index of the first ID whose pool is not below `pool`. */
static size_t lower_bound_pool_id(const struct xseg_history_store *store, uint32_t pool)
{
    size_t low = 0, high = store->pool_id_count;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;

        if (store->pool_ids[middle].pool < pool)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

bool xseg_history_store_add_pool_id(struct xseg_history_store *store, uint32_t pool,
                                    const uint64_t id[2])
{
    XSEG_ASSERT(pool != 0 && (id[0] | id[1]) != 0);
    xseg_mutex_lock(&store->lock);
    const bool has_room = reserve_pool_id(store);
    if (has_room) {
        struct xseg_pool_id *const ids = store->pool_ids;
        size_t at = store->pool_id_count++;

        /* Pools of several devices get their numbers concurrently, so an ID may arrive late. */
        for (; at > 0 && ids[at - 1].pool > pool; at--)
            ids[at] = ids[at - 1];
        ids[at] = (struct xseg_pool_id){pool, {id[0], id[1]}};
    }
    xseg_mutex_unlock(&store->lock);
    return has_room;
}

void xseg_history_store_get_pool_id(struct xseg_history_store *store, uint32_t pool, uint64_t id[2])
{
    id[0] = id[1] = 0;
    if (pool == 0)
        return;
    xseg_mutex_lock(&store->lock);
    const size_t at = lower_bound_pool_id(store, pool);
    if (at < store->pool_id_count && store->pool_ids[at].pool == pool) {
        id[0] = store->pool_ids[at].id[0];
        id[1] = store->pool_ids[at].id[1];
    }
    xseg_mutex_unlock(&store->lock);
}

/* --- Time. --- */

uint64_t xseg_history_store_now(const struct xseg_history_store *store)
{
    return store->uses_cycle_counter ? read_cycle_counter() : xseg_clock_fine(&store->clock);
}

struct xseg_history_moment xseg_history_store_moment(const struct xseg_history_store *store)
{
    const uint64_t ticks = xseg_history_store_now(store);

    return (struct xseg_history_moment){ticks,
                                        store->uses_cycle_counter ? read_monotonic_ns() : ticks};
}

uint64_t xseg_history_store_ns(const struct xseg_history_store *store,
                               const struct xseg_history_moment *moment, uint64_t ticks)
{
    if (!store->uses_cycle_counter || moment->ticks <= store->first_ticks ||
        ticks <= store->first_ticks)
        return store->uses_cycle_counter ? store->first_ns : ticks;
    /* The product of an hour in ticks and an hour in nanoseconds has more than 64 bits. */
    __extension__ const unsigned __int128 elapsed = ticks - store->first_ticks;

    return store->first_ns + (uint64_t)(elapsed * (moment->ns - store->first_ns) /
                                        (moment->ticks - store->first_ticks));
}
