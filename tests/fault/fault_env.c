/* SPDX-License-Identifier: MIT */
#include "tests/fault/fault_env.h"

#include <stdio.h>
#include <string.h>

#include "src/core/device/device.h"
#include "src/core/instance/instance.h"
#include "src/core/pending/pending.h"
#include "tests/fault/host_faults.h"
#include "tests/support/driver_calls.h"
#include "tests/support/trim_due.h"

unsigned long long fault_access(int device, const void *address)
{
    const int location[] = {1 /* CU_MEM_LOCATION_TYPE_DEVICE */, device};
    unsigned long long flags = 0;

    /* Each of the two faults may fail this call of the test once, so the third attempt succeeds. */
    for (unsigned i = 0; i < 3; i++)
        if (cuMemGetAccess(&flags, location, (uintptr_t)address) == 0)
            return flags;
    fail_msg("%p is not mapped", address);
    return 0;
}

/* --- Checks after every call. --- */

/* The number of injected faults; all host faults count as one. */
static uint64_t faults_injected(void)
{
    return xseg_sim_fault_count(0) + xseg_sim_fault_count(1) + (host_fault_count() != 0);
}

static void expect_mapped(const struct xseg_block_info *info)
{
    /* Pages have 20 MiB in large segments and 2 MiB in small segments.  A short segment has one block: a guarded block, with
     * pages of 2 MiB, or a single page. */
    const uint64_t page = info->is_small || info->segment_bytes < 128 * MIB ? 2 * MIB : 20 * MIB;
    const char *const base = info->base, *const segment = info->segment_base;

    if (!info->is_expandable)
        return;
    for (const char *at = base; at < base + info->bytes;
         at = segment + ((uint64_t)(at - segment) / page + 1) * page)
        assert_int_equal(fault_access(0, at), ENV_READ_WRITE);
}

/* The value of a word of a block: unique, because it depends on the address. */
static uint64_t word_at(const uint64_t *word)
{
    return ((uint64_t)(uintptr_t)word + 1) * UINT64_C(0x9E3779B97F4A7C15);
}

/* The checked word at an offset: one word in each stride, or the last word of the block. */
static uint64_t *word_after(const struct fault_block *block, size_t offset)
{
    const size_t last = (block->bytes - sizeof(uint64_t)) & ~(sizeof(uint64_t) - 1);

    return (uint64_t *)(void *)((char *)block->ptr + (offset < last ? offset : last));
}

static size_t stride_of(const struct fault_env *env)
{
    return env->stride != 0 ? env->stride : 512 * KIB;
}

static void expect_contents(const struct fault_env *env, const struct fault_block *block)
{
    const size_t stride = stride_of(env);

    for (size_t at = 0; at < block->bytes + stride; at += stride)
        assert_int_equal(*word_after(block, at), word_at(word_after(block, at)));
}

static void write_contents(const struct fault_env *env, const struct fault_block *block)
{
    const size_t stride = stride_of(env);

    for (size_t at = 0; at < block->bytes + stride; at += stride)
        *word_after(block, at) = word_at(word_after(block, at));
}

static void expect_intact(struct fault_env *env)
{
    struct xseg_device *device = NULL;
    struct xseg_violation violation = {0};
    uint64_t requested = 0;

    if (env->allocator != NULL)
        device = xseg_allocator_open_device(env->allocator, 0);
    if (device == NULL)
        return;
    for (unsigned i = 0; i < env->block_count; i++) {
        const struct xseg_block_info info = env_block(env->allocator, env->blocks[i].ptr);

        assert_int_equal(info.state, XSEG_BLOCK_ALLOCATED);
        assert_ptr_equal(info.base, env->blocks[i].ptr);
        assert_int_equal(info.requested, env->blocks[i].bytes);
        requested += env->blocks[i].bytes;
        if (env->paused_pool != NULL && info.pool == env->paused_pool)
            continue;
        expect_mapped(&info);
        if (env->has_contents)
            expect_contents(env, &env->blocks[i]);
    }
    assert_int_equal(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_ALLOCATION).current,
        env->block_count);
    assert_true(
        xseg_totals_read(&device->totals, XSEG_STAT_ALL, XSEG_COUNT_REQUESTED_BYTES).current >=
        requested);
    /* All runs of a scenario are equal until the first fault, so the audit would repeat the results of another run. */
    if (faults_injected() > 0 && !xseg_device_audit(device, &violation))
        fail_msg("%s: %s", violation.tag, violation.text);
}

