/* SPDX-License-Identifier: MIT */
/* The history store, which the histories of all devices share: settings, time, labels of threads, hooks, the stack depot. */
#include "src/core/history/history.h"

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "src/core/config/config.h"

#include "tests/support/test.h"

static const struct xseg_clock system_clock = {.read = NULL};
static struct xseg_history_store store;
static struct xseg_config config;

FIXTURE(set_up)
{
    xseg_history_store_init(&store, &system_clock);
    xseg_config_init(&config);
}

FIXTURE(tear_down)
{
    xseg_history_store_fini(&store);
}

/* Apply the configuration; returns the settings. */
static uint64_t configure(void)
{
    xseg_history_store_configure(&store, &config);
    return xseg_history_store_settings(&store);
}

static void configure_all(void)
{
    config.history = XSEG_HISTORY_ALL;
    config.history_stacks = XSEG_HISTORY_STACKS_ALL;
    (void)configure();
}

/* --- Settings. --- */

static bool requests_memory(enum xseg_history_action action)
{
    return action == XSEG_HISTORY_ALLOC || action == XSEG_HISTORY_SEGMENT_ALLOC ||
           action == XSEG_HISTORY_SEGMENT_MAP || action == XSEG_HISTORY_OOM ||
           action == XSEG_HISTORY_RESUME || action == XSEG_HISTORY_BUDGET_REQUEST;
}

/* Whether an event is recorded, and whether its stack is captured, as the headers specify. */
static bool is_recorded(enum xseg_history_action action)
{
    return config.history == XSEG_HISTORY_ALL && (config.history_skip >> action & 1) == 0;
}

static bool has_stack(enum xseg_history_action action)
{
    if (!is_recorded(action))
        return false;
    return config.history_stacks == XSEG_HISTORY_STACKS_ALL ||
           (config.history_stacks == XSEG_HISTORY_STACKS_ALLOC && requests_memory(action));
}

static void expect_settings(void)
{
    const bool has_origins = config.history != XSEG_HISTORY_NOTHING;
    const bool origin_stack = has_origins && config.history_stacks != XSEG_HISTORY_STACKS_NONE;
    bool captures = origin_stack, is_any = config.traced || has_origins || config.block_user;
    const uint64_t settings = configure();

    for (unsigned i = 0; i < XSEG_HISTORY_ACTIONS; i++) {
        const enum xseg_history_action action = (enum xseg_history_action)i;

        assert_int_equal(xseg_history_settings_record(settings, action), is_recorded(action));
        assert_int_equal(xseg_history_settings_stack(settings, action), has_stack(action));
        captures = captures || has_stack(action);
        is_any = is_any || is_recorded(action);
    }
    assert_int_equal((settings & XSEG_HISTORY_ORIGINS) != 0, has_origins);
    assert_int_equal((settings & XSEG_HISTORY_ORIGIN_STACK) != 0, origin_stack);
    assert_int_equal((settings & XSEG_HISTORY_TRACED) != 0, config.traced);
    assert_int_equal((settings & XSEG_HISTORY_USERS) != 0, config.block_user);
    assert_int_equal(xseg_history_settings_capture(settings), captures);
    assert_int_equal((settings & XSEG_HISTORY_GATHERS) != 0, captures || config.block_user);
    assert_int_equal(settings != 0, is_any);
    /* A recorded event needs capacity. */
    const uint64_t capacity = atomic_load(&store.capacity);
    assert_true(capacity > 0);
    if (config.history == XSEG_HISTORY_ALL)
        assert_true(capacity >= config.history_events);
}

TEST_WITH(settings_follow_the_configuration, set_up, tear_down)
{
    static const uint32_t skips[] = {0, 1u << XSEG_HISTORY_ALLOC,
                                     1u << XSEG_HISTORY_FREE_REQUESTED |
                                         1u << XSEG_HISTORY_SEGMENT_MAP,
                                     (1u << XSEG_HISTORY_ACTIONS) - 1};
    unsigned cases = 0;

    assert_int_equal(xseg_history_store_settings(&store), 0);
    for (config.history = 0; config.history <= XSEG_HISTORY_ALL; config.history++)
        for (config.history_stacks = 0; config.history_stacks <= XSEG_HISTORY_STACKS_ALL;
             config.history_stacks++)
            for (size_t i = 0; i < COUNT_OF(skips); i++)
                for (unsigned bits = 0; bits < 4; bits++, cases++) {
                    config.history_skip = skips[i];
                    config.traced = (bits & 1) != 0;
                    config.block_user = (bits & 2) != 0;
                    expect_settings();
                }
    assert_int_equal(cases, 3 * 4 * 4 * 4); /* values of history and history_stacks, skips, bits */
}

