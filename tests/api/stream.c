/* SPDX-License-Identifier: MIT */
/* Streams: own memory each, blocks that wait for other streams, private pools. */
#include "tests/support/env.h"

#include <pthread.h>

/* NULL and the legacy handle are one stream; another stream has memory of its own. */
static void streams_have_memory_of_their_own(void **state)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream(), legacy = (xseg_stream)(uintptr_t)1;
    void *a = env_alloc(allocator, 4 * MIB, NULL), *b, *c;

    (void)state;
    env_free(allocator, a);
    b = env_alloc(allocator, 4 * MIB, stream);
    assert_ptr_not_equal(a, b);
    c = env_alloc(allocator, 4 * MIB, legacy);
    assert_ptr_equal(a, c);
    assert_null(env_block(allocator, c).stream);
    assert_ptr_equal(env_block(allocator, b).stream, stream);
    env_free(allocator, b);
    env_free(allocator, c);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* A hit asks the driver nothing. */
static void hits_make_no_driver_call(void **state)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream stream = env_stream();
    uint64_t calls;

    (void)state;
    env_free(allocator, env_alloc(allocator, 5000, stream));
    env_free(allocator, env_alloc(allocator, 5 * MIB, stream));
    calls = xseg_sim_calls(NULL);
    for (unsigned i = 0; i < 1000; i++)
        env_free(allocator, env_alloc(allocator, 700 * (i + 1), stream));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(stream);
}

/* A use on another stream: active until that stream has passed, looked at when a malloc starts. */
static void a_foreign_use_delays_the_return(void **state)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:True");
    const xseg_stream side = env_stream();
    void *x = env_alloc(allocator, GIB, NULL), *t;
    struct xseg_statistics stats;

    (void)state;
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, x, side), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, x, side), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, x, NULL), XSEG_OK);
    env_free(allocator, x);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_PENDING_FREE);
    env_expect_error(xseg_free(allocator, x), XSEG_ERR_NOT_ALLOCATED, "another stream still uses");

    t = env_alloc(allocator, 1, NULL);
    stats = env_stats(allocator);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_LARGE].current, GIB);
    assert_int_equal(xseg_sim_finish(side), XSEG_OK);
    env_free(allocator, t);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, GIB);
    t = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_CACHED);
    env_free(allocator, t);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(side);
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
static void another_threads_default_stream_is_waited_for(void **state)
{
    struct worker worker = {.allocator = env_open(NULL)};
    pthread_t thread;
    void *other;

    (void)state;
    worker.ptr = env_alloc(worker.allocator, 5 * MIB, NULL);
    assert_int_equal(pthread_create(&thread, NULL, use_on_own_default_stream, &worker), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(worker.status, XSEG_OK);
    env_free(worker.allocator, worker.ptr);
    other = env_alloc(worker.allocator, 5 * MIB, NULL);
    assert_ptr_not_equal(other, worker.ptr);
    assert_int_equal(env_block(worker.allocator, worker.ptr).state, XSEG_BLOCK_PENDING_FREE);
    xseg_sim_finish_all();
    assert_ptr_equal(env_alloc(worker.allocator, 5 * MIB, NULL), worker.ptr);
    env_free(worker.allocator, worker.ptr);
    env_free(worker.allocator, other);
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

    assert_int_equal(xseg_record_stream(allocator, first, of_first), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, second, of_second), XSEG_OK);
    env_free(allocator, first);
    env_free(allocator, second);
    where.device = 0;
    assert_int_equal(xseg_stats_reset(allocator, &where, XSEG_RESET_PEAK), XSEG_OK);
    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    return env_stats(allocator).inactive_split[XSEG_STAT_LARGE].peak;
}

/* PyTorch's table of streams hashes their numbers; this is its order for the first six. */
static void streams_are_looked_at_in_a_fixed_order(void **state)
{
    struct xseg_allocator *allocator = env_open("expandable_segments:False");
    const xseg_stream own = env_stream(), early = env_stream(), late = env_stream();

    (void)state;
    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(pieces_at_the_highest(allocator, own, NULL, late), 2);
    assert_int_equal(pieces_at_the_highest(allocator, own, late, NULL), 1);
    assert_int_equal(pieces_at_the_highest(allocator, own, late, early), 2);
    assert_int_equal(pieces_at_the_highest(allocator, own, early, late), 1);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(late);
    env_stream_destroy(early);
    env_stream_destroy(own);
}

/*
 * A full device waits for pending blocks before it says that there is no memory, and searches the
 * cache again.  Here nothing can go back to the driver, but the block that just came back fits.
 */
static void a_full_device_waits_for_pending_blocks(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;
    xseg_stream side;
    void *x, *kept;

    (void)state;
    settings.memory_bytes = 64 * MIB;
    allocator = env_open_on(&settings, "expandable_segments:False");
    side = env_stream();
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    x = env_alloc(allocator, 30 * MIB, NULL);
    kept = env_alloc(allocator, 25 * MIB, NULL);
    assert_int_equal(xseg_sim_launch(side, UINT64_MAX), XSEG_OK);
    assert_int_equal(xseg_record_stream(allocator, x, side), XSEG_OK);
    env_free(allocator, x);
    assert_ptr_equal(env_alloc(allocator, 30 * MIB, NULL), x);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_device_free, 0);
    env_free(allocator, x);
    env_free(allocator, kept);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(side);
}

