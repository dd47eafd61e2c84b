/* SPDX-License-Identifier: MIT */
/* Streams, events, and completion of work. */
#include <pthread.h>

#include "tests/unit/sim_setup.h"

/* The duration of open-ended work, which completes when a call finishes it or waits for it. */
#define OPEN UINT64_MAX

SIM_TEST(an_event_covers_the_work_queued_before_it)
{
    CUstream stream = new_stream();
    CUevent empty = new_event(), idle = record(stream);

    launch(stream, OPEN);
    CUevent first = record(stream);
    launch(stream, OPEN);
    CUevent second = record(stream);
    ASSERT_OK(cuEventQuery(empty));
    ASSERT_OK(cuEventQuery(idle));
    ASSERT_CU(cuEventQuery(first), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);

    ASSERT_OK(cuEventSynchronize(first));
    ASSERT_OK(cuEventQuery(first));
    ASSERT_CU(cuEventQuery(second), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamSynchronize(stream));
    ASSERT_OK(cuEventQuery(second));
    ASSERT_OK(cuStreamQuery(stream));
}

/* In milliseconds; fails unless both events have times. */
static float elapsed(CUevent from, CUevent to)
{
    float milliseconds = -1;

    ASSERT_OK(cuEventElapsedTime(&milliseconds, from, to));
    return milliseconds;
}

static CUevent record_timed(CUstream stream)
{
    CUevent event = NULL;

    ASSERT_OK(cuEventCreate(&event, CU_EVENT_DEFAULT));
    ASSERT_OK(cuEventRecord(event, stream));
    return event;
}

SIM_TEST(events_record_their_times)
{
    CUstream stream = new_stream(), idle = new_stream();
    CUevent first = record_timed(stream);

    launch(stream, 2500000);
    CUevent second = record_timed(stream);
    xseg_sim_advance(1000000);
    CUevent late = record_timed(idle);
    assert_true(elapsed(first, late) == 1.0f);
    /* Queried long after the work has ended. */
    xseg_sim_advance(50000000);
    assert_true(elapsed(first, second) == 2.5f);
    assert_true(elapsed(second, first) == -2.5f);
    assert_true(elapsed(late, second) == 1.5f);
    assert_true(elapsed(late, late) == 0.0f);
    ASSERT_OK(cuEventRecord(first, idle));
    assert_true(elapsed(late, first) == 50.0f);
    /* Work that xseg_sim_finish() completes ends at the time of the call. */
    launch(idle, 9000000);
    second = record_timed(idle);
    xseg_sim_advance(3000000);
    finish(idle);
    assert_true(elapsed(first, second) == 3.0f);
    xseg_sim_advance(3000000);
    assert_true(elapsed(first, second) == 3.0f);
}

SIM_TEST(events_may_have_no_time)
{
    CUstream stream = new_stream();
    CUevent timed = record_timed(stream), untimed = record(stream), unused;
    float milliseconds = 7;

    ASSERT_OK(cuEventCreate(&unused, CU_EVENT_DEFAULT));
    launch(stream, OPEN);
    CUevent busy = record_timed(stream);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, timed, busy), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, busy, timed), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, timed, untimed), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, unused, timed), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, (CUevent)(uintptr_t)5, timed),
              CUDA_ERROR_INVALID_HANDLE);
    ASSERT_INVALID(cuEventElapsedTime(NULL, timed, timed));
    assert_true(milliseconds == 7.0f);
    ASSERT_OK(cuStreamSynchronize(stream));

    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUevent captured = record_timed(stream);
    CUgraph graph = end_capture(stream);
    ASSERT_CU(cuEventElapsedTime(&milliseconds, timed, captured), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_OK(cuEventElapsedTime(&milliseconds, timed, busy));
    ASSERT_OK(cuGraphDestroy(graph));
}