static bool has_gathered_for(const struct xseg_history_store *of_store)
{
    return xseg_history_context_matches(xseg_history_context(),
                                      xseg_history_store_settings(of_store));
}

/* A call that began with other settings must not use its earlier stack for a new event. */
TEST_WITH(settings_are_distinguished, set_up, tear_down)
{
    struct xseg_history_store second;

    xseg_history_store_init(&second, &system_clock);
    configure_all();
    xseg_history_store_configure(&second, &config);
    assert_false(xseg_history_gather(&store, NULL));
    assert_true(has_gathered_for(&store));
    assert_false(has_gathered_for(&second));
    const uint64_t before = xseg_history_store_settings(&store);
    assert_true(configure() == before);
    config.history_stacks = XSEG_HISTORY_STACKS_NONE;
    (void)configure();
    configure_all();
    assert_false(has_gathered_for(&store));
    assert_false(xseg_history_gather(&store, NULL));
    assert_true(has_gathered_for(&store));
    xseg_history_store_fini(&second);
}

/* A call has the user value of its request only with the settings that were in effect at its start. */
TEST_WITH(each_call_has_the_user_value_of_its_request, set_up, tear_down)
{
    const struct xseg_history_context *context = xseg_history_context();
    int first_user, second_user; /* only their addresses are used */

    config.block_user = true;
    const uint64_t settings = configure();
    assert_false(xseg_history_gather(&store, &first_user));
    assert_int_equal(xseg_history_user_of(context, settings), (uintptr_t)&first_user);
    /* User values alone capture no stacks. */
    assert_null(xseg_history_store_depot(&store));
    assert_int_equal(context->gathered.stack, 0);
    const struct xseg_history_gathered gathered = xseg_history_context_save();
    assert_false(xseg_history_gather(&store, NULL));
    assert_int_equal(xseg_history_user_of(context, settings), 0);
    xseg_history_context_restore(&gathered);
    assert_int_equal(xseg_history_user_of(context, settings), (uintptr_t)&first_user);
    xseg_history_set_user(&store, (uintptr_t)&second_user);
    assert_int_equal(xseg_history_user_of(context, settings), (uintptr_t)&second_user);
    config.history = XSEG_HISTORY_STATE;
    assert_int_equal(xseg_history_user_of(context, configure()), 0);
    xseg_history_set_user(&store, (uintptr_t)&first_user);
    assert_int_equal(xseg_history_user_of(context, settings), (uintptr_t)&second_user);
    config.block_user = false;
    (void)configure();
    assert_false(xseg_history_gather(&store, &first_user));
    assert_int_equal(xseg_history_user_of(context, xseg_history_store_settings(&store)), 0);
}

/* --- Time. --- */

