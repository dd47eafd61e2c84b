/* SPDX-License-Identifier: MIT */
/*
 * The fast path: a call takes it exactly if no condition requires the slow path. The fast path has the same result as the slow
 * path, and calls neither the host allocator nor the driver.
 *
 * The linker redirects each call of the host allocator to this file (--wrap), which counts the calls.
 */
#include <linux/seccomp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "src/core/alloc/alloc.h"
#include "tests/support/allocator.h"
#include "tests/support/rng.h"
#include "tests/support/wrapped.h"

static unsigned host_calls;

/* The wrappers of the host allocator's functions, and the functions themselves. */
WRAPPED(void *, malloc, size_t bytes);
WRAPPED(void *, calloc, size_t count, size_t bytes);
WRAPPED(void *, realloc, void *ptr, size_t bytes);
WRAPPED(void *, aligned_alloc, size_t align, size_t bytes);
WRAPPED(void, free, void *ptr);

void *__wrap_malloc(size_t bytes)
{
    host_calls++;
    return __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    host_calls++;
    return __real_calloc(count, bytes);
}

void *__wrap_realloc(void *ptr, size_t bytes)
{
    host_calls++;
    return __real_realloc(ptr, bytes);
}

void *__wrap_aligned_alloc(size_t align, size_t bytes)
{
    host_calls++;
    return __real_aligned_alloc(align, bytes);
}

void __wrap_free(void *ptr)
{
    host_calls++;
    __real_free(ptr);
}

static uint64_t seed_state;

static uint64_t random_below(uint64_t bound)
{
    return rng_next(&seed_state) % bound;
}

/* --- Conditions of the fast path. --- */

#define SMALL 3000u
#define LARGE (3 * MIB)

/* Whether the fast path serves a request; the block is freed again. */
static bool hits(int device, size_t bytes, xseg_stream stream)
{
    void *ptr = &seed_state;
    struct xseg_arena *searched = NULL;
    bool has_polled = false;

    if (!xseg_hit_alloc_on_stream(allocator, device, bytes, stream, &ptr, &searched, &has_polled)) {
        assert_ptr_equal(ptr, &seed_state);
        return false;
    }
    env_free(allocator, ptr);
    return true;
}

/* Cache memory of both kinds on a stream of the default pool, or in a pool. */
static void warm_in(struct xseg_pool *pool, xseg_stream stream)
{
    env_free(allocator, env_alloc_in(allocator, pool, SMALL, stream));
    env_free(allocator, env_alloc_in(allocator, pool, LARGE, stream));
}

static void warm(xseg_stream stream)
{
    warm_in(NULL, stream);
}

static void expect_hits(xseg_stream stream, bool expected)
{
    assert_int_equal(hits(0, SMALL, stream), expected);
    assert_int_equal(hits(0, LARGE, stream), expected);
    /* Either path serves the request. */
    warm(stream);
}

static void destroy_stream(xseg_stream stream)
{
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    env_stream_destroy(stream);
}

ALLOCATOR_TEST(ordinary_requests_take_the_fast_path)
{
    const xseg_stream stream = env_stream();

    assert_false(hits(0, SMALL, NULL)); /* the device is not open */
    warm(NULL);
    expect_hits(NULL, true);
    assert_false(hits(0, SMALL, stream)); /* never used */
    warm(stream);
    expect_hits(stream, true);
    destroy_stream(stream);
}

ALLOCATOR_TEST(unusual_arguments_take_the_slow_path)
{
    static const size_t unusual[] = {0, SIZE_MAX, SIZE_MAX - 511, (size_t)1 << 62};

    warm(NULL);
    assert_false(hits(-1, SMALL, NULL));
    assert_false(hits(allocator->device_count, SMALL, NULL));
    for (size_t i = 0; i < COUNT_OF(unusual); i++)
        assert_false(hits(0, unusual[i], NULL));
    /* Larger than the cached memory. */
    assert_false(hits(0, 40 * MIB, NULL));
    assert_true(hits(0, 1, NULL));
    assert_true(hits(0, MIB, NULL));
    /* Handles for which the driver is queried: those of the default streams. */
    assert_false(hits(0, SMALL, (xseg_stream)1));
    assert_false(hits(0, SMALL, (xseg_stream)2));
}

