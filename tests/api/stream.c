/* SPDX-License-Identifier: MIT */
/* Streams: separate memory, uses by other streams, private pools, synchronization and retirement. */

#include "tests/support/env.h"

/* NULL and the legacy handle are one stream; another stream has separate memory. */
TEST_ON(streams_have_separate_memory, env_open(NULL))
{
    const xseg_stream stream = env_stream(), legacy = (xseg_stream)(uintptr_t)1;
    void *default_block = env_alloc(allocator, 4 * MIB, NULL);

    env_free(allocator, default_block);
    void *stream_block = env_alloc(allocator, 4 * MIB, stream);
    assert_ptr_not_equal(default_block, stream_block);
    assert_ptr_equal(env_alloc(allocator, 4 * MIB, legacy), default_block);
    assert_null(env_block(allocator, default_block).stream);
    assert_ptr_equal(env_block(allocator, stream_block).stream, stream);
    env_free(allocator, stream_block, default_block);
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

/* The block is active until the work of the other stream has completed and an allocation has polled its event. */
TEST_ON(use_by_another_stream_delays_the_free, env_open("expandable_segments:True"))
{
    const xseg_stream side = env_stream();
    void *block = env_alloc(allocator, GIB, NULL);

    env_use(allocator, block, side);
    assert_ok(xseg_record_stream(allocator, block, side));
    assert_ok(xseg_record_stream(allocator, block, NULL));
    env_free(allocator, block);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_PENDING_FREE);
    assert_error(xseg_free(allocator, block), NOT_ALLOCATED, "another stream still uses");

    void *small = env_alloc(allocator, 1, NULL);
    struct xseg_statistics stats = env_stats(allocator);
    assert_int_equal(stats.allocated_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(stats.active_bytes[XSEG_STAT_LARGE].current, GIB);
    assert_ok(xseg_sim_finish(side));
    /* A free does not poll. */
    env_free(allocator, small);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, GIB);
    small = env_alloc(allocator, 1, NULL);
    assert_int_equal(env_stats(allocator).active_bytes[XSEG_STAT_LARGE].current, 0);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_CACHED);
    env_free(allocator, small);
}

/* A thread that uses a block on its per-thread default stream. */
struct thread_use {
    struct xseg_allocator *allocator;
    void *ptr;
    xseg_status status; /* of xseg_record_stream() */
};

static void *use_on_default_stream(void *context)
{
    const xseg_stream per_thread = (xseg_stream)(uintptr_t)2;
    struct thread_use *use = context;

    env_launch(use->allocator, per_thread, use->ptr);
    use->status = xseg_record_stream(use->allocator, use->ptr, per_thread);
    return NULL;
}

/* The per-thread default stream of another thread has no handle in this thread, so the library waits for the legacy default
 * stream, which waits for it. */
TEST(default_stream_of_another_thread_is_awaited)
{
    struct thread_use use = {.allocator = env_open(NULL)};

    use.ptr = env_alloc(use.allocator, 5 * MIB, NULL);
    (void)env_run_thread(use_on_default_stream, &use);
    assert_ok(use.status);
    env_free(use.allocator, use.ptr);
    void *second = env_alloc(use.allocator, 5 * MIB, NULL);
    assert_ptr_not_equal(second, use.ptr);
    assert_int_equal(env_block(use.allocator, use.ptr).state, XSEG_BLOCK_PENDING_FREE);
    xseg_sim_finish_all();
    assert_ptr_equal(env_alloc(use.allocator, 5 * MIB, NULL), use.ptr);
    env_free(use.allocator, use.ptr, second);
    env_close(use.allocator);
}

/* The peak of inactive split blocks while one poll completes the frees of two blocks at the start of a segment, which were used
 * by different streams.  It is 2 if the first block is cached first, since only the second block is next to the cached rest of
 * the segment; otherwise it is 1. */