bool fault_retry(struct fault_env *env, xseg_status status)
{
    char text[1024];

    if (env->check != NULL)
        env->check(env);
    host_fault_suspend(true);
    expect_intact(env);
    host_fault_suspend(false);
    if (status == XSEG_OK)
        return false;
    if (host_fault_count() != 0 && status != XSEG_ERR_HOST_MEMORY)
        fail_msg("an error of host memory is reported as %s", xseg_status_name(status));
    host_fault_clear();
    assert_true(xseg_error_message(text, sizeof(text)) > 0);
    if (faults_injected() <= env->failures++)
        fail_msg("failed without a fault: %s", text);
    return true;
}

bool fault_failed(struct fault_env *env, xseg_status status)
{
    char text[1024];

    expect_intact(env);
    if (status == XSEG_OK)
        return false;
    assert_true(xseg_error_message(text, sizeof(text)) > 0);
    if (faults_injected() == 0)
        fail_msg("failed without a fault: %s", text);
    return true;
}

bool fault_retry_driver(struct fault_env *env, int result)
{
    if (result == 0)
        return false;
    if (faults_injected() <= env->failures++)
        fail_msg("a driver call failed without a fault: %d", result);
    return true;
}

/* --- The calls. --- */

void fault_track(struct fault_env *env, void *ptr, size_t bytes)
{
    assert_true(env->block_count < FAULT_BLOCKS_MAX);
    env->blocks[env->block_count] = (struct fault_block){ptr, bytes};
    if (env->has_contents)
        write_contents(env, &env->blocks[env->block_count]);
    env->block_count++;
}

void fault_untrack(struct fault_env *env, const void *ptr)
{
    unsigned i = 0;

    while (env->blocks[i].ptr != ptr)
        i++;
    env->blocks[i] = env->blocks[--env->block_count];
}

void fault_log_restored(void *env, void *ptr, bool freed)
{
    const struct fault_env *self = env;

    if (freed)
        fault_untrack(env, ptr);
    else
        fault_track(env, ptr, env_block(self->allocator, ptr).bytes);
}

static void *alloc_request(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                           xseg_stream stream, bool zeroed)
{
    struct xseg_request request = {sizeof(request), .bytes = bytes,   .stream = stream,
                                   .pool = pool,    .zeroed = zeroed, .user = env};
    void *ptr = NULL;
    xseg_status status;

    do {
        status = xseg_alloc_with(env->allocator, &request, &ptr);
        if (status == XSEG_OK)
            fault_track(env, ptr, bytes);
    } while (fault_retry(env, status));
    return ptr;
}

void *fault_alloc_in(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                     xseg_stream stream)
{
    return alloc_request(env, pool, bytes, stream, false);
}

void *fault_alloc_zeroed(struct fault_env *env, struct xseg_pool *pool, size_t bytes,
                         xseg_stream stream)
{
    return alloc_request(env, pool, bytes, stream, true);
}

void *fault_alloc(struct fault_env *env, size_t bytes, xseg_stream stream)
{
    return fault_alloc_in(env, NULL, bytes, stream);
}

static void free_block(struct fault_env *env, void *ptr)
{
    xseg_status status;

    do {
        status = xseg_free(env->allocator, ptr);
        if (status == XSEG_OK)
            fault_untrack(env, ptr);
    } while (fault_retry(env, status));
}

void fault_free_all(struct fault_env *env, void *const *blocks, size_t bytes)
{
    for (size_t i = 0; i < bytes / sizeof(*blocks); i++)
        free_block(env, blocks[i]);
}

struct xseg_pool *fault_pool(struct fault_env *env, const struct xseg_pool_options *options)
{
    struct xseg_pool *pool = NULL;

    FAULT_RETRY(env, xseg_pool_create(env->allocator, 0, options, &pool));
    return pool;
}

void fault_pool_end(struct fault_env *env, struct xseg_pool *pool)
{
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_trim(env, true);
}

bool fault_rollback_failed(void)
{
    char text[1024];

    (void)xseg_error_message(text, sizeof(text));
    return strstr(text, "because the rollback failed") != NULL;
}

void fault_record_stream(struct fault_env *env, void *ptr, xseg_stream stream)
{
    FAULT_RETRY(env, xseg_record_stream(env->allocator, ptr, stream));
}

void fault_trim(struct fault_env *env, bool wait)
{
    struct xseg_trim_options options = {sizeof(options), .wait = wait};

    FAULT_RETRY(env, xseg_trim(env->allocator, NULL, &options, NULL));
}

void fault_configure(struct fault_env *env, const char *config)
{
    FAULT_RETRY(env, xseg_config_set(env->allocator, config));
}

void fault_advance(struct fault_env *env, uint64_t milliseconds)
{
    xseg_sim_advance(milliseconds * 1000000);
    FAULT_RETRY(env, trim_due(env->allocator, UINT64_MAX));
}

/* --- Running. --- */

static void open_allocator(struct fault_env *env, const char *config)
{
    struct xseg_options options = {sizeof(options), .driver = env_driver(), .log = env_no_log};

    options.clock = env_clock; /* makes runs repeatable */
    FAULT_RETRY(env, xseg_open(config, &options, &env->allocator));
}

