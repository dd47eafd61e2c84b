/* SPDX-License-Identifier: MIT */
/* Streams that pass and streams that go: xseg_stream_synchronized, xseg_stream_retire, xseg_free_after. */
#include "tests/support/env.h"

/* The driver's events, by their plain C types. */
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuEventCreate(xseg_event *event, unsigned flags);
int cuEventDestroy_v2(xseg_event event);
int cuEventRecord(xseg_event event, xseg_stream stream);

#define FOREVER UINT64_MAX

static xseg_event event_on(xseg_stream stream)
{
    xseg_event event = NULL;
    void *context = NULL;

    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), 0);
    assert_int_equal(cuCtxPushCurrent_v2(context), 0);
    assert_int_equal(cuEventCreate(&event, 2), 0);
    assert_int_equal(cuEventRecord(event, stream), 0);
    assert_int_equal(cuCtxPopCurrent_v2(&context), 0);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), 0);
    return event;
}

/* Blocks pending on a stream come back when the caller says that it has passed: no event is asked. */
TEST(a_stream_that_has_passed_is_not_asked)
{
    struct xseg_allocator *allocator = env_open(NULL);
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
    /* Once more, a stream that is not known, and one without anything to wait for. */
    assert_ok(xseg_stream_synchronized(allocator, 0, side));
    assert_ok(xseg_stream_synchronized(allocator, 0, (xseg_stream)(uintptr_t)0x5000));
    assert_ok(xseg_stream_synchronized(allocator, 0, NULL));
    env_expect_error(xseg_stream_synchronized(allocator, 9, side), XSEG_ERR_ARGUMENT,
                     "device 9 does not exist");
    assert_ok(xseg_sim_finish(other));
    assert_ok(xseg_stream_synchronized(allocator, 0, other));
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_CACHED);
    env_close(allocator, side, other);
}

/* What a stream that is gone had cached serves the next stream, once its work has finished. */
TEST(memory_of_a_gone_stream_is_handed_over)
{
    struct xseg_allocator *allocator = env_open(NULL);
    xseg_stream first = env_stream();
    void *kept = env_alloc(allocator, 5 * MIB, first), *a = env_alloc(allocator, 7 * MIB, first);

    env_free(allocator, a);
    assert_ok(xseg_sim_launch(first, FOREVER));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ok(xseg_stream_retire(allocator, 0, first));
    assert_ptr_equal(env_block(allocator, kept).stream, first);

    /* While its work runs, nobody gets its memory. */
    const xseg_stream second = env_stream();
    void *b = env_alloc(allocator, 7 * MIB, second);
    assert_ptr_not_equal(b, a);
    assert_ptr_equal(env_block(allocator, kept).stream, first);
    env_free(allocator, b);
    assert_ok(xseg_sim_finish(first));

    const xseg_stream third = env_stream();
    void *c = env_alloc(allocator, 7 * MIB, third);
    assert_ptr_equal(c, a);
    assert_ptr_equal(env_block(allocator, kept).stream, third);
    /* A use there is one on the block's own stream: what is freed serves it at once. */
    assert_ok(xseg_record_stream(allocator, kept, third));
    assert_ok(xseg_sim_launch(third, FOREVER));
    env_free(allocator, kept);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, third), kept);
    env_free(allocator, kept, c);
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].current, 40 * MIB);
    env_stream_destroy(first);
    env_close(allocator, second, third);
}

/* A handle that comes again is another stream: it waits for nothing of the old one, and shares
 * nothing with it while the old one runs. */
TEST(a_handle_that_comes_again_is_another_stream)
{
    struct xseg_sim_settings settings = {sizeof(settings), .reuse_handles = true};
    unsigned came_again = 0;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    for (unsigned round = 0; round < 50; round++) {
        const xseg_stream stream = env_stream();
        void *ptr = env_alloc(allocator, 3 * MIB, stream);

        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        env_stream_destroy(stream);
        const xseg_stream next = env_stream();
        came_again += next == stream;
        ptr = env_alloc(allocator, 3 * MIB, next);
        assert_ptr_equal(env_block(allocator, ptr).stream, next);
        env_free(allocator, ptr);
        assert_ok(xseg_stream_retire(allocator, 0, next));
        env_stream_destroy(next);
    }
    assert_int_equal(came_again, 50);
    /* A single segment went from stream to stream. */
    assert_int_equal(env_stats(allocator).reserved_bytes[XSEG_STAT_ALL].peak, 20 * MIB);
    env_close(allocator);
}