static uint64_t peak_of_inactive_splits(struct xseg_allocator *allocator, xseg_stream stream,
                                        xseg_stream user_of_first, xseg_stream user_of_second)
{
    void *first = env_alloc(allocator, 3 * MIB, stream),
         *second = env_alloc(allocator, 3 * MIB, stream);

    assert_ok(xseg_record_stream(allocator, first, user_of_first));
    assert_ok(xseg_record_stream(allocator, second, user_of_second));
    env_free(allocator, first, second);
    assert_ok(xseg_stats_reset(allocator, env_scope(.device = 0), XSEG_RESET_PEAK));
    env_free(allocator, env_alloc(allocator, 600, stream));
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    return env_stats(allocator).inactive_split[XSEG_STAT_LARGE].peak;
}

/* The order of the first six streams in PyTorch's hash table of stream IDs. */
TEST_ON(streams_are_polled_in_a_fixed_order, env_open("expandable_segments:False"))
{
    const xseg_stream stream = env_stream(), early = env_stream(), late = env_stream();

    env_free(allocator, env_alloc(allocator, 600, stream));
    assert_int_equal(peak_of_inactive_splits(allocator, stream, NULL, late), 2);
    assert_int_equal(peak_of_inactive_splits(allocator, stream, late, NULL), 1);
    assert_int_equal(peak_of_inactive_splits(allocator, stream, late, early), 2);
    assert_int_equal(peak_of_inactive_splits(allocator, stream, early, late), 1);
}

/* No memory can be released to the driver, but the completed block fits, so the cache is searched before the request fails. */
TEST_ON(a_full_device_waits_for_pending_blocks, env_open_mib(64, "expandable_segments:False"))
{
    xseg_stream side = env_stream();
    env_free(allocator, env_alloc(allocator, 60 * MIB, NULL));
    void *pending = env_alloc(allocator, 30 * MIB, NULL),
         *allocated = env_alloc(allocator, 25 * MIB, NULL);
    env_free_in_use(allocator, pending, side);
    assert_ptr_equal(env_alloc(allocator, 30 * MIB, NULL), pending);
    assert_int_equal(env_stats(allocator).num_ooms, 0);
    assert_int_equal(env_stats(allocator).num_alloc_retries, 1);
    assert_int_equal(env_stats(allocator).num_device_free, 0);
    env_free(allocator, pending, allocated);
}

TEST_ON(pools_do_not_share_memory, env_open(NULL))
{
    struct xseg_pool *pool = env_pool(allocator);

    void *pool_block = env_alloc_in(allocator, pool, 6 * MIB, NULL);
    assert_ptr_equal(env_block(allocator, pool_block).pool, pool);
    env_free(allocator, pool_block);
    void *default_block = env_alloc(allocator, 6 * MIB, NULL);
    assert_null(env_block(allocator, default_block).pool);
    assert_int_equal(env_reserved(allocator), 2 * 20 * MIB);

    /* The cached memory of a retained pool is kept; that of a released pool is released by the next trim. */
    assert_ok(xseg_pool_retain(pool));
    assert_ok(xseg_pool_release(pool));
    assert_int_equal(env_trim(allocator).kept_pool, 20 * MIB);
    assert_ok(xseg_pool_release(pool));
    assert_error(xseg_pool_release(pool), ARGUMENT, "pool has been released");
    assert_error(xseg_pool_retain(pool), ARGUMENT, "pool has been released");
    assert_int_equal(env_reserved_without_cache(allocator), 20 * MIB);
    env_free(allocator, default_block);
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
    struct xseg_allocator *second_allocator = NULL;
    void *ptr = NULL;

    assert_ok(env_try_open(NULL, &second_allocator));
    struct xseg_pool *pool = env_pool(second_allocator);
    assert_error(env_try_alloc_in(allocator, pool, 1, &ptr), ARGUMENT, "another");
    assert_error(xseg_trim(allocator, env_scope(.device = -1, .pool = pool), NULL, NULL), ARGUMENT,
                 "another");
    assert_error(xseg_pool_create(second_allocator, 7, NULL, &pool), ARGUMENT,
                 "device 7 does not exist");
    assert_error(xseg_pool_release(NULL), ARGUMENT, "NULL");
    assert_ok(xseg_close(second_allocator));
}

