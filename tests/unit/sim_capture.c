/* SPDX-License-Identifier: MIT */
/* Stream capture: who takes part, what is refused, what spoils it. */
#include <pthread.h>

#include "tests/unit/sim_setup.h"

CUresult CUDAAPI cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status,
                                           cuuint64_t *id, CUgraph *graph,
                                           const CUgraphNode **dependencies, size_t *count);

enum {
    NONE = CU_STREAM_CAPTURE_STATUS_NONE,
    ACTIVE = CU_STREAM_CAPTURE_STATUS_ACTIVE,
    INVALID = CU_STREAM_CAPTURE_STATUS_INVALIDATED
};

static int status_of(CUstream stream)
{
    CUstreamCaptureStatus status = (CUstreamCaptureStatus)-1;

    ASSERT_OK(cuStreamIsCapturing(stream, &status));
    return (int)status;
}

static CUstream begin(CUstreamCaptureMode mode)
{
    CUstream stream = new_stream();

    ASSERT_OK(cuStreamBeginCapture(stream, mode));
    return stream;
}

static void end_with(CUstream stream, CUresult expected)
{
    CUgraph graph = (CUgraph)(uintptr_t)1;

    ASSERT_CU(cuStreamEndCapture(stream, &graph), expected);
    if (expected == CUDA_SUCCESS) {
        assert_non_null(graph);
        ASSERT_OK(cuGraphDestroy(graph));
        ASSERT_CU(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    } else {
        assert_null(graph);
    }
    assert_int_equal(status_of(stream), NONE);
}

/* The stream's capture was spoilt; end it. */
static void expect_spoilt(CUstream stream)
{
    assert_int_equal(status_of(stream), INVALID);
    end_with(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

static CUevent record(CUstream stream)
{
    CUevent event = new_event();

    ASSERT_OK(cuEventRecord(event, stream));
    return event;
}

static void a_capture_has_a_beginning_an_id_and_an_end(void **state)
{
    CUstream stream = new_stream();
    CUstreamCaptureStatus status;
    cuuint64_t first = 0, second = 0;
    CUgraph graph = NULL;
    const CUgraphNode *nodes = NULL;
    size_t count = 1;

    (void)state;
    assert_int_equal(status_of(stream), NONE);
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &first, &graph, &nodes, &count));
    assert_int_equal(status, ACTIVE);
    assert_true(first != 0);
    assert_int_equal(count, 0);
    ASSERT_CU(cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_ILLEGAL_STATE);
    end_with(stream, CUDA_SUCCESS);
    ASSERT_CU(cuStreamEndCapture(stream, &graph), CUDA_ERROR_ILLEGAL_STATE);

    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &second, NULL, NULL, NULL));
    assert_true(second > first);
    ASSERT_CU(cuStreamGetCaptureInfo_v2(stream, NULL, &second, NULL, NULL, NULL),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuStreamEndCapture(stream, NULL), CUDA_ERROR_INVALID_VALUE);
    end_with(stream, CUDA_SUCCESS);
}

static void what_cannot_be_captured(void **state)
{
    (void)state;
    ASSERT_CU(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    ASSERT_CU(cuStreamBeginCapture(new_stream(), (CUstreamCaptureMode)3), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuStreamBeginCapture((CUstream)(uintptr_t)99, CU_STREAM_CAPTURE_MODE_GLOBAL),
              CUDA_ERROR_INVALID_HANDLE);
    ASSERT_OK(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_GLOBAL));
    end_with(CU_STREAM_PER_THREAD, CUDA_SUCCESS);
}

static void captured_work_keeps_nobody_busy(void **state)
{
    CUstream other = new_stream(), stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);

    (void)state;
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuStreamWaitEvent(other, record(stream), 0));
    launch(other, UINT64_MAX);
    ASSERT_OK(cuStreamWaitEvent(stream, record(other), 0));
    end_with(stream, CUDA_SUCCESS);
    ASSERT_OK(cuStreamQuery(stream));
    ASSERT_OK(cuStreamQuery(other));
}

static void work_from_before_goes_on_through_a_capture(void **state)
{
    CUstream stream = new_stream();

    (void)state;
    launch(stream, UINT64_MAX);
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    end_with(stream, CUDA_SUCCESS);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
}

