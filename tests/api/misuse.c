/* SPDX-License-Identifier: MIT */
/*
 * * Wrong calls about streams, captures and pools: each gets a status and a sentence, and has changed
 * nothing: the statistics and the live blocks are as before.
 */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/env.h"

int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventRecord(xseg_event event, xseg_stream stream);
int cuEventDestroy_v2(xseg_event event);

/* An allocator in full use, and somebody else's. */
struct stage {
    struct xseg_allocator *allocator, *others;
    xseg_stream stream;
    struct xseg_pool *pool, *second, *retired, *foreign;
    void *live;    /* of the default pool, with a use */
    void *inside;  /* of `pool` */
    void *kept;    /* of `retired` */
    void *pending; /* freed, waits for `stream` */
    void *cached;  /* freed */
};

/* What a refused call must leave as it was. */
struct picture {
    struct xseg_statistics stats, pool_stats;
    struct xseg_block_info live, inside, pending, cached;
    bool holds;
};

static struct xseg_statistics pool_stats(const struct stage *stage)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_statistics stats = {sizeof(stats)};

    where.pool = stage->pool;
    assert_ok(xseg_stats_get(stage->allocator, &where, &stats));
    return stats;
}

static void look(const struct stage *stage, struct picture *out)
{
    memset(out, 0, sizeof(*out));
    out->stats = env_stats(stage->allocator);
    out->stats.host_bytes = 0; /* what was touched: looking at tables may touch more of them */
    out->pool_stats = pool_stats(stage);
    out->live = env_block(stage->allocator, stage->live);
    out->inside = env_block(stage->allocator, stage->inside);
    out->pending = env_block(stage->allocator, stage->pending);
    out->cached = env_block(stage->allocator, stage->cached);
    assert_ok(xseg_pool_check_live(stage->pool, &stage->inside, 1, &out->holds));
}

static void expect_same(const struct stage *stage, const struct picture *before)
{
    struct picture after;

    look(stage, &after);
    assert_memory_equal(&after.stats, &before->stats, sizeof(after.stats));
    assert_memory_equal(&after.pool_stats, &before->pool_stats, sizeof(after.stats));
    assert_memory_equal(&after.live, &before->live, sizeof(after.live));
    assert_memory_equal(&after.inside, &before->inside, sizeof(after.inside));
    assert_memory_equal(&after.pending, &before->pending, sizeof(after.pending));
    assert_memory_equal(&after.cached, &before->cached, sizeof(after.cached));
    assert_true(after.holds && before->holds);
}

/* Expect that a call is refused, with a word in its sentence. */
#define REFUSED(stage, call, status, word)          \
    do {                                            \
        struct picture before_;                     \
        look((stage), &before_);                    \
        env_expect_error((call), (status), (word)); \
        expect_same((stage), &before_);             \
    } while (0)

static void set_up(struct stage *stage)
{
    memset(stage, 0, sizeof(*stage));
    stage->allocator = env_open("expandable_segments:True");
    assert_ok(env_try_open("expandable_segments:False", &stage->others));
    stage->stream = env_stream();
    stage->pool = env_observed_pool(stage->allocator);
    stage->second = env_observed_pool(stage->allocator);
    stage->retired = env_observed_pool(stage->allocator);
    stage->kept = env_alloc_in(stage->allocator, stage->retired, 512, NULL);
    stage->foreign = env_pool(stage->others);
    assert_ok(xseg_pool_release(stage->retired));
    stage->live = env_alloc(stage->allocator, 5 * MIB, NULL);
    stage->pending = env_alloc(stage->allocator, 6 * MIB, NULL);
    stage->cached = env_alloc(stage->allocator, 1000, NULL);
    stage->inside = env_alloc_in(stage->allocator, stage->pool, 7 * MIB, stage->stream);
    assert_ok(xseg_record_stream(stage->allocator, stage->live, stage->stream));
    assert_ok(xseg_record_stream(stage->allocator, stage->pending, stage->stream));
    assert_ok(xseg_sim_launch(stage->stream, UINT64_MAX));
    env_free(stage->allocator, stage->pending, stage->cached);
}