TEST(configurations_with_extra_work_take_the_slow_path)
{
    static const char *const config[] = {
        "roundup_power2_divisions:4",
        "idle_ms:1000",
        "soft_limit_mb:4000",
        "device_free_min_mb:1",
        "unmap_on_free:True",
        "guard_page:True",
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9",
    };
    const struct xseg_sim_settings settings = {sizeof(settings)};

    for (size_t i = 0; i < COUNT_OF(config); i++) {
        allocator = env_open_quietly(&settings, config[i]);

        warm(NULL);
        expect_hits(NULL, false);
        env_close(allocator);
    }
}

TEST(classic_requests_take_the_fast_path)
{
    struct xseg_sim_settings settings = {sizeof(settings)};

    for (unsigned i = 0; i < 2; i++) {
        settings.without_vmm = i != 0;
        allocator = env_open_quietly(&settings, i == 0 ? "expandable_segments:False"
                                                       : "expandable_segments:True");
        warm(NULL);
        expect_hits(NULL, true);
        /* Memory cached this way also serves expandable requests. */
        assert_ok(xseg_config_set(allocator, i == 0 ? "expandable_segments:True"
                                                    : "expandable_segments:False"));
        expect_hits(NULL, true);
        env_close(allocator);
    }
    /* Classic requests do not use expandable memory. */
    allocator = env_open("expandable_segments:True");
    warm(NULL);
    assert_ok(xseg_config_set(allocator, "expandable_segments:False"));
    expect_hits(NULL, false); /* caches classic memory */
    expect_hits(NULL, true);
    env_close(allocator);
}

/* A freed block that waits for work of a stream. */
static void make_pending(xseg_stream stream)
{
    void *used = env_alloc(allocator, SMALL, NULL);

    assert_ok(xseg_record_stream(allocator, used, stream));
    assert_ok(xseg_sim_launch(stream, UINT64_MAX));
    env_free(allocator, used);
}

ALLOCATOR_TEST(routes_and_captures_take_the_slow_path)
{
    struct xseg_pool *pool = env_pool(allocator);
    const xseg_stream stream = env_stream();

    warm(NULL);
    warm(stream);
    assert_ok(xseg_route_begin(pool, NULL, NULL));
    expect_hits(NULL, false);
    assert_ok(xseg_route_end(pool));
    expect_hits(NULL, true);

    /* A capture disables hits on all streams. */
    env_capture_begin(pool, stream);
    expect_hits(NULL, false);
    expect_hits(stream, false);
    env_graph_destroy(env_capture_end_graph(pool, stream));
    expect_hits(NULL, true);

    make_pending(stream);
    expect_hits(NULL, true);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 1);
    /* Completed blocks are reclaimed on the fast path. */
    assert_ok(xseg_sim_finish(stream));
    expect_hits(NULL, true);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);

    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_false(hits(0, SMALL, stream));
    env_stream_destroy(stream);
    assert_ok(xseg_pool_release(pool));
}

/* As hits(), for a request that names a pool. */
static bool hits_in(struct xseg_pool *pool, size_t bytes)
{
    void *ptr = &seed_state;
    struct xseg_arena *searched = NULL;

    if (!xseg_hit_alloc_from_pool(allocator, pool, bytes, NULL, &ptr, &searched)) {
        assert_ptr_equal(ptr, &seed_state);
        return false;
    }
    env_free(allocator, ptr);
    return true;
}

static void expect_hits_in(struct xseg_pool *pool, bool expected)
{
    assert_int_equal(hits_in(pool, SMALL), expected);
    assert_int_equal(hits_in(pool, LARGE), expected);
}