/* `baseline` is the number of driver resources that the environment itself holds. */
static void expect_resources(size_t baseline)
{
    char text[1024];

    if (xseg_sim_leaks(text, sizeof(text)) != baseline)
        fail_msg("leaked driver resources: %s", text);
}

static void close_allocator(struct fault_env *env)
{
    xseg_status status;

    do
        status = xseg_close(env->allocator);
    while (status != XSEG_OK && fault_retry(env, status));
}

/* The library must not report a fill or copy that failed as a write after free. */
static void expect_no_write_after_free(struct fault_env *env)
{
    struct xseg_device *device = xseg_allocator_open_device(env->allocator, 0);

    if (device != NULL)
        assert_int_equal(atomic_load(&device->overwrites), 0);
}

/* The faults of a run; a fault whose nth is 0 is not injected. */
static struct {
    struct xseg_sim_fault driver[2];
    uint64_t host_nth;
    bool host_onward;
} faults;

/* In a suite, the scenario calls faults_begin(), and no run may leave an open file descriptor. */
static bool is_suite, has_run;

struct xseg_sim_fault fault_nth_call(uint64_t nth, int error)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;

    fault.nth = nth;
    fault.error = error;
    return fault;
}

void faults_begin(void)
{
    for (unsigned i = 0; i < COUNT_OF(faults.driver); i++)
        assert_ok(xseg_sim_fault_set(i, faults.driver[i].nth != 0 ? &faults.driver[i] : NULL));
    host_fault_set(faults.host_nth, faults.host_onward);
}

void faults_end(void)
{
    host_fault_clear();
    for (unsigned i = 0; i < COUNT_OF(faults.driver); i++)
        assert_ok(xseg_sim_fault_set(i, NULL));
}

bool fault_run(fault_scenario scenario, const struct xseg_sim_settings *settings,
               const char *config, struct xseg_sim_fault first, struct xseg_sim_fault second)
{
    struct fault_env env = {.has_contents = settings->real_bytes};
    const unsigned open_fds = env_open_fds();

    faults.driver[0] = first;
    faults.driver[1] = second;
    assert_ok(xseg_sim_reset(settings));
    env.side = env_stream();
    const size_t baseline = xseg_sim_leaks(NULL, 0);
    if (is_suite)
        host_fault_set(0, false);
    else
        faults_begin();
    open_allocator(&env, config);
    scenario(&env);
    expect_no_write_after_free(&env);
    close_allocator(&env);
    const bool is_injected = xseg_sim_fault_count(second.nth != 0 ? 1 : 0) != 0;
    faults_end();
    /* The retained context keeps events and streams alive. */
    expect_resources(baseline);
    env_stream_destroy(env.side);
    expect_resources(0);
    /* The first run opens files of the simulated machine, which remain open. */
    if (is_suite && has_run)
        assert_int_equal(env_open_fds(), open_fds);
    has_run = true;
    return is_injected;
}

/* --- Sweeps. --- */

/* Builds with a sanitizer, which are slow, test only the last error. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FIRST_ERROR 2u
#else
#define FIRST_ERROR 0u
#endif

/* Fail every driver call once; returns the number of calls. */
static uint64_t sweep_driver(fault_scenario scenario, const struct xseg_sim_settings *settings,
                             const char *config, int error)
{
    const struct xseg_sim_fault none = fault_nth_call(0, error);
    uint64_t n = 1;

    for (; fault_run(scenario, settings, config, fault_nth_call(n, error), none); n++)
        assert_true(n < 100000);
    return n - 1;
}

void fault_sweep(const char *name, fault_scenario scenario,
                 const struct xseg_sim_settings *settings, const char *config)
{
    /* CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN. */
    static const int errors[] = {1, 2, 999};
    uint64_t calls = 0;

    /* Real contents make runs slow, so only the last error is tested. */
    for (unsigned i = settings->real_bytes ? 2 : FIRST_ERROR; i < COUNT_OF(errors); i++)
        calls = sweep_driver(scenario, settings, config, errors[i]);
    print_message("# %s: %u driver calls\n", name, (unsigned)calls);
    assert_true(calls >= 20);
    assert_true(fault_sweep_host(name, scenario, settings, config) >= 10);
}

uint64_t fault_sweep_host(const char *name, fault_scenario scenario,
                          const struct xseg_sim_settings *settings, const char *config)
{
    const struct xseg_sim_fault none = fault_nth_call(0, 1);
    uint64_t n = 0;

    for (unsigned onward = 0; onward < 2; onward++) {
        faults.host_onward = onward;
        for (n = 1; n < 100000; n++) {
            faults.host_nth = n;
            (void)fault_run(scenario, settings, config, none, none);
            if (host_fault_count() == 0)
                break;
        }
    }
    faults.host_nth = 0;
    host_fault_set(0, false);
    print_message("# %s: %u calls of the host\n", name, (unsigned)(n - 1));
    return n - 1;
}

