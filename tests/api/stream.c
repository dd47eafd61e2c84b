/* SPDX-License-Identifier: MIT */
/* Streams: separate memory, uses by other streams, private pools, retirement. */

#include "tests/support/env.h"

/* NULL and the legacy handle are one stream; another stream has separate memory. */
TEST_ON(streams_have_separate_memory, env_open(NULL))
{
    const xseg_stream stream = env_stream(), legacy = (xseg_stream)(uintptr_t)1;
    void *a = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, a);
    void *b = env_alloc(allocator, 4 * MIB, stream);
    assert_ptr_not_equal(a, b);
    assert_ptr_equal(env_alloc(allocator, 4 * MIB, legacy), a);
    assert_null(env_block(allocator, a).stream);
    assert_ptr_equal(env_block(allocator, b).stream, stream);
    env_free(allocator, b, a);
}

TEST_ON(hits_make_no_driver_call, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 5000, stream));
    env_free(allocator, env_alloc(allocator, 5 * MIB, stream));
    uint64_t calls = xseg_sim_calls(NULL);
    for (unsigned i = 0; i < 1000; i++)
        env_free(allocator, env_alloc(allocator, 700 * (i + 1), stream));
    assert_int_equal(xseg_sim_calls(NULL), calls);
}

/* The block is active until the other stream completes and an allocation polls. */
TEST_ON(use_by_another_stream_delays_the_free, env_open("expandable_segments:True"))
{
    const xseg_stream side = env_stream();
    void *x = env_alloc(allocator, GIB, NULL);

    env_use(allocator, x, side);
    assert_ok(xseg_record_stream(allocator, x, side));
    assert_ok(xseg_record_stream(allocator, x, NULL));
    env_free(allocator, x);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_PENDING_FREE);
    assert_error(xseg_free(allocator, x), NOT_ALLOCATED, "another stream still uses");

    void *t = env_alloc(allocator, 1, NULL);
    struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_LARGE].current, GIB);
    assert_ok(xseg_sim_finish(side));
    env_free(allocator, t);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, GIB);
    t = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(env_block(allocator, x).state, XSEG_BLOCK_CACHED);
    env_free(allocator, t);
}

struct worker {
    struct xseg_allocator *allocator;
    void *ptr;
    xseg_status status;
};

static void *use_on_default_stream(void *self)
{
    const xseg_stream own = (xseg_stream)(uintptr_t)2;
    struct worker *worker = self;

    env_launch(worker->allocator, own, worker->ptr);
    worker->status = xseg_record_stream(worker->allocator, worker->ptr, own);
    return NULL;
}

/* This thread has no handle of the default stream of another thread, so the legacy stream, which waits for it, is used. */
TEST(default_stream_of_another_thread_is_awaited)
{
    struct worker worker = {.allocator = env_open(NULL)};

    worker.ptr = env_alloc(worker.allocator, 5 * MIB, NULL);
    (void)env_run_thread(use_on_default_stream, &worker);
    assert_ok(worker.status);
    env_free(worker.allocator, worker.ptr);
    void *other = env_alloc(worker.allocator, 5 * MIB, NULL);
    assert_ptr_not_equal(other, worker.ptr);
    assert_int_equal(env_block(worker.allocator, worker.ptr).state, XSEG_BLOCK_PENDING_FREE);
    xseg_sim_finish_all();
    assert_ptr_equal(env_alloc(worker.allocator, 5 * MIB, NULL), worker.ptr);
    env_free(worker.allocator, worker.ptr, other);
    env_close(worker.allocator);
}

/* The maximum of inactive split blocks while one poll reclaims two blocks at the start of a segment, each from another
 * stream.  The second block coalesces with the rest of the segment; the first one is separate if reclaimed first. */
static uint64_t peak_of_inactive_splits(struct xseg_allocator *allocator, xseg_stream own,
                                        xseg_stream of_first, xseg_stream of_second)
{
    void *first = env_alloc(allocator, 3 * MIB, own), *second = env_alloc(allocator, 3 * MIB, own);

    assert_ok(xseg_record_stream(allocator, first, of_first));
    assert_ok(xseg_record_stream(allocator, second, of_second));
    env_free(allocator, first, second);
    assert_ok(xseg_stats_reset(allocator, env_scope(.device = 0), XSEG_RESET_PEAK));
    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    return env_stats(allocator).inactive_split[XSEG_STAT_LARGE].peak;
}

/* The order of the first six streams in PyTorch's hash table of stream numbers. */
TEST_ON(streams_are_polled_in_a_fixed_order, env_open("expandable_segments:False"))
{
    const xseg_stream own = env_stream(), early = env_stream(), late = env_stream();

    env_free(allocator, env_alloc(allocator, 600, own));
    assert_int_equal(peak_of_inactive_splits(allocator, own, NULL, late), 2);
    assert_int_equal(peak_of_inactive_splits(allocator, own, late, NULL), 1);
    assert_int_equal(peak_of_inactive_splits(allocator, own, late, early), 2);
    assert_int_equal(peak_of_inactive_splits(allocator, own, early, late), 1);
}

