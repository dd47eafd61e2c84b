/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <pthread.h>

/* --- FACT-CAP: stream capture. --- */

static CUstreamCaptureStatus capture_status(CUstream stream, cuuint64_t *id)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

    ASSERT_OK(cu.StreamGetCaptureInfo(stream, &status, id, NULL, NULL, NULL));
    return status;
}

static void begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
    ASSERT_OK(cu.StreamBeginCapture(stream, mode));
    ASSERT_EQUAL(capture_status(stream, NULL), CU_STREAM_CAPTURE_STATUS_ACTIVE);
}

static CUstream new_capture(CUstreamCaptureMode mode)
{
    const CUstream stream = new_stream();

    begin_capture(stream, mode);
    return stream;
}

/* Ends a capture with an expected result: success, or CUDA_ERROR_STREAM_CAPTURE_INVALIDATED. */
static void end_capture(CUstream stream, CUresult expected)
{
    CUgraph graph = NULL;
    const CUstreamCaptureStatus status = capture_status(stream, NULL);

    ASSERT_CU(cu.StreamEndCapture(stream, &graph), expected);
    if (expected == CUDA_SUCCESS) {
        ASSERT_EQUAL(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
        ASSERT(graph != NULL);
        ASSERT_OK(cu.GraphDestroy(graph));
    } else {
        ASSERT_EQUAL(status, CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        ASSERT(graph == NULL);
    }
    ASSERT_EQUAL(capture_status(stream, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    ASSERT_OK(cu.StreamDestroy(stream));
}

static CUstreamCaptureMode exchange_mode(CUstreamCaptureMode mode)
{
    ASSERT_OK(cu.ThreadExchangeStreamCaptureMode(&mode));
    return mode;
}

FACT("FACT-CAP-1", each_capture_has_a_unique_id, DEVICE)
{
    cuuint64_t id[2] = {0, 0};

    for (unsigned i = 0; i < 2; i++) {
        const CUstream stream = new_stream();

        ASSERT_EQUAL(capture_status(stream, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
        begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
        (void)capture_status(stream, &id[i]);
        end_capture(stream, CUDA_SUCCESS);
    }
    ASSERT_DIFFERENT(id[0], 0);
    ASSERT_DIFFERENT(id[0], id[1]);
}

FACT("FACT-CAP-2", a_stream_that_waits_for_a_captured_event_joins_the_capture, DEVICE)
{
    const CUstream first = new_stream(), second = new_stream();
    const CUevent event = new_event();
    cuuint64_t id = 0, joined_id = 0;

    begin_capture(first, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_OK(cu.EventRecord(event, first));
    ASSERT_OK(cu.StreamWaitEvent(second, event, 0));
    ASSERT_EQUAL(capture_status(second, &joined_id), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    (void)capture_status(first, &id);
    ASSERT_EQUAL(joined_id, id);
    ASSERT_OK(cu.EventRecord(event, second));
    ASSERT_OK(cu.StreamWaitEvent(first, event, 0));
    end_capture(first, CUDA_SUCCESS);
    ASSERT_EQUAL(capture_status(second, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    destroy(second, event);
}

FACT("FACT-CAP-3", a_query_of_a_capturing_stream_invalidates_the_capture, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    ASSERT_CU(cu.StreamQuery(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

FACT("FACT-CAP-4", a_wait_for_a_capturing_stream_invalidates_the_capture, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    ASSERT_CU(cu.StreamSynchronize(stream), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

FACT("FACT-CAP-5", a_wait_for_the_context_invalidates_the_capture, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    ASSERT_CU(cu.CtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

FACT("FACT-CAP-6", a_captured_event_cannot_be_queried, DEVICE)
{
    const CUevent event = new_event();
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_RELAXED);

    ASSERT_OK(cu.EventRecord(event, stream));
    const CUstreamCaptureMode old_mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    (void)exchange_mode(old_mode);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_CAPTURED_EVENT);
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-CAP-7", an_event_query_invalidates_a_global_capture, DEVICE)
{
    const CUevent event = new_event();
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);

    ASSERT_CU(cu.EventQuery(event), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-CAP-8", a_relaxed_thread_may_query_events, DEVICE)
{
    const CUevent event = new_event();
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);

    const CUstreamCaptureMode old_mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.EventQuery(event));
    (void)exchange_mode(old_mode);
    end_capture(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-CAP-9", an_allocation_invalidates_a_global_capture, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUdeviceptr address = 0;

    ASSERT_CU(cu.MemAlloc(&address, GRANULE), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

FACT("FACT-CAP-10", a_free_invalidates_a_global_capture, DEVICE)
{
    const CUstream stream = new_stream();
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_CU(cu.MemFree(address), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.MemFree(address));
}

FACT("FACT-CAP-11", a_relaxed_thread_may_allocate_and_free, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUdeviceptr address = 0;

    const CUstreamCaptureMode old_mode = exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
    (void)exchange_mode(old_mode);
    end_capture(stream, CUDA_SUCCESS);
}

FACT("FACT-CAP-12", any_thread_may_allocate_during_a_relaxed_capture, DEVICE)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_RELAXED);
    CUdeviceptr address = 0;

    ASSERT_OK(cu.MemAlloc(&address, GRANULE));
    ASSERT_OK(cu.MemFree(address));
    end_capture(stream, CUDA_SUCCESS);
}

FACT("FACT-CAP-13", memory_can_be_mapped_during_a_capture, VMM)
{
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);
    CUdeviceptr base = 0;

    base = reserve(2 * GRANULE);
    BACK(base, 1, 1);
    ASSERT_OK(allow(base, GRANULE));
    ASSERT_OK(allow(base + GRANULE, GRANULE));
    end_capture(stream, CUDA_SUCCESS);
    fill(base, 2 * GRANULE, 0x77);
    ASSERT_EQUAL(byte_at(base + GRANULE), 0x77);
    UNBACK(base, 1, 1);
}

FACT("FACT-CAP-14", queries_do_not_invalidate_a_capture, DEVICE)
{
    const CUstream stream = new_stream(), uncaptured = new_stream();
    CUcontext owner = NULL;

    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_DIFFERENT(id_of(stream), id_of(uncaptured));
    ASSERT_OK(cu.StreamGetCtx(stream, &owner));
    ASSERT(owner == primary);
    ASSERT_EQUAL(capture_status(uncaptured, NULL), CU_STREAM_CAPTURE_STATUS_NONE);
    (void)free_memory();
    end_capture(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.StreamDestroy(uncaptured));
}

FACT("FACT-CAP-15", events_can_be_created_and_recorded_during_a_capture, DEVICE)
{
    const CUstream stream = new_stream(), uncaptured = new_stream();
    CUevent event = NULL;

    begin_capture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL);
    event = new_event();
    ASSERT_OK(cu.EventRecord(event, uncaptured));
    end_capture(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventSynchronize(event));
    destroy(uncaptured, event);
}

struct thread_query {
    CUstreamCaptureMode mode, old_mode;
    CUevent event;
    CUresult result;
};

static void *run_query(void *argument)
{
    struct thread_query *query = argument;
    CUcontext popped = NULL;

    query->old_mode = query->mode;
    if (cu.CtxPushCurrent(primary) != CUDA_SUCCESS ||
        cu.ThreadExchangeStreamCaptureMode(&query->old_mode) != CUDA_SUCCESS)
        return NULL;
    query->result = cu.EventQuery(query->event);
    (void)cu.CtxPopCurrent(&popped);
    return NULL;
}

static struct thread_query query_in_thread(CUevent event, CUstreamCaptureMode mode)
{
    struct thread_query query = {.mode = mode, .event = event, .result = CUDA_ERROR_UNKNOWN};
    pthread_t thread;

    ASSERT_EQUAL(pthread_create(&thread, NULL, run_query, &query), 0);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    return query;
}

FACT("FACT-CAP-16", a_global_capture_forbids_queries_of_other_threads, DEVICE)
{
    const CUevent event = new_event();
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);

    ASSERT_RESULT("cuEventQuery in another thread, in global mode",
                  query_in_thread(event, CU_STREAM_CAPTURE_MODE_GLOBAL).result,
                  CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    end_capture(stream, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-CAP-17", the_capture_mode_of_a_thread_permits_queries, DEVICE)
{
    const CUevent event = new_event();
    const CUstream stream = new_capture(CU_STREAM_CAPTURE_MODE_GLOBAL);

    ASSERT_RESULT("cuEventQuery in another thread, in thread-local mode",
                  query_in_thread(event, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).result, CUDA_SUCCESS);
    ASSERT_RESULT("cuEventQuery in another thread, in relaxed mode",
                  query_in_thread(event, CU_STREAM_CAPTURE_MODE_RELAXED).result, CUDA_SUCCESS);
    end_capture(stream, CUDA_SUCCESS);
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-CAP-18", each_thread_has_a_separate_capture_mode, DEVICE)
{
    const CUevent event = new_event();

    ASSERT_EQUAL(exchange_mode(CU_STREAM_CAPTURE_MODE_RELAXED), CU_STREAM_CAPTURE_MODE_GLOBAL);
    const struct thread_query query = query_in_thread(event, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
    ASSERT_EQUAL(query.old_mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    ASSERT_EQUAL(exchange_mode(CU_STREAM_CAPTURE_MODE_GLOBAL), CU_STREAM_CAPTURE_MODE_RELAXED);
    ASSERT_OK(cu.EventDestroy(event));
}
