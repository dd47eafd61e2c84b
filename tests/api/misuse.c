/* SPDX-License-Identifier: MIT */
/*
 * Invalid calls on streams, captures and pools: each returns a status with a message and changes neither the statistics
 * nor the allocated blocks.  Lost devices.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/env.h"

int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);

/* An allocator with memory in all states, and a second allocator. */
struct env {
    struct xseg_allocator *allocator, *others;
    xseg_stream stream;
    struct xseg_pool *pool, *second, *retired, *foreign;
    void *live;    /* of the default pool, with a use */
    void *inside;  /* of `pool` */
    void *kept;    /* of `retired` */
    void *pending; /* freed, waits for `stream` */
    void *cached;  /* freed */
};

/* The state that a rejected call must not change. */
struct picture {
    struct xseg_statistics stats, pool_stats;
    struct xseg_block_info live, inside, pending, cached;
    bool holds;
};

static struct xseg_statistics pool_stats(const struct env *env)
{
    struct xseg_scope where = {sizeof(where), .device = -1, .pool = env->pool};
    struct xseg_statistics stats = {sizeof(stats)};

    assert_ok(xseg_stats_get(env->allocator, &where, &stats));
    return stats;
}

static void look(const struct env *env, struct picture *out)
{
    memset(out, 0, sizeof(*out));
    out->stats = env_stats(env->allocator);
    out->stats.host_bytes = 0; /* what was touched: looking at tables may touch more of them */
    out->pool_stats = pool_stats(env);
    out->live = env_block(env->allocator, env->live);
    out->inside = env_block(env->allocator, env->inside);
    out->pending = env_block(env->allocator, env->pending);
    out->cached = env_block(env->allocator, env->cached);
    assert_ok(xseg_pool_check_live(env->pool, &env->inside, 1, &out->holds));
}

static void expect_same(const struct env *env, const struct picture *before)
{
    struct picture after;

    look(env, &after);
    assert_memory_equal(&after.stats, &before->stats, sizeof(after.stats));
    assert_memory_equal(&after.pool_stats, &before->pool_stats, sizeof(after.stats));
    assert_memory_equal(&after.live, &before->live, sizeof(after.live));
    assert_memory_equal(&after.inside, &before->inside, sizeof(after.inside));
    assert_memory_equal(&after.pending, &before->pending, sizeof(after.pending));
    assert_memory_equal(&after.cached, &before->cached, sizeof(after.cached));
    assert_true(after.holds && before->holds);
}

/* Expect that a call is refused, with a word in its sentence. */
#define REFUSED(env, call, status, word)            \
    do {                                            \
        struct picture before_;                     \
        look((env), &before_);                      \
        env_expect_error((call), (status), (word)); \
        expect_same((env), &before_);               \
    } while (0)

static void set_up(struct env *env)
{
    memset(env, 0, sizeof(*env));
    env->allocator = env_open("expandable_segments:True");
    assert_ok(env_try_open("expandable_segments:False", &env->others));
    env->stream = env_stream();
    env->pool = env_observed_pool(env->allocator);
    env->second = env_observed_pool(env->allocator);
    env->retired = env_observed_pool(env->allocator);
    env->kept = env_alloc_in(env->allocator, env->retired, 512, NULL);
    env->foreign = env_pool(env->others);
    assert_ok(xseg_pool_release(env->retired));
    env->live = env_alloc(env->allocator, 5 * MIB, NULL);
    env->pending = env_alloc(env->allocator, 6 * MIB, NULL);
    env->cached = env_alloc(env->allocator, 1000, NULL);
    env->inside = env_alloc_in(env->allocator, env->pool, 7 * MIB, env->stream);
    assert_ok(xseg_record_stream(env->allocator, env->live, env->stream));
    assert_ok(xseg_record_stream(env->allocator, env->pending, env->stream));
    assert_ok(xseg_sim_launch(env->stream, UINT64_MAX));
    env_free(env->allocator, env->pending, env->cached);
}

/* After all that was refused everything works: frees, the close, and nothing is left behind. */
static void tear_down(struct env *env)
{
    env_free(env->allocator, env->live, env->inside, env->kept);
    assert_ok(xseg_close(env->others));
    env_close(env->allocator, env->stream);
}

