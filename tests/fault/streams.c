/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over streams, captures and pools, including the driver calls of the scenarios and of memory functions.  No
 * failure invalidates a capture, so its end returns a graph.
 */
#include "tests/fault/fault_env.h"

#include <string.h>

#include "tests/support/driver_calls.h"

#define RETRY_DRIVER(env, call) \
    do {                        \
    } while (fault_retry_driver((env), (call)))

/* --- Parts of the scenarios. --- */

/* Push a context for the streams and events of the scenario. */
static void enter_context(struct fault_env *env)
{
    void *context = NULL;

    RETRY_DRIVER(env, cuDevicePrimaryCtxRetain(&context, 0));
    RETRY_DRIVER(env, cuCtxSetCurrent(context));
}

static void leave_context(struct fault_env *env)
{
    RETRY_DRIVER(env, cuCtxSetCurrent(NULL));
    RETRY_DRIVER(env, cuDevicePrimaryCtxRelease_v2(0));
}

static void begin_capture(struct fault_env *env, struct xseg_pool *pool, xseg_stream stream)
{
    FAULT_RETRY(env, xseg_capture_begin(pool, stream));
    RETRY_DRIVER(env, cuStreamBeginCapture_v2(stream, 0));
}

static void end_capture(struct fault_env *env, struct xseg_pool *pool, xseg_stream stream)
{
    struct CUgraph_st *graph = NULL;

    RETRY_DRIVER(env, cuStreamEndCapture(stream, &graph));
    assert_non_null(graph);
    RETRY_DRIVER(env, cuGraphDestroy(graph));
    FAULT_RETRY(env, xseg_capture_end(pool));
}

static void wait_for(struct fault_env *env, xseg_stream later, xseg_stream earlier)
{
    xseg_event event = NULL;

    RETRY_DRIVER(env, cuEventCreate(&event, 2));
    RETRY_DRIVER(env, cuEventRecord(event, earlier));
    RETRY_DRIVER(env, cuStreamWaitEvent(later, event, 0));
    RETRY_DRIVER(env, cuEventDestroy_v2(event));
}

/* Launch open-ended work on a block, and record its stream. */
static void launch_on(struct fault_env *env, void *ptr, size_t bytes, xseg_stream stream)
{
    fault_record_stream(env, ptr, stream);
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uint64_t)(uintptr_t)ptr, bytes),
                     XSEG_OK);
}

/* --- The scenarios. --- */

/* Blocks that were used before and during a capture are freed during the capture. */
static void capture_graph(struct fault_env *env)
{
    const xseg_stream side = env->side;
    xseg_stream joined = NULL;
    void *a = fault_alloc(env, 5 * MIB, NULL), *b = fault_alloc(env, 3 * MIB, NULL);

    enter_context(env);
    RETRY_DRIVER(env, cuStreamCreate(&joined, 1));
    struct xseg_pool *pool = fault_pool(env, NULL);
    launch_on(env, a, 5 * MIB, side);
    begin_capture(env, pool, side);
    wait_for(env, joined, side);
    void *c = fault_alloc(env, 7 * MIB, side);
    assert_ptr_equal(env_block(env->allocator, c).pool, pool);
    void *d = fault_alloc(env, 600, joined);
    assert_ptr_equal(env_block(env->allocator, d).pool, pool);
    fault_record_stream(env, b, side);
    fault_record_stream(env, c, joined);
    fault_free_and_trim(env, a, b, c);
    wait_for(env, side, joined);
    c = fault_alloc(env, 7 * MIB, side);
    a = fault_alloc(env, 40 * MIB, NULL);
    end_capture(env, pool, side);
    b = fault_alloc(env, 3 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    fault_free(env, c);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_trim(env, false);
    fault_free(env, a, b, d);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, joined));
    RETRY_DRIVER(env, cuStreamDestroy_v2(joined));
    fault_trim(env, true);
    leave_context(env);
}

static bool is_side(void *self, xseg_stream stream)
{
    const struct fault_env *env = self;

    return stream == env->side;
}

static void route_requests(struct fault_env *env)
{
    struct xseg_pool *pool = fault_pool(env, NULL);
    FAULT_RETRY(env, xseg_route_begin(pool, is_side, env));
    void *a = fault_alloc(env, 4 * MIB, env->side), *b = fault_alloc(env, 4 * MIB, NULL);
    assert_ptr_equal(env_block(env->allocator, a).pool, pool);
    assert_null(env_block(env->allocator, b).pool);
    fault_free(env, a);
    a = fault_alloc(env, 30 * MIB, env->side);
    FAULT_RETRY(env, xseg_route_end(pool));
    fault_free(env, b);
    fault_pool_end(env, pool);
    fault_free_and_trim(env, a);
}

