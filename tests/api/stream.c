/* SPDX-License-Identifier: MIT */
/* Streams: own memory each, blocks that wait for other streams, private pools. */
#include "tests/support/env.h"

#include <pthread.h>

/* NULL and the legacy handle are one stream; another stream has memory of its own. */
TEST(streams_have_memory_of_their_own)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream(), legacy = (xseg_stream)(uintptr_t)1;
    void *a = env_alloc(allocator, 4 * MIB, NULL), *b, *c;

    env_free(allocator, a);
    b = env_alloc(allocator, 4 * MIB, stream);
    assert_ptr_not_equal(a, b);
    c = env_alloc(allocator, 4 * MIB, legacy);
    assert_ptr_equal(a, c);
    assert_null(env_block(allocator, c).stream);
    assert_ptr_equal(env_block(allocator, b).stream, stream);
    env_free(allocator, b, c);
    env_close(allocator, stream);
}

/* A hit asks the driver nothing. */
TEST(hits_make_no_driver_call)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream();
    uint64_t calls;

    env_free(allocator, env_alloc(allocator, 5000, stream));
    env_free(allocator, env_alloc(allocator, 5 * MIB, stream));
    calls = xseg_sim_calls(NULL);
    for (unsigned i = 0; i < 1000; i++)
        env_free(allocator, env_alloc(allocator, 700 * (i + 1), stream));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    env_close(allocator, stream);
}

/* A use on another stream: active until that stream has passed, looked at when a malloc starts. */
TEST(a_foreign_use_delays_the_return)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    const xseg_stream side = env_stream();
    void *x = env_alloc(allocator, GIB, NULL), *t;
    struct xseg_statistics stats;

    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, x, side));
    assert_ok(xseg_record_stream(allocator, x, side));
    assert_ok(xseg_record_stream(allocator, x, NULL));
    env_free(allocator, x);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_PENDING_FREE);
    env_expect_error(xseg_free(allocator, x), XSEG_ERR_NOT_ALLOCATED, "another stream still uses");

    t = env_alloc(allocator, 1, NULL);
    stats = env_stats(allocator);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_LARGE].current, GIB);
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, t);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, GIB);
    t = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_CACHED);
    env_free(allocator, t);
    env_close(allocator, side);
}

struct worker {
    struct xseg_allocator *allocator;
    void *ptr;
    xseg_status status;
};

static void *use_on_own_default_stream(void *self)
{
    const xseg_stream own = (xseg_stream)(uintptr_t)2;
    struct worker *worker = self;

    env_launch(worker->allocator, own, worker->ptr);
    worker->status = xseg_record_stream(worker->allocator, worker->ptr, own);
    return NULL;
}

/* Another thread's default stream has no name in this thread: the legacy stream, which waits for it,
 * stands for it. */
TEST(another_threads_default_stream_is_waited_for)
{
    struct worker worker = {.allocator = env_open(NULL)};
    pthread_t thread;
    void *other;

    worker.ptr = env_alloc(worker.allocator, 5 * MIB, NULL);
    assert_int_equal(pthread_create(&thread, NULL, use_on_own_default_stream, &worker), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_ok(worker.status);
    env_free(worker.allocator, worker.ptr);
    other = env_alloc(worker.allocator, 5 * MIB, NULL);
    assert_ptr_not_equal(other, worker.ptr);
    assert_int_equal(env_block(worker.allocator, worker.ptr).state, XSEG_BLOCK_PENDING_FREE);
    xseg_sim_finish_all();
    assert_ptr_equal(env_alloc(worker.allocator, 5 * MIB, NULL), worker.ptr);
    env_free(worker.allocator, worker.ptr, other);
    env_close(worker.allocator);
}

/*
 * Two blocks at the start of a segment come back in one look, each from a stream that used it: how many
 * pieces of split segments there are at the highest.  The second block merges with the rest of the
 * segment; the first one is a piece of its own if it comes back before.
 */
static uint64_t pieces_at_the_highest(struct xseg_allocator *allocator, xseg_stream own,
                                      xseg_stream of_first, xseg_stream of_second)
{
    struct xseg_scope where = XSEG_SCOPE_ALL;
    void *first = env_alloc(allocator, 3 * MIB, own), *second = env_alloc(allocator, 3 * MIB, own);

    assert_ok(xseg_record_stream(allocator, first, of_first));
    assert_ok(xseg_record_stream(allocator, second, of_second));
    env_free(allocator, first, second);
    where.device = 0;
    assert_ok(xseg_stats_reset(allocator, &where, XSEG_RESET_PEAK));
    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    return env_stats(allocator).inactive_split[XSEG_STAT_LARGE].peak;
}

/* PyTorch's table of streams hashes their numbers; this is its order for the first six. */
TEST(streams_are_looked_at_in_a_fixed_order)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    const xseg_stream own = env_stream(), early = env_stream(), late = env_stream();

    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(pieces_at_the_highest(allocator, own, NULL, late), 2);
    assert_int_equal(pieces_at_the_highest(allocator, own, late, NULL), 1);
    assert_int_equal(pieces_at_the_highest(allocator, own, late, early), 2);
    assert_int_equal(pieces_at_the_highest(allocator, own, early, late), 1);
    env_close(allocator, late, early, own);
}

