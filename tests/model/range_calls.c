/* SPDX-License-Identifier: MIT */
/*
 * Random calls about ranges from callbacks and from a second thread, and with driver calls that fail.
 *
 * model/ranges predicts each result exactly, one call at a time.  Here a step is one call; callbacks of observers and
 * registrations that run during the step make other calls, in the same thread or in a second one, and driver calls
 * fail at random.  The allowed results of a call are those of the table in xseg/range.h for the states of its granules
 * at the begin, and the driver's error if a fault was set.  If other calls ran during a call, each documented result of the
 * call is allowed.
 *
 * The order of successful calls has no effect on the sums: a granule is committed as often as commits and aliases have
 * succeeded, less the decommits; likewise for holds, pins, descriptors, exports and pauses.  After each step
 *   - the commits, holds and retains of each granule equal these sums, and all audits pass;
 *   - each committed granule contains the words that were written to it, also through another mapping of its page;
 *   - observers and each registration have been notified of exactly the granules that are mapped;
 *   - the used memory of the driver is that of the library.
 * At the end all memory is released.
 *
 * By hand: XSEG_TEST_SEEDS=500 XSEG_TEST_STEPS=300 build-tests/tests/test-model-range_calls; the trace has each call
 * and its result.  Calls of a second thread that waits for the first one may complete in another order when repeated.
 */
#include <inttypes.h>
#include <sched.h>
#include <sys/syscall.h>

#include "src/core/instance/instance.h"
#include "tests/model/range_call.h"
#include "tests/support/random_program.h"
#include "xseg/observer.h"

struct env env;
struct tally tally;
pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
bool traces;

static pthread_t main_thread;

/* --- Faults. --- */

static void set_fault(void)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap",     "cuMemSetAccess",
                                        "cuMemUnmap",  "cuMemRelease", "cuEventRecord",
                                        NULL};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    if (!env.has_faults || below(3) != 0)
        return;
    fault.call = calls[below(COUNT_OF(calls))];
    fault.nth = 1 + below(4);
    fault.every = below(4) == 0 ? 1 : 0;
    fault.error = below(3) == 0 ? 2 : 999;
    REQUIRE(xseg_sim_fault_set(0, &fault) == XSEG_OK, "xseg_sim_fault_set() failed");
    env.had_fault = true;
}

static void clear_fault(void)
{
    tally.faults += xseg_sim_fault_count(0) != 0;
    REQUIRE(xseg_sim_fault_set(0, NULL) == XSEG_OK, "xseg_sim_fault_set() failed");
}

/* --- Callbacks. --- */

static void *call_from_thread(void *context)
{
    struct call *call = context;

    atomic_store(&call->thread.number, (int)syscall(SYS_gettid));
    call->status = call_make(call);
    /* If the call has waited for the main thread, the granules may have had other uses. */
    call_record_result(call, atomic_load(&call->has_waited) ? ANY : call->allowed);
    atomic_store(&call->thread.has_returned, true);
    return NULL;
}

/* Make a call from a callback, in this thread or in a second one. */
static void call_from_callback(void)
{
    struct call *call = &env.nested[env.calls];
    const bool by_thread = below(3) == 0;

    if (env.is_nested || env.calls >= env.max_nested || below(4) == 0)
        return;
    env.is_nested = true;
    clear_fault();
    if (call_draw(call)) {
        call_prepare(call);
        tally.nested++;
        set_fault();
        if (by_thread) {
            tally.by_thread++;
            REQUIRE(pthread_create(&env.thread[env.calls], NULL, call_from_thread, call) == 0,
                    "pthread_create() failed");
            env.has_thread[env.calls] = true;
            for (unsigned i = 0; i < 1000 && !atomic_load(&call->thread.has_returned); i++)
                (void)sched_yield();
            child_case_wait_for_thread(&call->thread);
            if (!atomic_load(&call->thread.has_returned)) {
                atomic_store(&call->has_waited, true);
                /* No further calls: the thread may change the state at any time. */
                env.max_nested = 0;
                tally.waited++;
            }
        } else {
            call->status = call_make(call);
            call_record_result(call, call->allowed);
        }
        env.calls++;
        clear_fault();
    }
    set_fault();
    env.is_nested = false;
}