SIM_TEST(streams_return_their_flags)
{
    CUstream stream = NULL;
    unsigned flags = 7;
    int least = 7, greatest = 7, priority = 7;

    ASSERT_OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    assert_int_equal(least, 0);
    assert_int_equal(greatest, 0);
    ASSERT_OK(cuCtxGetStreamPriorityRange(NULL, NULL));
    ASSERT_OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -5));
    ASSERT_OK(cuStreamGetPriority(stream, &priority));
    assert_int_equal(priority, 0);
    ASSERT_OK(cuStreamGetFlags(stream, &flags));
    assert_int_equal(flags, CU_STREAM_NON_BLOCKING);
    ASSERT_OK(cuStreamGetFlags(NULL, &flags));
    assert_int_equal(flags, CU_STREAM_DEFAULT);
    ASSERT_INVALID(cuStreamGetFlags(stream, NULL));
    ASSERT_INVALID(cuStreamGetPriority(stream, NULL));
    ASSERT_CU(cuStreamGetFlags((CUstream)(uintptr_t)5, &flags), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamGetPriority((CUstream)(uintptr_t)5, &priority), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_OK(cuCtxSetCurrent(NULL));
    ASSERT_CU(cuCtxGetStreamPriorityRange(&least, &greatest), CUDA_ERROR_INVALID_CONTEXT);
}

SIM_TEST(an_event_recorded_again_covers_only_the_later_work)
{
    CUstream busy = new_stream(), idle = new_stream();

    launch(busy, OPEN);
    CUevent event = record(busy);
    ASSERT_OK(cuEventRecord(event, idle));
    ASSERT_OK(cuEventQuery(event));
    ASSERT_CU(cuStreamQuery(busy), CUDA_ERROR_NOT_READY);
}

SIM_TEST(the_clock_does_not_wrap)
{
    CUstream stream = new_stream();

    xseg_sim_advance(UINT64_MAX - 100);
    launch(stream, UINT64_MAX - 1);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    launch(stream, OPEN);
    xseg_sim_advance(UINT64_MAX);
    assert_true(xseg_sim_clock() >= UINT64_MAX - 100);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamSynchronize(stream));
    ASSERT_OK(cuStreamQuery(stream));
}

SIM_TEST(the_clock_ends_timed_work)
{
    CUstream stream = new_stream();

    launch(stream, 100);
    CUevent first = record(stream);
    launch(stream, 50);
    CUevent second = record(stream);
    xseg_sim_advance(99);
    ASSERT_CU(cuEventQuery(first), CUDA_ERROR_NOT_READY);
    xseg_sim_advance(1);
    ASSERT_OK(cuEventQuery(first));
    ASSERT_CU(cuEventQuery(second), CUDA_ERROR_NOT_READY);
    for (int i = 0; i < 2; i++) {
        ASSERT_OK(cuEventSynchronize(second));
        assert_int_equal(xseg_sim_clock(), 150);
        ASSERT_OK(cuStreamQuery(stream));
    }
    assert_int_equal(xseg_sim_driver_time(), 0);
    /* Timed work starts after earlier open-ended work. */
    launch(stream, 30);
    launch(stream, OPEN);
    launch(stream, 50);
    xseg_sim_advance(1000);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamSynchronize(stream));
    assert_int_equal(xseg_sim_clock(), 150 + 1000 + 50);
}

SIM_TEST(a_stream_that_waits_is_busy)
{
    CUstream a = new_stream(), b = new_stream();

    launch(a, OPEN);
    CUevent on_a = record(a);
    ASSERT_OK(cuStreamWaitEvent(b, on_a, 0));
    CUevent on_b = record(b);
    ASSERT_CU(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuEventSynchronize(on_a));
    ASSERT_OK(cuStreamQuery(b));
    ASSERT_OK(cuEventQuery(on_b));
    ASSERT_OK(cuStreamWaitEvent(b, on_a, 0));
    ASSERT_OK(cuStreamQuery(b));
}

SIM_TEST(synchronization_completes_dependencies_only)
{
    CUstream a = new_stream(), b = new_stream(), c = new_stream();

    launch(a, OPEN);
    CUevent early = record(a);
    launch(a, OPEN);
    launch(c, OPEN);
    ASSERT_OK(cuStreamWaitEvent(b, early, 0));
    ASSERT_OK(cuStreamSynchronize(b));
    ASSERT_OK(cuEventQuery(early));
    ASSERT_CU(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamQuery(c), CUDA_ERROR_NOT_READY);
}

