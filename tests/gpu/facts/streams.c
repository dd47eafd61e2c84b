/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <pthread.h>
#include <semaphore.h>

#include "tests/gpu/facts/work.h"

/* --- FACT-STR: streams. --- */

FACT("FACT-STR-1", a_stream_id_never_comes_again, DEVICE)
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

FACT("FACT-STR-2", the_default_stream_has_one_id_by_both_names, DEVICE)
{
    ASSERT_EQUAL(id_of(NULL), id_of(CU_STREAM_LEGACY));
    ASSERT_DIFFERENT(id_of(NULL), id_of(CU_STREAM_PER_THREAD));
    ASSERT_EQUAL(id_of(CU_STREAM_PER_THREAD), id_of(CU_STREAM_PER_THREAD));
}

static void *id_elsewhere(void *out)
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

FACT("FACT-STR-3", each_thread_has_a_default_stream_of_its_own, DEVICE)
{
    unsigned long long there[2] = {0, 0};
    pthread_t thread;

    ASSERT_EQUAL(pthread_create(&thread, NULL, id_elsewhere, there), 0);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    ASSERT_DIFFERENT(there[0], 0);
    ASSERT_DIFFERENT(there[0], id_of(CU_STREAM_PER_THREAD));
    ASSERT_EQUAL(there[1], id_of(NULL));
}

FACT("FACT-STR-4", a_stream_tells_its_context, DEVICE)
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

FACT("FACT-STR-5", a_stream_is_busy_until_its_work_has_ended, DEVICE)
{
    const CUstream stream = new_stream();

    ASSERT_OK(cu.StreamQuery(stream));
    keep_busy(stream);
    const CUresult busy = cu.StreamQuery(stream);
    let_rest(stream);
    ASSERT_SAID("cuStreamQuery while work is unfinished", busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamQuery(stream));
    ASSERT_OK(cu.StreamDestroy(stream));
}

FACT("FACT-STR-6", a_busy_stream_can_be_destroyed_and_goes_on, DEVICE)
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
    ASSERT_SAID("cuEventQuery before cuStreamDestroy", before, CUDA_ERROR_NOT_READY);
    ASSERT_SAID("cuEventQuery after cuStreamDestroy", after, CUDA_ERROR_NOT_READY);
}

FACT("FACT-STR-7", the_context_waits_for_every_stream, DEVICE)
{
    const CUstream stream = new_stream();

    keep_busy(stream);
    ASSERT_OK(cu.CtxSynchronize());
    ASSERT_OK(cu.StreamQuery(stream));
    let_rest(stream);
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

FACT("FACT-STR-8", a_query_waits_for_no_host_function, DEVICE)
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
    ASSERT_SAID("cuLaunchHostFunc", gate.launched, CUDA_SUCCESS);
    ASSERT_SAID("cuEventRecord behind a host function", recorded, CUDA_SUCCESS);
    ASSERT_SAID("cuStreamQuery while a host function runs", stream_busy, CUDA_ERROR_NOT_READY);
    ASSERT_SAID("cuEventQuery behind a host function", event_busy, CUDA_ERROR_NOT_READY);
    ASSERT_OK(cu.StreamSynchronize(gate.stream));
    ASSERT_OK(cu.EventQuery(event));
    destroy(gate.stream, event);
    (void)sem_destroy(&gate.entered);
    (void)sem_destroy(&gate.opened);
}

static void *be_busy_elsewhere(void *out)
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

FACT("FACT-STR-9", the_legacy_stream_waits_for_other_threads_default_streams, DEVICE)
{
    const CUevent behind = new_event(), beside = new_event();
    const CUstream apart = new_stream();
    CUresult queued = CUDA_ERROR_UNKNOWN, before, unrelated;
    pthread_t thread;

    prepare_work();
    ASSERT_EQUAL(pthread_create(&thread, NULL, be_busy_elsewhere, &queued), 0);
    ASSERT_EQUAL(pthread_join(thread, NULL), 0);
    ASSERT_SAID("work on another thread's default stream", queued, CUDA_SUCCESS);
    ASSERT_OK(cu.EventRecord(behind, NULL));
    ASSERT_OK(cu.EventRecord(beside, apart));
    before = cu.EventQuery(behind);
    unrelated = cu.EventQuery(beside);
    ASSERT_OK(cu.EventSynchronize(behind));
    ASSERT_OK(cu.CtxSynchronize());
    ASSERT_OK(cu.EventDestroy(behind));
    destroy(apart, beside);
    ASSERT_SAID("cuEventQuery on the legacy stream, behind a thread's default stream", before,
                CUDA_ERROR_NOT_READY);
    ASSERT_SAID("cuEventQuery on a stream that does not block", unrelated, CUDA_SUCCESS);
}

FACT("FACT-STR-10", blocking_streams_wait_for_the_legacy_one, DEVICE)
{
    const CUevent behind = new_event(), beside = new_event();
    const CUstream apart = new_stream();
    CUstream blocking = NULL;

    ASSERT_OK(cu.StreamCreate(&blocking, CU_STREAM_DEFAULT));
    keep_busy(NULL);
    ASSERT_OK(cu.EventRecord(behind, blocking));
    ASSERT_OK(cu.EventRecord(beside, apart));
    const CUresult before = cu.EventQuery(behind);
    const CUresult unrelated = cu.EventQuery(beside);
    let_rest(NULL);
    ASSERT_OK(cu.EventSynchronize(behind));
    ASSERT_OK(cu.EventDestroy(behind));
    destroy(blocking, beside);
    ASSERT_OK(cu.StreamDestroy(apart));
    ASSERT_SAID("cuEventQuery on a blocking stream, behind the legacy stream", before,
                CUDA_ERROR_NOT_READY);
    ASSERT_SAID("cuEventQuery on a stream that does not block", unrelated, CUDA_SUCCESS);
}
