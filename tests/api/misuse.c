/* SPDX-License-Identifier: MIT */
/* Invalid calls on streams, captures and pools change neither statistics nor blocks.  Lost devices. */
#include <string.h>

#include "tests/support/env.h"

int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);

/* An allocator with memory in all states, and a second allocator. */
struct env {
    struct xseg_allocator *allocator, *second_allocator;
    xseg_stream stream;
    struct xseg_pool *pool, *second_pool, *released, *foreign; /* `foreign`: of second_allocator */
    void *allocated;   /* of the default pool; `stream` uses it */
    void *of_pool;     /* of `pool` */
    void *of_released; /* of `released` */
    void *pending;     /* freed, waits for `stream` */
    void *cached;      /* freed */
};

/* The state that a rejected call must not change. */
struct state {
    struct xseg_statistics stats, pool_stats;
    struct xseg_block_info allocated, of_pool, pending, cached;
    bool is_only_block; /* `of_pool` is the only block of `pool` */
};

static struct env env;

static void read_state(struct state *out)
{
    memset(out, 0, sizeof(*out));
    out->stats = env_stats(env.allocator);
    out->stats.host_bytes = 0; /* reading tables may touch their pages */
    out->pool_stats = env_pool_stats(env.allocator, env.pool);
    out->allocated = env_block(env.allocator, env.allocated);
    out->of_pool = env_block(env.allocator, env.of_pool);
    out->pending = env_block(env.allocator, env.pending);
    out->cached = env_block(env.allocator, env.cached);
    assert_ok(xseg_pool_check_live(env.pool, &env.of_pool, 1, &out->is_only_block));
}

static void expect_unchanged(const struct state *before)
{
    struct state after;

    read_state(&after);
    assert_memory_equal(&after.stats, &before->stats, sizeof(after.stats));
    assert_memory_equal(&after.pool_stats, &before->pool_stats, sizeof(after.stats));
    assert_memory_equal(&after.allocated, &before->allocated, sizeof(after.allocated));
    assert_memory_equal(&after.of_pool, &before->of_pool, sizeof(after.of_pool));
    assert_memory_equal(&after.pending, &before->pending, sizeof(after.pending));
    assert_memory_equal(&after.cached, &before->cached, sizeof(after.cached));
    assert_true(after.is_only_block && before->is_only_block);
}

/* Expect that a call fails with a message and changes nothing. */
#define REJECTED(call, status, word)        \
    do {                                    \
        struct state before_;               \
        read_state(&before_);               \
        assert_error((call), status, word); \
        expect_unchanged(&before_);         \
    } while (0)

static int set_up(void **state)
{
    (void)state;
    env = (struct env){.allocator = env_open("expandable_segments:True")};
    assert_ok(env_try_open("expandable_segments:False", &env.second_allocator));
    env.stream = env_stream();
    env.pool = env_observed_pool(env.allocator);
    env.second_pool = env_observed_pool(env.allocator);
    env.released = env_observed_pool(env.allocator);
    env.of_released = env_alloc_in(env.allocator, env.released, 512, NULL);
    env.foreign = env_pool(env.second_allocator);
    assert_ok(xseg_pool_release(env.released));
    env.allocated = env_alloc(env.allocator, 5 * MIB, NULL);
    env.pending = env_alloc(env.allocator, 6 * MIB, NULL);
    env.cached = env_alloc(env.allocator, 1000, NULL);
    env.of_pool = env_alloc_in(env.allocator, env.pool, 7 * MIB, env.stream);
    assert_ok(xseg_record_stream(env.allocator, env.allocated, env.stream));
    env_use(env.allocator, env.pending, env.stream);
    env_free(env.allocator, env.pending, env.cached);
    return 0;
}

/* After rejected calls, frees and the close succeed, and nothing leaks. */
static int tear_down(void **state)
{
    (void)state;
    env_free(env.allocator, env.allocated, env.of_pool, env.of_released);
    assert_ok(xseg_close(env.second_allocator));
    env_close(env.allocator, env.stream);
    return 0;
}