/* Until the capture ends, the library queries the stream that began it, so the stream cannot be retired. */
TEST_ON(captured_stream_is_not_retired, env_open(NULL))
{
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 1, stream));
    struct xseg_pool *pool = env_pool(allocator);
    assert_ok(xseg_capture_begin(pool, stream));
    assert_error(xseg_stream_retire(allocator, 0, stream), BUSY, "being captured");
    assert_ok(xseg_capture_end(pool));
    assert_ok(xseg_stream_retire(allocator, 0, stream));
}

/* --- xseg_stream_synchronized(), xseg_stream_retire(), xseg_free_after(). --- */

/* Entry points of the driver, by their plain C types. */
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventDestroy_v2(xseg_event event);
int cuEventRecord(xseg_event event, xseg_stream stream);

#define FOREVER UINT64_MAX

/* A new event that is recorded on a stream. */
static xseg_event record_event(xseg_stream stream)
{
    xseg_event event = NULL;

    env_context_push(0);
    assert_int_equal(cuEventCreate(&event, 2), 0); /* CU_EVENT_DISABLE_TIMING */
    assert_int_equal(cuEventRecord(event, stream), 0);
    env_context_pop(0);
    return event;
}

TEST_ON(synchronized_stream_is_not_queried, env_open(NULL))
{
    const xseg_stream side = env_stream(), second = env_stream();
    void *block = env_alloc(allocator, 5 * MIB, NULL),
         *shared_block = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_sim_launch(side, FOREVER));
    assert_ok(xseg_sim_launch(second, FOREVER));
    assert_ok(xseg_record_stream(allocator, block, side));
    assert_ok(xseg_record_stream(allocator, shared_block, side));
    assert_ok(xseg_record_stream(allocator, shared_block, second));
    env_free(allocator, block, shared_block);
    assert_ok(xseg_sim_finish(side));

    const uint64_t calls = xseg_sim_calls(NULL);
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    assert_int_equal(xseg_sim_calls(NULL), calls);
    assert_int_equal(env_block(allocator, block).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, shared_block).state, XSEG_BLOCK_PENDING_FREE);
    /* A second call, an unknown stream, and a stream without pending blocks. */
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    assert_ok(xseg_stream_synchronized(allocator, 0, (xseg_stream)(uintptr_t)0x5000));
    assert_ok(xseg_stream_synchronized(allocator, 0, NULL));
    assert_error(xseg_stream_synchronized(allocator, 9, side), ARGUMENT, "device 9 does not exist");
    assert_ok(xseg_sim_finish(second));
    assert_ok(xseg_stream_synchronized(allocator, 0, second));
    assert_int_equal(env_block(allocator, shared_block).state, XSEG_BLOCK_CACHED);
}

/* A new stream takes over the memory of a retired stream once the work of the retired stream has completed. */
TEST_ON(memory_of_a_retired_stream_is_reused, env_open(NULL))
{
    xseg_stream first = env_stream();
    void *allocated = env_alloc(allocator, 5 * MIB, first),
         *cached = env_alloc(allocator, 7 * MIB, first);

    env_free(allocator, cached);
    assert_ok(xseg_sim_launch(first, FOREVER));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ptr_equal(env_block(allocator, allocated).stream, first);

    /* Memory of a retired stream is not reused while its work runs. */
    const xseg_stream second = env_stream();
    void *second_block = env_alloc(allocator, 7 * MIB, second);
    assert_ptr_not_equal(second_block, cached);
    assert_ptr_equal(env_block(allocator, allocated).stream, first);
    env_free(allocator, second_block);
    assert_ok(xseg_sim_finish(first));

    const xseg_stream third = env_stream();
    assert_ptr_equal(env_alloc(allocator, 7 * MIB, third), cached);
    assert_ptr_equal(env_block(allocator, allocated).stream, third);
    /* The third stream is now the stream of the block, so its use does not delay the free. */
    env_free_in_use(allocator, allocated, third);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, third), allocated);
    env_free(allocator, allocated, cached);
    assert_int_equal(env_reserved(allocator), 40 * MIB);
    env_stream_destroy(first);
}

