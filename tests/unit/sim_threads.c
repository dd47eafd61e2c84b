/* SPDX-License-Identifier: MIT */
/* Several threads at once, each with memory, streams and events of its own. */
#include <pthread.h>
#include <stdlib.h>

#include "tests/unit/sim_setup.h"

enum { THREADS = 4, ROUNDS = 400 };

/* Without cmocka's assertions, which jump: an expectation that failed ends the thread. */
#define EXPECT(condition)      \
    do {                       \
        if (!(condition))      \
            return #condition; \
    } while (0)
#define EXPECT_OK(call) EXPECT((call) == CUDA_SUCCESS)

static const char *use_memory(int device)
{
    const CUmemAllocationProp prop = on_device(device);
    const CUmemAccessDesc desc = read_write(device);
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base, block;

    EXPECT_OK(cuMemAddressReserve(&base, 4 * GRANULE, 0, 0, 0));
    for (int i = 0; i < 4; i++) {
        EXPECT_OK(cuMemCreate(&handle, GRANULE, &prop, 0));
        EXPECT_OK(cuMemMap(base + (size_t)i * GRANULE, GRANULE, 0, handle, 0));
        EXPECT_OK(cuMemRelease(handle));
    }
    EXPECT_OK(cuMemSetAccess(base, 4 * GRANULE, &desc, 1));
    EXPECT_OK(cuMemAlloc(&block, GRANULE));
    EXPECT_OK(cuMemUnmap(base, 4 * GRANULE));
    EXPECT_OK(cuMemFree(block));
    EXPECT_OK(cuMemAddressFree(base, 4 * GRANULE));
    return NULL;
}

static const char *use_streams(CUstream stream, CUevent event)
{
    EXPECT(xseg_sim_launch(stream, UINT64_MAX) == XSEG_OK);
    EXPECT_OK(cuEventRecord(event, stream));
    EXPECT(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamWaitEvent(CU_STREAM_PER_THREAD, event, 0));
    EXPECT(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
    EXPECT_OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    EXPECT_OK(cuEventQuery(event));
    EXPECT_OK(cuStreamQuery(stream));
    return NULL;
}

static const char *run(int device)
{
    const char *wrong = NULL;
    CUcontext context, current;
    CUstream stream;
    CUevent event;

    EXPECT_OK(cuCtxGetCurrent(&current));
    EXPECT(current == NULL);
    EXPECT_OK(cuDevicePrimaryCtxRetain(&context, device));
    EXPECT_OK(cuCtxPushCurrent(context));
    EXPECT_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    EXPECT_OK(cuEventCreate(&event, 0));
    for (int i = 0; i < ROUNDS && wrong == NULL; i++) {
        wrong = use_memory(device);
        if (wrong == NULL)
            wrong = use_streams(stream, event);
        (void)xseg_sim_leaks(NULL, 0);
    }
    EXPECT_OK(cuStreamDestroy(stream));
    EXPECT_OK(cuEventDestroy(event));
    EXPECT_OK(cuDevicePrimaryCtxRelease(device));
    return wrong;
}

struct worker {
    pthread_t thread;
    int device;
    const char *wrong;
};

static void *work(void *argument)
{
    struct worker *worker = argument;

    worker->wrong = run(worker->device);
    return NULL;
}

TEST(threads_do_not_disturb_each_other)
{
    struct xseg_sim_settings settings = small_machine();
    struct worker worker[THREADS];
    char text[512];

    settings.costs = "a100";
    start(&settings);
    (void)enter(0);
    (void)enter(1);
    for (int i = 0; i < THREADS; i++) {
        worker[i] = (struct worker){.device = i % 2};
        assert_int_equal(pthread_create(&worker[i].thread, NULL, work, &worker[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        assert_int_equal(pthread_join(worker[i].thread, NULL), 0);
        if (worker[i].wrong != NULL)
            fail_msg("thread %d: not so: %s", i, worker[i].wrong);
    }
    ASSERT_OK(cuDevicePrimaryCtxRelease(0));
    ASSERT_OK(cuDevicePrimaryCtxRelease(1));
    if (xseg_sim_leaks(text, sizeof(text)) != 0)
        fail_msg("left: %s", text);
    assert_int_equal(xseg_sim_calls("cuMemMap"), THREADS * ROUNDS * 4);
    assert_int_equal(xseg_sim_used(0) + xseg_sim_used(1), 0);
}