static bool is_main_thread(void)
{
    return pthread_equal(pthread_self(), main_thread) != 0;
}

static bool find_granule(const void *base, unsigned *index)
{
    for (unsigned range = 0; range < RANGES; range++) {
        const uint64_t offset = (uintptr_t)base - env.base[range];

        if (offset < GRANULES * PAGE) {
            *index = index_of(range, (unsigned)(offset / PAGE));
            return true;
        }
    }
    return false;
}

/* Record a notification, which must change the state of each granule. */
static void record_notification(bool *table, const void *base, size_t bytes, bool is_mapped,
                                const char *callback)
{
    unsigned index = 0;

    (void)pthread_mutex_lock(&lock);
    if (find_granule(base, &index))
        for (unsigned i = 0; i < bytes / PAGE; i++) {
            REQUIRE(table[index + i] != is_mapped, "%s: granule %u of range %u is %smapped already",
                    callback, (index + i) % GRANULES, (index + i) / GRANULES,
                    is_mapped ? "" : "un");
            table[index + i] = is_mapped;
        }
    (void)pthread_mutex_unlock(&lock);
}

static void on_map(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    record_notification(env.is_notified, mapping->base, mapping->bytes, true, "on_map");
    if (is_main_thread())
        call_from_callback();
}

static void on_unmap(void *context, const struct xseg_mapping *mapping)
{
    (void)context;
    if (is_main_thread())
        call_from_callback();
    record_notification(env.is_notified, mapping->base, mapping->bytes, false, "on_unmap");
}

static bool on_low_memory(void *context, const struct xseg_oom_info *oom)
{
    (void)context, (void)oom;
    if (!is_main_thread())
        return false;
    call_from_callback();
    return below(2) == 0;
}

static bool on_enter(void *context, struct xseg_registered *run)
{
    struct registration *registration = context;

    record_notification(registration->entered, run->base, run->bytes, true, "enter");
    if (is_main_thread()) {
        registration->runs_callback = true;
        call_from_callback();
        registration->runs_callback = false;
    }
    return true;
}

static void on_leave(void *context, const struct xseg_registered *run)
{
    struct registration *registration = context;

    if (is_main_thread()) {
        registration->runs_callback = true;
        call_from_callback();
        registration->runs_callback = false;
    }
    record_notification(registration->entered, run->base, run->bytes, false, "leave");
}

/* --- Invariants after a step. --- */

static uint64_t *word_of(unsigned index)
{
    return address_of(index / GRANULES, index % GRANULES);
}

static bool is_running(unsigned index)
{
    return env.pool[pool_of(index / GRANULES)]->state == XSEG_POOL_RUNNING;
}

/* Discard the expected contents of a granule whose memory has changed. */
static void detect_change(unsigned index)
{
    const struct xseg_segment *segment = &state_of(index / GRANULES)->extent->segment;
    const uint64_t generation =
        xseg_segment_generation(segment, index % GRANULES * PAGE, (index % GRANULES + 1) * PAGE);

    if (use_of(index / GRANULES, index % GRANULES) == XSEG_ELASTIC_EMPTY ||
        (generation != env.generation[index] && !env.was_resumed[pool_of(index / GRANULES)]))
        env.tag[index] = 0;
    if (is_running(index))
        env.generation[index] = generation;
}

/* Check the contents of a committed granule, or write some to new memory. */
static void check_contents(unsigned index)
{
    const struct xseg_alias_record *page =
        xseg_alias_record(&state_of(index / GRANULES)->extent->segment, index % GRANULES);

    for (unsigned other = 0; page != NULL && env.tag[index] == 0 && other < ALL_GRANULES; other++)
        if (!env.is_released[other / GRANULES] &&
            xseg_alias_record(&state_of(other / GRANULES)->extent->segment, other % GRANULES) ==
                page)
            env.tag[index] = env.tag[other];
    if (env.tag[index] == 0)
        *word_of(index) = env.tag[index] = ++env.tags;
    REQUIRE(*word_of(index) == env.tag[index], "granule %u of range %u has other contents",
            index % GRANULES, index / GRANULES);
}

