/* SPDX-License-Identifier: MIT */
/*
 * Random programs against the simplest model: an array of the allocated blocks.  Three streams, two devices, two
 * private pools, uses on other streams, trims, reconfiguration; sometimes the device is so small that requests fail.
 * After every step the audits of all modules pass, no two allocated blocks overlap, and the counts of allocated
 * memory are the model's.
 */
#include "tests/support/env.h"
#include "tests/support/random_program.h"
#include "tests/support/trim_due.h"

#include "src/core/device/device.h"
#include "src/core/instance/instance.h"

#define DEVICES    2
#define STREAMS    3u
#define BLOCKS_MAX 400u

struct block {
    char *ptr;
    size_t bytes;
    int device;
    uint64_t allocated_ns;
};

struct env {
    struct xseg_allocator *allocator;
    xseg_stream stream[STREAMS];
    struct xseg_pool *pool[DEVICES];
    struct block block[BLOCKS_MAX];
    unsigned count;
    bool is_service; /* decay releases memory, and limits change */
    bool has_ages;
    uint64_t memory;   /* of each device */
    uint64_t external; /* memory of device 0 that other processes use */
    uint64_t free_min; /* device_free_min_mb in bytes */
};

static uint64_t seed_state;

static uint64_t below(uint64_t bound)
{
    return rng_next(&seed_state) % bound;
}

static size_t random_bytes(void)
{
    static const size_t max_bytes[] = {4 * KIB, MIB, 10 * MIB, 60 * MIB};
    const uint64_t kind = below(5);

    return kind < COUNT_OF(max_bytes) ? 1 + below(max_bytes[kind]) : (size_t)512 << below(18);
}

/* --- Checks. --- */

static int by_address(const void *a, const void *b)
{
    const struct block *first = a, *second = b;

    return first->ptr < second->ptr ? -1 : first->ptr > second->ptr;
}

static void expect_disjoint_blocks(struct env *env)
{
    qsort(env->block, env->count, sizeof(env->block[0]), by_address);
    for (unsigned i = 1; i < env->count; i++)
        assert_true(env->block[i - 1].ptr + env->block[i - 1].bytes <= env->block[i].ptr);
}