/* After all that was refused everything works: frees, the close, and nothing is left behind. */
static void tear_down(struct stage *stage)
{
    env_free(stage->allocator, stage->live, stage->inside, stage->kept);
    assert_ok(xseg_close(stage->others));
    env_close(stage->allocator, stage->stream);
}

/* A caller that passes NULL is told what it called, not what the library calls on its behalf. */
TEST(an_error_names_the_function_that_was_called)
{
    struct xseg_request request = {sizeof(request)};
    struct xseg_block_info info = {sizeof(info)};
    struct xseg_statistics stats = {sizeof(stats)};
    void *ptr = NULL;
    char other = 0;

#define NAMED(function, ...) \
    env_expect_error(function(__VA_ARGS__), XSEG_ERR_ARGUMENT, #function ": ")
    request.bytes = 1;
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
    struct stage stage;
    char outside = 0;

    set_up(&stage);
    REFUSED(&stage, xseg_record_stream(NULL, stage.live, NULL), XSEG_ERR_ARGUMENT,
            "allocator is NULL");
    REFUSED(&stage, xseg_record_stream(stage.allocator, stage.cached, stage.stream),
            XSEG_ERR_NOT_ALLOCATED, "cached memory");
    REFUSED(&stage, xseg_record_stream(stage.allocator, stage.pending, stage.stream),
            XSEG_ERR_NOT_ALLOCATED, "another stream still uses");
    REFUSED(&stage, xseg_record_stream(stage.allocator, (char *)stage.live + 512, stage.stream),
            XSEG_ERR_NOT_ALLOCATED, "at offset 512 of the block at ");
    REFUSED(&stage, xseg_record_stream(stage.allocator, &outside, stage.stream),
            XSEG_ERR_NOT_ALLOCATED, "not in memory of this allocator");
    REFUSED(&stage, xseg_record_stream(stage.others, stage.live, stage.stream),
            XSEG_ERR_NOT_ALLOCATED, "not in memory of this allocator");
    REFUSED(&stage, xseg_record_stream(stage.allocator, stage.live, nonsense), XSEG_ERR_DRIVER,
            "cuStream");
    assert_ok(xseg_record_stream(stage.allocator, NULL, nonsense));
    REFUSED(&stage, xseg_stream_synchronized(NULL, 0, NULL), XSEG_ERR_ARGUMENT,
            "allocator is NULL");
    REFUSED(&stage, xseg_stream_synchronized(stage.allocator, 7, stage.stream), XSEG_ERR_ARGUMENT,
            "device 7 does not exist");
    REFUSED(&stage, xseg_stream_synchronized(stage.allocator, -1, stage.stream), XSEG_ERR_ARGUMENT,
            "device -1 does not exist");
    assert_ok(xseg_stream_synchronized(stage.allocator, 0, nonsense));
    tear_down(&stage);
}

TEST(free_after_checks_its_events)
{
    struct stage stage;
    xseg_event events[2] = {NULL, NULL}, captured = NULL;

    set_up(&stage);
    env_context_push(0);
    assert_int_equal(cuEventCreate(&events[0], 2), 0);
    assert_int_equal(cuEventCreate(&captured, 2), 0);
    REFUSED(&stage, xseg_free_after(NULL, stage.live, events, 1), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.live, NULL, 1), XSEG_ERR_ARGUMENT,
            "events is NULL");
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.live, events, 2), XSEG_ERR_ARGUMENT,
            "events[1] is NULL");
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.cached, events, 1),
            XSEG_ERR_NOT_ALLOCATED, "cached memory");
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.cached, NULL, 0), XSEG_ERR_NOT_ALLOCATED,
            "cached memory");

    /* An event that a capture recorded never passes. */
    assert_ok(xseg_capture_begin(stage.pool, stage.stream));
    env_driver_capture_begin(stage.stream);
    assert_int_equal(cuEventRecord(captured, stage.stream), 0);
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.live, events, 1), XSEG_ERR_BUSY,
            "capture is active");
    env_capture_end(stage.pool, stage.stream);
    events[1] = captured;
    REFUSED(&stage, xseg_free_after(stage.allocator, stage.live, events, 2), XSEG_ERR_DRIVER,
            "CAPTURED_EVENT");
    assert_int_equal(cuEventDestroy_v2(events[0]), 0);
    assert_int_equal(cuEventDestroy_v2(captured), 0);
    env_context_pop(0);
    tear_down(&stage);
}