/* The message names the called function, not an internal one. */
TEST(an_error_names_the_function_that_was_called)
{
    struct xseg_block_info info = {sizeof(info)};
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr = NULL;
    char other = 0;

#define NAMED(function, ...) assert_error(function(__VA_ARGS__), ARGUMENT, #function ": ")
    struct xseg_request request = {sizeof(request), .bytes = 1};
    NAMED(xseg_alloc, NULL, 0, 1, NULL, &ptr);
    NAMED(xseg_alloc_with, NULL, &request, &ptr);
    NAMED(xseg_free, NULL, &other);
    NAMED(xseg_free_after, NULL, &other, NULL, 0);
    NAMED(xseg_record_stream, NULL, &other, NULL);
    NAMED(xseg_block_query, NULL, &other, &info);
    NAMED(xseg_config_set, NULL, "");
    NAMED(xseg_config_get, NULL, NULL, 0, NULL);
    NAMED(xseg_trim, NULL, NULL, NULL, NULL);
    NAMED(xseg_stats_get, NULL, NULL, &stats);
    NAMED(xseg_stream_synchronized, NULL, 0, NULL);
    NAMED(xseg_stream_retire, NULL, 0, NULL);
    NAMED(xseg_pin, NULL, &other, 1);
    NAMED(xseg_unpin, NULL, &other, 1);
    NAMED(xseg_pool_retain, NULL);
    NAMED(xseg_pool_release, NULL);
    NAMED(xseg_pool_resume, NULL);
    NAMED(xseg_capture_end, NULL);
    NAMED(xseg_route_end, NULL);
#undef NAMED
}

/* --- Streams. --- */

TEST(record_stream_needs_a_block_and_a_stream)
{
    const xseg_stream nonsense = (xseg_stream)(uintptr_t)0x1230;
    struct env env;
    char outside = 0;

    set_up(&env);
    REFUSED(&env, xseg_record_stream(NULL, env.live, NULL), XSEG_ERR_ARGUMENT, "allocator is NULL");
    REFUSED(&env, xseg_record_stream(env.allocator, env.cached, env.stream), XSEG_ERR_NOT_ALLOCATED,
            "cached memory");
    REFUSED(&env, xseg_record_stream(env.allocator, env.pending, env.stream),
            XSEG_ERR_NOT_ALLOCATED, "another stream still uses");
    REFUSED(&env, xseg_record_stream(env.allocator, (char *)env.live + 512, env.stream),
            XSEG_ERR_NOT_ALLOCATED, "at offset 512 of the block at ");
    REFUSED(&env, xseg_record_stream(env.allocator, &outside, env.stream), XSEG_ERR_NOT_ALLOCATED,
            "not in memory of this allocator");
    REFUSED(&env, xseg_record_stream(env.others, env.live, env.stream), XSEG_ERR_NOT_ALLOCATED,
            "not in memory of this allocator");
    REFUSED(&env, xseg_record_stream(env.allocator, env.live, nonsense), XSEG_ERR_DRIVER,
            "cuStream");
    assert_ok(xseg_record_stream(env.allocator, NULL, nonsense));
    REFUSED(&env, xseg_stream_synchronized(NULL, 0, NULL), XSEG_ERR_ARGUMENT, "allocator is NULL");
    REFUSED(&env, xseg_stream_synchronized(env.allocator, 7, env.stream), XSEG_ERR_ARGUMENT,
            "device 7 does not exist");
    REFUSED(&env, xseg_stream_synchronized(env.allocator, -1, env.stream), XSEG_ERR_ARGUMENT,
            "device -1 does not exist");
    assert_ok(xseg_stream_synchronized(env.allocator, 0, nonsense));
    tear_down(&env);
}