static void expect_counts(struct env *env, int device)
{
    struct xseg_device *opened = xseg_allocator_open_device(env->allocator, device);
    struct xseg_violation violation = {0};
    uint64_t count = 0;

    for (unsigned i = 0; i < env->count; i++)
        count += env->block[i].device == device;
    if (opened == NULL) {
        assert_int_equal(count, 0);
        return;
    }
    assert_int_equal(
        xseg_totals_read(&opened->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current, count);
    if (!xseg_device_audit(opened, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

static void expect_block(struct env *env)
{
    const struct block *block = &env->block[below(env->count)];
    const struct xseg_block_info info = env_block(env->allocator, block->ptr + below(block->bytes));

    assert_ptr_equal(info.base, block->ptr);
    assert_int_equal(info.requested, block->bytes);
    assert_true(info.bytes >= block->bytes);
    assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
    assert_int_equal(info.device, block->device);
    /* The age is accurate to 20 ms. */
    if (env->has_ages)
        assert_in_range(info.age_ms + 20, (xseg_sim_clock() - block->allocated_ns) / 1000000,
                        (xseg_sim_clock() - block->allocated_ns) / 1000000 + 40);
    else
        assert_true(info.age_ms == UINT64_MAX);
}

/* Expect that memory was mapped only if device_free_min_mb remains free.  before: used bytes of each device */
static void expect_free_memory(const struct env *env, const uint64_t *before)
{
    for (unsigned device = 0; device < DEVICES; device++) {
        const uint64_t used = xseg_sim_used(device);

        if (used > before[device])
            assert_true(used + (device == 0 ? env->external : 0) + env->free_min <= env->memory);
    }
}

/* --- The steps. --- */

static void step_alloc(struct env *env)
{
    struct xseg_request request = {sizeof(request)};
    void *ptr = NULL;

    if (env->count == BLOCKS_MAX)
        return;
    request.device = (int)below(4) / 3;
    request.bytes = random_bytes();
    request.stream = request.device == 0 ? env->stream[below(STREAMS)] : NULL;
    request.pool = below(5) == 0 ? env->pool[request.device] : NULL;
    request.alignment = below(6) == 0 ? (size_t)1 << below(24) : 0;
    const xseg_status status = xseg_alloc_with(env->allocator, &request, &ptr);
    if (status == XSEG_ERR_NO_MEMORY || status == XSEG_ERR_LIMIT)
        return;
    assert_ok(status);
    if (request.alignment != 0)
        assert_int_equal((uintptr_t)ptr % request.alignment, 0);
    env->block[env->count++] = (struct block){ptr, request.bytes, request.device, xseg_sim_clock()};
}

static void step_free(struct env *env)
{
    if (env->count == 0)
        return;
    const unsigned i = (unsigned)below(env->count);
    char *ptr = env->block[i].ptr;

    env_free(env->allocator, ptr);
    env->block[i] = env->block[--env->count];
    assert_int_equal(xseg_free(env->allocator, ptr), XSEG_ERR_NOT_ALLOCATED);
}

static void step_record_stream(struct env *env)
{
    if (env->count == 0)
        return;
    const struct block *block = &env->block[below(env->count)];
    const xseg_stream stream = env->stream[below(STREAMS)];

    if (block->device != 0)
        return;
    /* No work for the default stream: it belongs to the current context, and no context is current. */
    if (stream != NULL)
        assert_ok(xseg_sim_launch(stream, below(2) == 0 ? UINT64_MAX : 1000));
    assert_ok(xseg_record_stream(env->allocator, block->ptr, stream));
}

static void step_trim(struct env *env)
{
    struct xseg_trim_result result = {sizeof(result)};
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    const struct xseg_trim_options options = {sizeof(options), .wait = below(2) == 0};

    scope.device = (int)below(3) - 1;
    if (below(3) == 0 && scope.device == 0) {
        scope.one_stream = true;
        scope.stream = env->stream[below(STREAMS)];
    }
    assert_ok(xseg_trim(env->allocator, &scope, &options, &result));
    if (options.wait)
        assert_int_equal(result.kept_busy, 0);
    assert_int_equal(result.kept_failed, 0);
}

static void step_prewarm(struct env *env)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;

    scope.device = (int)below(2);
    const xseg_status status = xseg_prewarm(env->allocator, &scope, random_bytes());
    if (status != XSEG_ERR_NO_MEMORY && status != XSEG_ERR_LIMIT)
        assert_ok(status);
}

static void step_configure(struct env *env)
{
    static const char *const config[] = {
        "expandable_segments:True",
        "expandable_segments:False",
        "expandable_segments:False,max_split_size_mb:30",
        "expandable_segments:True,large_segment_size_mb:24",
        "expandable_segments:True,large_segment_size_mb:20,roundup_power2_divisions:4",
    };

    assert_ok(xseg_config_set(env->allocator, config[below(COUNT_OF(config))]));
}

/* Advance the clock, change the configuration and the memory that others use, and release the memory that is due. */
static void step_service(struct env *env)
{
    static const char *const config[] = {
        "keep_mb:0,soft_limit_mb:100",
        "soft_limit_mb:400,keep_mb:50",
        "idle_ms:0,page_cache_mb:64",
        "idle_ms:20,keep_window_s:1",
        "page_cache_mb:0,device_free_min_mb:300",
        "hard_limit_mb:440,reclaim_us_per_s:1000000",
        "hard_limit_mb:100000,device_free_min_mb:0",
        "idle_ms:-1",
    };

    xseg_sim_advance(below(200) * 1000000);
    if (below(8) == 0) {
        const char *const string = config[below(COUNT_OF(config))];
        const char *const free_min_value = strstr(string, "device_free_min_mb:");

        assert_ok(xseg_config_set(env->allocator, string));
        if (free_min_value != NULL)
            env->free_min =
                strtoull(free_min_value + strlen("device_free_min_mb:"), NULL, 10) * MIB;
    }
    if (below(8) == 0) {
        env->external = below(100) * 2 * MIB;
        assert_ok(xseg_sim_set_external_memory(0, env->external));
    }
    if (below(2) == 0)
        assert_ok(trim_due(env->allocator, 1 + below(1000)));
    for (int i = 0; i < DEVICES; i++) {
        const struct xseg_device *device = xseg_allocator_open_device(env->allocator, i);

        if (device != NULL)
            assert_int_equal(xseg_device_physical(device), xseg_sim_used((unsigned)i));
    }
}

static void step(struct env *env)
{
    const uint64_t action = below(100);
    /* Phases of filling and draining create unmapped ranges. */
    const bool fills = program.step / 100 % 2 == 0;

    if (env->is_service && below(4) == 0)
        step_service(env);
    if (action < (fills ? 60u : 30u))
        step_alloc(env);
    else if (action < 85)
        step_free(env);
    else if (action < 91)
        step_record_stream(env);
    else if (action < 94)
        xseg_sim_finish_all();
    else if (action < 97)
        step_trim(env);
    else if (action < 98)
        step_prewarm(env);
    else
        step_configure(env);
}

/* divisor: of the number of steps */
static void run_program(const char *config, bool real_bytes, uint64_t seed, uint64_t memory,
                        unsigned divisor)
{
    const unsigned long steps = program_number("XSEG_TEST_STEPS", 1500) / divisor;
    const struct xseg_sim_settings settings = {sizeof(settings), .devices = DEVICES,
                                               .memory_bytes = memory, .real_bytes = real_bytes};
    struct env env = {.allocator = env_open_quietly(&settings, config),
                      .is_service = strstr(config, "idle_ms") != NULL,
                      .has_ages = strstr(config, "history:") != NULL,
                      .memory = memory};
    uint64_t used[DEVICES];

    program.seed = seed_state = seed;
    for (unsigned i = 1; i < STREAMS; i++)
        env.stream[i] = env_stream();
    for (int i = 0; i < DEVICES; i++)
        assert_ok(xseg_pool_create(env.allocator, i, NULL, &env.pool[i]));
    for (program.step = 0; program.step < steps; program.step++) {
        for (unsigned device = 0; device < DEVICES; device++)
            used[device] = xseg_sim_used(device);
        step(&env);
        expect_free_memory(&env, used);
        expect_disjoint_blocks(&env);
        if (env.count > 0)
            expect_block(&env);
        for (int device = 0; device < DEVICES; device++)
            expect_counts(&env, device);
    }
    assert_int_equal(env_stats(env.allocator).overwrites, 0);
    assert_ok(xseg_pool_release(env.pool[0]));
    while (env.count > 0)
        env_free(env.allocator, env.block[--env.count].ptr);
    env_close(env.allocator, env.stream[1], env.stream[2]);
    program.seed = 0;
}

TEST_PROGRAM(programs_match_the_model)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_program("expandable_segments:True", false, seed * 7919, 16 * GIB, 1);
}

TEST_PROGRAM(programs_with_little_memory_match_the_model)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_program("expandable_segments:True", false, seed * 104729, 512 * MIB, 1);
}

/* With real bytes the checks of the debug fill read every block, which takes longer: a tenth of the steps. */
TEST_PROGRAM(programs_with_debug_fill_match_the_model)
{
    run_program("debug_fill:True,history:all", false, 15485863, 512 * MIB, 1);
    run_program("debug_fill:True", true, 32452843, 256 * MIB, 10);
}

TEST_PROGRAM(programs_with_guarded_blocks_match_the_model)
{
    run_program("unmap_on_free:True", false, 49979687, 16 * GIB, 1);
    run_program("guard_page:True,debug_fill:True", false, 67867967, 512 * MIB, 1);
}

TEST_PROGRAM(programs_with_decay_and_limits_match_the_model)
{
    for (uint64_t seed = 1; seed <= 4; seed++)
        run_program("idle_ms:50,page_cache_mb:40", false, seed * 86028121,
                    seed % 2 == 0 ? 512 * MIB : 16 * GIB, 1);
    run_program("idle_ms:50,unmap_on_free:True", false, 86028157, 512 * MIB, 1);
}

TEST_PROGRAM(programs_with_ages_match_the_model)
{
    for (uint64_t seed = 1; seed <= 2; seed++) {
        run_program("idle_ms:50,history:state", false, seed * 122949823, 512 * MIB, 1);
        run_program("idle_ms:50,history:state,unmap_on_free:True", false, seed * 141650939,
                    16 * GIB, 2);
    }
}