TEST(default_streams_cannot_be_retired)
{
    struct stage stage;

    set_up(&stage);
    REFUSED(&stage, xseg_stream_retire(NULL, 0, stage.stream), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&stage, xseg_stream_retire(stage.allocator, 7, stage.stream), XSEG_ERR_ARGUMENT,
            "device 7 does not exist");
    for (uintptr_t handle = 0; handle <= 2; handle++)
        REFUSED(&stage, xseg_stream_retire(stage.allocator, 0, (xseg_stream)handle),
                XSEG_ERR_ARGUMENT, "default stream");
    env_capture_begin(stage.pool, stage.stream);
    REFUSED(&stage, xseg_stream_retire(stage.allocator, 0, stage.stream), XSEG_ERR_BUSY,
            "being captured");
    env_capture_end(stage.pool, stage.stream);
    tear_down(&stage);
}

/* --- Captures. --- */

TEST(captures_need_a_pool_and_a_stream)
{
    const xseg_stream nonsense = (xseg_stream)(uintptr_t)0x1230;
    struct stage stage;

    set_up(&stage);
    REFUSED(&stage, xseg_capture_begin(NULL, stage.stream), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_capture_begin(stage.pool, NULL), XSEG_ERR_ARGUMENT, "legacy default");
    REFUSED(&stage, xseg_capture_begin(stage.pool, (xseg_stream)(uintptr_t)1), XSEG_ERR_ARGUMENT,
            "legacy default");
    REFUSED(&stage, xseg_capture_begin(stage.retired, stage.stream), XSEG_ERR_ARGUMENT,
            "pool has been released");
    REFUSED(&stage, xseg_capture_begin(stage.pool, nonsense), XSEG_ERR_DRIVER, "cuStream");
    REFUSED(&stage, xseg_capture_end(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_capture_end(stage.pool), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&stage, xseg_capture_end(stage.retired), XSEG_ERR_ARGUMENT, "capture is not active");
    /* None of them has begun anything: events are polled, memory goes back. */
    assert_ok(xseg_close(stage.others));
    stage.others = NULL;
    assert_ok(xseg_sim_finish(stage.stream));
    env_empty_cache(stage.allocator);
    assert_int_equal(env_block(stage.allocator, stage.pending).state, XSEG_BLOCK_CACHED);
    tear_down(&stage);
}

TEST(captures_begin_and_end_once)
{
    struct xseg_checkpoint *checkpoint = NULL, *other = NULL;
    struct stage stage;

    set_up(&stage);
    assert_ok(xseg_pool_checkpoint(stage.second, &checkpoint));
    env_capture_begin(stage.pool, stage.stream);
    /* The pending block could come back now, but nobody may ask. */
    assert_ok(xseg_sim_finish(stage.stream));
    REFUSED(&stage, xseg_capture_begin(stage.pool, stage.stream), XSEG_ERR_BUSY,
            "capture is already active");
    REFUSED(&stage, xseg_capture_begin(stage.second, stage.stream), XSEG_ERR_BUSY,
            "stream is already being captured");
    REFUSED(&stage, xseg_route_begin(stage.pool, NULL, NULL), XSEG_ERR_BUSY,
            "capture is already active");
    REFUSED(&stage, xseg_route_end(stage.pool), XSEG_ERR_ARGUMENT, "route is not active");
    REFUSED(&stage, xseg_capture_end(stage.second), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&stage, xseg_pool_checkpoint(stage.pool, &other), XSEG_ERR_BUSY, "capture");
    assert_null(other);
    REFUSED(&stage, xseg_pool_restore(stage.second, checkpoint, NULL, NULL), XSEG_ERR_BUSY,
            "capture");
    REFUSED(&stage, xseg_close(stage.allocator), XSEG_ERR_BUSY, "capture is active");
    env_capture_end(stage.pool, stage.stream);
    REFUSED(&stage, xseg_capture_end(stage.pool), XSEG_ERR_ARGUMENT, "capture is not active");
    /* What was refused has not kept the pool. */
    assert_ok(xseg_pool_release(stage.pool));
    REFUSED(&stage, xseg_pool_release(stage.pool), XSEG_ERR_ARGUMENT, "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
    tear_down(&stage);
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
    struct stage stage;

    set_up(&stage);
    REFUSED(&stage, xseg_pool_create(NULL, 0, NULL, &pool), XSEG_ERR_ARGUMENT, "NULL");
    REFUSED(&stage, xseg_pool_create(stage.allocator, 0, NULL, NULL), XSEG_ERR_ARGUMENT,
            "out is NULL");
    REFUSED(&stage, xseg_pool_create(stage.allocator, -1, NULL, &pool), XSEG_ERR_ARGUMENT,
            "device -1 does not exist");
    options.struct_size = 3;
    REFUSED(&stage, xseg_pool_create(stage.allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
            "struct_size is unknown, 3");
    options.struct_size = sizeof(options);
    options.memory.alloc = no_alloc;
    REFUSED(&stage, xseg_pool_create(stage.allocator, 0, &options, &pool), XSEG_ERR_ARGUMENT,
            "memory.free is NULL");
    assert_null(pool);
    tear_down(&stage);
}

/* Released once too often, or of somebody else: a pool serves nobody. */
TEST(released_pools_are_rejected)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_request request = {sizeof(request)};
    struct xseg_checkpoint *checkpoint = NULL;
    struct stage stage;
    void *ptr = NULL;
    bool exactly = true;

    set_up(&stage);
    request.bytes = 512;
    REFUSED(&stage, xseg_pool_retain(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_pool_release(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_pool_retain(stage.retired), XSEG_ERR_ARGUMENT, "pool has been released");
    REFUSED(&stage, xseg_pool_release(stage.retired), XSEG_ERR_ARGUMENT, "pool has been released");
    REFUSED(&stage, xseg_route_begin(stage.retired, NULL, NULL), XSEG_ERR_ARGUMENT,
            "pool has been released");
    REFUSED(&stage, xseg_pool_checkpoint(stage.retired, &checkpoint), XSEG_ERR_ARGUMENT,
            "pool has been released");
    request.pool = stage.retired;
    REFUSED(&stage, xseg_alloc_with(stage.allocator, &request, &ptr), XSEG_ERR_ARGUMENT,
            "pool has been released");
    request.pool = where.pool = stage.foreign;
    REFUSED(&stage, xseg_alloc_with(stage.allocator, &request, &ptr), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&stage, xseg_trim(stage.allocator, &where, NULL, NULL), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&stage, xseg_prewarm(stage.allocator, &where, 512), XSEG_ERR_ARGUMENT, "another");
    REFUSED(&stage, xseg_pool_check_live(NULL, &ptr, 1, &exactly), XSEG_ERR_ARGUMENT,
            "pool is NULL");
    REFUSED(&stage, xseg_pool_check_live(stage.pool, NULL, 1, &exactly), XSEG_ERR_ARGUMENT,
            "is NULL");
    REFUSED(&stage, xseg_pool_check_live(stage.pool, &ptr, 1, NULL), XSEG_ERR_ARGUMENT, "is NULL");
    /* A released pool can still be asked; it holds nothing. */
    assert_ok(xseg_pool_check_live(stage.retired, &stage.inside, 1, &exactly));
    assert_false(exactly);
    assert_null(ptr);
    assert_null(checkpoint);
    tear_down(&stage);
}

/* A route or a capture holds its pool: released by everybody else, it still serves until the end. */
TEST(a_routed_pool_is_let_go_at_the_end)
{
    struct stage stage;
    void *ptr;

    set_up(&stage);
    assert_ok(xseg_route_begin(stage.second, NULL, NULL));
    REFUSED(&stage, xseg_route_begin(stage.second, NULL, NULL), XSEG_ERR_BUSY,
            "route is already active");
    REFUSED(&stage, xseg_capture_begin(stage.second, stage.stream), XSEG_ERR_BUSY,
            "route is already active");
    REFUSED(&stage, xseg_capture_end(stage.second), XSEG_ERR_ARGUMENT, "capture is not active");
    REFUSED(&stage, xseg_route_end(NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_route_begin(NULL, NULL, NULL), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_close(stage.allocator), XSEG_ERR_BUSY, "route to a pool is active");
    assert_ok(xseg_pool_release(stage.second));
    ptr = env_alloc(stage.allocator, 512, NULL);
    assert_ptr_equal(env_block(stage.allocator, ptr).pool, stage.second);
    assert_ok(xseg_route_end(stage.second));
    REFUSED(&stage, xseg_route_end(stage.second), XSEG_ERR_ARGUMENT, "route is not active");
    REFUSED(&stage, xseg_pool_release(stage.second), XSEG_ERR_ARGUMENT, "pool has been released");
    env_free(stage.allocator, ptr);
    tear_down(&stage);
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
    struct stage stage;
    void *later, *live;

    set_up(&stage);
    REFUSED(&stage, xseg_pool_checkpoint(NULL, &checkpoint), XSEG_ERR_ARGUMENT, "pool is NULL");
    REFUSED(&stage, xseg_pool_checkpoint(stage.pool, NULL), XSEG_ERR_ARGUMENT, "out is NULL");
    assert_ok(xseg_pool_checkpoint(stage.pool, &checkpoint));
    assert_ok(xseg_pool_checkpoint(stage.foreign, &others));
    REFUSED(&stage, xseg_pool_restore(NULL, checkpoint, never_called, NULL), XSEG_ERR_ARGUMENT,
            "pool is NULL");
    REFUSED(&stage, xseg_pool_restore(stage.pool, NULL, never_called, NULL), XSEG_ERR_ARGUMENT,
            "checkpoint is NULL");
    REFUSED(&stage, xseg_pool_restore(stage.second, checkpoint, never_called, NULL),
            XSEG_ERR_ARGUMENT, "another pool");
    REFUSED(&stage, xseg_pool_restore(stage.pool, others, never_called, NULL), XSEG_ERR_ARGUMENT,
            "another pool");

    /* Blocks that somebody else works on cannot be taken away. */
    later = env_alloc_in(stage.allocator, stage.pool, 3 * MIB, stage.stream);
    assert_ok(xseg_record_stream(stage.allocator, later, NULL));
    env_context_push(0);
    assert_ok(xseg_sim_launch(NULL, UINT64_MAX));
    env_context_pop(0);
    env_expect_error(xseg_pool_restore(stage.pool, checkpoint, never_called, NULL), XSEG_ERR_BUSY,
                     "used by other streams");
    assert_int_equal(env_block(stage.allocator, later).state, XSEG_BLOCK_ALLOCATED);
    env_free(stage.allocator, later);
    REFUSED(&stage, xseg_pool_restore(stage.pool, checkpoint, never_called, NULL), XSEG_ERR_BUSY,
            "memory of pool 1 is pending free, 1 block;");

    xseg_checkpoint_destroy(checkpoint);
    xseg_checkpoint_destroy(others);
    xseg_checkpoint_destroy(NULL);
    assert_ok(xseg_pool_checkpoint(stage.second, &checkpoint));
    live = env_alloc_in(stage.allocator, stage.second, 512, NULL);
    assert_ok(xseg_pool_release(stage.second));
    REFUSED(&stage, xseg_pool_restore(stage.second, checkpoint, never_called, NULL),
            XSEG_ERR_ARGUMENT, "pool has been released");
    xseg_checkpoint_destroy(checkpoint);
    env_free(stage.allocator, live);
    tear_down(&stage);
}

/* --- A forked child. --- */

/* How many of the calls a child may make after all. */
static int allowed_in_child(const struct stage *stage, struct xseg_checkpoint *checkpoint)
{
    struct xseg_checkpoint *taken = NULL;
    struct xseg_pool *pool = NULL;
    xseg_event event = NULL;
    bool exactly = false;
    const xseg_status got[] = {
        xseg_record_stream(stage->allocator, stage->live, stage->stream),
        xseg_free_after(stage->allocator, stage->live, &event, 1),
        xseg_stream_synchronized(stage->allocator, 0, stage->stream),
        xseg_stream_retire(stage->allocator, 0, stage->stream),
        xseg_capture_begin(stage->second, stage->stream),
        xseg_capture_end(stage->pool),
        xseg_pool_create(stage->allocator, 0, NULL, &pool),
        xseg_pool_retain(stage->pool),
        xseg_pool_release(stage->pool),
        xseg_route_begin(stage->second, NULL, NULL),
        xseg_route_end(stage->pool),
        xseg_pool_checkpoint(stage->second, &taken),
        xseg_pool_restore(stage->second, checkpoint, NULL, NULL),
        xseg_pool_check_live(stage->pool, &stage->inside, 1, &exactly),
    };
    int allowed = taken != NULL || pool != NULL || exactly;

    for (size_t i = 0; i < COUNT_OF(got); i++)
        allowed += got[i] != XSEG_ERR_FORKED;
    return allowed;
}

/* A child that was forked in a capture is refused everything, and its exit takes nothing away. */
TEST(calls_of_a_child_forked_in_a_capture_fail)
{
    struct xseg_checkpoint *checkpoint = NULL;
    struct picture before;
    struct stage stage;
    int result = -1;
    pid_t child;

    set_up(&stage);
    assert_ok(xseg_sim_finish(stage.stream));
    assert_ok(xseg_pool_checkpoint(stage.second, &checkpoint));
    env_capture_begin(stage.pool, stage.stream);
    look(&stage, &before);
    child = fork();
    if (child == 0)
        _exit(allowed_in_child(&stage, checkpoint));
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFEXITED(result));
    assert_int_equal(WEXITSTATUS(result), 0);
    expect_same(&stage, &before);
    env_capture_end(stage.pool, stage.stream);
    xseg_checkpoint_destroy(checkpoint);
    tear_down(&stage);
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
    void *ptr = NULL;

    for (unsigned i = 0; i < 100; i++)
        env_expect_error(xseg_alloc(allocator, 0, (size_t)512 << i % 20, NULL, &ptr),
                         XSEG_ERR_DEVICE_LOST, word);
    assert_null(ptr);
    env_expect_error(xseg_trim(allocator, NULL, NULL, NULL), XSEG_ERR_DEVICE_LOST, word);
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

TEST(sticky_error_loses_the_device)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_allocator *allocator;
    xseg_stream side;
    void *a, *b, *c = NULL;

    allocator = env_open_on(&settings, "expandable_segments:True");
    side = env_stream();
    a = env_alloc(allocator, 5 * MIB, NULL);
    b = env_alloc(allocator, 700, NULL);
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_sim_fail("cuMemCreate", 1, ILLEGAL_ADDRESS));
    env_expect_error(xseg_alloc(allocator, 0, 100 * MIB, NULL, &c), XSEG_ERR_DEVICE_LOST,
                     "cuMemCreate failed, CUDA_ERROR_ILLEGAL_ADDRESS");
    expect_lost(allocator, "device 0 is lost");
    assert_int_equal(env_stats(allocator).allocation[XSEG_STAT_ALL].current, 2);
    assert_int_equal(env_stats(allocator).num_ooms, 0);

    /* The other device is none of its business. */
    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &c));
    env_free(allocator, c);

    env_expect_error(xseg_close(allocator), XSEG_ERR_BUSY, "blocks are allocated, 2 on ");
    env_free(allocator, a, b);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_close(allocator)); /* a lost device keeps its memory */
    env_stream_destroy(side);
}