static void check_granule(unsigned index)
{
    const unsigned range = index / GRANULES, at = index % GRANULES;
    const struct xseg_segment *segment = &state_of(range)->extent->segment;
    const enum xseg_elastic_use use = use_of(range, at);

    REQUIRE(use != XSEG_ELASTIC_CLAIMED, "granule %u of range %u is claimed", at, range);
    REQUIRE(env.committed[index] == (use == XSEG_ELASTIC_ALLOCATED),
            "granule %u of range %u was committed %d times, and is in use %d", at, range,
            env.committed[index], (int)use);
    REQUIRE(state_of(range)->elastic.holds[at] == (uint32_t)env.holds[index],
            "granule %u of range %u has %u holds", at, range, state_of(range)->elastic.holds[at]);
    REQUIRE(use != XSEG_ELASTIC_EMPTY || (env.pins[index] == 0 && env.retains[index] == 0),
            "granule %u of range %u was unmapped, and is retained", at, range);
    const bool is_mapped = xseg_segment_is_mapped(segment, at);
    REQUIRE(is_mapped == (use != XSEG_ELASTIC_EMPTY && is_running(index)),
            "granule %u of range %u is in state %d", at, range, segment->state[at]);
    REQUIRE(env.is_notified[index] == is_mapped, "granule %u of range %u: notified %d, mapped %d",
            at, range, env.is_notified[index], is_mapped);
    for (unsigned i = 0; i < REGISTRATIONS; i++) {
        const struct registration *registration = &env.registration[i];
        const bool is_inside = registration->id != 0 && registration->range == range &&
                               at - registration->first < registration->count;

        REQUIRE(registration->id == 0 || registration->entered[index] == (is_inside && is_mapped),
                "granule %u of range %u: registration %u has entered %d, mapped %d", at, range, i,
                registration->entered[index], is_mapped);
    }
    if (use == XSEG_ELASTIC_ALLOCATED && is_mapped)
        check_contents(index);
}

static void check_all(void)
{
    struct xseg_violation violation = {0};
    struct xseg_statistics stats = {sizeof(stats)};
    struct xseg_scope scope = {sizeof(scope), .device = 0};

    xseg_mutex_lock(&env.device->memory_lock);
    for (unsigned i = 0; i < POOLS; i++) {
        if (env.had_fault) /* after a failed rollback the pool is paused */
            env.paused[i] = env.pool[i]->state == XSEG_POOL_PAUSED;
        REQUIRE(env.paused[i] == (env.pool[i]->state == XSEG_POOL_PAUSED),
                "pool %u was paused %d times, and is in state %d", i, env.paused[i],
                (int)env.pool[i]->state);
    }
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (!env.is_released[index / GRANULES])
            detect_change(index);
    for (unsigned index = 0; index < ALL_GRANULES; index++)
        if (!env.is_released[index / GRANULES])
            check_granule(index);
    xseg_mutex_unlock(&env.device->memory_lock);
    REQUIRE(xseg_device_audit(env.device, &violation), "%s: %s", violation.tag, violation.text);
    REQUIRE(xseg_stats_get(env.allocator, &scope, &stats) == XSEG_OK, "xseg_stats_get() failed");
    REQUIRE(stats.physical_bytes == xseg_sim_used(0), "%llu bytes in use, %llu of the driver",
            (unsigned long long)stats.physical_bytes, (unsigned long long)xseg_sim_used(0));
}

/* --- Programs. --- */

static void reserve(unsigned range)
{
    const struct xseg_range_options options = {sizeof(options), .pool = env.pool[pool_of(range)]};

    REQUIRE(xseg_range_reserve(env.allocator, 0, GRANULES * PAGE, &options, &env.range[range]) ==
                XSEG_OK,
            "xseg_range_reserve() failed");
    env.base[range] = (uintptr_t)info(env.range[range]).base;
    env.is_released[range] = false;
    for (unsigned at = 0; at < GRANULES; at++)
        env.generation[index_of(range, at)] = env.tag[index_of(range, at)] = 0;
}

