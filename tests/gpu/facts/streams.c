/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <pthread.h>
#include <semaphore.h>

#include "tests/gpu/facts/work.h"

/* --- FACT-STR: streams. --- */

FACT("FACT-STR-1", a_stream_id_is_never_reused, DEVICE)
{
    unsigned long long seen[32];

    for (unsigned i = 0; i < 32; i++) {
        const CUstream stream = new_stream();

        seen[i] = id_of(stream);
        ASSERT_EQUAL(id_of(stream), seen[i]);
        for (unsigned k = 0; k < i; k++)
            ASSERT_DIFFERENT(seen[k], seen[i]);
        ASSERT_OK(cu.StreamDestroy(stream));
    }
}

FACT("FACT-STR-2", both_handles_of_the_legacy_stream_have_one_id, DEVICE)
{
    ASSERT_EQUAL(id_of(NULL), id_of(CU_STREAM_LEGACY));
    ASSERT_DIFFERENT(id_of(NULL), id_of(CU_STREAM_PER_THREAD));
    ASSERT_EQUAL(id_of(CU_STREAM_PER_THREAD), id_of(CU_STREAM_PER_THREAD));
}

static void *query_ids(void *out)
{
    CUcontext popped = NULL;
    unsigned long long *id = out;

    if (cu.CtxPushCurrent(primary) != CUDA_SUCCESS)
        return NULL;
    if (cu.StreamGetId(CU_STREAM_PER_THREAD, &id[0]) != CUDA_SUCCESS ||
        cu.StreamGetId(NULL, &id[1]) != CUDA_SUCCESS)
        id[0] = id[1] = 0;
    (void)cu.CtxPopCurrent(&popped);
    return NULL;
}

FACT("FACT-STR-3", each_thread_has_a_separate_default_stream, DEVICE)
{
    unsigned long long ids[2] = {0, 0};
    pthread_t thread;

    ASSERT_EQUAL(pthread_create(&thread, NULL, query_ids, ids), 0);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    ASSERT_DIFFERENT(ids[0], 0);
    ASSERT_DIFFERENT(ids[0], id_of(CU_STREAM_PER_THREAD));
    ASSERT_EQUAL(ids[1], id_of(NULL));
}

FACT("FACT-STR-4", a_stream_reports_its_context, DEVICE)
{
    const CUstream stream = new_stream();
    CUcontext popped = NULL, owner = NULL;

    ASSERT_OK(cu.StreamGetCtx(NULL, &owner));
    ASSERT(owner == primary);
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    owner = NULL;
    ASSERT_OK(cu.StreamGetCtx(stream, &owner));
    ASSERT(owner == primary);
    ASSERT_CU(cu.StreamGetCtx(NULL, &owner), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(popped));
    ASSERT_OK(cu.StreamDestroy(stream));
}

FACT("FACT-STR-5", a_stream_is_busy_until_its_work_completes, DEVICE)
{
    const CUstream stream = new_stream();

    ASSERT_OK(cu.StreamQuery(stream));
    keep_busy(stream);
    const CUresult busy = cu.StreamQuery(stream);
    wait_for_work(stream);
    ASSERT_RESULT("cuStreamQuery while work is unfinished", busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamQuery(stream));
    ASSERT_OK(cu.StreamDestroy(stream));
}

FACT("FACT-STR-6", work_of_a_destroyed_stream_continues, DEVICE)
{
    const CUstream stream = new_stream();
    const CUevent event = new_event();

    keep_busy(stream);
    ASSERT_OK(cu.EventRecord(event, stream));
    const CUresult before = cu.EventQuery(event);
    ASSERT_OK(cu.StreamDestroy(stream));
    const CUresult after = cu.EventQuery(event);
    ASSERT_OK(cu.EventSynchronize(event));
    ASSERT_OK(cu.EventQuery(event));
    ASSERT_OK(cu.EventDestroy(event));
    ASSERT_RESULT("cuEventQuery before cuStreamDestroy", before, CUDA_ERROR_NOT_READY);
    ASSERT_RESULT("cuEventQuery after cuStreamDestroy", after, CUDA_ERROR_NOT_READY);
}

FACT("FACT-STR-7", a_wait_for_the_context_covers_all_streams, DEVICE)
{
    const CUstream stream = new_stream();

    keep_busy(stream);
    ASSERT_OK(cu.CtxSynchronize());
    ASSERT_OK(cu.StreamQuery(stream));
    wait_for_work(stream);
    ASSERT_OK(cu.StreamDestroy(stream));
}

struct gate {
    CUstream stream;
    CUresult launched;
    sem_t entered, opened;
};

static void CUDA_CB pass_gate(void *argument)
{
    struct gate *gate = argument;

    (void)sem_post(&gate->entered);
    while (sem_wait(&gate->opened) != 0)
        continue;
}