ALLOCATOR_TEST(pool_requests_take_the_fast_path)
{
    struct xseg_pool *pool = env_pool(allocator), *other_pool = env_pool(allocator),
                     *unsplit = env_pool_of(allocator, .no_split = true);
    const xseg_stream stream = env_stream();

    expect_hits_in(pool, false); /* it has no arena */
    warm_in(pool, NULL);
    expect_hits_in(pool, true);
    assert_false(hits_in(pool, 0));
    assert_false(hits_in(pool, 40 * MIB));
    expect_hits_in(other_pool, false);
    warm_in(unsplit, NULL);
    expect_hits_in(unsplit, false); /* it has an option */

    /* Another stream's route does not matter, because the request names its pool; a capture does. */
    assert_ok(xseg_route_begin(other_pool, NULL, NULL));
    expect_hits_in(pool, true);
    assert_ok(xseg_route_end(other_pool));
    env_capture_begin(other_pool, stream);
    expect_hits_in(pool, false);
    env_graph_destroy(env_capture_end_graph(other_pool, stream));

    make_pending(stream);
    expect_hits_in(pool, false);
    assert_ok(xseg_sim_finish(stream));
    warm_in(pool, NULL);
    expect_hits_in(pool, true);

    /* A paused pool allocates nothing: its blocks have no memory. */
    assert_ok(xseg_pool_pause(pool, XSEG_KEEP_NOTHING, NULL));
    expect_hits_in(pool, false);
    assert_ok(xseg_pool_resume(pool));
    expect_hits_in(pool, true);

    destroy_stream(stream);
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_pool_release(other_pool));
    assert_ok(xseg_pool_release(unsplit));
}

/* --- Frees. --- */

ALLOCATOR_TEST(only_allocated_blocks_are_freed)
{
    static const size_t sizes[] = {SMALL, LARGE};

    assert_ok(xseg_free(allocator, NULL));
    assert_error(xseg_free(allocator, &seed_state), NOT_ALLOCATED, "not in memory");
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        char *ptr = env_alloc(allocator, sizes[i], NULL), *end = ptr + (sizes[i] + 511) / 512 * 512;

        assert_error(xseg_free(allocator, ptr + 1), NOT_ALLOCATED, "not the start of a block");
        assert_error(xseg_free(allocator, ptr + 512), NOT_ALLOCATED, "not the start of a block");
        assert_error(xseg_free(allocator, end), NOT_ALLOCATED, ""); /* cached */
        /* Unmapped. */
        assert_error(xseg_free(allocator, ptr + GIB), NOT_ALLOCATED, "");
        assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 1);
        env_free(allocator, ptr);
        assert_error(xseg_free(allocator, ptr), NOT_ALLOCATED, "cached");
    }
}

/* --- Both paths give the same result. --- */

#define STEPS   6000u
#define HELD    250u
#define STREAMS 3u

/* The result of one step. */
struct result {
    uint64_t address;
    xseg_status status;
    struct xseg_statistics stats;
};

struct program {
    xseg_stream stream[STREAMS + 1];     /* the last stream is only recorded as a use */
    struct xseg_pool *pool, *named_pool; /* for a route, and for requests that name a pool */
    void *held[HELD];
    unsigned count;
    bool uses_fast_path; /* whether allocations and frees try the fast path */
    bool is_routed;
};

static xseg_status alloc_named(struct program *program, size_t bytes, xseg_stream stream,
                               void **out)
{
    struct xseg_alloc_params params = {
        .config = xseg_allocator_config(allocator),
        .pool = program->named_pool,
        .stream = stream,
        .requested = bytes,
    };
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .stream = stream,
                                         .pool = program->named_pool};

    return program->uses_fast_path
               ? xseg_alloc_with(allocator, &request, out)
               : xseg_slow_path_alloc(program->named_pool->device, &params, out);
}

static xseg_status alloc(struct program *program, size_t bytes, xseg_stream stream, void **out)
{
    const struct xseg_request request = {sizeof(request), .bytes = bytes, .stream = stream};

    return program->uses_fast_path ? xseg_alloc(allocator, 0, bytes, stream, out)
                                   : xseg_alloc_with(allocator, &request, out);
}