/*
 * The second fault is in the rollback of the first one.  It is not CUDA_ERROR_INVALID_VALUE, which denotes an unmapped
 * address.
 */
uint64_t fault_pairs(fault_scenario scenario, const struct xseg_sim_settings *settings,
                     const char *config, uint64_t distance)
{
    uint64_t pairs = 0;

    for (uint64_t delay = 1; delay <= distance; delay++)
        for (uint64_t n = 1; fault_run(scenario, settings, config, fault_nth_call(n, 999),
                                       fault_nth_call(n + delay, 999));
             n++)
            pairs++;
    return pairs;
}

uint64_t fault_partial_batches(fault_scenario scenario, const struct xseg_sim_settings *settings,
                               const char *config)
{
    static const char *const calls[] = {"cuMemUnmap", "cuMemSetAccess"};
    uint64_t runs = 0;

    for (unsigned call = 0; call < COUNT_OF(calls); call++)
        for (uint64_t mappings = 1; mappings <= 3; mappings++) {
            struct xseg_sim_fault fault = fault_nth_call(1, 999);

            fault.call = calls[call];
            fault.halfway = mappings;
            for (; fault_run(scenario, settings, config, fault, fault_nth_call(0, 1)); fault.nth++)
                runs++;
        }
    return runs;
}

/* --- Suites. --- */

static struct xseg_sim_settings suite_settings(bool single_mapping_calls)
{
    const struct xseg_sim_settings settings = {
        sizeof(settings),    .devices = 2,       .fabric = true,
        .memory_bytes = GIB, .real_bytes = true, .single_mapping_calls = single_mapping_calls};

    return settings;
}

static void calls_survive_each_failure(void **state)
{
    /* Errors as in fault_sweep(), and whether the driver rejects calls for several mappings. */
    static const struct {
        int error;
        bool single_mapping_calls;
    } rounds[] = {{999, false}, {999, true}, {2, false}, {1, false}};
    const struct fault_suite *suite = *state;

    for (size_t i = 0; i < suite->count; i++) {
        const struct fault_suite_scenario *scenario = &suite->scenarios[i];
        uint64_t calls = 0;

        for (unsigned round = 0; round < scenario->rounds; round++) {
            const struct xseg_sim_settings settings =
                suite_settings(rounds[round].single_mapping_calls);

            calls = sweep_driver(scenario->run, &settings, suite->config, rounds[round].error);
        }
        print_message("# %s: %u driver calls\n", scenario->name, (unsigned)calls);
        assert_true(calls >= 20);
    }
}

static void calls_survive_host_failures(void **state)
{
    const struct xseg_sim_settings settings = suite_settings(false);
    const struct fault_suite *suite = *state;

    for (size_t i = 0; i < suite->count; i++)
        (void)fault_sweep_host(suite->scenarios[i].name, suite->scenarios[i].run, &settings,
                               suite->config);
}

static void rollbacks_survive_a_second_failure(void **state)
{
    const struct fault_suite *suite = *state;
    uint64_t pairs = 0;

    for (size_t i = 0; i < suite->count; i++)
        for (unsigned single_mapping_calls = 0; single_mapping_calls < 2; single_mapping_calls++) {
            const struct xseg_sim_settings settings = suite_settings(single_mapping_calls != 0);

            pairs += fault_pairs(suite->scenarios[i].run, &settings, suite->config,
                                 suite->scenarios[i].distance);
        }
    print_message("# %u pairs\n", (unsigned)pairs);
    assert_true(pairs > suite->min_pairs);
}

static void partial_batches_are_rolled_back(void **state)
{
    const struct xseg_sim_settings settings = suite_settings(false);
    const struct fault_suite *suite = *state;

    assert_true(fault_partial_batches(suite->batch_scenario, &settings, suite->config) > 10);
}

int fault_suite_run(const struct fault_suite *suite)
{
    void *state = (void *)(uintptr_t)suite;
    const struct xseg_sim_settings settings = suite_settings(false);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(calls_survive_host_failures, state),
        cmocka_unit_test_prestate(calls_survive_each_failure, state),
        cmocka_unit_test_prestate(rollbacks_survive_a_second_failure, state),
        cmocka_unit_test_prestate(partial_batches_are_rolled_back, state),
    };

    is_suite = true;
    (void)fault_run(suite->batch_scenario, &settings, suite->config, fault_nth_call(0, 1),
                    fault_nth_call(0, 1));
    return cmocka_run_group_tests_name(suite->name, tests, NULL, NULL);
}
