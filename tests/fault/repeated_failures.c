/* SPDX-License-Identifier: MIT */
/*
 * Repeated failures: for each pair of driver calls, all calls of both fail for a while, and then succeed again.  During the
 * failures, operations succeed or return an error, allocated blocks keep their addresses, pages and contents, and the
 * physical bytes in the statistics are those of the device.  Afterwards all operations succeed, and nothing is leaked.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/fault/fault_env.h"

#include "src/core/device/device.h"
#include "tests/support/driver_calls.h"
#include "tests/support/exported_handles.h"
#include "tests/support/trim_due.h"
#include "xseg/range.h"

#define NAMES_MAX 64u

/* --- Calls that may fail. --- */

/* Check the state after a call that may fail; returns whether it succeeded. */
static bool succeeded(struct fault_env *env, xseg_status status)
{
    return !fault_failed(env, status);
}

static void *try_alloc(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                       xseg_stream stream)
{
    struct xseg_request request = {sizeof(request), .bytes = bytes, .stream = stream, .pool = pool};
    void *ptr = NULL;

    const xseg_status status = xseg_alloc_with(env->allocator, &request, &ptr);
    if (status == XSEG_OK)
        fault_track(env, ptr, bytes);
    /* The device may be full without any fault. */
    (void)succeeded(env, status == XSEG_ERR_NO_MEMORY ? XSEG_OK : status);
    return ptr;
}

static void free_block(struct fault_env *env, void *ptr)
{
    if (ptr == NULL)
        return;
    const xseg_status status = xseg_free(env->allocator, ptr);
    if (status == XSEG_OK)
        fault_untrack(env, ptr);
    (void)succeeded(env, status);
}

static void free_all(struct fault_env *env)
{
    for (unsigned i = env->block_count; i > 0; i--)
        free_block(env, env->blocks[i - 1].ptr);
}

static bool trim(struct fault_env *env)
{
    struct xseg_trim_options options = {sizeof(options), .wait = true};

    return succeeded(env, xseg_trim(env->allocator, NULL, &options, NULL));
}

static void pass_time(struct fault_env *env, uint64_t milliseconds)
{
    xseg_sim_advance(milliseconds * 1000000);
    (void)succeeded(env, trim_due(env->allocator, UINT64_MAX));
}

/* --- Scenarios: the state before the failures, and the operations during the failures. --- */

struct scenario {
    const char *name, *config;
    void (*prepare)(struct fault_env *env, struct xseg_pool **pool);
    void (*run)(struct fault_env *env, struct xseg_pool *pool);
    bool single_mapping_calls;
    bool opens_allocator; /* the open is one of the operations */
};

static struct xseg_pool *make_pool(struct fault_env *env)
{
    struct xseg_pool_options options = {sizeof(options), .exportable = true};
    struct xseg_pool *pool = NULL;

    (void)succeeded(env, xseg_pool_create(env->allocator, 0, &options, &pool));
    return pool;
}

static void prepare_nothing(struct fault_env *env, struct xseg_pool **pool)
{
    (void)env;
    *pool = NULL;
}

/* Allocated, cached and pending blocks, and a pool. */
static void prepare_blocks(struct fault_env *env, struct xseg_pool **pool)
{
    void *cached = try_alloc(env, NULL, 50 * MIB, NULL),
         *pending = try_alloc(env, NULL, 3 * MIB, NULL);

    (void)try_alloc(env, NULL, 5 * MIB, NULL);
    (void)try_alloc(env, NULL, 1000, env->side);
    *pool = make_pool(env);
    void *pool_block = try_alloc(env, *pool, 30 * MIB, NULL);
    (void)try_alloc(env, *pool, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(env->allocator, pending, env->side));
    assert_ok(xseg_sim_launch(env->side, UINT64_MAX));
    free_block(env, cached);
    free_block(env, pending);
    free_block(env, pool_block);
}

/* The first allocations of a device. */
static void open_first(struct fault_env *env, struct xseg_pool *pool)
{
    (void)pool;
    for (unsigned i = 0; i < 2; i++) {
        free_block(env, try_alloc(env, NULL, 3 * MIB, NULL));
        (void)trim(env);
    }
}

static void allocate_and_free(struct fault_env *env, struct xseg_pool *pool)
{
    for (unsigned i = 0; i < 3; i++) {
        void *a = try_alloc(env, NULL, 45 * MIB, NULL), *b = try_alloc(env, pool, 25 * MIB, NULL);
        void *c = try_alloc(env, NULL, 700, env->side);

        if (a != NULL)
            (void)succeeded(env, xseg_record_stream(env->allocator, a, env->side));
        free_block(env, a);
        free_block(env, b);
        (void)trim(env);
        pass_time(env, 1000);
        free_block(env, c);
        (void)trim(env);
    }
}