/* A capture that is marked, with two routes: blocks that were used before and during the capture are freed during it. */
static void mark_capture(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 5 * MIB, NULL), *b, *c = NULL;
    struct CUgraph_st *graph = NULL;

    enter_context(env);
    struct xseg_pool *pool = fault_pool(env, NULL);
    launch_on(env, a, 5 * MIB, side);
    RETRY_DRIVER(env, cuStreamBeginCapture_v2(side, 0));
    FAULT_RETRY(env, xseg_capture_mark(env->allocator, 0));
    for (unsigned i = 0; i < 2; i++) {
        FAULT_RETRY(env, xseg_route_begin(pool, is_side, env));
        b = fault_alloc(env, 7 * MIB, side);
        c = fault_alloc(env, 600, side);
        assert_ptr_equal(env_block(env->allocator, b).pool, pool);
        fault_record_stream(env, b, side);
        fault_free_and_trim(env, i == 0 ? a : b);
        if (i == 0) {
            fault_free(env, b, c);
            FAULT_RETRY(env, xseg_route_end(pool));
        }
    }
    RETRY_DRIVER(env, cuStreamEndCapture(side, &graph));
    RETRY_DRIVER(env, cuGraphDestroy(graph));
    FAULT_RETRY(env, xseg_capture_unmark(env->allocator, 0));
    FAULT_RETRY(env, xseg_route_end(pool));
    b = fault_alloc(env, 3 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_trim(env, false);
    fault_free_and_trim(env, b, c);
    leave_context(env);
}

/* Sizes are multiples of 512, so fault_log_restored() can use the size of a restored block as its requested size. */
static void restore_checkpoint(struct fault_env *env)
{
    struct xseg_checkpoint *saved = NULL;

    enter_context(env);
    struct xseg_pool *pool = fault_pool(env, NULL);
    void *a = fault_alloc_in(env, pool, 12 * MIB, NULL), *b = fault_alloc_in(env, pool, 1024, NULL);
    void *c = fault_alloc_in(env, pool, 3 * MIB, env->side);
    launch_on(env, a, 12 * MIB, env->side);
    fault_free(env, a);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    FAULT_RETRY(env, xseg_pool_checkpoint(pool, &saved));
    fault_free(env, b);
    (void)fault_alloc_in(env, pool, 5 * MIB, NULL);
    (void)fault_alloc_in(env, pool, 90 * MIB, NULL);
    a = fault_alloc_in(env, pool, 512, env->side);
    launch_on(env, a, 512, NULL);
    fault_free(env, a);
    xseg_sim_finish_all();
    FAULT_RETRY(env, xseg_pool_restore(pool, saved, fault_log_restored, env));
    assert_int_equal(env->block_count, 2);
    xseg_checkpoint_destroy(saved);
    fault_free(env, b);
    fault_pool_end(env, pool);
    fault_free_and_trim(env, c);
    leave_context(env);
}

/* A stream is retired while its work uses its own block and another stream's block; a new stream reuses its memory. */
static void retire_streams(struct fault_env *env)
{
    xseg_stream first_stream = NULL, second_stream = NULL;

    enter_context(env);
    RETRY_DRIVER(env, cuStreamCreate(&first_stream, 1));
    void *a = fault_alloc(env, 5 * MIB, first_stream), *b = fault_alloc(env, 25 * MIB, NULL);
    void *c = fault_alloc(env, 2048, first_stream);
    launch_on(env, a, 5 * MIB, first_stream);
    launch_on(env, b, 25 * MIB, first_stream);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, first_stream));
    RETRY_DRIVER(env, cuStreamDestroy_v2(first_stream));
    fault_free(env, a, b);
    fault_trim(env, false);
    RETRY_DRIVER(env, cuStreamCreate(&second_stream, 1));
    a = fault_alloc(env, 5 * MIB, second_stream);
    xseg_sim_finish_all();
    b = fault_alloc(env, 25 * MIB, second_stream);
    fault_trim(env, false);
    fault_free(env, c);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, second_stream));
    RETRY_DRIVER(env, cuStreamDestroy_v2(second_stream));
    RETRY_DRIVER(env, cuStreamCreate(&second_stream, 1));
    c = fault_alloc(env, 4 * MIB, second_stream);
    fault_free(env, a, b, c);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, second_stream));
    RETRY_DRIVER(env, cuStreamDestroy_v2(second_stream));
    fault_trim(env, true);
    leave_context(env);
}