static void step_alloc(struct program *program, struct result *result)
{
    static const size_t max_bytes[] = {4 * KIB, 4 * KIB, 100 * KIB, MIB, 4 * MIB, 40 * MIB};
    const size_t bytes = 1 + random_below(max_bytes[random_below(COUNT_OF(max_bytes))]);
    const xseg_stream stream = program->stream[random_below(STREAMS)];
    void *ptr = NULL;

    if (program->count == HELD)
        return;
    result->status = random_below(5) == 0 ? alloc_named(program, bytes, stream, &ptr)
                                          : alloc(program, bytes, stream, &ptr);
    result->address = (uint64_t)(uintptr_t)ptr;
    if (result->status == XSEG_OK)
        program->held[program->count++] = ptr;
}

static void step_free(struct program *program, struct result *result)
{
    if (program->count == 0)
        return;
    const unsigned i = (unsigned)random_below(program->count);
    void *ptr = program->held[i];

    result->status =
        program->uses_fast_path ? xseg_free(allocator, ptr) : xseg_allocator_free(allocator, ptr);
    assert_ok(result->status);
    program->held[i] = program->held[--program->count];
}

static void step_record_stream(struct program *program)
{
    const xseg_stream user = program->stream[STREAMS];

    if (program->count == 0)
        return;
    assert_ok(xseg_record_stream(allocator, program->held[random_below(program->count)], user));
    if (random_below(2) == 0)
        assert_ok(xseg_sim_launch(user, UINT64_MAX));
}

/* Change a condition of the fast path. */
static void step_condition(struct program *program, const char *const *config, size_t configs)
{
    struct xseg_trim_options options = {sizeof(options)};

    switch (random_below(4)) {
    case 0:
        assert_ok(xseg_config_set(allocator, config[random_below(configs)]));
        break;
    case 1:
        assert_ok(xseg_trim(allocator, NULL, &options, NULL));
        break;
    case 2:
        assert_ok(program->is_routed ? xseg_route_end(program->pool)
                                     : xseg_route_begin(program->pool, NULL, NULL));
        program->is_routed = !program->is_routed;
        break;
    default:
        xseg_sim_advance(random_below(1000) * 1000000);
        break;
    }
}

static void run_step(struct program *program, unsigned index, struct result *result)
{
    static const char *const config[] = {
        "expandable_segments:True",
        "expandable_segments:True",
        "expandable_segments:False",
        "roundup_power2_divisions:4",
        "roundup_power2_divisions:1",
        "idle_ms:100",
        "idle_ms:-1",
        "max_split_size_mb:30",
        "debug_fill:True",
        "debug_fill:False",
        "history:state",
        "history:nothing",
    };
    const uint64_t action = random_below(400);
    const bool fills = index / 300 % 2 == 0;

    memset(result, 0, sizeof(*result));
    if (action < (fills ? 230u : 140u))
        step_alloc(program, result);
    else if (action < 370)
        step_free(program, result);
    else if (action < 384)
        step_record_stream(program);
    else if (action < 395)
        assert_ok(xseg_sim_finish(program->stream[STREAMS]));
    else
        step_condition(program, config, COUNT_OF(config));
    result->stats = env_stats(allocator);
    result->stats.host_bytes = 0;
}

static void run_program(bool uses_fast_path, const char *config, uint64_t memory, uint64_t seed,
                        struct result *result)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct program program = {.uses_fast_path = uses_fast_path};

    seed_state = seed;
    settings.memory_bytes = memory;
    allocator = env_open_quietly(&settings, config);
    program.pool = env_pool(allocator);
    program.named_pool = env_pool(allocator);
    for (unsigned i = 1; i <= STREAMS; i++)
        program.stream[i] = env_stream();
    for (unsigned index = 0; index < STEPS; index++)
        run_step(&program, index, &result[index]);
    if (program.is_routed)
        assert_ok(xseg_route_end(program.pool));
    while (program.count > 0)
        env_free(allocator, program.held[--program.count]);
    assert_ok(xseg_pool_release(program.pool));
    assert_ok(xseg_pool_release(program.named_pool));
    env_close(allocator, program.stream[1], program.stream[2], program.stream[3]);
}