/* Queue work on a committed granule. */
static void queue_work(void)
{
    const unsigned index = (unsigned)below(ALL_GRANULES), stream = (unsigned)below(STREAMS);

    if (!env.is_released[index / GRANULES] && env.committed[index] == 1 && is_running(index))
        env_launch_at(env.stream[stream], word_of(index), PAGE);
}

static void join_threads(void)
{
    for (unsigned i = 0; i < COUNT_OF(env.thread); i++)
        if (env.has_thread[i]) {
            REQUIRE(pthread_join(env.thread[i], NULL) == 0, "pthread_join() failed");
            env.has_thread[i] = false;
        }
}

static void take_step(void)
{
    struct call call;

    env.max_nested = (unsigned)below(NESTED + 1);
    env.calls = 0;
    env.was_resumed[0] = env.was_resumed[1] = false;
    env.had_fault = false;
    if (below(2) == 0)
        queue_work();
    if (!call_draw(&call))
        return;
    call_prepare(&call);
    set_fault();
    call.status = call_make(&call);
    join_threads();
    call_record_result(&call, env.calls != 0 ? ANY : call.allowed);
    clear_fault();
    check_all();
    for (unsigned range = 0; range < RANGES; range++)
        if (env.is_released[range] && env.pool[pool_of(range)]->state == XSEG_POOL_RUNNING)
            reserve(range);
}

static void open_env(uint64_t seed, bool has_faults)
{
    const struct xseg_sim_settings settings = {
        sizeof(settings),
        .memory_bytes = seed % 3 == 0 ? GIB : (seed % 3 == 1 ? 96 : 56) * MIB,
        .real_bytes = true,
        .single_mapping_calls = seed % 8 == 5,
    };
    const struct xseg_pool_options exportable = {sizeof(exportable), .exportable = true};
    const struct xseg_observer observer = {sizeof(observer), .on_map = on_map, .on_unmap = on_unmap,
                                           .on_low_memory = on_low_memory};

    memset(&env, 0, sizeof(env));
    env.random = program_random_state(seed);
    env.has_faults = has_faults;
    env.allocator =
        env_open_quietly(&settings, seed % 2 == 0 ? "rdma:True,page_cache_mb:16" : "rdma:True");
    env.pool[0] = env_pool(env.allocator);
    env.pool[1] = env_pool_with(env.allocator, &exportable);
    env.device = xseg_allocator_open_device(env.allocator, 0);
    for (unsigned i = 1; i < STREAMS; i++)
        env.stream[i] = env_stream();
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        env.descriptor[i] = -1;
    for (unsigned range = 0; range < RANGES; range++)
        reserve(range);
    env.registrar =
        (struct xseg_registrar){sizeof(env.registrar), .enter = on_enter, .leave = on_leave};
    REQUIRE(xseg_observer_add(env.allocator, &observer, &env.observer) == XSEG_OK,
            "xseg_observer_add() failed");
}

/* Make a call, and expect that it succeeds. */
static void expect_call_ok(enum operation operation, unsigned index, unsigned count, unsigned slot)
{
    struct call call = {
        .operation = operation, .range = index / GRANULES, .first = index % GRANULES};

    call.count = count;
    call.slot = slot;
    call_reserve_slot(&call);
    call_prepare(&call);
    call.status = call_make(&call);
    call_record_result(&call, OK);
}

/* End all registrations, descriptors, exports, pins and holds, and free all blocks. */
static void release_all(void)
{
    for (unsigned i = 0; i < REGISTRATIONS; i++)
        if (call_has_registration(i))
            expect_call_ok(UNREGISTER, 0, 0, i);
    for (unsigned i = 0; i < DESCRIPTORS; i++)
        if (call_has_descriptor(i))
            expect_call_ok(DMABUF_CLOSE, env.descriptor_index[i], 0, i);
    for (unsigned i = 0; i < BLOCKS; i++)
        if (call_has_block(i))
            expect_call_ok(FREE, 0, 0, i);
    for (unsigned index = 0; index < ALL_GRANULES; index++) {
        if (env.exports[index] != 0)
            expect_call_ok(EXPORT_CLOSE, index, env.exports[index], 0);
        while (env.pins[index] > 0)
            expect_call_ok(UNPIN, index, 1, 0);
        while (env.holds[index] > 0)
            expect_call_ok(UNHOLD, index, 1, 0);
    }
}