/* Requests exceed the device memory, so the fallback chain remaps memory. */
static void exceed_memory(struct fault_env *env, struct xseg_pool *pool)
{
    for (unsigned i = 0; i < 3; i++) {
        void *a = try_alloc(env, NULL, 110 * MIB, env->side),
             *b = try_alloc(env, NULL, 60 * MIB, NULL);

        free_block(env, a);
        a = try_alloc(env, pool, 80 * MIB, NULL);
        free_block(env, b);
        free_block(env, a);
        (void)trim(env);
    }
}

static void try_pause(struct fault_env *env, struct xseg_pool *pool, enum xseg_keep keep)
{
    const char *name = NULL;
    char file[64];

    if (keep == XSEG_KEEP_FILE) {
        (void)snprintf(file, sizeof(file), P_tmpdir "/xseg-failures-%d", (int)getpid());
        name = file;
    }
    const xseg_status status = xseg_pool_pause(pool, keep, name);
    /* The pool may be paused in spite of an error. */
    env->paused_pool = pool;
    (void)succeeded(env, status);
    const xseg_status resumed = xseg_pool_resume(pool);
    /* If the pool was not paused, the resume returns XSEG_ERR_ARGUMENT. */
    if (resumed == XSEG_OK || resumed == XSEG_ERR_ARGUMENT)
        env->paused_pool = NULL;
    (void)succeeded(env, resumed);
}

static void pause_and_resume(struct fault_env *env, struct xseg_pool *pool)
{
    static const enum xseg_keep keep[] = {XSEG_KEEP_HOST, XSEG_KEEP_NOTHING, XSEG_KEEP_FILE};

    for (unsigned i = 0; i < COUNT_OF(keep); i++) {
        if (env->has_contents && keep[i] == XSEG_KEEP_NOTHING)
            continue; /* so that the contents can be checked */
        try_pause(env, pool, keep[i]);
        (void)trim(env);
    }
}

static void try_share(struct fault_env *env, struct xseg_pool *pool)
{
    for (unsigned i = 0; i < 3; i++) {
        struct exported_handles exported;
        void *block = try_alloc(env, pool, 25 * MIB, NULL), *imported = NULL;

        if (block != NULL &&
            succeeded(env, export_handles(env->allocator, block, XSEG_HANDLE_FD, &exported))) {
            if (succeeded(env, import_handles(env->allocator, &exported, NULL, &imported)))
                assert_ok(xseg_import_close(env->allocator, imported));
            assert_ok(xseg_export_close(env->allocator, block));
        }
        export_handles_close(&exported);
        free_block(env, block);
        (void)trim(env);
    }
}

/* --- Ranges. --- */

#define RANGE_PAGE (2 * MIB)

static struct xseg_range *ranges[2];

static void prepare_ranges(struct fault_env *env, struct xseg_pool **pool)
{
    struct xseg_range_options options = {sizeof(options)};

    *pool = make_pool(env);
    for (unsigned i = 0; i < 2; i++) {
        struct xseg_range_info info = {sizeof(info)};

        assert_ok(xseg_range_reserve(env->allocator, 0, 16 * RANGE_PAGE, &options, &ranges[i]));
        assert_ok(xseg_range_query(ranges[i], &info));
        options.pool = info.pool;
        assert_ok(xseg_range_commit(ranges[i], 0, 4 * RANGE_PAGE, i == 0 ? NULL : env->side));
    }
    assert_ok(xseg_range_alias(ranges[1], 8 * RANGE_PAGE, RANGE_PAGE, ranges[0], 0));
    assert_ok(xseg_sim_launch(env->side, UINT64_MAX));
}

/* Decommit those of the granules that are committed; granules with an odd index on the second stream, after its work. */
static void try_decommit(struct fault_env *env, struct xseg_range *range, unsigned first,
                         unsigned count)
{
    for (unsigned at = first; at < first + count; at++) {
        const xseg_status status =
            xseg_range_decommit(range, at * RANGE_PAGE, RANGE_PAGE, at % 2 == 0 ? NULL : env->side);

        (void)succeeded(env, status == XSEG_ERR_ARGUMENT ? XSEG_OK : status);
    }
}