static void pools_are_walls(void **state)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_trim_result done = {sizeof(done)};
    struct xseg_pool *pool = NULL;
    void *inside = NULL, *outside;

    (void)state;
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
    inside = env_alloc_in(allocator, pool, 6 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, inside).pool, pool);
    env_free(allocator, inside);
    outside = env_alloc(allocator, 6 * MIB, NULL);
    assert_null(env_block(allocator, outside).pool);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);

    /* Held, its cache stays; released, it goes with the next trim. */
    assert_int_equal(xseg_pool_retain(pool), XSEG_OK);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    assert_int_equal(xseg_trim(allocator, NULL, NULL, &done), XSEG_OK);
    assert_int_equal(done.kept_pool, 20 * MIB);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    env_expect_error(xseg_pool_release(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_expect_error(xseg_pool_retain(pool), XSEG_ERR_ARGUMENT, "pool has been released");
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 20 * MIB);
    env_free(allocator, outside);
    env_close(allocator);
}

/* A pool's live blocks outlive its last holder. */
static void blocks_outlive_their_pool(void **state)
{
    struct xseg_allocator *allocator = env_open(NULL);
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    (void)state;
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
    ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_int_equal(xseg_pool_release(pool), XSEG_OK);
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr);
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 0);
    env_close(allocator);
}

/* Pools come and go for ever: what they took comes back, the addresses too. */
static void retired_pools_leave_nothing_reserved(void **state)
{
    struct xseg_sim_settings settings = {sizeof(settings)};
    struct xseg_allocator *allocator;

    (void)state;
    settings.address_bytes = 1024 * GIB;
    allocator = env_open_on(&settings, NULL);
    for (unsigned round = 0; round < 100; round++) {
        struct xseg_pool *pool = NULL;
        void *ptr = NULL;

        assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
        ptr = env_alloc_in(allocator, pool, 5 * MIB, NULL);
        env_free(allocator, ptr);
        assert_int_equal(xseg_pool_release(pool), XSEG_OK);
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

static void pools_of_others_are_refused(void **state)
{
    struct xseg_allocator *first = env_open(NULL), *second = NULL;
    struct xseg_request request = {sizeof(request)};
    struct xseg_scope where = XSEG_SCOPE_ALL;
    struct xseg_pool *pool = NULL;
    void *ptr = NULL;

    (void)state;
    assert_int_equal(env_try_open(NULL, &second), XSEG_OK);
    assert_int_equal(xseg_pool_create(first, 0, NULL, &pool), XSEG_OK);
    request.pool = where.pool = pool;
    request.bytes = 1;
    env_expect_error(xseg_alloc_with(second, &request, &ptr), XSEG_ERR_ARGUMENT, "another");
    env_expect_error(xseg_trim(second, &where, NULL, NULL), XSEG_ERR_ARGUMENT, "another");
    env_expect_error(xseg_pool_create(first, 7, NULL, &pool), XSEG_ERR_ARGUMENT,
                     "device 7 does not exist");
    env_expect_error(xseg_pool_release(NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_int_equal(xseg_close(first), XSEG_OK);
    env_close(second);
}

/* The library asks the stream where a capture began which capture that is, until its end. */
static void a_stream_stays_while_a_capture_is_begun_on_it(void **state)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream origin = env_stream();
    struct xseg_pool *pool = NULL;

    (void)state;
    env_free(allocator, env_alloc(allocator, 1, origin));
    assert_int_equal(xseg_pool_create(allocator, 0, NULL, &pool), XSEG_OK);
    assert_int_equal(xseg_capture_begin(pool, origin), XSEG_OK);
    env_expect_error(xseg_stream_retire(allocator, 0, origin), XSEG_ERR_BUSY, "being captured");
    assert_int_equal(xseg_capture_end(pool), XSEG_OK);
    assert_int_equal(xseg_stream_retire(allocator, 0, origin), XSEG_OK);
    assert_int_equal(xseg_close(allocator), XSEG_OK);
    env_stream_destroy(origin);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streams_have_memory_of_their_own),
        cmocka_unit_test(hits_make_no_driver_call),
        cmocka_unit_test(a_foreign_use_delays_the_return),
        cmocka_unit_test(another_threads_default_stream_is_waited_for),
        cmocka_unit_test(streams_are_looked_at_in_a_fixed_order),
        cmocka_unit_test(a_full_device_waits_for_pending_blocks),
        cmocka_unit_test(pools_are_walls),
        cmocka_unit_test(blocks_outlive_their_pool),
        cmocka_unit_test(retired_pools_leave_nothing_reserved),
        cmocka_unit_test(pools_of_others_are_refused),
        cmocka_unit_test(a_stream_stays_while_a_capture_is_begun_on_it),
    };

    return cmocka_run_group_tests_name("stream", tests, NULL, NULL);
}