/* In a thread, because a driver may run a host function in the launching thread. */
static void *launch_gate(void *argument)
{
    struct gate *gate = argument;
    CUcontext popped = NULL;

    gate->launched = cu.CtxPushCurrent(primary);
    if (gate->launched == CUDA_SUCCESS) {
        gate->launched = cu.LaunchHostFunc(gate->stream, pass_gate, gate);
        (void)cu.CtxPopCurrent(&popped);
    }
    if (gate->launched != CUDA_SUCCESS)
        (void)sem_post(&gate->entered);
    return NULL;
}

FACT("FACT-STR-8", a_query_does_not_wait_for_a_host_function, DEVICE)
{
    struct gate gate = {.stream = new_stream()};
    const CUevent event = new_event();
    pthread_t thread;

    (void)sem_init(&gate.entered, 0, 0);
    (void)sem_init(&gate.opened, 0, 0);
    ASSERT_EQUAL(pthread_create(&thread, NULL, launch_gate, &gate), 0);
    while (sem_wait(&gate.entered) != 0)
        continue;
    const CUresult stream_busy = cu.StreamQuery(gate.stream);
    const CUresult recorded = cu.EventRecord(event, gate.stream);
    const CUresult event_busy = cu.EventQuery(event);
    (void)sem_post(&gate.opened);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    ASSERT_RESULT("cuLaunchHostFunc", gate.launched, CUDA_SUCCESS);
    ASSERT_RESULT("cuEventRecord after a host function", recorded, CUDA_SUCCESS);
    ASSERT_RESULT("cuStreamQuery while a host function runs", stream_busy, CUDA_ERROR_NOT_READY);
    ASSERT_RESULT("cuEventQuery after a host function", event_busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamSynchronize(gate.stream));
    ASSERT_OK(cu.EventQuery(event));
    destroy(gate.stream, event);
    (void)sem_destroy(&gate.entered);
    (void)sem_destroy(&gate.opened);
}

static void *queue_work_in_thread(void *out)
{
    CUresult *result = out;
    CUcontext popped = NULL;

    *result = cu.CtxPushCurrent(primary);
    if (*result == CUDA_SUCCESS) {
        *result = queue_work(CU_STREAM_PER_THREAD);
        (void)cu.CtxPopCurrent(&popped);
    }
    return NULL;
}

FACT("FACT-STR-9", the_legacy_stream_waits_for_default_streams_of_other_threads, DEVICE)
{
    const CUevent ordered = new_event(), unordered = new_event();
    const CUstream non_blocking = new_stream();
    CUresult queued = CUDA_ERROR_UNKNOWN, before, unrelated;
    pthread_t thread;

    prepare_work();
    ASSERT_EQUAL(pthread_create(&thread, NULL, queue_work_in_thread, &queued), 0);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    ASSERT_RESULT("work on another thread's default stream", queued, CUDA_SUCCESS);
    ASSERT_OK(cu.EventRecord(ordered, NULL));
    ASSERT_OK(cu.EventRecord(unordered, non_blocking));
    before = cu.EventQuery(ordered);
    unrelated = cu.EventQuery(unordered);
    ASSERT_OK(cu.EventSynchronize(ordered));
    ASSERT_OK(cu.CtxSynchronize());
    ASSERT_OK(cu.EventDestroy(ordered));
    destroy(non_blocking, unordered);
    ASSERT_RESULT("cuEventQuery on the legacy stream, after a thread's default stream", before,
                  CUDA_ERROR_NOT_READY);
    ASSERT_RESULT("cuEventQuery on a stream that does not block", unrelated, CUDA_SUCCESS);
}

FACT("FACT-STR-10", blocking_streams_wait_for_the_legacy_stream, DEVICE)
{
    const CUevent ordered = new_event(), unordered = new_event();
    const CUstream non_blocking = new_stream();
    CUstream blocking = NULL;

    ASSERT_OK(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
    keep_busy(NULL);
    ASSERT_OK(cu.EventRecord(ordered, blocking));
    ASSERT_OK(cu.EventRecord(unordered, non_blocking));
    const CUresult before = cu.EventQuery(ordered);
    const CUresult unrelated = cu.EventQuery(unordered);
    wait_for_work(NULL);
    ASSERT_OK(cu.EventSynchronize(ordered));
    ASSERT_OK(cu.EventDestroy(ordered));
    destroy(blocking, unordered);
    ASSERT_OK(cu.StreamDestroy(non_blocking));
    ASSERT_RESULT("cuEventQuery on a blocking stream, after the legacy stream", before,
                  CUDA_ERROR_NOT_READY);
    ASSERT_RESULT("cuEventQuery on a stream that does not block", unrelated, CUDA_SUCCESS);
}