TEST(free_after_checks_its_events)
{
    struct env env;
    xseg_event events[2] = {NULL, NULL}, captured = NULL;

    set_up(&env);
    env_context_push(0);
    assert_int_equal(cuEventCreate(&events[0], 2), 0);
    assert_int_equal(cuEventCreate(&captured, 2), 0);
    REFUSED(&env, xseg_free_after(NULL, env.live, events, 1), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&env, xseg_free_after(env.allocator, env.live, NULL, 1), XSEG_ERR_ARGUMENT,
            "events is NULL");
    REFUSED(&env, xseg_free_after(env.allocator, env.live, events, 2), XSEG_ERR_ARGUMENT,
            "events[1] is NULL");
    REFUSED(&env, xseg_free_after(env.allocator, env.cached, events, 1), XSEG_ERR_NOT_ALLOCATED,
            "cached memory");
    REFUSED(&env, xseg_free_after(env.allocator, env.cached, NULL, 0), XSEG_ERR_NOT_ALLOCATED,
            "cached memory");

    /* An event that a capture recorded never passes. */
    assert_ok(xseg_capture_begin(env.pool, env.stream));
    env_driver_capture_begin(env.stream);
    assert_int_equal(cuEventRecord(captured, env.stream), 0);
    REFUSED(&env, xseg_free_after(env.allocator, env.live, events, 1), XSEG_ERR_BUSY,
            "capture is active");
    env_capture_end(env.pool, env.stream);
    events[1] = captured;
    REFUSED(&env, xseg_free_after(env.allocator, env.live, events, 2), XSEG_ERR_DRIVER,
            "CAPTURED_EVENT");
    assert_int_equal(cuEventDestroy_v2(events[0]), 0);
    assert_int_equal(cuEventDestroy_v2(captured), 0);
    env_context_pop(0);
    tear_down(&env);
}

TEST(default_streams_cannot_be_retired)
{
    struct env env;

    set_up(&env);
    REFUSED(&env, xseg_stream_retire(NULL, 0, env.stream), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&env, xseg_stream_retire(env.allocator, 7, env.stream), XSEG_ERR_ARGUMENT,
            "device 7 does not exist");
    for (uintptr_t handle = 0; handle <= 2; handle++)
        REFUSED(&env, xseg_stream_retire(env.allocator, 0, (xseg_stream)handle), XSEG_ERR_ARGUMENT,
                "default stream");
    env_capture_begin(env.pool, env.stream);
    REFUSED(&env, xseg_stream_retire(env.allocator, 0, env.stream), XSEG_ERR_BUSY,
            "being captured");
    env_capture_end(env.pool, env.stream);
    tear_down(&env);
}

/* --- Captures. --- */