static uint64_t monotonic_ns(void)
{
    struct timespec now = {0};

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

TEST_WITH(ticks_are_monotonic_nanoseconds, set_up, tear_down)
{
    static uint64_t ticks[20000];

    const uint64_t start_ns = monotonic_ns();
    for (size_t i = 0; i < COUNT_OF(ticks); i++)
        ticks[i] = xseg_history_store_now(&store);
    while (monotonic_ns() - start_ns < 40000000) {
    }
    const uint64_t end_ticks = xseg_history_store_now(&store), end_ns = monotonic_ns();
    const struct xseg_history_moment moment = xseg_history_store_moment(&store);
    uint64_t before = 0;
    for (size_t i = 0; i < COUNT_OF(ticks); i++) {
        const uint64_t ns = xseg_history_store_ns(&store, &moment, ticks[i]);

        assert_true(ns >= before);
        before = ns;
    }
    /* The two clocks differ by the time between the calls that read them, and a preemption. */
    const uint64_t slack = 20000000;
    assert_true(xseg_history_store_ns(&store, &moment, ticks[0]) + slack >= start_ns);
    assert_true(before <= xseg_history_store_ns(&store, &moment, end_ticks));
    assert_true(xseg_history_store_ns(&store, &moment, end_ticks) <= end_ns + slack);
    assert_true(xseg_history_store_ns(&store, &moment, end_ticks) >= start_ns + 40000000 - slack);
    assert_int_equal(xseg_history_store_ns(&store, &moment, moment.ticks), moment.ns);
    print_message("# %s\n", store.uses_cycle_counter ? "time stamp counter" : "CLOCK_MONOTONIC");
}

/* A counter at 4 GHz after twenty years. */
TEST_WITH(ticks_of_20_years_do_not_overflow, set_up, tear_down)
{
    static const uint64_t years = UINT64_C(20) * 365 * 24 * 3600;

    store.uses_cycle_counter = true;
    store.first_ticks = 1000;
    store.first_ns = 500;
    const struct xseg_history_moment moment = {1000 + years * 4000000000u,
                                               500 + years * 1000000000u};
    assert_int_equal(xseg_history_store_ns(&store, &moment, 1000), 500);
    assert_int_equal(xseg_history_store_ns(&store, &moment, 1400), 600);
    assert_int_equal(xseg_history_store_ns(&store, &moment, 1000 + years / 2 * 4000000000u),
                     500 + years / 2 * 1000000000u);
    assert_int_equal(xseg_history_store_ns(&store, &moment, moment.ticks), moment.ns);
    /* The counters of two CPUs may differ slightly. */
    assert_int_equal(xseg_history_store_ns(&store, &moment, 990), 500);
    assert_int_equal(xseg_history_store_ns(&store, &moment, moment.ticks + 40), moment.ns + 10);
    /* A reader may read the clocks at the moment of the creation. */
    const struct xseg_history_moment at_creation = {1000, 500};
    assert_int_equal(xseg_history_store_ns(&store, &at_creation, 1400), 500);
}

static uint64_t user_time;

static uint64_t read_user_clock(void *self)
{
    assert_ptr_equal(self, &user_time);
    return user_time;
}

TEST_WITH(user_clock_is_used_unchanged, NULL, tear_down)
{
    const struct xseg_clock clock = {read_user_clock, &user_time};

    xseg_history_store_init(&store, &clock);
    user_time = 77;
    assert_int_equal(xseg_history_store_now(&store), 77);
    const struct xseg_history_moment moment = xseg_history_store_moment(&store);
    assert_int_equal(moment.ns, 77);
    assert_int_equal(xseg_history_store_ns(&store, &moment, 5), 5);
    assert_int_equal(xseg_history_store_ns(&store, &moment, 1000), 1000);
}

/* --- Labels. --- */

static uint32_t set_label(struct xseg_history_store *of_store, uint32_t label)
{
    xseg_mutex_lock(&of_store->labels.lock);
    const uint32_t last = xseg_history_set_label(of_store, label, NULL, false);
    xseg_mutex_unlock(&of_store->labels.lock);
    return last;
}

/* Labels of several stores are independent; with too many stores the oldest label is dropped. */
TEST(a_thread_has_a_label_of_each_store)
{
    struct xseg_history_store stores[XSEG_HISTORY_LABELS + 1];
    const struct xseg_history_context *context = xseg_history_context();

    for (unsigned i = 0; i < COUNT_OF(stores); i++)
        xseg_history_store_init(&stores[i], &system_clock);
    for (uint32_t i = 0; i < XSEG_HISTORY_LABELS; i++) {
        assert_int_equal(set_label(&stores[i], 10 + i), 0);
        for (uint32_t k = 0; k < COUNT_OF(stores); k++)
            assert_int_equal(xseg_history_label_of(context, &stores[k]), k <= i ? 10 + k : 0);
    }
    /* Nested: each store has its own previous label. */
    assert_int_equal(set_label(&stores[1], 21), 11);
    assert_int_equal(set_label(&stores[2], 22), 12);
    assert_int_equal(set_label(&stores[2], 12), 22);
    assert_int_equal(set_label(&stores[1], 11), 21);
    for (uint32_t k = 0; k < XSEG_HISTORY_LABELS; k++)
        assert_int_equal(xseg_history_label_of(context, &stores[k]), 10 + k);
    assert_int_equal(set_label(&stores[XSEG_HISTORY_LABELS], 30), 0);
    assert_int_equal(xseg_history_label_of(context, &stores[XSEG_HISTORY_LABELS]), 30);
    assert_int_equal(xseg_history_label_of(context, &stores[0]), 0);
    assert_int_equal(xseg_history_label_of(context, &stores[1]), 11);
    for (unsigned i = 0; i < COUNT_OF(stores); i++)
        xseg_history_store_fini(&stores[i]);
    /* A new store at the same address is another store. */
    xseg_history_store_init(&stores[1], &system_clock);
    assert_int_equal(xseg_history_label_of(context, &stores[1]), 0);
    assert_int_equal(set_label(&stores[1], 5), 0);
    xseg_history_store_fini(&stores[1]);
}

/* --- IDs of pools. --- */

/* Pools that are created concurrently may be added out of order. */
TEST_WITH(pools_are_found_in_any_insertion_order, set_up, tear_down)
{
    static const uint32_t pools[] = {9, 4, 12, 2, 11};
    uint64_t id[2];

    for (size_t i = 0; i < COUNT_OF(pools); i++) {
        id[0] = 100 + pools[i];
        id[1] = i;
        assert_true(xseg_history_store_add_pool_id(&store, pools[i], id));
        for (size_t k = 0; k < COUNT_OF(pools); k++) {
            xseg_history_store_get_pool_id(&store, pools[k], id);
            assert_int_equal(id[0], k <= i ? 100 + pools[k] : 0);
            assert_int_equal(id[1], k <= i ? k : 0);
        }
    }
}

/* --- Hooks, and the depot. --- */

static uint32_t gather_seven(void *context)
{
    (void)context;
    return 7;
}

static void set_hook(uint32_t (*gather)(void *), void *hook_context,
                     void (*discard)(void *, const uint32_t *, size_t))
{
    const struct xseg_history_hook hook = {sizeof(hook), .context = hook_context, .gather = gather,
                                           .discard = discard};

    assert_true(xseg_history_store_set_hook(&store, &hook));
}

TEST_WITH(replaced_hook_remains_valid, set_up, tear_down)
{
    assert_null(xseg_history_store_hook(&store));
    set_hook(gather_seven, &store, NULL);
    const struct xseg_history_hook *first = xseg_history_store_hook(&store);
    assert_ptr_equal(first->context, &store);
    set_hook(gather_seven, NULL, NULL);
    assert_null(xseg_history_store_hook(&store)->context);
    /* A thread may still call the functions of the replaced hook. */
    assert_ptr_equal(first->context, &store);
    assert_int_equal(first->gather(NULL), 7);
    assert_true(xseg_history_store_set_hook(&store, NULL));
    assert_null(xseg_history_store_hook(&store));
}

static uint32_t gather_counter(void *context)
{
    return ++*(uint32_t *)context;
}

static void record_frames(void *self, uint32_t frames, uint32_t label)
{
    (void)label;
    if (frames < 32)
        *(uint32_t *)self |= 1u << frames;
}

/* The frames of a call remain in use while an observer makes other calls. */
TEST_WITH(frames_of_nested_calls_are_visited, set_up, tear_down)
{
    uint32_t last_frames = 9, visited = 0;

    configure_all();
    set_hook(gather_counter, &last_frames, NULL);
    assert_false(xseg_history_gather(&store, NULL));
    const struct xseg_history_gathered outer = xseg_history_context_save();
    assert_false(xseg_history_gather(&store, NULL));
    xseg_history_for_each_root(&store, record_frames, &visited);
    assert_int_equal(visited & (1u << 10 | 1u << 11), 1u << 10 | 1u << 11);
    xseg_history_context_restore(&outer);
}

static void discard_nothing(void *context, const uint32_t *kept, size_t count)
{
    (void)context, (void)kept, (void)count;
}

/* Every call that gathers reports a due sweep, because the first sweep may coincide with a sweep of another thread. */
TEST_WITH(sweep_is_due_until_one_completes, set_up, tear_down)
{
    uint32_t last_frames = 0;

    configure_all();
    set_hook(gather_counter, &last_frames, NULL);
    atomic_store(&store.gather_count, UINT32_MAX);
    /* The hook has no `discard`. */
    assert_false(xseg_history_gather(&store, NULL));
    set_hook(gather_counter, &last_frames, discard_nothing);
    atomic_store(&store.sweep_at, 3);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(xseg_history_gather(&store, NULL), i >= 3);
    atomic_store(&store.gather_count, 0);
    assert_false(xseg_history_gather(&store, NULL));
    assert_true(xseg_history_store_set_hook(&store, NULL));
    atomic_store(&store.gather_count, UINT32_MAX);
    assert_false(xseg_history_gather(&store, NULL));
}

static void *make_depot(void *self)
{
    return xseg_history_store_create_depot(self);
}

TEST(threads_make_one_depot)
{
    pthread_t thread[4];
    void *depot[4];

    for (unsigned round = 0; round < 20; round++) {
        (void)set_up(NULL);
        assert_null(xseg_history_store_depot(&store));
        for (unsigned i = 0; i < COUNT_OF(thread); i++)
            assert_int_equal(pthread_create(&thread[i], NULL, make_depot, &store), 0);
        for (unsigned i = 0; i < COUNT_OF(thread); i++)
            assert_int_equal(pthread_join(thread[i], &depot[i]), 0);
        for (unsigned i = 0; i < COUNT_OF(thread); i++)
            assert_ptr_equal(depot[i], xseg_history_store_depot(&store));
        (void)tear_down(NULL);
    }
}