/* A new stream with the handle of a retired stream takes over the memory of the retired stream. */
TEST_ON(reused_handle_is_a_new_stream, env_open_sim(NULL, .reuse_handles = true))
{
    unsigned reused = 0;

    for (unsigned round = 0; round < 50; round++) {
        const xseg_stream stream = env_stream();
        void *ptr = env_alloc(allocator, 3 * MIB, stream);

        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        env_stream_destroy(stream);
        const xseg_stream new_stream = env_stream();
        reused += new_stream == stream;
        ptr = env_alloc(allocator, 3 * MIB, new_stream);
        assert_ptr_equal(env_block(allocator, ptr).stream, new_stream);
        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, new_stream));
        env_stream_destroy(new_stream);
    }
    assert_int_equal(reused, 50);
    /* All streams reused one segment. */
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].peak, 20 * MIB);
}

/* Blocks wait for a retired stream, for a new stream with the same handle, and for a third stream.  A wait for all streams
 * includes all of these blocks. */
TEST_ON(reused_handle_is_awaited, env_open_sim(NULL, .reuse_handles = true))
{
    const xseg_stream retired = env_stream(), third = env_stream();
    void *used_by_retired = env_alloc(allocator, 3 * MIB, NULL);
    void *used_by_third = env_alloc(allocator, 3 * MIB, NULL);
    void *used_by_new = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, used_by_retired, retired));
    assert_ok(xseg_stream_retire(allocator, 0, retired));
    env_stream_destroy(retired);
    env_free(allocator, env_alloc(allocator, 512, third));

    env_free(allocator, used_by_retired);
    env_free_in_use(allocator, used_by_third, third);
    const xseg_stream new_stream = env_stream();
    assert_ptr_equal(new_stream, retired);
    env_free_in_use(allocator, used_by_new, new_stream);

    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
}

TEST_ON(handle_may_be_reused_before_its_work_completes, env_open_sim(NULL, .reuse_handles = true))
{
    const xseg_stream retired = env_stream();
    void *allocated = env_alloc(allocator, 5 * MIB, retired),
         *cached = env_alloc(allocator, 5 * MIB, retired);

    env_free(allocator, cached);
    assert_ok(xseg_sim_launch_on(retired, 1000000, (uintptr_t)cached, 4096));
    assert_ok(xseg_stream_retire(allocator, 0, retired));
    env_stream_destroy(retired);
    const xseg_stream new_stream = env_stream();
    assert_ptr_equal(new_stream, retired);
    void *new_block = env_alloc(allocator, 5 * MIB, new_stream);
    assert_ptr_not_equal(new_block, cached);
    /* The block that the retired stream allocated is freed to the cache of the retired stream. */
    env_free(allocator, allocated, new_block);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, new_stream), new_block);
    xseg_sim_advance(2000000);
    env_free(allocator, new_block);
}

/* A trim queries the event that was recorded at the retirement, also after the stream was destroyed. */
TEST_ON(trim_releases_memory_of_a_retired_stream, env_open(NULL))
{
    struct xseg_trim_result result = {sizeof(result)};
    const xseg_stream stream = env_stream();

    env_free(allocator, env_alloc(allocator, 3 * MIB, stream));
    assert_ok(xseg_sim_launch(stream, FOREVER));
    assert_ok(xseg_stream_retire(allocator, 0, stream));
    assert_ok(xseg_trim(allocator, NULL, NULL, &result));
    assert_int_equal(result.kept_busy, 20 * MIB);
    assert_int_equal(result.released, 0);
    assert_ok(xseg_sim_finish(stream));
    env_stream_destroy(stream);
    assert_ok(xseg_trim(allocator, NULL, NULL, &result));
    assert_int_equal(result.released, 20 * MIB);
}

TEST_ON(uses_on_a_retired_stream_wait_for_its_last_event, env_open(NULL))
{
    const xseg_stream side = env_stream();
    void *used = env_alloc(allocator, 5 * MIB, NULL),
         *recorded = env_alloc(allocator, 5 * MIB, NULL);

    env_use(allocator, used, side);
    assert_ok(xseg_record_stream(allocator, recorded, side));
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, used);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, used).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, used).state, XSEG_BLOCK_CACHED);

    /* The first call with a new stream polls the last event of the retired stream. */
    const xseg_stream new_stream = env_stream();
    env_free(allocator, env_alloc(allocator, 1, new_stream));
    env_free(allocator, recorded);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, recorded).state, XSEG_BLOCK_CACHED);
}

