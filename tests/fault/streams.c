/* SPDX-License-Identifier: MIT */
/*
 * Fault sweep over streams, captures and pools, including the driver calls of the scenarios and of custom memory
 * functions.  A capture that is still valid yields a graph, whatever failed.
 */
#include "tests/fault/fault_env.h"

#include <string.h>

#include "tests/support/driver_calls.h"

#define OWN(env, call) \
    do {               \
    } while (fault_retry_driver((env), (call)))

/* --- Parts of the scenarios. --- */

/* Push a context for the streams and events of the scenario. */
static void enter_context(struct fault_env *env)
{
    void *context = NULL;

    OWN(env, cuDevicePrimaryCtxRetain(&context, 0));
    OWN(env, cuCtxSetCurrent(context));
}

static void leave_context(struct fault_env *env)
{
    OWN(env, cuCtxSetCurrent(NULL));
    OWN(env, cuDevicePrimaryCtxRelease_v2(0));
}

static void begin_capture(struct fault_env *env, struct xseg_pool *pool, xseg_stream stream)
{
    FAULT_RETRY(env, xseg_capture_begin(pool, stream));
    OWN(env, cuStreamBeginCapture_v2(stream, 0));
}

static void end_capture(struct fault_env *env, struct xseg_pool *pool, xseg_stream stream)
{
    struct CUgraph_st *graph = NULL;

    OWN(env, cuStreamEndCapture(stream, &graph));
    assert_non_null(graph);
    OWN(env, cuGraphDestroy(graph));
    FAULT_RETRY(env, xseg_capture_end(pool));
}

static void wait_for(struct fault_env *env, xseg_stream later, xseg_stream earlier)
{
    xseg_event event = NULL;

    OWN(env, cuEventCreate(&event, 2));
    OWN(env, cuEventRecord(event, earlier));
    OWN(env, cuStreamWaitEvent(later, event, 0));
    OWN(env, cuEventDestroy_v2(event));
}

/* Launch open-ended work on a block, and record its stream. */
static void work(struct fault_env *env, void *ptr, size_t bytes, xseg_stream stream)
{
    fault_record_stream(env, ptr, stream);
    assert_int_equal(xseg_sim_launch_on(stream, UINT64_MAX, (uint64_t)(uintptr_t)ptr, bytes),
                     XSEG_OK);
}

/* --- The scenarios. --- */

/* Blocks that were used before and in a capture are freed in it. */
static void capture(struct fault_env *env)
{
    const xseg_stream side = env->side;
    xseg_stream joined = NULL;
    void *a = fault_alloc(env, 5 * MIB, NULL), *b = fault_alloc(env, 3 * MIB, NULL);

    enter_context(env);
    OWN(env, cuStreamCreate(&joined, 1));
    struct xseg_pool *pool = fault_pool(env, NULL);
    work(env, a, 5 * MIB, side);
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
    OWN(env, cuStreamDestroy_v2(joined));
    fault_trim(env, true);
    leave_context(env);
}

static bool is_side(void *self, xseg_stream stream)
{
    const struct fault_env *env = self;

    return stream == env->side;
}

static void route(struct fault_env *env)
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

/* A capture that is marked, and routed in two parts: blocks that were used before and in it are freed in it. */
static void marked(struct fault_env *env)
{
    const xseg_stream side = env->side;
    void *a = fault_alloc(env, 5 * MIB, NULL), *b, *c = NULL;
    struct CUgraph_st *graph = NULL;

    enter_context(env);
    struct xseg_pool *pool = fault_pool(env, NULL);
    work(env, a, 5 * MIB, side);
    OWN(env, cuStreamBeginCapture_v2(side, 0));
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
    OWN(env, cuStreamEndCapture(side, &graph));
    OWN(env, cuGraphDestroy(graph));
    FAULT_RETRY(env, xseg_capture_unmark(env->allocator, 0));
    FAULT_RETRY(env, xseg_route_end(pool));
    b = fault_alloc(env, 3 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    FAULT_RETRY(env, xseg_pool_release(pool));
    fault_trim(env, false);
    fault_free_and_trim(env, b, c);
    leave_context(env);
}

/* Sizes are multiples of 512, so the requested size of a restored block is its full size. */
static void checkpoint(struct fault_env *env)
{
    struct xseg_checkpoint *saved = NULL;

    enter_context(env);
    struct xseg_pool *pool = fault_pool(env, NULL);
    void *a = fault_alloc_in(env, pool, 12 * MIB, NULL), *b = fault_alloc_in(env, pool, 1024, NULL);
    void *c = fault_alloc_in(env, pool, 3 * MIB, env->side);
    work(env, a, 12 * MIB, env->side);
    fault_free(env, a);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    FAULT_RETRY(env, xseg_pool_checkpoint(pool, &saved));
    fault_free(env, b);
    (void)fault_alloc_in(env, pool, 5 * MIB, NULL);
    (void)fault_alloc_in(env, pool, 90 * MIB, NULL);
    a = fault_alloc_in(env, pool, 512, env->side);
    work(env, a, 512, NULL);
    fault_free(env, a);
    xseg_sim_finish_all();
    FAULT_RETRY(env, xseg_pool_restore(pool, saved, fault_log_restored, env));
    assert_int_equal(env->count, 2);
    xseg_checkpoint_destroy(saved);
    fault_free(env, b);
    fault_pool_end(env, pool);
    fault_free_and_trim(env, c);
    leave_context(env);
}

/* A stream is retired with queued work on its blocks and with uses; another stream reuses its memory. */
static void retire(struct fault_env *env)
{
    xseg_stream old = NULL, new = NULL;

    enter_context(env);
    OWN(env, cuStreamCreate(&old, 1));
    void *a = fault_alloc(env, 5 * MIB, old), *b = fault_alloc(env, 25 * MIB, NULL);
    void *c = fault_alloc(env, 2048, old);
    work(env, a, 5 * MIB, old);
    work(env, b, 25 * MIB, old);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, old));
    OWN(env, cuStreamDestroy_v2(old));
    fault_free(env, a, b);
    fault_trim(env, false);
    OWN(env, cuStreamCreate(&new, 1));
    a = fault_alloc(env, 5 * MIB, new);
    xseg_sim_finish_all();
    b = fault_alloc(env, 25 * MIB, new);
    fault_trim(env, false);
    fault_free(env, c);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, new));
    OWN(env, cuStreamDestroy_v2(new));
    OWN(env, cuStreamCreate(&new, 1));
    c = fault_alloc(env, 4 * MIB, new);
    fault_free(env, a, b, c);
    FAULT_RETRY(env, xseg_stream_retire(env->allocator, 0, new));
    OWN(env, cuStreamDestroy_v2(new));
    fault_trim(env, true);
    leave_context(env);
}