TEST(context_reset_loses_the_device)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = NULL;

    assert_int_equal(cuDevicePrimaryCtxReset_v2(0), 0);
    assert_int_equal(xseg_alloc(allocator, 0, 100 * MIB, NULL, &b), XSEG_ERR_DEVICE_LOST);
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
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    assert_ok(xseg_close(allocator));
}

/* Found at the end: close does what is left to do. */
TEST(close_completes_after_an_error)
{
    struct xseg_allocator *allocator = env_open(NULL);

    env_free(allocator, env_alloc(allocator, 30 * MIB, NULL));
    assert_ok(xseg_sim_fail("cuStreamSynchronize", 1, ILLEGAL_ADDRESS));
    assert_ok(xseg_close(allocator));
}

/* While a device is opened: nothing is kept, and the next attempt opens it. */
TEST(failed_open_of_a_device_is_retried)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *ptr = NULL;

    assert_ok(xseg_sim_fail("cuMemMap", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 0, 512, NULL, &ptr), XSEG_ERR_DEVICE_LOST);
    env_free(allocator, env_alloc(allocator, 512, NULL));
    assert_ok(xseg_close(allocator));
}

/* The question about a pending block finds the device lost: nothing is served, though it is cached. */
TEST(error_in_a_query_loses_the_device)
{
    for (unsigned is_known = 0; is_known < 2; is_known++) {
        struct xseg_allocator *allocator = env_open("expandable_segments:True");
        const xseg_stream side = env_stream();
        void *pending = env_alloc(allocator, 5 * MIB, NULL), *ptr = NULL;

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
        env_expect_error(xseg_alloc(allocator, 0, 6 * MIB, NULL, &ptr), XSEG_ERR_DEVICE_LOST,
                         "device 0 is lost");
        assert_ok(xseg_close(allocator));
    }
}