/* End everything, and expect that all memory is released. */
static void close_env(void)
{
    env.max_nested = 0;
    env.had_fault = false;
    release_all();
    for (unsigned range = 0; range < RANGES; range++)
        REQUIRE(env.is_released[range] || xseg_range_set_quota(env.range[range], 0) == XSEG_OK,
                "xseg_range_set_quota() failed");
    /* Resume and decommit in several rounds: a pool may find memory only after the other pool has released its memory. */
    for (unsigned attempt = 0; attempt < 2 * RANGES; attempt++) {
        const unsigned range = attempt % RANGES;

        if (env.paused[pool_of(range)] != 0 &&
            xseg_pool_resume(env.pool[pool_of(range)]) == XSEG_OK)
            env.paused[pool_of(range)] = 0;
        for (unsigned at = 0; env.paused[pool_of(range)] == 0 && at < GRANULES; at++)
            if (env.committed[index_of(range, at)] != 0)
                expect_call_ok(DECOMMIT, index_of(range, at), 1, 0);
        xseg_sim_finish_all();
    }
    for (unsigned range = 0; range < RANGES; range++)
        if (!env.is_released[range])
            expect_call_ok(RELEASE, index_of(range, 0), 0, 0);
    for (unsigned i = 0; i < POOLS; i++)
        REQUIRE(xseg_pool_release(env.pool[i]) == XSEG_OK, "xseg_pool_release() failed");
    REQUIRE(xseg_observer_remove(env.allocator, env.observer) == XSEG_OK,
            "xseg_observer_remove() failed");
    for (unsigned i = 1; i < STREAMS; i++) {
        REQUIRE(xseg_stream_retire(env.allocator, 0, env.stream[i]) == XSEG_OK,
                "xseg_stream_retire() failed");
        env_stream_destroy(env.stream[i]);
    }
    env_close(env.allocator);
}

static void run_program(uint64_t seed, bool has_faults, unsigned steps)
{
    program.seed = seed;
    program.step = 0;
    open_env(seed, has_faults);
    for (; program.step < steps; program.step++) {
        if (traces)
            (void)fprintf(stderr, "# %u\n", program.step);
        take_step();
    }
    close_env();
    program.seed = 0;
}

/* Seeds of the two tests differ, so that a seed names a program. */
static void run_programs(uint64_t first, bool has_faults)
{
    const uint64_t begin = program_number("XSEG_TEST_SEED", 0),
                   seeds = program_number("XSEG_TEST_SEEDS", 20);
    const unsigned steps = (unsigned)program_number("XSEG_TEST_STEPS", 200);

    memset(&tally, 0, sizeof(tally));
    traces = getenv("XSEG_TEST_TRACE") != NULL;
    main_thread = pthread_self();
    for (uint64_t seed = begin; seed < begin + seeds; seed++)
        if (begin == 0 || (seed >= 1000000) == has_faults)
            run_program(begin == 0 ? first + seed : seed, has_faults, steps);
    print_message("# %" PRIu64 " calls from callbacks, %" PRIu64
                  " of them in a second thread, %" PRIu64 " of which waited; %" PRIu64
                  " calls failed, %" PRIu64 " of all were busy; %" PRIu64 " faults\n",
                  tally.nested, tally.by_thread, tally.waited, tally.failed, tally.busy,
                  tally.faults);
    for (unsigned i = 0; i < OPERATIONS; i++)
        if (begin == 0 && seeds * steps >= 4000)
            assert_true(tally.calls[i] > seeds / 4);
    if (begin == 0 && seeds * steps >= 4000) {
        assert_true(tally.nested > 10 * seeds && tally.by_thread > 2 * seeds);
        assert_true(tally.busy > 2 * seeds && (tally.faults > 2 * seeds) == has_faults);
    }
}

TEST_PROGRAM(calls_from_callbacks_and_threads_match_the_model)
{
    run_programs(1, false);
}

TEST_PROGRAM(calls_with_driver_faults_match_the_model)
{
    run_programs(1000000, true);
}
