/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"
#include "tests/gpu/facts/work.h"

/* --- FACT-EVT: events. --- */

FACT("FACT-EVT-1", an_event_that_was_never_recorded_is_complete, DEVICE)
{
    const CUevent event = new_event();

    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventDestroy(event));
}

FACT("FACT-EVT-2", an_event_completes_with_the_work_before_it, DEVICE)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    keep_busy(stream);
    ASSERT_OK(cu.EventRecord(event, stream));
    const CUresult busy = cu.EventQuery(event);
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventQuery(event));
    wait_for_work(stream);
    ASSERT_RESULT("cuEventQuery before the work completes", busy, CUDA_ERROR_NOT_READY);
    destroy(stream, event);
}

FACT("FACT-EVT-3", later_work_does_not_delay_an_event, DEVICE)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    ASSERT_OK(cu.EventRecord(event, stream));
    ASSERT_OK(cu.StreamSynchronize(stream));
    keep_busy(stream);
    const CUresult complete = cu.EventQuery(event);
    ASSERT_OK(cu.EventRecord(event, stream));
    const CUresult busy = cu.EventQuery(event);
    wait_for_work(stream);
    destroy(stream, event);
    ASSERT_RESULT("cuEventQuery after later work was queued", complete, CUDA_SUCCESS);
    ASSERT_RESULT("cuEventQuery after a second record, which follows later work", busy,
                  CUDA_ERROR_NOT_READY);
}

FACT("FACT-EVT-4", an_incomplete_event_can_be_destroyed, DEVICE)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    keep_busy(stream);
    ASSERT_OK(cu.EventRecord(event, stream));
    ASSERT_OK(cu.EventDestroy(event));
    const CUresult busy = cu.StreamQuery(stream);
    wait_for_work(stream);
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_RESULT("cuStreamQuery after cuEventDestroy", busy, CUDA_ERROR_NOT_READY);
}

FACT("FACT-EVT-5", a_stream_waits_for_an_event, DEVICE)
{
    const CUstream first = new_stream(), second = new_stream();
    const CUevent event = new_event();

    keep_busy(first);
    ASSERT_OK(cu.EventRecord(event, first));
    ASSERT_OK(cu.StreamWaitEvent(second, event, 0));
    const CUresult busy = cu.StreamQuery(second);
    wait_for_work(first);
    ASSERT_OK(cu.StreamSynchronize(second));
    destroy(first, event);
    ASSERT_OK(cu.StreamDestroy(second));
    ASSERT_RESULT("cuStreamQuery of a stream that waits for an event", busy, CUDA_ERROR_NOT_READY);
}

FACT("FACT-EVT-6", an_event_is_recorded_only_in_its_context, TWO_DEVICES)
{
    const CUevent event = new_event();
    CUcontext second_context = NULL, popped = NULL;
    CUstream stream = NULL;

    ASSERT_OK(cu.DevicePrimaryCtxRetain(&second_context, 1));
    ASSERT_OK(cu.CtxPushCurrent(second_context));
    stream = new_stream();
    ASSERT_CU(cu.EventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE);
    /* A query is valid with any current context. */
    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.StreamWaitEvent(stream, event, 0));
    ASSERT_OK(cu.StreamDestroy(stream));
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.DevicePrimaryCtxRelease(1));
    ASSERT_OK(cu.EventDestroy(event));
}