/* The message names the called function, not an internal one. */
TEST(error_names_the_called_function)
{
    struct xseg_block_info info = {sizeof(info)};
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr = NULL;
    char byte = 0;

#define NAMED(function, ...) assert_error(function(__VA_ARGS__), ARGUMENT, #function ": ")
    struct xseg_request request = {sizeof(request), .bytes = 1};
    NAMED(xseg_alloc, NULL, 0, 1, NULL, &ptr);
    NAMED(xseg_alloc_with, NULL, &request, &ptr);
    NAMED(xseg_free, NULL, &byte);
    NAMED(xseg_free_after, NULL, &byte, NULL, 0);
    NAMED(xseg_record_stream, NULL, &byte, NULL);
    NAMED(xseg_block_query, NULL, &byte, &info);
    NAMED(xseg_config_set, NULL, "");
    NAMED(xseg_config_get, NULL, NULL, 0, NULL);
    NAMED(xseg_trim, NULL, NULL, NULL, NULL);
    NAMED(xseg_stats_get, NULL, NULL, &stats);
    NAMED(xseg_stream_synchronized, NULL, 0, NULL);
    NAMED(xseg_stream_retire, NULL, 0, NULL);
    NAMED(xseg_pin, NULL, &byte, 1);
    NAMED(xseg_unpin, NULL, &byte, 1);
    NAMED(xseg_pool_retain, NULL);
    NAMED(xseg_pool_release, NULL);
    NAMED(xseg_pool_resume, NULL);
    NAMED(xseg_capture_end, NULL);
    NAMED(xseg_route_end, NULL);
#undef NAMED
}

TEST_WITH(record_stream_needs_a_block_and_a_stream, set_up, tear_down)
{
    const xseg_stream invalid = (xseg_stream)(uintptr_t)0x1230;
    char outside = 0;

    REJECTED(xseg_record_stream(NULL, env.allocated, NULL), ARGUMENT, "allocator is NULL");
    REJECTED(xseg_record_stream(env.allocator, env.cached, env.stream), NOT_ALLOCATED,
             "cached memory");
    REJECTED(xseg_record_stream(env.allocator, env.pending, env.stream), NOT_ALLOCATED,
             "another stream still uses");
    REJECTED(xseg_record_stream(env.allocator, (char *)env.allocated + 512, env.stream),
             NOT_ALLOCATED, "at offset 512 of the block at ");
    REJECTED(xseg_record_stream(env.allocator, &outside, env.stream), NOT_ALLOCATED,
             "not in memory of this allocator");
    REJECTED(xseg_record_stream(env.second_allocator, env.allocated, env.stream), NOT_ALLOCATED,
             "not in memory of this allocator");
    REJECTED(xseg_record_stream(env.allocator, env.allocated, invalid), DRIVER, "cuStream");
    assert_ok(xseg_record_stream(env.allocator, NULL, invalid));
    REJECTED(xseg_stream_synchronized(NULL, 0, NULL), ARGUMENT, "allocator is NULL");
    REJECTED(xseg_stream_synchronized(env.allocator, 7, env.stream), ARGUMENT,
             "device 7 does not exist");
    REJECTED(xseg_stream_synchronized(env.allocator, -1, env.stream), ARGUMENT,
             "device -1 does not exist");
    assert_ok(xseg_stream_synchronized(env.allocator, 0, invalid));
}

TEST_WITH(free_after_checks_its_events, set_up, tear_down)
{
    xseg_event events[2] = {NULL, NULL}, captured = NULL;

    env_context_push(0);
    assert_int_equal(cuEventCreate(&events[0], 2), 0);
    assert_int_equal(cuEventCreate(&captured, 2), 0);
    REJECTED(xseg_free_after(NULL, env.allocated, events, 1), ARGUMENT, "NULL");
    REJECTED(xseg_free_after(env.allocator, env.allocated, NULL, 1), ARGUMENT, "events is NULL");
    REJECTED(xseg_free_after(env.allocator, env.allocated, events, 2), ARGUMENT,
             "events[1] is NULL");
    REJECTED(xseg_free_after(env.allocator, env.cached, events, 1), NOT_ALLOCATED, "cached memory");
    REJECTED(xseg_free_after(env.allocator, env.cached, NULL, 0), NOT_ALLOCATED, "cached memory");

    /* An event that a capture recorded never completes. */
    assert_ok(xseg_capture_begin(env.pool, env.stream));
    env_driver_capture_begin(env.stream);
    assert_int_equal(cuEventRecord(captured, env.stream), 0);
    REJECTED(xseg_free_after(env.allocator, env.allocated, events, 1), BUSY, "capture is active");
    env_capture_end(env.pool, env.stream);
    events[1] = captured;
    REJECTED(xseg_free_after(env.allocator, env.allocated, events, 2), DRIVER, "CAPTURED_EVENT");
    assert_int_equal(cuEventDestroy_v2(events[0]), 0);
    assert_int_equal(cuEventDestroy_v2(captured), 0);
    env_context_pop(0);
}