static void expect_same_results(const char *config, uint64_t memory, uint64_t seed)
{
    static struct result result[2][STEPS];

    for (unsigned i = 0; i < 2; i++)
        run_program(i != 0, config, memory, seed, result[i]);
    for (unsigned index = 0; index < STEPS; index++) {
        if (result[0][index].address != result[1][index].address ||
            result[0][index].status != result[1][index].status)
            fail_msg("%s, seed %llu: step %u: %#llx and status %d, instead of %#llx and %d", config,
                     (unsigned long long)seed, index, (unsigned long long)result[1][index].address,
                     result[1][index].status, (unsigned long long)result[0][index].address,
                     result[0][index].status);
        assert_memory_equal(&result[0][index].stats, &result[1][index].stats,
                            sizeof(struct xseg_statistics));
    }
}

TEST(both_paths_give_the_same_result)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        expect_same_results("expandable_segments:True", 16 * GIB, seed * 7919);
        expect_same_results("expandable_segments:False", 16 * GIB, seed * 7927);
    }
}

TEST(both_paths_agree_under_memory_pressure)
{
    for (uint64_t seed = 1; seed <= 3; seed++)
        expect_same_results("expandable_segments:True", 400 * MIB, seed * 104729);
}

/* --- Hits call neither the host allocator, the driver nor the kernel. --- */

#define ROUND_CALLS 4000u

/* Make a round of calls that leaves the state unchanged. Returns the number of calls that left the fast path. */
static unsigned run_round(const xseg_stream *streams)
{
    static void *held[HELD];
    unsigned count = 0, slow = 0;

    seed_state = 15485863;
    for (unsigned i = 0; i < ROUND_CALLS || count > 0; i++) {
        const size_t max_bytes = random_below(3) == 0   ? 12 * MIB
                                 : random_below(4) == 0 ? MIB
                                                        : 8 * KIB;
        const size_t bytes = 1 + random_below(max_bytes);
        const xseg_stream stream = streams[random_below(2)];

        if (i < ROUND_CALLS && count < HELD && random_below(2) == 0) {
            void **out = &held[count++];
            struct xseg_arena *searched = NULL;
            bool has_polled = false;

            if (!xseg_hit_alloc_on_stream(allocator, 0, bytes, stream, out, &searched,
                                          &has_polled)) {
                slow++;
                *out = env_alloc(allocator, bytes, stream);
            }
        } else if (count > 0) {
            const unsigned at = (unsigned)random_below(count);

            env_free(allocator, held[at]);
            held[at] = held[--count];
        }
    }
    return slow;
}

ALLOCATOR_TEST(hits_call_neither_host_nor_driver)
{
    const xseg_stream stream[2] = {NULL, env_stream()};

    assert_int_not_equal(run_round(stream), 0);
    (void)run_round(stream);
    const uint64_t driver_before = xseg_sim_calls(NULL);
    const unsigned host_before = host_calls;
    assert_true(host_before > 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(run_round(stream), 0);
    assert_int_equal(host_calls, host_before);
    assert_int_equal(xseg_sim_calls(NULL), driver_before);
    destroy_stream(stream[1]);
}

/* In a process in which seccomp kills on any system call except exit. Exit status: 0: all calls took the fast path,
 * 1: not all did, 2: seccomp is not available. */
static _Noreturn void run_in_sandbox(void)
{
    allocator = env_open("expandable_segments:True");
    const xseg_stream stream[2] = {NULL, env_stream()};

    for (unsigned i = 0; i < 3; i++)
        (void)run_round(stream);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) != 0)
        _exit(2);
    const unsigned slow = run_round(stream);
    for (;;)
        (void)syscall(SYS_exit, slow == 0 ? 0 : 1);
}

TEST(hits_make_no_system_call)
{
    int status = 0;

    /* ThreadSanitizer runs its own thread, so the exit of the main thread does not end the process. With all self-checks the
     * counts of arenas are suspended after two polls, with a barrier, which is a system call. */
    if (XSEG_BIASED_LOCK_IS_ATOMIC || XSEG_CHECKS >= 3)
        return;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        run_in_sandbox();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2)
        print_message("# this system has no strict seccomp: not tested\n");
    else
        assert_int_equal(WEXITSTATUS(status), 0);
}