/* Nothing can be released to the driver, but the reclaimed block fits, so the cache is searched before the error. */
TEST_ON(a_full_device_waits_for_pending_blocks, env_open_mib(64, "expandable_segments:False"))
{
    xseg_stream side = env_stream();
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    void *x = env_alloc(allocator, 30 * MIB, NULL), *live = env_alloc(allocator, 25 * MIB, NULL);
    env_free_in_use(allocator, x, side);
    assert_ptr_equal(env_alloc(allocator, 30 * MIB, NULL), x);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_device_free, 0);
    env_free(allocator, x, live);
}

TEST_ON(pools_do_not_share_memory, env_open(NULL))
{
    struct xseg_pool *pool = env_pool(allocator);

    void *inside = env_alloc_in(allocator, pool, 6 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, inside).pool, pool);
    env_free(allocator, inside);
    void *outside = env_alloc(allocator, 6 * MIB, NULL);
    assert_null(env_block(allocator, outside).pool);
    assert_int_equal(env_reserved(allocator), 40 * MIB);

    /* The cached memory of a retained pool is kept; that of a released pool is released by the next trim. */
    assert_ok(xseg_pool_retain(pool));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_trim(allocator).kept_pool, 20 * MIB);
    assert_ok(xseg_pool_release(pool));
    assert_error(xseg_pool_release(pool), ARGUMENT, "pool has been released");
    assert_error(xseg_pool_retain(pool), ARGUMENT, "pool has been released");
    assert_int_equal(env_reserved_without_cache(allocator), 20 * MIB);
    env_free(allocator, outside);
}

TEST_ON(blocks_outlive_their_pool, env_open(NULL))
{
    struct xseg_pool *pool = env_pool(allocator);

    void *ptr = env_alloc_in(allocator, pool, 30 * MIB, NULL);
    assert_ok(xseg_pool_release(pool));
    env_empty_cache(allocator);
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, ptr);
    assert_int_equal(env_reserved_without_cache(allocator), 0);
}

TEST_ON(released_pools_leave_no_reserved_addresses, env_open_sim(NULL, .address_bytes = 1024 * GIB))
{
    for (unsigned round = 0; round < 100; round++) {
        struct xseg_pool *pool = env_pool(allocator);
        void *ptr = env_alloc_in(allocator, pool, 5 * MIB, NULL);
        env_free(allocator, ptr);
        assert_ok(xseg_pool_release(pool));
        assert_error(env_try_alloc_in(allocator, pool, 5 * MIB, &ptr), ARGUMENT,
                     "pool has been released");
        /* Every second round has no trim, so that the next growth runs out of addresses. */
        if (round % 2 == 0)
            env_empty_cache(allocator);
    }
    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).address_bytes, 0);
}

TEST_ON(pools_of_other_allocators_are_rejected, env_open(NULL))
{
    struct xseg_allocator *other = NULL;
    void *ptr = NULL;

    assert_ok(env_try_open(NULL, &other));
    struct xseg_pool *pool = env_pool(other);
    assert_error(env_try_alloc_in(allocator, pool, 1, &ptr), ARGUMENT, "another");
    assert_error(xseg_trim(allocator, env_scope(.device = -1, .pool = pool), NULL, NULL), ARGUMENT,
                 "another");
    assert_error(xseg_pool_create(other, 7, NULL, &pool), ARGUMENT, "device 7 does not exist");
    assert_error(xseg_pool_release(NULL), ARGUMENT, "NULL");
    assert_ok(xseg_close(other));
}

/* The library queries the capture of its first stream until the capture ends. */
TEST_ON(captured_stream_is_not_retired, env_open(NULL))
{
    const xseg_stream origin = env_stream();

    env_free(allocator, env_alloc(allocator, 1, origin));
    struct xseg_pool *pool = env_pool(allocator);
    assert_ok(xseg_capture_begin(pool, origin));
    assert_error(xseg_stream_retire(allocator, 0, origin), BUSY, "being captured");
    assert_ok(xseg_capture_end(pool));
    assert_ok(xseg_stream_retire(allocator, 0, origin));
}

/* --- xseg_stream_synchronized(), xseg_stream_retire(), xseg_free_after(). --- */

/* The driver's events, by their plain C types. */
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventDestroy_v2(xseg_event event);
int cuEventRecord(xseg_event event, xseg_stream stream);

#define FOREVER UINT64_MAX