/* A stream takes the place of one with its handle while a block still has to be looked at there: a wait
 * that goes through the streams passed it by. */
TEST(a_handle_that_comes_again_is_waited_for)
{
    struct xseg_sim_settings settings = {sizeof(settings), .reuse_handles = true};
    void *of_old, *of_other, *of_again;

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    const xseg_stream old = env_stream(), other = env_stream();
    of_old = env_alloc(allocator, 3 * MIB, NULL);
    of_other = env_alloc(allocator, 3 * MIB, NULL);
    of_again = env_alloc(allocator, 3 * MIB, NULL);
    assert_ok(xseg_record_stream(allocator, of_old, old));
    assert_ok(xseg_stream_retire(allocator, 0, old));
    env_stream_destroy(old);
    env_free(allocator, env_alloc(allocator, 512, other));

    env_free(allocator, of_old);
    assert_ok(xseg_record_stream(allocator, of_other, other));
    env_launch(allocator, other, of_other);
    env_free(allocator, of_other);
    const xseg_stream again = env_stream();
    assert_ptr_equal(again, old);
    assert_ok(xseg_record_stream(allocator, of_again, again));
    env_launch(allocator, again, of_again);
    env_free(allocator, of_again);

    env_empty_cache(allocator);
    assert_int_equal(env_stats(allocator).active[XSEG_STAT_ALL].current, 0);
    env_close(allocator, again, other);
}

/* While the work of the old stream runs, a new one with its handle gets none of its memory. */
TEST(a_handle_may_come_again_before_the_work_has_ended)
{
    struct xseg_sim_settings settings = {sizeof(settings), .reuse_handles = true};

    struct xseg_allocator *allocator = env_open_on(&settings, NULL);
    const xseg_stream old = env_stream();
    void *kept = env_alloc(allocator, 5 * MIB, old), *a = env_alloc(allocator, 5 * MIB, old);

    env_free(allocator, a);
    assert_ok(xseg_sim_launch_on(old, 1000000, (uintptr_t)a, 4096));
    assert_ok(xseg_stream_retire(allocator, 0, old));
    env_stream_destroy(old);
    const xseg_stream young = env_stream();
    assert_ptr_equal(young, old);
    void *b = env_alloc(allocator, 5 * MIB, young);
    assert_ptr_not_equal(b, a);
    /* A block of the old stream comes back to the old one's cache. */
    env_free(allocator, kept, b);
    assert_ptr_equal(env_alloc(allocator, 5 * MIB, young), b);
    xseg_sim_advance(2000000);
    env_free(allocator, b);
    env_close(allocator, young);
}

/* A trim asks the event that was recorded when the stream left, since the stream is no more. */
TEST(a_trim_takes_what_a_gone_stream_left)
{
    struct xseg_allocator *allocator = env_open(NULL);
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
    env_close(allocator);
}

/* A use on a stream that has left since: its last event stands for it. */
TEST(uses_on_a_gone_stream_wait_for_its_last_event)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream side = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_sim_launch(side, FOREVER));
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_record_stream(allocator, b, side));
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, a);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);

    /* When the next stream is met, the old one is known to have passed. */
    const xseg_stream next = env_stream();
    env_free(allocator, env_alloc(allocator, 1, next));
    env_free(allocator, b);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_CACHED);
    env_close(allocator, next);
}

/* The last event of a stream is asked about while a block still waits for it, whose own question failed:
 * it stays the block's, and is not recorded anew for other work. */