static void commit_and_decommit(struct fault_env *env, struct xseg_pool *pool)
{
    for (unsigned i = 0; i < 2; i++) {
        try_decommit(env, ranges[0], 0, 3);
        (void)succeeded(env, xseg_range_prepare(ranges[1], 2 * RANGE_PAGE));
        const xseg_status status =
            xseg_range_commit(ranges[0], 0, 10 * RANGE_PAGE, i == 0 ? env->side : NULL);
        /* A granule whose decommit failed is still committed. */
        (void)succeeded(env, status == XSEG_ERR_ARGUMENT ? XSEG_OK : status);
        const xseg_status shared = xseg_range_alias(ranges[1], (9 + i) * RANGE_PAGE, RANGE_PAGE,
                                                    ranges[0], 3 * RANGE_PAGE);
        (void)succeeded(env, shared == XSEG_ERR_ARGUMENT ? XSEG_OK : shared);
        free_block(env, try_alloc(env, pool, 25 * MIB, NULL));
        try_decommit(env, ranges[0], 0, 16);
        (void)trim(env);
        try_decommit(env, ranges[1], 8, 8);
    }
}

/* Once calls succeed again, the ranges can be decommitted and released. */
static void end_ranges(struct fault_env *env)
{
    for (unsigned i = 0; i < 2; i++) {
        if (ranges[i] == NULL)
            continue;
        try_decommit(env, ranges[i], 0, 16);
        assert_ok(xseg_range_release(ranges[i]));
        ranges[i] = NULL;
    }
}

static const struct scenario scenarios[] = {
    {"open", NULL, prepare_nothing, open_first, false, true},
    {"open, single mapping calls", NULL, prepare_nothing, open_first, true, true},
    {"allocate and free", NULL, prepare_blocks, allocate_and_free, false, false},
    {"allocate and free, single mapping calls", NULL, prepare_blocks, allocate_and_free, true,
     false},
    {"classic", "expandable_segments:False", prepare_blocks, allocate_and_free, false, false},
    {"decay", "idle_ms:100,page_cache_mb:50", prepare_blocks, allocate_and_free, false, false},
    {"guarded", "unmap_on_free:True", prepare_blocks, allocate_and_free, false, false},
    {"exceed memory", NULL, prepare_blocks, exceed_memory, false, false},
    {"pause", NULL, prepare_blocks, pause_and_resume, false, false},
    {"pause, single mapping calls", NULL, prepare_blocks, pause_and_resume, true, false},
    {"share", NULL, prepare_blocks, try_share, false, false},
    {"ranges", NULL, prepare_ranges, commit_and_decommit, false, false},
};

/* --- Running. --- */

static const char *call_names[NAMES_MAX];
static unsigned call_name_count;

/* A driver call that fails each time; if the name is NULL, no call fails. */
struct failing_call {
    const char *name;
    int error;
    uint64_t halfway; /* mappings that a batch processes before it fails */
};

static void fail_call(unsigned slot, struct failing_call call)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.call = call.name;
    fault.every = 1;
    fault.error = call.error;
    fault.halfway = call.halfway;
    assert_ok(xseg_sim_fault_set(slot, call.name == NULL ? NULL : &fault));
}

static void fail_nothing(void)
{
    fail_call(0, (struct failing_call){0});
    fail_call(1, (struct failing_call){0});
}

/* Expect that the used memory of the device is that of the statistics. */
static void expect_accounted(struct fault_env *env)
{
    if (xseg_allocator_open_device(env->allocator, 0) != NULL)
        assert_int_equal(env_stats(env->allocator).physical_bytes, xseg_sim_used(0));
}

static void recover(struct fault_env *env, struct xseg_pool *pool)
{
    if (env->paused_pool != NULL)
        assert_ok(xseg_pool_resume(pool));
    env->paused_pool = NULL;
    end_ranges(env);
    env_empty_cache(env->allocator);
    assert_non_null(try_alloc(env, NULL, 900, NULL));
    expect_accounted(env);
    assert_ok(xseg_sim_finish(env->side));
    free_all(env);
    /* After failures the allocator may use a classic segment, which has at least 20 MiB. */
    assert_non_null(try_alloc(env, NULL, 4 * MIB, NULL));
    expect_accounted(env);
    free_all(env);
    assert_int_equal(env->block_count, 0);
    if (pool != NULL)
        assert_ok(xseg_pool_release(pool));
    env_empty_cache(env->allocator);
    struct xseg_statistics stats = env_stats(env->allocator);
    assert_int_equal(stats.unreleased_bytes, 0);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_ALL].current, 0);
    expect_accounted(env);
}

static bool open_allocator(struct fault_env *env, const char *config)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = env_no_log,
                                   .clock = env_clock};

    return xseg_open(config, &options, &env->allocator) == XSEG_OK;
}