/* After a failed query a block still waits for the last event of the retired stream, which is not recorded again. */
TEST_ON(last_event_of_a_retired_stream_is_kept, env_open(NULL))
{
    const xseg_stream side = env_stream(), new_stream = env_stream();
    void *used = env_alloc(allocator, 5 * MIB, NULL),
         *recorded = env_alloc(allocator, 5 * MIB, NULL);

    env_use(allocator, used, side);
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, used);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);

    /* The first call with a new stream queries the events of retired streams. */
    assert_ok(xseg_sim_fail("cuEventQuery", 1, 999));
    assert_ok(xseg_record_stream(allocator, recorded, new_stream));
    assert_true(xseg_sim_failed());
    assert_int_equal(env_block(allocator, used).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_launch(new_stream, FOREVER));
    env_free(allocator, recorded);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, used).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, recorded).state, XSEG_BLOCK_PENDING_FREE);
}

/* The 20,000th stream costs as many driver calls and as much host memory as the 100th. */
TEST_ON(retired_streams_leave_no_memory, env_open(NULL))
{
    uint64_t bytes_of_100th = 0, calls = 0, calls_of_100th = 0;

    for (unsigned i = 0; i < 20000; i++) {
        const xseg_stream stream = env_stream();

        calls = xseg_sim_calls(NULL);
        env_free(allocator, env_alloc(allocator, 512 + i % 3 * MIB, stream));
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        calls = xseg_sim_calls(NULL) - calls;
        env_stream_destroy(stream);
        calls_of_100th = i == 100 ? calls : calls_of_100th;
        bytes_of_100th = i == 100 ? env_stats(allocator).host_bytes : bytes_of_100th;
    }
    assert_int_equal(calls, calls_of_100th);
    assert_int_equal(env_stats(allocator).host_bytes, bytes_of_100th);
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
    const xseg_stream first = env_stream(), second = env_stream();
    void *ptr = env_alloc(allocator, 5 * MIB, NULL);
    xseg_event events[2];

    assert_ok(xseg_sim_launch(first, FOREVER));
    assert_ok(xseg_sim_launch(second, FOREVER));
    events[0] = record_event(first);
    events[1] = record_event(second);
    assert_ok(xseg_free_after(allocator, ptr, events, 2));
    assert_int_equal(cuEventDestroy_v2(events[0]), 0);
    assert_int_equal(cuEventDestroy_v2(events[1]), 0);
    assert_int_equal(env_stats(allocator).allocated_bytes[XSEG_STAT_ALL].current, 0);
    assert_ok(xseg_sim_finish(first));
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(second));
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, ptr).state, XSEG_BLOCK_CACHED);
}

/* Completed events cost one query; without events the block is freed as by xseg_free(). */
TEST_ON(completed_events_do_not_delay_the_free, env_open(NULL))
{
    void *first = env_alloc(allocator, 5 * MIB, NULL),
         *second = env_alloc(allocator, 5 * MIB, NULL);
    xseg_event event = record_event(NULL);

    assert_ok(xseg_free_after(allocator, first, &event, 1));
    assert_int_equal(env_block(allocator, first).state, XSEG_BLOCK_CACHED);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), 0);
    assert_ok(xseg_free_after(allocator, second, NULL, 0));
    assert_ok(xseg_free_after(allocator, NULL, NULL, 0));
    assert_error(xseg_free_after(allocator, first, &event, 1), NOT_ALLOCATED, "cached");
    assert_error(xseg_free_after(allocator, first, NULL, 1), ARGUMENT, "events");
    first = env_alloc(allocator, 5 * MIB, NULL);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    event = NULL;
    assert_error(xseg_free_after(allocator, first, &event, 1), ARGUMENT, "events[0] is NULL");
    assert_int_equal(env_block(allocator, first).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, first);
}