TEST_WITH(default_streams_cannot_be_retired, set_up, tear_down)
{
    REJECTED(xseg_stream_retire(NULL, 0, env.stream), ARGUMENT, "NULL");
    REJECTED(xseg_stream_retire(env.allocator, 7, env.stream), ARGUMENT, "device 7 does not exist");
    for (uintptr_t handle = 0; handle <= 2; handle++)
        REJECTED(xseg_stream_retire(env.allocator, 0, (xseg_stream)handle), ARGUMENT,
                 "default stream");
    env_capture_begin(env.pool, env.stream);
    REJECTED(xseg_stream_retire(env.allocator, 0, env.stream), BUSY, "being captured");
    env_capture_end(env.pool, env.stream);
}

TEST_WITH(captures_need_a_pool_and_a_stream, set_up, tear_down)
{
    const xseg_stream invalid = (xseg_stream)(uintptr_t)0x1230;

    REJECTED(xseg_capture_begin(NULL, env.stream), ARGUMENT, "pool is NULL");
    REJECTED(xseg_capture_begin(env.pool, NULL), ARGUMENT, "legacy default");
    REJECTED(xseg_capture_begin(env.pool, (xseg_stream)(uintptr_t)1), ARGUMENT, "legacy default");
    REJECTED(xseg_capture_begin(env.released, env.stream), ARGUMENT, "pool has been released");
    REJECTED(xseg_capture_begin(env.pool, invalid), DRIVER, "cuStream");
    REJECTED(xseg_capture_end(NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_capture_end(env.pool), ARGUMENT, "capture is not active");
    REJECTED(xseg_capture_end(env.released), ARGUMENT, "capture is not active");
    /* No capture is active: events are polled, and memory is released. */
    assert_ok(xseg_close(env.second_allocator));
    env.second_allocator = NULL;
    assert_ok(xseg_sim_finish(env.stream));
    env_empty_cache(env.allocator);
    assert_int_equal(env_block(env.allocator, env.pending).state, XSEG_BLOCK_CACHED);
}

TEST_WITH(captures_begin_and_end_once, set_up, tear_down)
{
    struct xseg_checkpoint *checkpoint = NULL, *out = NULL;

    assert_ok(xseg_pool_checkpoint(env.second_pool, &checkpoint));
    env_capture_begin(env.pool, env.stream);
    /* The pending block is complete, but a query is not allowed. */
    assert_ok(xseg_sim_finish(env.stream));
    REJECTED(xseg_capture_begin(env.pool, env.stream), BUSY, "capture is already active");
    REJECTED(xseg_capture_begin(env.second_pool, env.stream), BUSY,
             "stream is already being captured");
    REJECTED(xseg_route_begin(env.pool, NULL, NULL), BUSY, "capture is already active");
    REJECTED(xseg_route_end(env.pool), ARGUMENT, "route is not active");
    REJECTED(xseg_capture_end(env.second_pool), ARGUMENT, "capture is not active");
    REJECTED(xseg_pool_checkpoint(env.pool, &out), BUSY, "capture");
    assert_null(out);
    REJECTED(xseg_pool_restore(env.second_pool, checkpoint, NULL, NULL), BUSY, "capture");
    REJECTED(xseg_close(env.allocator), BUSY, "capture is active");
    env_capture_end(env.pool, env.stream);
    REJECTED(xseg_capture_end(env.pool), ARGUMENT, "capture is not active");
    /* Rejected calls have not retained the pool. */
    assert_ok(xseg_pool_release(env.pool));
    REJECTED(xseg_pool_release(env.pool), ARGUMENT, "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
}

TEST_WITH(unknown_pool_options_are_rejected, set_up, tear_down)
{
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool = NULL;

    REJECTED(xseg_pool_create(NULL, 0, NULL, &pool), ARGUMENT, "NULL");
    REJECTED(xseg_pool_create(env.allocator, 0, NULL, NULL), ARGUMENT, "out is NULL");
    REJECTED(xseg_pool_create(env.allocator, -1, NULL, &pool), ARGUMENT,
             "device -1 does not exist");
    options.struct_size = 3;
    REJECTED(xseg_pool_create(env.allocator, 0, &options, &pool), ARGUMENT,
             "struct_size is unknown, 3");
    options.struct_size = sizeof(options);
    options.memory.alloc = env_no_memory.alloc;
    REJECTED(xseg_pool_create(env.allocator, 0, &options, &pool), ARGUMENT, "memory.free is NULL");
    assert_null(pool);
}

/* A released pool, and a pool of another allocator. */
TEST_WITH(released_pools_are_rejected, set_up, tear_down)
{
    struct xseg_scope scope = XSEG_SCOPE_ALL;
    struct xseg_checkpoint *checkpoint = NULL;
    void *ptr = NULL;
    bool exactly = true;

    REJECTED(xseg_pool_retain(NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_pool_release(NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_pool_retain(env.released), ARGUMENT, "pool has been released");
    REJECTED(xseg_pool_release(env.released), ARGUMENT, "pool has been released");
    REJECTED(xseg_route_begin(env.released, NULL, NULL), ARGUMENT, "pool has been released");
    REJECTED(xseg_pool_checkpoint(env.released, &checkpoint), ARGUMENT, "pool has been released");
    struct xseg_request request = {sizeof(request), .bytes = 512, .pool = env.released};
    REJECTED(xseg_alloc_with(env.allocator, &request, &ptr), ARGUMENT, "pool has been released");
    request.pool = scope.pool = env.foreign;
    REJECTED(xseg_alloc_with(env.allocator, &request, &ptr), ARGUMENT, "another");
    REJECTED(xseg_trim(env.allocator, &scope, NULL, NULL), ARGUMENT, "another");
    REJECTED(xseg_prewarm(env.allocator, &scope, 512), ARGUMENT, "another");
    REJECTED(xseg_pool_check_live(NULL, &ptr, 1, &exactly), ARGUMENT, "pool is NULL");
    REJECTED(xseg_pool_check_live(env.pool, NULL, 1, &exactly), ARGUMENT, "is NULL");
    REJECTED(xseg_pool_check_live(env.pool, &ptr, 1, NULL), ARGUMENT, "is NULL");
    /* A query of a released pool succeeds; the pool has no blocks. */
    assert_ok(xseg_pool_check_live(env.released, &env.of_pool, 1, &exactly));
    assert_false(exactly);
    assert_null(ptr);
    assert_null(checkpoint);
}

/* A route or a capture retains its pool until its end. */
TEST_WITH(route_retains_its_pool_until_its_end, set_up, tear_down)
{
    assert_ok(xseg_route_begin(env.second_pool, NULL, NULL));
    REJECTED(xseg_route_begin(env.second_pool, NULL, NULL), BUSY, "route is already active");
    REJECTED(xseg_capture_begin(env.second_pool, env.stream), BUSY, "route is already active");
    REJECTED(xseg_capture_end(env.second_pool), ARGUMENT, "capture is not active");
    REJECTED(xseg_route_end(NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_route_begin(NULL, NULL, NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_close(env.allocator), BUSY, "route to a pool is active");
    assert_ok(xseg_pool_release(env.second_pool));
    void *ptr = env_alloc(env.allocator, 512, NULL);
    assert_ptr_equal(env_block(env.allocator, ptr).pool, env.second_pool);
    assert_ok(xseg_route_end(env.second_pool));
    REJECTED(xseg_route_end(env.second_pool), ARGUMENT, "route is not active");
    REJECTED(xseg_pool_release(env.second_pool), ARGUMENT, "pool has been released");
    env_free(env.allocator, ptr);
}

static void never_called(void *context, void *ptr, bool freed)
{
    (void)context, (void)ptr, (void)freed;
    fail();
}

TEST_WITH(checkpoint_of_another_pool_is_rejected, set_up, tear_down)
{
    struct xseg_checkpoint *checkpoint = NULL, *foreign_checkpoint = NULL;

    REJECTED(xseg_pool_checkpoint(NULL, &checkpoint), ARGUMENT, "pool is NULL");
    REJECTED(xseg_pool_checkpoint(env.pool, NULL), ARGUMENT, "out is NULL");
    assert_ok(xseg_pool_checkpoint(env.pool, &checkpoint));
    assert_ok(xseg_pool_checkpoint(env.foreign, &foreign_checkpoint));
    REJECTED(xseg_pool_restore(NULL, checkpoint, never_called, NULL), ARGUMENT, "pool is NULL");
    REJECTED(xseg_pool_restore(env.pool, NULL, never_called, NULL), ARGUMENT, "checkpoint is NULL");
    REJECTED(xseg_pool_restore(env.second_pool, checkpoint, never_called, NULL), ARGUMENT,
             "another pool");
    REJECTED(xseg_pool_restore(env.pool, foreign_checkpoint, never_called, NULL), ARGUMENT,
             "another pool");

    /* The restore cannot free a block that another stream uses, nor a pending block. */
    void *later = env_alloc_in(env.allocator, env.pool, 3 * MIB, env.stream);
    assert_ok(xseg_record_stream(env.allocator, later, NULL));
    env_context_push(0);
    assert_ok(xseg_sim_launch(NULL, UINT64_MAX));
    env_context_pop(0);
    assert_error(xseg_pool_restore(env.pool, checkpoint, never_called, NULL), BUSY,
                 "used by other streams");
    assert_int_equal(env_block(env.allocator, later).state, XSEG_BLOCK_ALLOCATED);
    env_free(env.allocator, later);
    REJECTED(xseg_pool_restore(env.pool, checkpoint, never_called, NULL), BUSY,
             "memory of pool 1 is pending free, 1 block;");

    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(foreign_checkpoint);
    xseg_checkpoint_destroy(NULL);
    assert_ok(xseg_pool_checkpoint(env.second_pool, &checkpoint));
    void *allocated = env_alloc_in(env.allocator, env.second_pool, 512, NULL);
    assert_ok(xseg_pool_release(env.second_pool));
    REJECTED(xseg_pool_restore(env.second_pool, checkpoint, never_called, NULL), ARGUMENT,
             "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
    env_free(env.allocator, allocated);
}

/* All calls of a child that was forked in a capture fail, and its exit has no effect. */
TEST_WITH(calls_of_a_child_forked_in_a_capture_fail, set_up, tear_down)
{
    struct xseg_checkpoint *out = NULL;
    struct xseg_pool *pool = NULL;
    xseg_event event = NULL;
    struct state before;
    bool exactly = false;

    assert_ok(xseg_sim_finish(env.stream));
    struct xseg_checkpoint *checkpoint = env_checkpoint(env.second_pool);
    env_capture_begin(env.pool, env.stream);
    read_state(&before);
    env_expect_forked(out == NULL && pool == NULL && !exactly,
                      xseg_record_stream(env.allocator, env.allocated, env.stream),
                      xseg_free_after(env.allocator, env.allocated, &event, 1),
                      xseg_stream_synchronized(env.allocator, 0, env.stream),
                      xseg_stream_retire(env.allocator, 0, env.stream),
                      xseg_capture_begin(env.second_pool, env.stream), xseg_capture_end(env.pool),
                      xseg_pool_create(env.allocator, 0, NULL, &pool), xseg_pool_retain(env.pool),
                      xseg_pool_release(env.pool), xseg_route_begin(env.second_pool, NULL, NULL),
                      xseg_route_end(env.pool), xseg_pool_checkpoint(env.second_pool, &out),
                      xseg_pool_restore(env.second_pool, checkpoint, NULL, NULL),
                      xseg_pool_check_live(env.pool, &env.of_pool, 1, &exactly));
    expect_unchanged(&before);
    env_capture_end(env.pool, env.stream);
    xseg_checkpoint_destroy(checkpoint);
}

/* --- Lost devices: allocations fail without a driver call; frees, statistics and close work on the host side. --- */

/* Numbers of CUresult. */
#define DEINITIALIZED   4
#define ILLEGAL_ADDRESS 700

int cuDevicePrimaryCtxReset_v2(int device);

/* Allocations and trims fail without a driver call. */
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
    struct xseg_allocator *allocator = env_open_sim("expandable_segments:True", .devices = 2);
    xseg_stream side = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 700, NULL);
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    assert_error(env_try_alloc(allocator, 100 * MIB, NULL), DEVICE_LOST,
                 "cuMemCreate failed, CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_lost(allocator, "device 0 is lost");
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    assert_int_equal(env_stats(allocator).num_ooms, 0);

    /* The other device still works. */
    void *c = env_alloc_on(allocator, 1, 100 * MIB);
    env_free(allocator, c);

    assert_error(xseg_close(allocator), BUSY, "blocks are allocated, 2 on ");
    env_free(allocator, a, b);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
    /* The memory of a lost device is not released. */
    assert_ok(xseg_close(allocator));
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

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuStreamQuery", 1, DEINITIALIZED));
    assert_int_equal(xseg_trim(allocator, NULL, NULL, NULL), XSEG_ERR_DEVICE_LOST);
    expect_lost(allocator, "CUDA_ERROR_DEINITIALIZED");
    assert_int_equal(env_reserved(allocator), 40 * MIB); /* two pages of 20 MiB */
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
    for (unsigned is_cached = 0; is_cached < 2; is_cached++) {
        struct xseg_allocator *allocator = env_open("expandable_segments:True");
        const xseg_stream side = env_stream();
        void *pending = env_alloc(allocator, 5 * MIB, NULL);

        env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        /* The second request of a stream fills the stream lookup cache, and xseg_config_set() clears this cache. */
        if (is_cached != 0)
            env_free(allocator, env_alloc(allocator, 6 * MIB, NULL));
        env_free_in_use(allocator, pending, side);
        if (is_cached == 0)
            assert_ok(xseg_config_set(allocator, "expandable_segments:True"));
        assert_ok(xseg_sim_fail("cuEventQuery", 1, ILLEGAL_ADDRESS));
        assert_error(env_try_alloc(allocator, 6 * MIB, NULL), DEVICE_LOST, "device 0 is lost");
        assert_ok(xseg_close(allocator));
    }
}

/* Memory functions of a pool, which return the address `context`. */
static void *alloc_memory(void *context, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes, (void)ordinal, (void)stream;
    return context;
}

static void free_memory(void *context, void *memory, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes, (void)ordinal, (void)stream;
    assert_ptr_equal(memory, context);
}

/* A failed close discards the pending blocks of a lost device, so their addresses can be reused. */
static void expect_pending_block_discarded(size_t bytes)
{
    struct xseg_pool_options options = {
        sizeof(options), .memory = (struct xseg_pool_memory){alloc_memory, free_memory,
                                                             (void *)((uintptr_t)1 << 46)}};
    struct xseg_pool *pool[2];

    struct xseg_allocator *allocator = env_open_sim("expandable_segments:False", .devices = 2);
    const xseg_stream side = env_stream();
    for (int device = 0; device < 2; device++)
        assert_ok(xseg_pool_create(allocator, device, &options, &pool[device]));
    void *pending = env_alloc_in(allocator, pool[0], bytes, NULL);
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, pending, side));
    env_free(allocator, pending);
    assert_ok(xseg_sim_fail("cuMemAlloc", 1, ILLEGAL_ADDRESS));
    assert_int_equal(env_try_alloc(allocator, 100 * MIB, NULL), XSEG_ERR_DEVICE_LOST);

    void *of_second_device = env_alloc_on(allocator, 1, 100 * MIB);
    env_free(allocator, of_second_device);
    env_fault(1, .call = "cuMemFree", .every = 1, .error = 1);
    assert_error(xseg_close(allocator), DRIVER, "cuMemFree");
    assert_ok(xseg_sim_fault_set(1, NULL));

    assert_int_equal(xseg_free(allocator, pending), XSEG_ERR_NOT_ALLOCATED);
    assert_ptr_equal(env_alloc_in(allocator, pool[1], bytes, NULL), pending);
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    env_free(allocator, pending);
    assert_ok(xseg_close(allocator));
}

TEST(lost_device_frees_pending_blocks)
{
    expect_pending_block_discarded(5 * MIB);
    expect_pending_block_discarded(5000);
}