static xseg_event event_on(xseg_stream stream)
{
    xseg_event event = NULL;

    env_context_push(0);
    assert_int_equal(cuEventCreate(&event, 2), 0);
    assert_int_equal(cuEventRecord(event, stream), 0);
    env_context_pop(0);
    return event;
}

TEST_ON(synchronized_stream_is_not_queried, env_open(NULL))
{
    const xseg_stream side = env_stream(), other = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_sim_launch(side, FOREVER));
    assert_ok(xseg_sim_launch(other, FOREVER));
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_record_stream(allocator, b, side));
    assert_ok(xseg_record_stream(allocator, b, other));
    env_free(allocator, a, b);
    assert_ok(xseg_sim_finish(side));

    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_PENDING_FREE);
    /* A second call, an unknown stream, and a stream without pending blocks. */
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    assert_ok(xseg_stream_synchronized(allocator, 0, (xseg_stream)(uintptr_t)0x5000));
    assert_ok(xseg_stream_synchronized(allocator, 0, NULL));
    assert_error(xseg_stream_synchronized(allocator, 9, side), ARGUMENT, "device 9 does not exist");
    assert_ok(xseg_sim_finish(other));
    assert_ok(xseg_stream_synchronized(allocator, 0, other));
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_CACHED);
}

/* The memory is reused after the work of the stream has completed. */
TEST_ON(memory_of_a_retired_stream_is_reused, env_open(NULL))
{
    xseg_stream first = env_stream();
    void *live = env_alloc(allocator, 5 * MIB, first), *a = env_alloc(allocator, 7 * MIB, first);

    env_free(allocator, a);
    assert_ok(xseg_sim_launch(first, FOREVER));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ptr_equal(env_block(allocator, live).stream, first);

    /* Memory of a retired stream is not reused while its work runs. */
    const xseg_stream second = env_stream();
    void *b = env_alloc(allocator, 7 * MIB, second);
    assert_ptr_not_equal(b, a);
    assert_ptr_equal(env_block(allocator, live).stream, first);
    env_free(allocator, b);
    assert_ok(xseg_sim_finish(first));

    const xseg_stream third = env_stream();
    assert_ptr_equal(env_alloc(allocator, 7 * MIB, third), a);
    assert_ptr_equal(env_block(allocator, live).stream, third);
    /* The third stream is now the stream of the block, so its use does not delay the free. */
    env_free_in_use(allocator, live, third);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, third), live);
    env_free(allocator, live, a);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    env_stream_destroy(first);
}

/* A stream with a reused handle does not wait for the old stream, and gets its memory after its work has completed. */
TEST_ON(reused_handle_is_a_new_stream, env_open_sim(NULL, .reuse_handles = true))
{
    unsigned reused = 0;

    for (unsigned round = 0; round < 50; round++) {
        const xseg_stream stream = env_stream();
        void *ptr = env_alloc(allocator, 3 * MIB, stream);

        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        env_stream_destroy(stream);
        const xseg_stream next = env_stream();
        reused += next == stream;
        ptr = env_alloc(allocator, 3 * MIB, next);
        assert_ptr_equal(env_block(allocator, ptr).stream, next);
        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, next));
        env_stream_destroy(next);
    }
    assert_int_equal(reused, 50);
    /* All streams reused one segment. */
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].peak, 20 * MIB);
}

/* A block waits for the new stream while that replaces the old stream; a wait for all streams includes the block. */
TEST_ON(reused_handle_is_awaited, env_open_sim(NULL, .reuse_handles = true))
{
    const xseg_stream old = env_stream(), other = env_stream();
    void *of_old = env_alloc(allocator, 3 * MIB, NULL);
    void *of_other = env_alloc(allocator, 3 * MIB, NULL);
    void *of_again = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, of_old, old));
    assert_ok(xseg_stream_retire(allocator, 0, old));
    env_stream_destroy(old);
    env_free(allocator, env_alloc(allocator, 512, other));

    env_free(allocator, of_old);
    env_free_in_use(allocator, of_other, other);
    const xseg_stream again = env_stream();
    assert_ptr_equal(again, old);
    env_free_in_use(allocator, of_again, again);

    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
}

TEST_ON(handle_may_be_reused_before_its_work_completes, env_open_sim(NULL, .reuse_handles = true))
{
    const xseg_stream old = env_stream();
    void *live = env_alloc(allocator, 5 * MIB, old), *a = env_alloc(allocator, 5 * MIB, old);

    env_free(allocator, a);
    assert_ok(xseg_sim_launch_on(old, 1000000, (uintptr_t)a, 4096));
    assert_ok(xseg_stream_retire(allocator, 0, old));
    env_stream_destroy(old);
    const xseg_stream young = env_stream();
    assert_ptr_equal(young, old);
    void *b = env_alloc(allocator, 5 * MIB, young);
    assert_ptr_not_equal(b, a);
    /* The freed block is cached for the old stream. */
    env_free(allocator, live, b);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, young), b);
    xseg_sim_advance(2000000);
    env_free(allocator, b);
}

