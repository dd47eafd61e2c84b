/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/work.h"

#include "tests/gpu/facts/driver.h"

#define MAX_BYTES GIB
#define MIN_BYTES (64 * MIB)
#define TRIALS    8u
#define WORK_US   200e3
/* A stream queues about 1000 launches; a further launch waits for the completion of an earlier one. */
#define MAX_FILLS        800u
#define FILLS_TO_WARM_UP 2u

static CUdeviceptr scratch;
static size_t scratch_bytes;
static unsigned fills; /* 0: not measured yet */

static void allocate_scratch(void)
{
    const size_t free_bytes = free_memory();

    scratch_bytes = MAX_BYTES;
    while (scratch_bytes > MIN_BYTES && scratch_bytes > free_bytes / 4)
        scratch_bytes /= 2;
    if (free_bytes < 2 * scratch_bytes)
        fact_skip("%zu MiB of free memory; work on the device requires %zu MiB", free_bytes / MIB,
                  2 * scratch_bytes / MIB);
    ASSERT_OK(cu.MemAlloc(&scratch, scratch_bytes));
}

static void queue_fills(CUstream stream, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        ASSERT_OK(cu.MemsetD8Async(scratch, 1, scratch_bytes, stream));
}

void prepare_work(void)
{
    if (sim.launch != NULL || fills != 0)
        return;
    allocate_scratch();
    const CUstream stream = new_stream();
    queue_fills(stream, FILLS_TO_WARM_UP);
    ASSERT_OK(cu.StreamSynchronize(stream));
    const double start_us = microseconds();
    queue_fills(stream, TRIALS);
    ASSERT_OK(cu.StreamSynchronize(stream));
    const double fill_us = (microseconds() - start_us) / TRIALS;
    ASSERT_OK(cu.StreamDestroy(stream));
    fills = fill_us * MAX_FILLS > WORK_US ? (unsigned)(WORK_US / fill_us) + 1 : MAX_FILLS;
}

CUresult queue_work(CUstream stream)
{
    CUresult result = CUDA_SUCCESS;

    if (sim.launch != NULL)
        return sim.launch(stream, UINT64_MAX) == XSEG_OK ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
    for (unsigned i = 0; i < fills && result == CUDA_SUCCESS; i++)
        result = cu.MemsetD8Async(scratch, 1, scratch_bytes, stream);
    return result;
}

void keep_busy(CUstream stream)
{
    prepare_work();
    ASSERT_RESULT("work on a stream", queue_work(stream), CUDA_SUCCESS);
}

void wait_for_work(CUstream stream)
{
    ASSERT_OK(cu.StreamSynchronize(stream));
}

void discard_work(void)
{
    scratch = 0;
    fills = 0;
}

CUresult end_work(void)
{
    const CUdeviceptr memory = scratch;

    discard_work();
    return memory != 0 ? cu.MemFree(memory) : CUDA_SUCCESS;
}