static void free_after(struct fault_env *env)
{
    xseg_event first_event = NULL, second_event = NULL;
    void *a = fault_alloc(env, 30 * MIB, NULL), *b = fault_alloc(env, 700, NULL);
    const xseg_event *events[] = {&first_event, &second_event};

    enter_context(env);
    RETRY_DRIVER(env, cuEventCreate(&first_event, 2));
    RETRY_DRIVER(env, cuEventCreate(&second_event, 2));
    RETRY_DRIVER(env, cuEventRecord(first_event, env->side));
    launch_on(env, a, 30 * MIB, env->side);
    RETRY_DRIVER(env, cuEventRecord(second_event, env->side));
    for (unsigned i = 0; i < 2; i++) {
        void *ptr = i == 0 ? b : a;
        xseg_status status;

        do {
            status = xseg_free_after(env->allocator, ptr, events[i], 1);
            if (status == XSEG_OK)
                fault_untrack(env, ptr);
        } while (fault_retry(env, status));
    }
    RETRY_DRIVER(env, cuEventDestroy_v2(first_event));
    RETRY_DRIVER(env, cuEventDestroy_v2(second_event));
    fault_trim(env, false);
    a = fault_alloc(env, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    b = fault_alloc(env, 30 * MIB, NULL);
    fault_free_and_trim(env, a, b);
    leave_context(env);
}

/* Memory functions of a pool, which call the driver. */
static void *memory_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    unsigned long long ptr = 0;

    (void)self, (void)stream;
    assert_int_equal(device, 0);
    /* NULL if the driver fails. */
    return cuMemAlloc_v2(&ptr, bytes) == 0
               ? (void *)(uintptr_t)ptr /* NOLINT(performance-no-int-to-ptr) */
               : NULL;
}

static void memory_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)bytes, (void)device, (void)stream;
    RETRY_DRIVER((struct fault_env *)self, cuMemFree_v2((uint64_t)(uintptr_t)ptr));
}

/* The number of pools whose on_destroy callback has not run; 0 between runs. */
static int pools_not_destroyed;

static void count_destroyed(void *context, const struct xseg_statistics *last)
{
    (void)context;
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].allocated,
                     last->reserved_bytes[XSEG_STAT_ALL].freed);
    pools_not_destroyed--;
}

static void use_memory_functions(struct fault_env *env)
{
    struct xseg_pool_options options = {sizeof(options)};

    enter_context(env);
    assert_int_equal(pools_not_destroyed, 0);
    options.memory = (struct xseg_pool_memory){memory_alloc, memory_free, env};
    options.id[1] = 7;
    options.on_destroy = count_destroyed;
    struct xseg_pool *pool = fault_pool(env, &options);
    pools_not_destroyed++;
    void *a = fault_alloc_in(env, pool, 12 * MIB, NULL);
    void *b = fault_alloc_in(env, pool, 4000, env->side);
    launch_on(env, a, 12 * MIB, env->side);
    fault_free(env, a);
    a = fault_alloc_in(env, pool, 60 * MIB, NULL);
    fault_trim(env, true);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_free_and_trim(env, a);
    fault_free(env, b);
    fault_trim(env, false);
    leave_context(env);
}

/* --- The sweep. --- */

static const struct {
    const char *name;
    fault_scenario run;
} scenarios[] = {
    {"capture", capture_graph},         {"route", route_requests},
    {"checkpoint", restore_checkpoint}, {"retired streams", retire_streams},
    {"free after", free_after},         {"memory functions", use_memory_functions},
    {"marked capture", mark_capture},
};

static void sweep(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        fault_sweep(scenarios[i].name, scenarios[i].run, &settings, config);
}

TEST(expandable_segments_survive_each_failure)
{
    sweep("expandable_segments:True");
}

TEST(classic_segments_survive_each_failure)
{
    sweep("expandable_segments:False");
}

TEST(reuse_in_captures_survives_each_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB, .real_bytes = true};

    fault_sweep("capture with contents", capture_graph, &settings,
                "expandable_segments:True,graph_capture_record_stream_reuse:True");
}

TEST(rollbacks_survive_a_second_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};
    uint64_t runs = 0;

    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        runs += fault_pairs(scenarios[i].run, &settings,
                            "expandable_segments:True,graph_capture_record_stream_reuse:True", 2);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}