/* Run a scenario while one or two driver calls fail. */
static void run_scenario(const struct scenario *scenario, struct failing_call first,
                         struct failing_call second)
{
    /* Contents make runs slow, so only the few runs with partial batches have contents. */
    struct fault_env env = {.has_contents = first.halfway != 0};
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 200 * MIB,
                                         .single_mapping_calls = scenario->single_mapping_calls,
                                         .real_bytes = env.has_contents};
    struct xseg_pool *pool = NULL;

    assert_ok(xseg_sim_reset(&settings));
    env.side = env_stream();
    const size_t baseline = xseg_sim_leaks(NULL, 0);
    if (!scenario->opens_allocator) {
        assert_true(open_allocator(&env, scenario->config));
        scenario->prepare(&env, &pool);
    }
    fail_call(0, first);
    fail_call(1, second);
    if (scenario->opens_allocator && !open_allocator(&env, scenario->config)) {
        fail_nothing();
        assert_true(open_allocator(&env, scenario->config));
    }
    scenario->run(&env, pool);
    expect_accounted(&env);
    fail_nothing();
    recover(&env, pool);
    assert_ok(xseg_close(env.allocator));
    char text[1024];
    if (xseg_sim_leaks(text, sizeof(text)) != baseline)
        fail_msg("leaked driver resources: %s", text);
    env_stream_destroy(env.side);
    assert_int_equal(xseg_sim_leaks(NULL, 0), 0);
    /* Failed calls of cuCtxPopCurrent leave at most one context on the stack. */
    void *current = NULL;
    (void)cuCtxPopCurrent_v2(&current);
    assert_int_equal(cuCtxPopCurrent_v2(&current),
                     201); /* CUDA_ERROR_INVALID_CONTEXT: no context */
}

/* Calls that never fail: cuGetErrorName, which returns the name of an error, and cuMemGetAccess, by which fault_env.c checks
 * pages. */
static bool never_fails(const char *name)
{
    return strcmp(name, "cuGetErrorName") == 0 || strcmp(name, "cuMemGetAccess") == 0;
}

/* Record the names of the driver calls of a scenario. */
static void record_call_names(const struct scenario *scenario)
{
    struct xseg_driver_call calls[NAMES_MAX];
    struct xseg_driver *driver = NULL;

    assert_ok(xseg_driver_open(env_driver(), &driver));
    const size_t count = xseg_driver_call_counts(driver, calls, NAMES_MAX);
    assert_true(count <= NAMES_MAX);
    run_scenario(scenario, (struct failing_call){0}, (struct failing_call){0});
    call_name_count = 0;
    for (size_t i = 0; i < count; i++)
        if (strcmp(calls[i].name, "cuPointerGetAttributes") == 0 || /* after failures only */
            strcmp(calls[i].name, "cuCtxGetCurrent") == 0 ||
            (xseg_sim_calls(calls[i].name) != 0 && !never_fails(calls[i].name)))
            call_names[call_name_count++] = calls[i].name;
    xseg_driver_close(driver);
}

static void sweep(void **state)
{
    /* CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN. */
    static const int errors[] = {1, 2, 999};
    const struct scenario *scenario = *state;
    const struct failing_call none = {0};
    unsigned runs = 0;

    record_call_names(scenario);
    for (unsigned a = 0; a < call_name_count; a++) {
        for (unsigned b = a + 1; b < call_name_count; b++, runs++)
            run_scenario(scenario, (struct failing_call){call_names[a], 999},
                         (struct failing_call){call_names[b], 999});
        for (unsigned i = 0; i < COUNT_OF(errors); i++)
            run_scenario(scenario, (struct failing_call){call_names[a], errors[i]}, none);
        /* A batched unmap fails after one or two mappings, together with each other call. */
        for (uint64_t mappings = 1; mappings <= 2; mappings++)
            run_scenario(scenario, (struct failing_call){"cuMemUnmap", 999, mappings},
                         strcmp(call_names[a], "cuMemUnmap") == 0
                             ? none
                             : (struct failing_call){call_names[a], 999});
    }
    print_message("# %s: %u pairs of %u calls\n", scenario->name, runs, call_name_count);
    assert_true(runs > 100);
}

int main(void)
{
    struct CMUnitTest tests[COUNT_OF(scenarios)];

    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        tests[i] = (struct CMUnitTest){.name = scenarios[i].name,
                                       .test_func = sweep,
                                       .initial_state = (void *)(uintptr_t)&scenarios[i]};
    return cmocka_run_group_tests_name("repeated_failures", tests, NULL, NULL);
}