SIM_TEST(times_propagate_through_waiting_streams)
{
    CUstream a = new_stream(), b = new_stream();

    launch(a, 100);
    launch(b, 20);
    ASSERT_OK(cuStreamWaitEvent(b, record(a), 0));
    launch(b, 5);
    ASSERT_OK(cuStreamSynchronize(b));
    assert_int_equal(xseg_sim_clock(), 105);
}

SIM_TEST(long_chains_of_streams_complete)
{
    enum { LINKS = 200000 };
    CUstream stream[2] = {new_stream(), new_stream()};
    CUevent event = new_event();

    launch(stream[0], OPEN);
    for (int i = 0; i < LINKS; i++) {
        ASSERT_OK(cuEventRecord(event, stream[i % 2]));
        ASSERT_OK(cuStreamWaitEvent(stream[(i + 1) % 2], event, 0));
    }
    ASSERT_CU(cuStreamQuery(stream[LINKS % 2]), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamSynchronize(stream[LINKS % 2]));
    ASSERT_OK(cuStreamQuery(stream[0]));
    ASSERT_OK(cuStreamQuery(stream[1]));
}

SIM_TEST(finish_ends_one_stream_and_moves_no_clock)
{
    CUstream a = new_stream(), b = new_stream();

    launch(a, 70);
    CUevent first = record(a);
    launch(a, OPEN);
    launch(b, OPEN);
    ASSERT_OK(cuStreamWaitEvent(a, record(b), 0));
    launch(a, 10);
    CUevent after_wait = record(a);
    finish(a);
    ASSERT_OK(cuEventQuery(first));
    ASSERT_OK(cuEventQuery(after_wait));
    ASSERT_OK(cuStreamQuery(a));
    ASSERT_CU(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    assert_int_equal(xseg_sim_clock(), 0);
    launch(a, 10);
    ASSERT_OK(cuStreamSynchronize(a));
    assert_int_equal(xseg_sim_clock(), 10);
}

SIM_TEST(finish_all_completes_all_work)
{
    CUstream a = new_stream(), b = new_stream(), destroyed = new_stream();

    launch(a, OPEN);
    launch(b, 100);
    launch(NULL, OPEN);
    launch(destroyed, OPEN);
    CUevent pending_event = record(destroyed);
    ASSERT_OK(cuStreamDestroy(destroyed));
    xseg_sim_finish_all();
    ASSERT_OK(cuStreamQuery(a));
    ASSERT_OK(cuStreamQuery(b));
    ASSERT_OK(cuStreamQuery(NULL));
    ASSERT_OK(cuEventQuery(pending_event));
    assert_int_equal(xseg_sim_clock(), 0);
}

SIM_TEST(finish_resumes_waiting_streams)
{
    CUstream a = new_stream(), b = new_stream(), busy = new_stream();

    launch(busy, OPEN);
    ASSERT_OK(cuStreamWaitEvent(a, record(busy), 0));
    launch(a, OPEN);
    ASSERT_OK(cuStreamWaitEvent(b, record(a), 0));
    launch(b, 10);
    xseg_sim_advance(40);
    finish(a);
    ASSERT_CU(cuStreamQuery(b), CUDA_ERROR_NOT_READY);
    xseg_sim_advance(10);
    ASSERT_OK(cuStreamQuery(b));
}

SIM_TEST(a_context_wait_ends_the_work_of_its_device)
{
    CUstream a = new_stream(), destroyed = new_stream();
    CUcontext first = current_context();

    launch(a, OPEN);
    launch(NULL, 500);
    launch(destroyed, OPEN);
    CUevent pending_event = record(destroyed);
    ASSERT_OK(cuStreamDestroy(destroyed));
    ASSERT_CU(cuEventQuery(pending_event), CUDA_ERROR_NOT_READY);
    (void)enter(1);
    CUstream second = new_stream();
    launch(second, OPEN);
    ASSERT_OK(cuCtxSetCurrent(first));
    ASSERT_OK(cuCtxSynchronize());
    assert_int_equal(xseg_sim_clock(), 500);
    ASSERT_OK(cuStreamQuery(a));
    ASSERT_OK(cuStreamQuery(NULL));
    ASSERT_OK(cuEventQuery(pending_event));
    (void)enter(1);
    ASSERT_CU(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
}

SIM_TEST(a_free_waits_for_timed_work_of_its_device)
{
    CUstream stream = new_stream();
    CUdeviceptr address = allocate(1);

    launch(NULL, 300);
    launch(stream, OPEN);
    ASSERT_OK(cuMemFree(address));
    assert_int_equal(xseg_sim_clock(), 300);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

static void *id_of_another_thread(void *out)
{
    (void)enter(0);
    *(unsigned long long *)out = id_of(CU_STREAM_PER_THREAD);
    return NULL;
}

SIM_TEST(streams_have_unique_ids)
{
    CUstream stream = new_stream();
    unsigned long long id = id_of(stream), legacy = id_of(NULL), own = id_of(CU_STREAM_PER_THREAD),
                       foreign = 0;
    pthread_t thread;

    assert_int_equal(id_of(CU_STREAM_LEGACY), legacy);
    assert_int_equal(id_of(NULL), legacy);
    assert_int_equal(id_of(CU_STREAM_PER_THREAD), own);
    assert_true(legacy != own && legacy != id && own != id);
    assert_int_equal(pthread_create(&thread, NULL, id_of_another_thread, &foreign), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(foreign != own && foreign != legacy);

    ASSERT_OK(cuStreamDestroy(stream));
    CUstream second = new_stream();
    assert_true(id_of(second) != id);
    (void)enter(1);
    assert_true(id_of(NULL) != legacy);
    assert_true(id_of(CU_STREAM_PER_THREAD) != own);
    assert_int_equal(id_of(second), id_of(second));
}

SIM_TEST(default_streams_are_separate)
{
    launch(NULL, OPEN);
    ASSERT_CU(cuStreamQuery(CU_STREAM_LEGACY), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamQuery(CU_STREAM_PER_THREAD));
    launch(CU_STREAM_PER_THREAD, OPEN);
    ASSERT_OK(cuStreamSynchronize(CU_STREAM_LEGACY));
    ASSERT_OK(cuStreamQuery(NULL));
    ASSERT_CU(cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamDestroy(NULL), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamDestroy(CU_STREAM_LEGACY), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamDestroy(CU_STREAM_PER_THREAD), CUDA_ERROR_INVALID_HANDLE);
}

static CUstream new_blocking_stream(void)
{
    CUstream stream = NULL;

    ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    return stream;
}

/* Work on the legacy stream waits for all blocking streams, and their later work waits for it. */
SIM_TEST(the_legacy_stream_is_in_order_with_blocking_ones)
{
    CUstream blocking = new_blocking_stream(), second = new_blocking_stream(),
             nonblocking = new_stream();

    launch(blocking, OPEN);
    launch(nonblocking, OPEN);
    CUevent legacy = record(NULL), later = record(second), of_nonblocking = record(new_stream());
    ASSERT_OK(cuEventQuery(of_nonblocking));
    ASSERT_CU(cuEventQuery(legacy), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuEventQuery(later), CUDA_ERROR_NOT_READY);
    finish(blocking);
    ASSERT_OK(cuEventQuery(legacy));
    ASSERT_OK(cuEventQuery(later));
    ASSERT_CU(cuStreamQuery(nonblocking), CUDA_ERROR_NOT_READY);

    launch(NULL, OPEN);
    later = record(blocking);
    of_nonblocking = record(new_stream());
    ASSERT_OK(cuEventQuery(of_nonblocking));
    ASSERT_CU(cuEventQuery(later), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuEventSynchronize(later));
    ASSERT_OK(cuStreamQuery(NULL));
}

/* The order applies to times, to work of destroyed streams, and in alternation. */
SIM_TEST(times_propagate_through_the_legacy_stream)
{
    CUstream first = new_blocking_stream(), second = new_blocking_stream();
    CUevent start = record_timed(first);

    for (unsigned i = 0; i < 3; i++) {
        launch(first, 1000000);
        launch(NULL, 500000);
        launch(second, 250000);
    }
    CUevent middle = record_timed(NULL);
    ASSERT_OK(cuStreamDestroy(second));
    launch(first, 1000000);
    CUevent stop = record_timed(NULL);
    ASSERT_OK(cuStreamSynchronize(NULL));
    /* 3 * (1 + 0.5) ms, and the last 0.25 ms. */
    assert_true(elapsed(start, middle) > 4.7 && elapsed(start, middle) < 4.8);
    assert_true(elapsed(middle, stop) > 0.9 && elapsed(middle, stop) < 1.1);
}

/* Each thread's own default stream is a blocking stream. */
static void *launch_on_own_default_stream(void *unused)
{
    (void)enter(0);
    launch(CU_STREAM_PER_THREAD, OPEN);
    return unused;
}

SIM_TEST(the_legacy_stream_waits_for_per_thread_ones)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, launch_on_own_default_stream, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    CUevent legacy = record(NULL);
    ASSERT_CU(cuEventQuery(legacy), CUDA_ERROR_NOT_READY);
    launch(CU_STREAM_PER_THREAD, 1000);
    ASSERT_CU(cuStreamQuery(NULL), CUDA_ERROR_NOT_READY);
    xseg_sim_finish_all();
    ASSERT_OK(cuEventQuery(legacy));
}

/* In fast mode calls with destroyed objects fail; strict mode is tested by use_of_destroyed_objects_is_reported. */
TEST(destroyed_objects_are_detected)
{
    CUstream invalid = (CUstream)(uintptr_t)0x7777;
    unsigned long long id;

    start_with((struct xseg_sim_settings){.skip_checks = true});
    CUstream stream = new_stream(), valid_stream = new_stream();
    CUevent event = new_event(), valid_event = new_event();
    ASSERT_OK(cuStreamDestroy(stream));
    ASSERT_OK(cuEventDestroy(event));
    (void)new_stream();
    (void)new_event();
    ASSERT_CU(cuStreamDestroy(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamSynchronize(invalid), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamGetId(stream, &id), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamWaitEvent(stream, valid_event, 0), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuStreamWaitEvent(valid_stream, event, 0), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventRecord(event, valid_stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventRecord(valid_event, stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventRecord(NULL, valid_stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventSynchronize((CUevent)stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventDestroy(event), CUDA_ERROR_INVALID_HANDLE);
    expect_rejected(xseg_sim_launch(stream, 1), "invalid stream handle, ");
    expect_rejected(xseg_sim_finish(invalid), "xseg_sim_finish: invalid stream handle, 0x7777;");
    ASSERT_OK(cuStreamQuery(valid_stream));
}

static CUstream destroyed_stream(void)
{
    CUstream stream = new_stream();

    (void)cuStreamDestroy(stream);
    (void)new_stream(); /* reuses the slot */
    return stream;
}

static CUevent destroyed_event(void)
{
    CUevent event = new_event();

    (void)cuEventDestroy(event);
    return event;
}

PART(query_destroyed_stream, cuStreamQuery(destroyed_stream()))
PART(destroy_destroyed_stream, cuStreamDestroy(destroyed_stream()))
PART(record_on_destroyed_stream, cuEventRecord(new_event(), destroyed_stream()))
PART(record_destroyed_event, cuEventRecord(destroyed_event(), NULL))
PART(destroy_destroyed_event, cuEventDestroy(destroyed_event()))
PART(wait_for_destroyed_event, cuStreamWaitEvent(NULL, destroyed_event(), 0))

static void use_long_destroyed_stream(void)
{
    CUstream stream = destroyed_stream();

    for (int i = 0; i < 10; i++)
        (void)cuStreamDestroy(new_stream());
    (void)cuStreamSynchronize(stream);
}

TEST(use_of_destroyed_objects_is_reported)
{
    EXPECT_REPORT(query_destroyed_stream, "use of a destroyed stream or event", "cuStreamQuery",
                  "stream:", ", destroyed by cuStreamDestroy, call 5, thread 1", "stack:");
    EXPECT_REPORT(destroy_destroyed_stream, "call:         cuStreamDestroy");
    EXPECT_REPORT(record_on_destroyed_stream, "call:         cuEventRecord", "stream:");
    EXPECT_REPORT(use_long_destroyed_stream, "cuStreamSynchronize", "destroyed");
    EXPECT_REPORT(record_destroyed_event, "event:", ", destroyed by cuEventDestroy");
    EXPECT_REPORT(destroy_destroyed_event, "event:");
    EXPECT_REPORT(wait_for_destroyed_event, "cuStreamWaitEvent", "event:");
}

/* After the reset another stream has the handle of the per-thread default stream. */
SIM_TEST(a_per_thread_stream_ends_with_its_context)
{
    struct xseg_sim_settings settings = small_machine();
    CUcontext context = NULL;

    settings.reuse_handles = true;
    start(&settings);
    (void)enter(1);
    unsigned long long old_id = id_of(CU_STREAM_PER_THREAD);
    ASSERT_OK(cuDevicePrimaryCtxReset(1));
    (void)enter(0);
    CUstream stream = new_stream();
    launch(stream, OPEN);
    CUcontext second = enter(1);
    assert_true(id_of(CU_STREAM_PER_THREAD) != old_id);
    assert_true(id_of(CU_STREAM_PER_THREAD) != id_of(stream));
    ASSERT_OK(cuStreamGetCtx(CU_STREAM_PER_THREAD, &context));
    assert_ptr_equal(context, second);
    ASSERT_OK(cuStreamQuery(CU_STREAM_PER_THREAD));
}

SIM_TEST(invalid_arguments_are_rejected)
{
    CUstream stream = new_stream();
    CUevent event = new_event();

    ASSERT_INVALID(cuStreamCreate(NULL, 0));
    ASSERT_INVALID(cuStreamCreate(&stream, 2));
    ASSERT_OK(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, -100));
    ASSERT_INVALID(cuEventCreate(NULL, 0));
    ASSERT_INVALID(cuEventCreate(&event, 8));
    ASSERT_INVALID(cuEventCreate(&event, CU_EVENT_INTERPROCESS));
    ASSERT_INVALID(cuStreamGetId(stream, NULL));
    ASSERT_INVALID(cuStreamGetCtx(stream, NULL));
    ASSERT_INVALID(cuStreamWaitEvent(stream, event, 2));
    ASSERT_INVALID(cuStreamWaitEvent(stream, event, CU_EVENT_WAIT_EXTERNAL));
}

SIM_TEST(streams_reject_events_of_another_context)
{
    CUstream stream = new_stream();
    CUcontext context = NULL, first = current_context(), second = enter(1);
    CUstream foreign_stream = new_stream();
    CUevent foreign_event = new_event();

    launch(foreign_stream, OPEN);
    ASSERT_OK(cuEventRecord(foreign_event, foreign_stream));
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuEventRecord(foreign_event, stream), CUDA_ERROR_INVALID_CONTEXT);

    ASSERT_OK(cuCtxSetCurrent(first));
    CUevent event = new_event();
    ASSERT_CU(cuEventRecord(foreign_event, stream), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuEventRecord(event, foreign_stream), CUDA_ERROR_INVALID_CONTEXT);
    /* Waiting for an event of another device, and querying it, is valid. */
    ASSERT_CU(cuEventQuery(foreign_event), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamWaitEvent(stream, foreign_event, 0));
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuStreamGetCtx(foreign_stream, &context));
    assert_ptr_equal(context, second);
    ASSERT_OK(cuStreamGetCtx(NULL, &context));
    assert_ptr_equal(context, first);
    /* The context of the second device is destroyed with its work. */
    ASSERT_OK(cuDevicePrimaryCtxReset(1));
    ASSERT_OK(cuStreamQuery(stream));
    ASSERT_CU(cuEventQuery(foreign_event), CUDA_ERROR_INVALID_HANDLE);
}

SIM_TEST(destroyed_streams_complete_their_work)
{
    for (int i = 0; i < 2000; i++) {
        CUstream stream = new_stream();

        launch(stream, i % 3 == 0 ? OPEN : 10);
        CUevent event = record(stream);
        ASSERT_OK(cuStreamDestroy(stream));
        ASSERT_CU(cuEventQuery(event), CUDA_ERROR_NOT_READY);
        if (i % 2 == 0) {
            ASSERT_OK(cuEventSynchronize(event));
            ASSERT_OK(cuEventQuery(event));
        }
        ASSERT_OK(cuEventDestroy(event));
    }
    ASSERT_OK(cuCtxSynchronize());
}

/* The calls of host functions. */
static struct {
    char text[16]; /* one letter for each call */
    unsigned length;
    CUresult result; /* of a driver call in the function */
    uint64_t clock;
} host_log;

static void CUDA_CB append_letter(void *letter)
{
    CUdeviceptr address;

    host_log.text[host_log.length++] = *(const char *)letter;
    host_log.result = cuMemAddressReserve(&address, GRANULE, 0, 0, 0);
    host_log.clock = xseg_sim_clock();
}

SIM_TEST(host_functions_run_in_stream_order)
{
    static char letter[] = "abcdef";
    CUstream a = new_stream(), b = new_stream();

    memset(&host_log, 0, sizeof(host_log));
    ASSERT_OK(cuLaunchHostFunc(a, append_letter, &letter[0]));
    assert_string_equal(host_log.text, "a");
    ASSERT_CU(host_log.result, CUDA_ERROR_NOT_PERMITTED);
    launch(a, 100);
    ASSERT_OK(cuLaunchHostFunc(a, append_letter, &letter[1]));
    launch(b, 50);
    ASSERT_OK(cuLaunchHostFunc(b, append_letter, &letter[2]));
    ASSERT_OK(cuLaunchHostFunc(b, append_letter, &letter[3]));
    xseg_sim_advance(49);
    assert_string_equal(host_log.text, "a");
    xseg_sim_advance(60);
    assert_string_equal(host_log.text, "acdb");
    launch(a, OPEN);
    ASSERT_OK(cuLaunchHostFunc(a, append_letter, &letter[4]));
    ASSERT_OK(cuStreamSynchronize(b));
    assert_string_equal(host_log.text, "acdb");
    ASSERT_OK(cuStreamSynchronize(a));
    assert_string_equal(host_log.text, "acdbe");
    /* Work that is queued when its context is destroyed never runs. */
    launch(a, OPEN);
    ASSERT_OK(cuLaunchHostFunc(a, append_letter, &letter[5]));
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    xseg_sim_advance(1);
    assert_string_equal(host_log.text, "acdbe");
    (void)enter(0);
    ASSERT_INVALID(cuLaunchHostFunc(NULL, NULL, NULL));
    ASSERT_CU(cuLaunchHostFunc((CUstream)(uintptr_t)9, append_letter, letter),
              CUDA_ERROR_INVALID_HANDLE);
}

/* A host function that waits until it is opened, and the stream on which it is launched. */
struct gate {
    CUstream stream;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_started, is_open, has_passed;
};

static void CUDA_CB pass_gate(void *argument)
{
    struct gate *gate = argument;

    (void)pthread_mutex_lock(&gate->lock);
    gate->has_started = true;
    (void)pthread_cond_broadcast(&gate->changed);
    while (!gate->is_open)
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    gate->has_passed = true;
    (void)pthread_mutex_unlock(&gate->lock);
}

static void *launch_gate(void *argument)
{
    struct gate *gate = argument;

    (void)enter(0);
    ASSERT_OK(cuLaunchHostFunc(gate->stream, pass_gate, gate));
    return NULL;
}

/* Launch the function of a gate by another thread, and wait until it runs. */
static pthread_t start_gate(struct gate *gate)
{
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, launch_gate, gate), 0);
    (void)pthread_mutex_lock(&gate->lock);
    while (!gate->has_started)
        (void)pthread_cond_wait(&gate->changed, &gate->lock);
    (void)pthread_mutex_unlock(&gate->lock);
    return thread;
}

static void *open_gate(void *argument)
{
    struct gate *gate = argument;

    (void)pthread_mutex_lock(&gate->lock);
    gate->is_open = true;
    (void)pthread_cond_broadcast(&gate->changed);
    (void)pthread_mutex_unlock(&gate->lock);
    return NULL;
}

SIM_TEST(other_threads_wait_for_a_host_function)
{
    struct gate gate = {CU_STREAM_PER_THREAD, PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    pthread_t launcher = start_gate(&gate), opener;

    assert_int_equal(pthread_create(&opener, NULL, open_gate, &gate), 0);
    ASSERT_OK(cuCtxSynchronize());
    assert_true(gate.has_passed);
    assert_int_equal(pthread_join(launcher, NULL), 0);
    assert_int_equal(pthread_join(opener, NULL), 0);
}

/* A record does not wait either, because earlier work is active. */
SIM_TEST(a_query_does_not_wait_for_a_host_function)
{
    struct gate gate = {new_stream(), PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    const CUevent event = new_event();
    pthread_t runner = start_gate(&gate);

    ASSERT_CU(cuStreamQuery(gate.stream), CUDA_ERROR_NOT_READY);
    ASSERT_OK(cuEventRecord(event, gate.stream));
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_NOT_READY);
    assert_false(gate.has_passed);
    (void)open_gate(&gate);
    ASSERT_OK(cuEventSynchronize(event));
    assert_true(gate.has_passed);
    ASSERT_OK(cuEventQuery(event));
    ASSERT_OK(cuStreamQuery(gate.stream));
    assert_int_equal(pthread_join(runner, NULL), 0);
    ASSERT_OK(cuEventDestroy(event));
    ASSERT_OK(cuStreamDestroy(gate.stream));
}

/* A gate that is open. */
static void synchronize_after_reset(void)
{
    struct gate gate = {.is_open = true, .lock = PTHREAD_MUTEX_INITIALIZER};

    (void)alarm(60);
    assert_int_equal(xseg_sim_reset(NULL), XSEG_OK);
    ASSERT_OK(cuInit(0));
    (void)enter(0);
    gate.stream = new_stream();
    ASSERT_OK(cuLaunchHostFunc(gate.stream, pass_gate, &gate));
    ASSERT_OK(cuStreamSynchronize(gate.stream));
    assert_true(gate.has_passed);
}

SIM_TEST(forked_child_does_not_wait_for_a_host_function_of_the_parent)
{
    struct gate gate = {new_stream(), PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};
    pthread_t runner = start_gate(&gate);
    char output[1024];

    const int status =
        child_run_without_argument(synchronize_after_reset, output, sizeof(output));
    (void)open_gate(&gate);
    assert_int_equal(pthread_join(runner, NULL), 0);
    assert_int_equal(status, 0);
}

SIM_TEST(random_timed_work_completes_on_time)
{
    enum { STREAMS = 3, EVENTS = 8 };
    CUstream stream[STREAMS];
    CUevent event[EVENTS];
    uint64_t end_of_stream[STREAMS] = {0}, end_of_event[EVENTS] = {0}, now = 0, seed = 1;
    uint64_t time[EVENTS] = {0};

    for (int i = 0; i < STREAMS; i++)
        stream[i] = new_stream();
    for (int i = 0; i < EVENTS; i++)
        event[i] = record_timed(stream[0]);
    for (int step = 0; step < 20000; step++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        unsigned s = (unsigned)(seed >> 33) % STREAMS, e = (unsigned)(seed >> 43) % EVENTS;
        switch (seed >> 61) {
        case 0:
        case 1:
            launch(stream[s], seed >> 40 & 63);
            end_of_stream[s] =
                (end_of_stream[s] > now ? end_of_stream[s] : now) + (seed >> 40 & 63);
            break;
        case 2:
            ASSERT_OK(cuEventRecord(event[e], stream[s]));
            end_of_event[e] = end_of_stream[s];
            time[e] = end_of_stream[s] > now ? end_of_stream[s] : now;
            break;
        case 3:
            ASSERT_OK(cuStreamWaitEvent(stream[s], event[e], 0));
            if (end_of_event[e] > end_of_stream[s])
                end_of_stream[s] = end_of_event[e];
            break;
        case 4:
            ASSERT_OK(cuEventSynchronize(event[e]));
            now = end_of_event[e] > now ? end_of_event[e] : now;
            break;
        default:
            xseg_sim_advance(seed >> 50 & 31);
            now += seed >> 50 & 31;
        }
        assert_int_equal(xseg_sim_clock(), now);
        ASSERT_CU(cuEventQuery(event[e]),
                  end_of_event[e] > now ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
        ASSERT_CU(cuStreamQuery(stream[s]),
                  end_of_stream[s] > now ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
        if (end_of_event[e] <= now && end_of_event[0] <= now)
            assert_true(elapsed(event[0], event[e]) ==
                        (float)(((double)time[e] - (double)time[0]) / 1e6));
    }
}