/*
 * A full device waits for pending blocks before it says that there is no memory, and searches the
 * cache again.  Here nothing can go back to the driver, but the block that just came back fits.
 */
TEST(a_full_device_waits_for_pending_blocks)
{
    struct xseg_sim_settings settings = {sizeof(settings), .memory_bytes = 64 * MIB};
    struct xseg_allocator *allocator;
    xseg_stream side;
    void *x, *kept;

    allocator = env_open_on(&settings, "expandable_segments:False");
    side = env_stream();
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    x = env_alloc(allocator, 30 * MIB, NULL);
    kept = env_alloc(allocator, 25 * MIB, NULL);
    assert_ok(xseg_sim_launch(side, UINT64_MAX));
    assert_ok(xseg_record_stream(allocator, x, side));
    env_free(allocator, x);
    assert_ptr_equal(env_alloc(allocator, 30 * MIB, NULL), x);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_device_free, 0);
    env_free(allocator, x, kept);
    env_close(allocator, side);
}

TEST(pools_are_walls)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_pool *pool = NULL;
    void *inside = NULL, *outside;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    inside = env_alloc_in(allocator, pool, 6 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, inside).pool, pool);
    env_free(allocator, inside);
    outside = env_alloc(allocator, 6 * MIB, NULL);
    assert_null(env_block(allocator, outside).pool);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);

    /* Held, its cache stays; released, it goes with the next trim. */
    assert_ok(xseg_pool_retain(pool));
    assert_ok(xseg_pool_release(pool));
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.kept_pool, 20 * MIB);
    assert_ok(xseg_pool_release(pool));
    env_expect_error(xseg_pool_release(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_expect_error(xseg_pool_retain(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    env_free(allocator, outside);
    env_close(allocator);
}

/* A pool's live blocks outlive its last holder. */
TEST(blocks_outlive_their_pool)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}

/* Pools come and go for ever: what they took comes back, the addresses too. */
TEST(retired_pools_leave_nothing_reserved)
{
    struct xseg_sim_settings settings = {sizeof(settings), .address_bytes = 1024 * GIB};
    struct xseg_allocator *allocator;

    allocator = env_open_on(&settings, NULL);
    for (unsigned round = 0; round < 100; round++) {
        struct xseg_pool *pool = NULL;
        void *ptr = NULL;

        assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
        ptr = env_alloc_in(allocator, pool, 5 * MIB, NULL);
        env_free(allocator, ptr);
        assert_ok(xseg_pool_release(pool));
        env_expect_error(env_try_alloc_in(allocator, pool, 5 * MIB, &ptr), XSEG_ERR_ARGUMENT,
                         "pool has been released");
        /* Every other time nobody trims: the next growth finds out that addresses ran short. */
        if (round % 2 == 0)
            env_empty_cache(allocator);
    }
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
    env_close(allocator);
}

TEST(pools_of_others_are_refused)
{
    struct xseg_allocator *first = env_open(NULL), *second = NULL;
    struct xseg_request request = {sizeof(request)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    assert_ok(env_try_open(NULL, &second));
    assert_ok(xseg_pool_create(first, 0, NULL, &pool));
    request.pool = where.pool = pool;
    request.bytes = 1;
    env_expect_error(xseg_alloc_with(second, &request, &ptr), XSEG_ERR_ARGUMENT, "another");
    env_expect_error(xseg_trim(second, &where, NULL, NULL), XSEG_ERR_ARGUMENT, "another");
    env_expect_error(xseg_pool_create(first, 7, NULL, &pool), XSEG_ERR_ARGUMENT,
                     "device 7 does not exist");
    env_expect_error(xseg_pool_release(NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_ok(xseg_close(first));
    env_close(second);
}

/* The library asks the stream where a capture began which capture that is, until its end. */
TEST(a_stream_stays_while_a_capture_is_begun_on_it)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream origin = env_stream();
    struct xseg_pool *pool = NULL;

    env_free(allocator, env_alloc(allocator, 1, origin));
    assert_ok(xseg_pool_create(allocator, 0, NULL, &pool));
    assert_ok(xseg_capture_begin(pool, origin));
    env_expect_error(xseg_stream_retire(allocator, 0, origin), XSEG_ERR_BUSY, "being captured");
    assert_ok(xseg_capture_end(pool));
    assert_ok(xseg_stream_retire(allocator, 0, origin));
    env_close(allocator, origin);
}