TEST(an_event_that_a_block_waits_for_is_kept)
{
    struct xseg_allocator *allocator = env_open(NULL);
    const xseg_stream side = env_stream(), next = env_stream();
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);

    assert_ok(xseg_sim_launch(side, FOREVER));
    assert_ok(xseg_record_stream(allocator, a, side));
    assert_ok(xseg_stream_retire(allocator, 0, side));
    env_free(allocator, a);
    assert_ok(xseg_sim_finish(side));
    env_stream_destroy(side);

    /* A call that meets a new stream asks about those that leave. */
    assert_ok(xseg_sim_fail("cuEventQuery", 1, 999));
    assert_ok(xseg_record_stream(allocator, b, next));
    assert_true(xseg_sim_failed());
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_PENDING_FREE);
    assert_ok(xseg_sim_launch(next, FOREVER));
    env_free(allocator, b);
    env_free(allocator, env_alloc(allocator, 1, NULL));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);
    assert_int_equal(env_block(allocator, b).state, XSEG_BLOCK_PENDING_FREE);
    env_close(allocator, next);
}

/* The 20,000th stream costs what the 100th did, in driver calls and in host memory. */
TEST(streams_that_come_and_go_leave_nothing)
{
    struct xseg_allocator *allocator = env_open(NULL);
    uint64_t host = 0, calls = 0, each = 0;

    for (unsigned i = 0; i < 20000; i++) {
        const xseg_stream stream = env_stream();

        calls = xseg_sim_calls(NULL);
        env_free(allocator, env_alloc(allocator, 512 + i % 3 * MIB, stream));
        assert_ok(xseg_stream_retire(allocator, 0, stream));
        calls = xseg_sim_calls(NULL) - calls;
        env_stream_destroy(stream);
        each = i == 100 ? calls : each;
        host = i == 100 ? env_stats(allocator).host_bytes : host;
    }
    assert_int_equal(calls, each);
    assert_int_equal(env_stats(allocator).host_bytes, host);
    env_close(allocator);
}

TEST(default_streams_never_go)
{
    struct xseg_allocator *allocator = env_open(NULL);

    for (uintptr_t handle = 0; handle <= 2; handle++)
        env_expect_error(xseg_stream_retire(allocator, 0, (xseg_stream)handle), XSEG_ERR_ARGUMENT,
                         "default stream");
    env_expect_error(xseg_stream_retire(NULL, 0, NULL), XSEG_ERR_ARGUMENT, "NULL");
    assert_ok(xseg_stream_retire(allocator, 0, (xseg_stream)(uintptr_t)0x7000));
    env_close(allocator);
}

/* A block freed behind events waits for them, whatever becomes of the events afterwards. */
TEST(a_block_is_freed_after_events)
{
    struct xseg_allocator *allocator = env_open(NULL);
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
    env_close(allocator, one, two);
}

/* Events that are complete cost a query and nothing else; without any it is a plain free. */
TEST(complete_events_are_not_waited_for)
{
    struct xseg_allocator *allocator = env_open(NULL);
    void *a = env_alloc(allocator, 5 * MIB, NULL), *b = env_alloc(allocator, 5 * MIB, NULL);
    xseg_event event = event_on(NULL);

    assert_ok(xseg_free_after(allocator, a, &event, 1));
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_CACHED);
    assert_int_equal(xseg_sim_calls("cuStreamWaitEvent"), 0);
    assert_ok(xseg_free_after(allocator, b, NULL, 0));
    assert_ok(xseg_free_after(allocator, NULL, NULL, 0));
    env_expect_error(xseg_free_after(allocator, a, &event, 1), XSEG_ERR_NOT_ALLOCATED, "cached");
    env_expect_error(xseg_free_after(allocator, a, NULL, 1), XSEG_ERR_ARGUMENT, "events");
    a = env_alloc(allocator, 5 * MIB, NULL);
    assert_int_equal(cuEventDestroy_v2(event), 0);
    event = NULL;
    env_expect_error(xseg_free_after(allocator, a, &event, 1), XSEG_ERR_ARGUMENT,
                     "events[0] is NULL");
    assert_int_equal(env_block(allocator, a).state, XSEG_BLOCK_ALLOCATED);
    env_free(allocator, a);
    env_close(allocator);
}