/* The trim queries the event that was recorded at the retirement. */
TEST_ON(trim_releases_memory_of_a_retired_stream, env_open(NULL))
{
    struct xseg_trim_result done = {sizeof(done)};
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 3 * MIB, stream));
    assert_ok(xseg_sim_launch(stream, FOREVER));
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.kept_busy, 20 * MIB);
    assert_int_equal(done.released, 0);
    assert_ok(xseg_sim_finish(stream));
    env_stream_destroy(stream);
    assert_ok(xseg_trim(allocator, NULL, NULL, &done));
    assert_int_equal(done.released, 20 * MIB);
}

TEST_ON(uses_on_a_retired_stream_wait_for_its_last_event, env_open(NULL))
{
    const xseg_stream side = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);

    env_use(allocator, a, side);
    assert_ok(xseg_record_stream(allocator, b, side));
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, a);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);

    /* The first call with a new stream polls the last event of the retired stream. */
    const xseg_stream next = env_stream();
    env_free(allocator, env_alloc(allocator, 1, next));
    env_free(allocator, b);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_CACHED);
}

/* A block whose query failed waits for the last event of the stream, which is not recorded again. */
TEST_ON(last_event_of_a_retired_stream_is_kept, env_open(NULL))
{
    const xseg_stream side = env_stream(), next = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);

    env_use(allocator, a, side);
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, a);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);

    /* The first call with a new stream queries the events of retired streams. */
    assert_ok(xseg_sim_fail("cuEventQuery", 1, 999));
    assert_ok(xseg_record_stream(allocator, b, next));
    assert_true(xseg_sim_failed());
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_launch(next, FOREVER));
    env_free(allocator, b);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_PENDING_FREE);
}

/* The 20,000th stream has the cost of the 100th, in driver calls and host memory. */
TEST_ON(retired_streams_leave_no_memory, env_open(NULL))
{
    uint64_t host = 0, calls = 0, calls_of_100th = 0;

    for (unsigned i = 0; i < 20000; i++) {
        const xseg_stream stream = env_stream();

        calls = xseg_sim_calls(NULL);
        env_free(allocator, env_alloc(allocator, 512 + i % 3 * MIB, stream));
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        calls = xseg_sim_calls(NULL) - calls;
        env_stream_destroy(stream);
        calls_of_100th = i == 100 ? calls : calls_of_100th;
        host = i == 100 ? env_stats(allocator).host_bytes : host;
    }
    assert_int_equal(calls, calls_of_100th);
    assert_int_equal(env_stats(allocator).host_bytes, host);
}

TEST_ON(default_streams_are_never_retired, env_open(NULL))
{
    for (uintptr_t handle = 0; handle <= 2; handle++)
        assert_error(xseg_stream_retire(allocator, 0, (xseg_stream)handle), ARGUMENT,
                     "default stream");
    assert_error(xseg_stream_retire(NULL, 0, NULL), ARGUMENT, "NULL");
    assert_ok(xseg_stream_retire(allocator, 0, (xseg_stream)(uintptr_t)0x7000));
}

/* A block that is freed after events waits for them, although the events are destroyed. */
TEST_ON(block_is_freed_after_its_events, env_open(NULL))
{
    const xseg_stream one = env_stream(), two = env_stream();
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);
    xseg_event events[2];

    assert_ok(xseg_sim_launch(one, FOREVER));
    assert_ok(xseg_sim_launch(two, FOREVER));
    events[0] = event_on(one);
    events[1] = event_on(two);
    assert_ok(xseg_free_after(allocator, ptr, events, 2));
    assert_int_equal(cuEventDestroy_v2(events[0]), 0);
    assert_int_equal(cuEventDestroy_v2(events[1]), 0);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_sim_finish(one));
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(two));
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
}

/* Completed events cost one query; without events the block is freed as by xseg_free(). */
TEST_ON(completed_events_do_not_delay_the_free, env_open(NULL))
{
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);
    xseg_event event = event_on(NULL);

    assert_ok(xseg_free_after(allocator, a, &event, 1));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), 0);
    assert_ok(xseg_free_after(allocator, b, NULL, 0));
    assert_ok(xseg_free_after(allocator, NULL, NULL, 0));
    assert_error(xseg_free_after(allocator, a, &event, 1), NOT_ALLOCATED, "cached");
    assert_error(xseg_free_after(allocator, a, NULL, 1), ARGUMENT, "events");
    a = env_alloc(allocator, 5 * MIB, NULL);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    event = NULL;
    assert_error(xseg_free_after(allocator, a, &event, 1), ARGUMENT, "events[0] is NULL");
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, a);
}