static void a_stream_that_waits_joins(void **state)
{
    CUstream stream = begin(CU_STREAM_CAPTURE_MODE_GLOBAL), second = new_stream(),
             third = new_stream();
    cuuint64_t id = 0, joined = 1;
    CUstreamCaptureStatus status;
    CUgraph graph = NULL;

    (void)state;
    ASSERT_OK(cuStreamWaitEvent(second, record(stream), 0));
    ASSERT_OK(cuStreamWaitEvent(third, record(second), 0));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(stream, &status, &id, NULL, NULL, NULL));
    ASSERT_OK(cuStreamGetCaptureInfo_v2(third, &status, &joined, NULL, NULL, NULL));
    assert_int_equal(status, ACTIVE);
    assert_int_equal(id, joined);
    ASSERT_OK(cuStreamWaitEvent(stream, record(third), 0));
    ASSERT_OK(cuStreamWaitEvent(stream, record(stream), 0));
    ASSERT_CU(cuStreamEndCapture(third, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    assert_int_equal(status_of(third), INVALID);
    expect_spoilt(stream);
    assert_int_equal(status_of(second), NONE);
    assert_int_equal(status_of(third), NONE);
}

static void a_capturing_stream_cannot_be_waited_for(void **state)
{
    CUstream stream;

    (void)state;
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoilt(stream);
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoilt(stream);
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoilt(stream);
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamDestroy(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    expect_spoilt(stream);
}

static void a_captured_event_cannot_be_looked_at(void **state)
{
    CUstream stream;
    CUevent event;

    (void)state;
    stream = begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    event = record(stream);
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_CU(cuEventRecord(event, stream), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    expect_spoilt(stream);

    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    event = record(stream);
    ASSERT_CU(cuEventSynchronize(event), CUDA_ERROR_CAPTURED_EVENT);
    expect_spoilt(stream);
    /* Until it is recorded outside of a capture. */
    ASSERT_CU(cuEventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_CU(cuStreamWaitEvent(stream, event, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuEventRecord(event, stream));
    ASSERT_OK(cuEventQuery(event));
}

static void borders_of_a_capture(void **state)
{
    CUstream outside = new_stream(), stream, other;
    CUevent before = record(outside), never = new_event(), captured;

    (void)state;
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cuStreamWaitEvent(stream, never, 0));
    ASSERT_OK(cuStreamWaitEvent(stream, before, CU_EVENT_WAIT_EXTERNAL));
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_CU(cuStreamWaitEvent(stream, before, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    expect_spoilt(stream);

    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    captured = record(stream);
    other = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamWaitEvent(other, captured, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    expect_spoilt(other);
    ASSERT_CU(cuStreamWaitEvent(outside, captured, 0), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(status_of(outside), NONE);
    expect_spoilt(stream);

    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cuStreamWaitEvent(NULL, record(stream), 0), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_spoilt(stream);
}

static void the_legacy_stream_beside_a_blocking_capture(void **state)
{
    CUstreamCaptureStatus status;
    CUstream stream = NULL;
    CUevent event = new_event();

    (void)state;
    ASSERT_OK(cuStreamCreate(&stream, CU_STREAM_DEFAULT));
    ASSERT_OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    ASSERT_CU(cuStreamIsCapturing(NULL, &status), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    assert_int_equal(status_of(stream), ACTIVE);
    ASSERT_CU(cuEventRecord(event, NULL), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    expect_spoilt(stream);

    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_int_equal(status_of(NULL), NONE);
    ASSERT_OK(cuEventRecord(event, NULL));
    end_with(stream, CUDA_SUCCESS);
}

static CUresult try_alloc(void)
{
    CUdeviceptr address = 0;
    CUresult result = cuMemAlloc(&address, 1);

    if (result == CUDA_SUCCESS)
        (void)cuMemFree(address);
    return result;
}

static CUresult try_query(void)
{
    CUevent event = new_event();
    CUresult result = cuEventQuery(event);

    ASSERT_OK(cuEventDestroy(event));
    return result;
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode)
{
    ASSERT_OK(cuThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

/* An unsafe call made by another thread in some mode. */
struct attempt {
    CUstreamCaptureMode mode;
    CUresult (*call)(void);
    CUresult result;
};

static void *attempt_elsewhere(void *argument)
{
    struct attempt *attempt = argument;

    (void)enter(0);
    assert_int_equal(exchange(attempt->mode), CU_STREAM_CAPTURE_MODE_GLOBAL);
    attempt->result = attempt->call();
    return NULL;
}

static void unsafe_calls_by_mode(void **state)
{
    static const struct {
        CUstreamCaptureMode capture, thread;
        bool elsewhere, refused;
    } row[] = {
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, false, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, true, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, false, true},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, true, false},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, false, false},
        {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, true, false},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL, false, true},
        {CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_GLOBAL, true, false},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, false, false},
        {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, true, false},
    };
    static CUresult (*const call[])(void) = {try_alloc, try_query};

    (void)state;
    for (size_t i = 0; i < 2 * sizeof(row) / sizeof(row[0]); i++) {
        struct attempt attempt = {.mode = row[i / 2].thread, .call = call[i % 2]};
        CUstream stream = begin(row[i / 2].capture);
        pthread_t thread;

        if (row[i / 2].elsewhere) {
            assert_int_equal(pthread_create(&thread, NULL, attempt_elsewhere, &attempt), 0);
            assert_int_equal(pthread_join(thread, NULL), 0);
        } else {
            (void)exchange(attempt.mode);
            attempt.result = attempt.call();
            (void)exchange(CU_STREAM_CAPTURE_MODE_GLOBAL);
        }
        ASSERT_CU(attempt.result,
                  row[i / 2].refused ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS);
        if (row[i / 2].refused)
            expect_spoilt(stream);
        else
            end_with(stream, CUDA_SUCCESS);
    }
}

static void virtual_memory_calls_go_through(void **state)
{
    CUstream stream = begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    const CUmemAccessDesc desc = read_write(0);
    CUdeviceptr base = reserve(GRANULE);
    size_t left, total;

    (void)state;
    back(base, GRANULE);
    ASSERT_OK(cuMemSetAccess(base, GRANULE, &desc, 1));
    ASSERT_OK(cuMemUnmap(base, GRANULE));
    ASSERT_OK(cuMemAddressFree(base, GRANULE));
    ASSERT_OK(cuMemGetInfo(&left, &total));
    end_with(stream, CUDA_SUCCESS);
}

static void *end_elsewhere(void *argument)
{
    CUgraph graph = NULL;
    static CUresult result;

    (void)enter(0);
    result = cuStreamEndCapture(argument, &graph);
    if (result == CUDA_SUCCESS)
        result = cuGraphDestroy(graph);
    return &result;
}

static void a_capture_ends_in_its_thread(void **state)
{
    CUstream stream;
    pthread_t thread;
    void *result;

    (void)state;
    stream = begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    ASSERT_CU(*(CUresult *)result, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    expect_spoilt(stream);
    stream = begin(CU_STREAM_CAPTURE_MODE_RELAXED);
    assert_int_equal(pthread_create(&thread, NULL, end_elsewhere, stream), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    ASSERT_OK(*(CUresult *)result);
}

static void a_context_that_ends_takes_its_captures_along(void **state)
{
    CUstream stream = begin(CU_STREAM_CAPTURE_MODE_GLOBAL), joined = new_stream();
    char text[256];

    ASSERT_OK(cuStreamWaitEvent(joined, record(stream), 0));
    ASSERT_OK(cuDevicePrimaryCtxReset(0));
    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    assert_int_equal(xseg_sim_leaks(text, sizeof(text)), 0);
    assert_string_equal(text, "");
    (void)enter(0);
    ASSERT_OK(try_alloc());
    /* So does a machine. */
    (void)begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(fresh(state), 0);
    ASSERT_OK(try_alloc());
}

static void modes_are_checked(void **state)
{
    CUstreamCaptureMode mode = (CUstreamCaptureMode)3;

    (void)state;
    ASSERT_CU(cuThreadExchangeStreamCaptureMode(&mode), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuThreadExchangeStreamCaptureMode(NULL), CUDA_ERROR_INVALID_VALUE);
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_GLOBAL);
    assert_int_equal(exchange(CU_STREAM_CAPTURE_MODE_GLOBAL), CU_STREAM_CAPTURE_MODE_RELAXED);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_capture_has_a_beginning_an_id_and_an_end, fresh),
        cmocka_unit_test_setup(what_cannot_be_captured, fresh),
        cmocka_unit_test_setup(captured_work_keeps_nobody_busy, fresh),
        cmocka_unit_test_setup(work_from_before_goes_on_through_a_capture, fresh),
        cmocka_unit_test_setup(a_stream_that_waits_joins, fresh),
        cmocka_unit_test_setup(a_capturing_stream_cannot_be_waited_for, fresh),
        cmocka_unit_test_setup(a_captured_event_cannot_be_looked_at, fresh),
        cmocka_unit_test_setup(borders_of_a_capture, fresh),
        cmocka_unit_test_setup(the_legacy_stream_beside_a_blocking_capture, fresh),
        cmocka_unit_test_setup(unsafe_calls_by_mode, fresh),
        cmocka_unit_test_setup(virtual_memory_calls_go_through, fresh),
        cmocka_unit_test_setup(a_capture_ends_in_its_thread, fresh),
        cmocka_unit_test_setup(a_context_that_ends_takes_its_captures_along, fresh),
        cmocka_unit_test_setup(modes_are_checked, fresh),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