static void free_after(struct fault_env *env)
{
    xseg_event early = NULL, late = NULL;
    void *a = fault_alloc(env, 30 * MIB, NULL), *b = fault_alloc(env, 700, NULL);
    const xseg_event *events[] = {&early, &late};

    enter_context(env);
    OWN(env, cuEventCreate(&early, 2));
    OWN(env, cuEventCreate(&late, 2));
    OWN(env, cuEventRecord(early, env->side));
    work(env, a, 30 * MIB, env->side);
    OWN(env, cuEventRecord(late, env->side));
    for (unsigned i = 0; i < 2; i++) {
        void *ptr = i == 0 ? b : a;
        xseg_status status;

        do {
            status = xseg_free_after(env->allocator, ptr, events[i], 1);
            if (status == XSEG_OK)
                fault_untrack(env, ptr);
        } while (fault_retry(env, status));
    }
    OWN(env, cuEventDestroy_v2(early));
    OWN(env, cuEventDestroy_v2(late));
    fault_trim(env, false);
    a = fault_alloc(env, 30 * MIB, NULL);
    assert_int_equal(xseg_sim_finish(env->side), XSEG_OK);
    b = fault_alloc(env, 30 * MIB, NULL);
    fault_free_and_trim(env, a, b);
    leave_context(env);
}

/* Custom memory functions of a pool, which call the driver. */
static void *own_alloc(void *self, size_t bytes, int device, xseg_stream stream)
{
    unsigned long long ptr = 0;

    (void)self, (void)stream;
    assert_int_equal(device, 0);
    /* NULL if the driver fails. */
    return cuMemAlloc_v2(&ptr, bytes) == 0
               ? (void *)(uintptr_t)ptr /* NOLINT(performance-no-int-to-ptr) */
               : NULL;
}

static void own_free(void *self, void *ptr, size_t bytes, int device, xseg_stream stream)
{
    (void)bytes, (void)device, (void)stream;
    OWN((struct fault_env *)self, cuMemFree_v2((uint64_t)(uintptr_t)ptr));
}

/* Pools whose destroy callback has not run; after a run there are none. */
static int not_destroyed;

static void count_destroyed(void *context, const struct xseg_statistics *last)
{
    (void)context;
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].current, 0);
    assert_int_equal(last->reserved_bytes[XSEG_STAT_ALL].allocated,
                     last->reserved_bytes[XSEG_STAT_ALL].freed);
    not_destroyed--;
}

static void own_memory(struct fault_env *env)
{
    struct xseg_pool_options options = {sizeof(options)};

    enter_context(env);
    assert_int_equal(not_destroyed, 0);
    options.memory = (struct xseg_pool_memory){own_alloc, own_free, env};
    options.id[1] = 7;
    options.on_destroy = count_destroyed;
    struct xseg_pool *pool = fault_pool(env, &options);
    not_destroyed++;
    void *a = fault_alloc_in(env, pool, 12 * MIB, NULL);
    void *b = fault_alloc_in(env, pool, 4000, env->side);
    work(env, a, 12 * MIB, env->side);
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
    fault_scenario play;
} scenarios[] = {
    {"capture", capture},  {"route", route},           {"checkpoint", checkpoint},
    {"departure", retire}, {"free after", free_after}, {"own memory", own_memory},
    {"marked", marked},
};

static void sweep(const char *config)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};

    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        fault_sweep(scenarios[i].name, scenarios[i].play, &settings, config);
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

    fault_sweep("capture with contents", capture, &settings,
                "expandable_segments:True,graph_capture_record_stream_reuse:True");
}

TEST(rollbacks_survive_a_second_failure)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = GIB};
    uint64_t runs = 0;

    for (unsigned i = 0; i < COUNT_OF(scenarios); i++)
        runs += fault_pairs(scenarios[i].play, &settings,
                            "expandable_segments:True,graph_capture_record_stream_reuse:True", 2);
    print_message("# %u pairs\n", (unsigned)runs);
    assert_true(runs > 400);
}
