/* SPDX-License-Identifier: MIT */
#include "src/core/history/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/align.h"
#include "src/base/check.h"
#include "src/base/stack.h"
#include "src/core/config/config.h"
#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

/* Numbers that a hook gives before the first sweep. */
#define FIRST_SWEEP 65536u

/* Events that take memory: those whose stacks `history_stacks:alloc` keeps. */
#define TAKING                                                     \
    (1u << XSEG_HISTORY_ALLOC | 1u << XSEG_HISTORY_SEGMENT_ALLOC | \
     1u << XSEG_HISTORY_SEGMENT_MAP | 1u << XSEG_HISTORY_OOM | 1u << XSEG_HISTORY_RESUME)
#define ALL ((1u << XSEG_HISTORY_ACTIONS) - 1)

static bool has_steady_counter(void)
{
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;

    return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d >> 8 & 1) != 0;
#else
    return false;
#endif
}

static uint64_t read_counter(void)
{
#if defined(__x86_64__)
    return __rdtsc();
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
    xseg_lock_init(&store->lock, XSEG_RANK_HISTORY);
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
    for (uint32_t i = 0; i < store->labels.count; i++)
        free(store->labels.text[i]);
    free(store->labels.text);
    store->labels = (struct xseg_history_labels){.count = 0};
    xseg_lock_fini(&store->lock);
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
    uint32_t noted = config->history == XSEG_HISTORY_ALL ? ALL & ~config->history_skip : 0;
    uint32_t taken = keeps_state ? stacks[config->history_stacks] & noted : 0;
    uint64_t settings = 0;

    if (config->free_history != 0) {
        noted |= 1u << XSEG_HISTORY_FREE_REQUESTED;
        taken |= 1u << XSEG_HISTORY_FREE_REQUESTED;
    }
    if (keeps_state || config->block_ages)
        settings |= XSEG_HISTORY_ORIGINS;
    if (keeps_state && config->history_stacks != XSEG_HISTORY_STACKS_NONE)
        settings |= XSEG_HISTORY_ORIGIN_STACK;
    if (config->traced)
        settings |= XSEG_HISTORY_TRACED;
    if (taken != 0 || (settings & XSEG_HISTORY_ORIGIN_STACK) != 0)
        settings |= XSEG_HISTORY_GATHERS;
    return settings | noted | (uint64_t)taken << XSEG_HISTORY_STACKS_SHIFT;
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
    uint64_t capacity = config->free_history;

    /* The life of a block has three events, of which one is a free, and its memory has some more. */
    if (config->history == XSEG_HISTORY_ALL)
        capacity = xseg_max(config->history_events, 4 * capacity);
    const uint64_t settings = with_version(settings_of(config), xseg_history_store_settings(store));
    if (capacity != 0)
        atomic_store_explicit(&store->capacity, capacity, memory_order_relaxed);
    atomic_store_explicit(&store->settings, settings, memory_order_release);
}

struct xseg_stack_depot *xseg_history_store_make_depot(struct xseg_history_store *store)
{
    struct xseg_stack_depot *depot = malloc(sizeof(*depot)), *other = NULL;

    XSEG_ASSERT(!xseg_lock_is_any_held());
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

bool xseg_history_store_set_hook(struct xseg_history_store *store,
                                 const struct xseg_history_hook *calls)
{
    struct xseg_history_hooked *hook = calls == NULL ? NULL : malloc(sizeof(*hook));

    if (calls != NULL && hook == NULL)
        return false;
    xseg_lock_take(&store->lock);
    if (hook != NULL) {
        *hook = (struct xseg_history_hooked){*calls, store->hooks};
        store->hooks = hook;
    }
    atomic_store_explicit(&store->gathers, 0, memory_order_relaxed);
    atomic_store_explicit(&store->sweep_after, FIRST_SWEEP, memory_order_relaxed);
    atomic_store_explicit(&store->hook, hook, memory_order_release);
    xseg_lock_give(&store->lock);
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

/* --- Labels. --- */

static uint32_t find_label(const struct xseg_history_labels *labels, const char *text)
{
    for (uint32_t i = 0; i < labels->count; i++)
        if (strncmp(*labels->text[i], text, XSEG_HISTORY_LABEL_BYTES - 1) == 0)
            return i + 1;
    return 0;
}

static uint32_t add_label(struct xseg_history_labels *labels, const char *text)
{
    if (labels->count == labels->capacity) {
        const uint32_t capacity = labels->capacity == 0 ? 16 : labels->capacity * 2;
        void *grown = realloc(labels->text, capacity * sizeof(*labels->text));

        if (grown == NULL)
            return 0;
        labels->text = grown;
        labels->capacity = capacity;
    }
    char(*copy)[XSEG_HISTORY_LABEL_BYTES] = malloc(sizeof(*copy));
    if (copy == NULL)
        return 0;
    (void)snprintf(*copy, sizeof(*copy), "%s", text);
    labels->text[labels->count++] = copy;
    return labels->count;
}

uint32_t xseg_history_store_label(struct xseg_history_store *store, const char *text)
{
    xseg_lock_take(&store->lock);
    uint32_t label = find_label(&store->labels, text);
    if (label == 0)
        label = add_label(&store->labels, text);
    xseg_lock_give(&store->lock);
    return label;
}

const char *xseg_history_store_text(struct xseg_history_store *store, uint32_t label)
{
    const char *text = NULL;

    if (label == 0)
        return NULL;
    xseg_lock_take(&store->lock);
    if (label <= store->labels.count)
        text = *store->labels.text[label - 1];
    xseg_lock_give(&store->lock);
    return text;
}

uint64_t xseg_history_store_host_bytes(struct xseg_history_store *store)
{
    xseg_lock_take(&store->lock);
    const uint64_t bytes = store->labels.capacity * sizeof(*store->labels.text) +
                           (uint64_t)store->labels.count * XSEG_HISTORY_LABEL_BYTES;
    xseg_lock_give(&store->lock);
    return bytes;
}