TEST(captures_need_a_pool_and_a_stream)
{
    const xseg_stream nonsense = (xseg_stream)(uintptr_t)0x1230;
    struct env env;

    set_up(&env);
    REFUSED(&env, xseg_capture_begin(NULL, env.stream), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_capture_begin(env.pool, NULL), XSEG_ERR_ARGUMENT, "legacy default");
    REFUSED(&env, xseg_capture_begin(env.pool, (xseg_stream)(uintptr_t)1), XSEG_ERR_ARGUMENT,
            "legacy default");
    REFUSED(&env, xseg_capture_begin(env.retired, env.stream), XSEG_ERR_ARGUMENT,
            "pool has been released");
    REFUSED(&env, xseg_capture_begin(env.pool, nonsense), XSEG_ERR_DRIVER, "cuStream");
    REFUSED(&env, xseg_capture_end(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_capture_end(env.pool), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&env, xseg_capture_end(env.retired), XSEG_ERR_ARGUMENT, "capture is not active");
    /* No capture has begun: events are polled, memory is released. */
    assert_ok(xseg_close(env.others));
    env.others = NULL;
    assert_ok(xseg_sim_finish(env.stream));
    env_empty_cache(env.allocator);
    assert_int_equal(env_block(env.allocator, env.pending).state, XSEG_BLOCK_CACHED);
    tear_down(&env);
}

TEST(captures_begin_and_end_once)
{
    struct xseg_checkpoint *checkpoint = NULL, *other = NULL;
    struct env env;

    set_up(&env);
    assert_ok(xseg_pool_checkpoint(env.second, &checkpoint));
    env_capture_begin(env.pool, env.stream);
    /* The pending block is complete, but a query is not allowed. */
    assert_ok(xseg_sim_finish(env.stream));
    REFUSED(&env, xseg_capture_begin(env.pool, env.stream), XSEG_ERR_BUSY,
            "capture is already active");
    REFUSED(&env, xseg_capture_begin(env.second, env.stream), XSEG_ERR_BUSY,
            "stream is already being captured");
    REFUSED(&env, xseg_route_begin(env.pool, NULL, NULL), XSEG_ERR_BUSY,
            "capture is already active");
    REFUSED(&env, xseg_route_end(env.pool), XSEG_ERR_ARGUMENT, "route is not active");
    REFUSED(&env, xseg_capture_end(env.second), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&env, xseg_pool_checkpoint(env.pool, &other), XSEG_ERR_BUSY, "capture");
    assert_null(other);
    REFUSED(&env, xseg_pool_restore(env.second, checkpoint, NULL, NULL), XSEG_ERR_BUSY, "capture");
    REFUSED(&env, xseg_close(env.allocator), XSEG_ERR_BUSY, "capture is active");
    env_capture_end(env.pool, env.stream);
    REFUSED(&env, xseg_capture_end(env.pool), XSEG_ERR_ARGUMENT, "capture is not active");
    /* Rejected calls hold no reference to the pool. */
    assert_ok(xseg_pool_release(env.pool));
    REFUSED(&env, xseg_pool_release(env.pool), XSEG_ERR_ARGUMENT, "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
    tear_down(&env);
}

/* --- Pools. --- */

static void *no_alloc(void *context, size_t bytes, int device, xseg_stream stream)
{
    (void)context;
    (void)bytes;
    (void)device;
    (void)stream;
    return NULL;
}

TEST(unknown_pool_options_are_rejected)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;
    struct env env;

    set_up(&env);
    REFUSED(&env, xseg_pool_create(NULL, 0, NULL, &pool), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&env, xseg_pool_create(env.allocator, 0, NULL, NULL), XSEG_ERR_ARGUMENT, "out is NULL");
    REFUSED(&env, xseg_pool_create(env.allocator, -1, NULL, &pool), XSEG_ERR_ARGUMENT,
            "device -1 does not exist");
    options.struct_size = 3;
    REFUSED(&env, xseg_pool_create(env.allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
            "struct_size is unknown, 3");
    options.struct_size = sizeof(options);
    options.memory.alloc = no_alloc;
    REFUSED(&env, xseg_pool_create(env.allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
            "memory.free is NULL");
    assert_null(pool);
    tear_down(&env);
}

/* Released once too often, or of somebody else: a pool serves nobody. */
TEST(released_pools_are_rejected)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_checkpoint *checkpoint = NULL;
    struct env env;
    void *ptr = NULL;
    bool exactly = true;

    set_up(&env);
    REFUSED(&env, xseg_pool_retain(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_pool_release(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_pool_retain(env.retired), XSEG_ERR_ARGUMENT, "pool has been released");
    REFUSED(&env, xseg_pool_release(env.retired), XSEG_ERR_ARGUMENT, "pool has been released");
    REFUSED(&env, xseg_route_begin(env.retired, NULL, NULL), XSEG_ERR_ARGUMENT,
            "pool has been released");
    REFUSED(&env, xseg_pool_checkpoint(env.retired, &checkpoint), XSEG_ERR_ARGUMENT,
            "pool has been released");
    struct xseg_request request = {sizeof(request), .bytes = 512, .pool = env.retired};
    REFUSED(&env, xseg_alloc_with(env.allocator, &request, &ptr), XSEG_ERR_ARGUMENT,
            "pool has been released");
    request.pool = where.pool = env.foreign;
    REFUSED(&env, xseg_alloc_with(env.allocator, &request, &ptr), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&env, xseg_trim(env.allocator, &where, NULL, NULL), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&env, xseg_prewarm(env.allocator, &where, 512), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&env, xseg_pool_check_live(NULL, &ptr, 1, &exactly), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_pool_check_live(env.pool, NULL, 1, &exactly), XSEG_ERR_ARGUMENT, "is NULL");
    REFUSED(&env, xseg_pool_check_live(env.pool, &ptr, 1, NULL), XSEG_ERR_ARGUMENT, "is NULL");
    /* A released pool can still be asked; it holds nothing. */
    assert_ok(xseg_pool_check_live(env.retired, &env.inside, 1, &exactly));
    assert_false(exactly);
    assert_null(ptr);
    assert_null(checkpoint);
    tear_down(&env);
}

/* A route or a capture retains its pool until its end. */
TEST(a_routed_pool_is_let_go_at_the_end)
{
    struct env env;

    set_up(&env);
    assert_ok(xseg_route_begin(env.second, NULL, NULL));
    REFUSED(&env, xseg_route_begin(env.second, NULL, NULL), XSEG_ERR_BUSY,
            "route is already active");
    REFUSED(&env, xseg_capture_begin(env.second, env.stream), XSEG_ERR_BUSY,
            "route is already active");
    REFUSED(&env, xseg_capture_end(env.second), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&env, xseg_route_end(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_route_begin(NULL, NULL, NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_close(env.allocator), XSEG_ERR_BUSY, "route to a pool is active");
    assert_ok(xseg_pool_release(env.second));
    void *ptr = env_alloc(env.allocator, 512, NULL);
    assert_ptr_equal(env_block(env.allocator, ptr).pool, env.second);
    assert_ok(xseg_route_end(env.second));
    REFUSED(&env, xseg_route_end(env.second), XSEG_ERR_ARGUMENT, "route is not active");
    REFUSED(&env, xseg_pool_release(env.second), XSEG_ERR_ARGUMENT, "pool has been released");
    env_free(env.allocator, ptr);
    tear_down(&env);
}

static void never_called(void *context, void *ptr, bool freed)
{
    (void)context;
    (void)ptr;
    (void)freed;
    fail();
}

TEST(checkpoint_of_another_pool_is_rejected)
{
    struct xseg_checkpoint *checkpoint = NULL, *others = NULL;
    struct env env;

    set_up(&env);
    REFUSED(&env, xseg_pool_checkpoint(NULL, &checkpoint), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&env, xseg_pool_checkpoint(env.pool, NULL), XSEG_ERR_ARGUMENT, "out is NULL");
    assert_ok(xseg_pool_checkpoint(env.pool, &checkpoint));
    assert_ok(xseg_pool_checkpoint(env.foreign, &others));
    REFUSED(&env, xseg_pool_restore(NULL, checkpoint, never_called, NULL), XSEG_ERR_ARGUMENT,
            "pool is NULL");
    REFUSED(&env, xseg_pool_restore(env.pool, NULL, never_called, NULL), XSEG_ERR_ARGUMENT,
            "checkpoint is NULL");
    REFUSED(&env, xseg_pool_restore(env.second, checkpoint, never_called, NULL), XSEG_ERR_ARGUMENT,
            "another pool");
    REFUSED(&env, xseg_pool_restore(env.pool, others, never_called, NULL), XSEG_ERR_ARGUMENT,
            "another pool");

    /* Claimed blocks cannot be released. */
    void *later = env_alloc_in(env.allocator, env.pool, 3 * MIB, env.stream);
    assert_ok(xseg_record_stream(env.allocator, later, NULL));
    env_context_push(0);
    assert_ok(xseg_sim_launch(NULL, UINT64_MAX));
    env_context_pop(0);
    assert_error(xseg_pool_restore(env.pool, checkpoint, never_called, NULL), BUSY,
                 "used by other streams");
    assert_int_equal(env_block(env.allocator, later).state, XSEG_BLOCK_ALLOCATED);
    env_free(env.allocator, later);
    REFUSED(&env, xseg_pool_restore(env.pool, checkpoint, never_called, NULL), XSEG_ERR_BUSY,
            "memory of pool 1 is pending free, 1 block;");

    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(others);
    xseg_checkpoint_destroy(NULL);
    assert_ok(xseg_pool_checkpoint(env.second, &checkpoint));
    void *live = env_alloc_in(env.allocator, env.second, 512, NULL);
    assert_ok(xseg_pool_release(env.second));
    REFUSED(&env, xseg_pool_restore(env.second, checkpoint, never_called, NULL), XSEG_ERR_ARGUMENT,
            "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
    env_free(env.allocator, live);
    tear_down(&env);
}

/* --- A forked child. --- */

/* Number of calls that succeed in a child. */
static int allowed_in_child(const struct env *env, struct xseg_checkpoint *checkpoint)
{
    struct xseg_checkpoint *taken = NULL;
    struct xseg_pool *pool = NULL;
    xseg_event event = NULL;
    bool exactly = false;
    const xseg_status got[] = {
        xseg_record_stream(env->allocator, env->live, env->stream),
        xseg_free_after(env->allocator, env->live, &event, 1),
        xseg_stream_synchronized(env->allocator, 0, env->stream),
        xseg_stream_retire(env->allocator, 0, env->stream),
        xseg_capture_begin(env->second, env->stream),
        xseg_capture_end(env->pool),
        xseg_pool_create(env->allocator, 0, NULL, &pool),
        xseg_pool_retain(env->pool),
        xseg_pool_release(env->pool),
        xseg_route_begin(env->second, NULL, NULL),
        xseg_route_end(env->pool),
        xseg_pool_checkpoint(env->second, &taken),
        xseg_pool_restore(env->second, checkpoint, NULL, NULL),
        xseg_pool_check_live(env->pool, &env->inside, 1, &exactly),
    };
    int allowed = taken != NULL || pool != NULL || exactly;

    for (size_t i = 0; i < COUNT_OF(got); i++)
        allowed += got[i] != XSEG_ERR_FORKED;
    return allowed;
}

/* A child that was forked in a capture is refused everything, and its exit takes nothing away. */
TEST(calls_of_a_child_forked_in_a_capture_fail)
{
    struct picture before;
    struct env env;
    int result = -1;
    pid_t child;

    set_up(&env);
    assert_ok(xseg_sim_finish(env.stream));
    struct xseg_checkpoint *checkpoint = env_checkpoint(env.second);
    env_capture_begin(env.pool, env.stream);
    look(&env, &before);
    child = fork();
    if (child == 0)
        _exit(allowed_in_child(&env, checkpoint));
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    expect_same(&env, &before);
    env_capture_end(env.pool, env.stream);
    xseg_checkpoint_destroy(checkpoint);
    tear_down(&env);
}

/* --- * Devices that are lost: after an error such as an illegal address, after a reset of the context
 * underneath, and after the driver's shutdown at exit.  Allocations say so, without asking the
 * driver again; frees, statistics and close work on the host side. --- */

/* Of CUresult. */
#define DEINITIALIZED   4
#define ILLEGAL_ADDRESS 700

int cuDevicePrimaryCtxReset_v2(int device);

/* No allocation works, and none asks the driver. */
static void expect_lost(struct xseg_allocator *allocator, const char *word)
{
    const uint64_t calls = xseg_sim_calls(NULL);

    for (unsigned i = 0; i < 100; i++)
        assert_error(env_try_alloc(allocator, (size_t)512 << i % 20, NULL), DEVICE_LOST, word);
    assert_error(xseg_trim(allocator, NULL, NULL, NULL), DEVICE_LOST, word);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

TEST(sticky_error_loses_the_device)
{
    void *c = NULL;

    struct xseg_allocator *allocator = env_open_sim("expandable_segments:True", .devices = 2);
    xseg_stream side = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL);
    void *b = env_alloc(allocator, 700, NULL);
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    assert_error(env_try_alloc(allocator, 100 * MIB, NULL), DEVICE_LOST,
                 "cuMemCreate failed, CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_lost(allocator, "device 0 is lost");
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    assert_int_equal(env_stats(allocator).num_ooms, 0);

    /* The other device is none of its business. */
    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &c));
    env_free(allocator, c);

    assert_error(xseg_close(allocator), BUSY, "blocks are allocated, 2 on ");
    env_free(allocator, a, b);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_close(allocator)); /* a lost device keeps its memory */
    env_stream_destroy(side);
}

TEST(context_reset_loses_the_device)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    void *a = env_alloc(allocator, 5 * MIB, NULL);

    assert_int_equal(cuDevicePrimaryCtxReset_v2(0), 0);
    assert_int_equal(env_try_alloc(allocator, 100 * MIB, NULL), XSEG_ERR_DEVICE_LOST);
    expect_lost(allocator, "device 0 is lost");
    env_free(allocator, a);
    assert_ok(xseg_close(allocator));
}

TEST(driver_shutdown_loses_the_device)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *a = env_alloc(allocator, 30 * MIB, NULL);

    env_free(allocator, a);
    assert_ok(xseg_sim_fail("cuStreamQuery", 1, DEINITIALIZED));
    assert_int_equal(xseg_trim(allocator, NULL, NULL, NULL), XSEG_ERR_DEVICE_LOST);
    expect_lost(allocator, "CUDA_ERROR_DEINITIALIZED");
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    assert_ok(xseg_close(allocator));
}

TEST(close_completes_after_an_error)
{
    struct xseg_allocator *allocator = env_open(NULL);

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuStreamSynchronize", 1, ILLEGAL_ADDRESS));
    assert_ok(xseg_close(allocator));
}

TEST(failed_open_of_a_device_is_retried)
{
    struct xseg_allocator *allocator = env_open(NULL);

    assert_ok(xseg_sim_fail("cuMemMap", 1, ILLEGAL_ADDRESS));
    assert_int_equal(env_try_alloc(allocator, 512, NULL), XSEG_ERR_DEVICE_LOST);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_ok(xseg_close(allocator));
}

/* The query for a pending block reports the error, so the request fails although a cached block exists. */
TEST(error_in_a_query_loses_the_device)
{
    for (unsigned is_known = 0; is_known < 2; is_known++) {
        struct xseg_allocator *allocator = env_open("expandable_segments:True");
        const xseg_stream side = env_stream();
        void *pending = env_alloc(allocator, 5 * MIB, NULL);

        env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        /* A stream has a shortcut after its second request, and none after a configuration. */
        if (is_known != 0)
            env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        assert_ok(xseg_sim_launch(side, UINT64_MAX));
        assert_ok(xseg_record_stream(allocator, pending, side));
        env_free(allocator, pending);
        if (is_known == 0)
            assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
        assert_ok(xseg_sim_fail("cuEventQuery", 1, ILLEGAL_ADDRESS));
        assert_error(env_try_alloc(allocator, 6 * MIB, NULL), DEVICE_LOST, "device 0 is lost");
        assert_ok(xseg_close(allocator));
    }
}

/* Memory of a pool's own, at the address that `context` is. */
static void *alloc_memory(void *context, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    return context;
}

static void free_memory(void *context, void *memory, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    assert_ptr_equal(memory, context);
}

/* A close that another device rejects has dropped the pending blocks of a lost device: their addresses may be reused,
 * and their streams may complete. */
static void pending_goes_with_the_device(size_t bytes)
{
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_pool_options options = {
        sizeof(options), .memory = (struct xseg_pool_memory){alloc_memory, free_memory,
                                                             (void *)((uintptr_t)1 << 46)}};
    struct xseg_pool *pool[2];
    void *other = NULL;

    struct xseg_allocator *allocator = env_open_sim("expandable_segments:False", .devices = 2);
    const xseg_stream side = env_stream();
    for (int device = 0; device < 2; device++)
        assert_ok(xseg_pool_create(allocator, device, &options, &pool[device]));
    void *gone = env_alloc_in(allocator, pool[0], bytes, NULL);
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, gone, side));
    env_free(allocator, gone);
    assert_ok(xseg_sim_fail("cuMemAlloc", 1, ILLEGAL_ADDRESS));
    assert_int_equal(env_try_alloc(allocator, 100 * MIB, NULL), XSEG_ERR_DEVICE_LOST);

    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &other));
    env_free(allocator, other);
    fault.call = "cuMemFree";
    fault.nth = fault.every = 1;
    fault.error = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    assert_error(xseg_close(allocator), DRIVER, "cuMemFree");
    assert_ok(xseg_sim_fault_set(1, NULL));

    assert_int_equal(xseg_free(allocator, gone), XSEG_ERR_NOT_ALLOCATED);
    assert_ptr_equal(env_alloc_in(allocator, pool[1], bytes, NULL), gone);
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    env_free(allocator, gone);
    assert_ok(xseg_close(allocator));
}

TEST(lost_device_frees_pending_blocks)
{
    pending_goes_with_the_device(5 * MIB);
    pending_goes_with_the_device(5000);
}