/* Memory of a pool's own, at the address that `context` is. */
static void *give(void *context, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    return context;
}

static void take_back(void *context, void *memory, size_t bytes, int ordinal, xseg_stream stream)
{
    (void)bytes;
    (void)ordinal;
    (void)stream;
    assert_ptr_equal(memory, context);
}

/* A close that is refused by another device has let go of what a lost one had pending: its address may come
 * again, and its streams may pass. */
static void pending_goes_with_the_device(size_t bytes)
{
    struct xseg_sim_settings settings = {sizeof(settings), .devices = 2};
    struct xseg_sim_fault fault = XSEG_SIM_FAULT_INIT;
    struct xseg_pool_options options = {sizeof(options)};
    struct xseg_pool *pool[2];
    void *gone, *other = NULL;

    options.memory = (struct xseg_pool_memory){give, take_back, (void *)((uintptr_t)1 << 46)};
    struct xseg_allocator *allocator = env_open_on(&settings, "expandable_segments:False");
    const xseg_stream side = env_stream();
    for (int device = 0; device < 2; device++)
        assert_ok(xseg_pool_create(allocator, device, &options, &pool[device]));
    gone = env_alloc_in(allocator, pool[0], bytes, NULL);
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, gone, side));
    env_free(allocator, gone);
    assert_ok(xseg_sim_fail("cuMemAlloc", 1, ILLEGAL_ADDRESS));
    assert_int_equal(xseg_alloc(allocator, 0, 100 * MIB, NULL, &other), XSEG_ERR_DEVICE_LOST);

    assert_ok(xseg_alloc(allocator, 1, 100 * MIB, NULL, &other));
    env_free(allocator, other);
    fault.call = "cuMemFree";
    fault.nth = fault.every = 1;
    fault.error = 1;
    assert_ok(xseg_sim_fault_set(1, &fault));
    env_expect_error(xseg_close(allocator), XSEG_ERR_DRIVER, "cuMemFree");
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
