/* SPDX-License-Identifier: MIT */
/* Allocations and events that two processes use by handle. */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/sim_setup.h"

static CUipcMemHandle memory_handle;
static CUipcEventHandle event_handle;

static unsigned char *bytes_at(CUdeviceptr address)
{
    return (unsigned char *)(uintptr_t)address;
}

static CUdeviceptr allocate(size_t bytes)
{
    CUdeviceptr address = 0;

    ASSERT_OK(cuMemAlloc(&address, bytes));
    return address;
}

/* Another process on a machine of its own; a part returns whether all was as it should be. */
static void expect_in_child(bool (*part)(void))
{
    int status = -1;
    const pid_t child = fork();

    assert_true(child >= 0);
    if (child == 0) {
        (void)with_bytes(NULL);
        _exit(part() ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

static bool opens_and_writes(void)
{
    CUdeviceptr first = 0, second = 0;
    bool fine = cuIpcOpenMemHandle(&first, memory_handle, 1) == CUDA_SUCCESS &&
                cuIpcOpenMemHandle(&second, memory_handle, 1) == CUDA_SUCCESS;

    fine = fine && first == second && bytes_at(first)[5] == 42 && xseg_sim_used(0) == 0;
    fine = fine && cuMemsetD8(first + 6, 43, 1) == CUDA_SUCCESS;
    fine = fine && cuMemFree(first) == CUDA_ERROR_INVALID_VALUE;
    fine = fine && cuIpcGetMemHandle(&memory_handle, first) == CUDA_ERROR_INVALID_VALUE;
    fine = fine && cuIpcCloseMemHandle(first + 1) == CUDA_ERROR_INVALID_VALUE;
    fine = fine && cuIpcCloseMemHandle(first) == CUDA_SUCCESS && bytes_at(first)[6] == 43;
    fine = fine && cuIpcCloseMemHandle(first) == CUDA_SUCCESS;
    fine = fine && cuIpcCloseMemHandle(first) == CUDA_ERROR_INVALID_VALUE;
    return fine && xseg_sim_leaks(NULL, 0) == 1; /* the context */
}

SIM_TEST_BYTES(two_processes_use_an_allocation)
{
    const CUdeviceptr address = allocate(3 * GRANULE);

    (void)allocate(GRANULE);
    bytes_at(address)[5] = 42;
    ASSERT_OK(cuIpcGetMemHandle(&memory_handle, address + 100));
    expect_in_child(opens_and_writes);
    assert_int_equal(bytes_at(address)[6], 43);
    ASSERT_OK(cuMemFree(address));
}

SIM_TEST(address_outside_allocations_is_rejected)
{
    const CUdeviceptr reserved = reserve(GRANULE), address = allocate(GRANULE);
    CUdeviceptr opened = 0;
    CUipcMemHandle none;

    memset(&none, 0, sizeof(none));
    ASSERT_CU(cuIpcGetMemHandle(&memory_handle, reserved), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuIpcGetMemHandle(NULL, address), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuIpcOpenMemHandle(&opened, none, 1), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuIpcGetMemHandle(&memory_handle, address));
    ASSERT_CU(cuIpcOpenMemHandle(&opened, memory_handle, 0), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuIpcOpenMemHandle(&opened, memory_handle, 1), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuIpcCloseMemHandle(address), CUDA_ERROR_INVALID_VALUE);
}

static bool waits_for_the_event(void)
{
    const CUstream stream = new_stream();
    CUevent event = NULL;

    return cuIpcOpenEventHandle(&event, event_handle) == CUDA_SUCCESS &&
           cuEventQuery(event) == CUDA_SUCCESS &&
           cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS &&
           cuStreamQuery(stream) == CUDA_SUCCESS && cuEventDestroy(event) == CUDA_SUCCESS;
}

SIM_TEST_BYTES(event_is_shared_with_another_process)
{
    const CUevent plain = new_event();
    CUevent event = NULL, opened = NULL;
    CUipcEventHandle none;

    memset(&none, 0, sizeof(none));
    ASSERT_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    ASSERT_CU(cuIpcGetEventHandle(&event_handle, plain), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuIpcGetEventHandle(NULL, event), CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuIpcOpenEventHandle(&opened, none), CUDA_ERROR_INVALID_VALUE);
    ASSERT_OK(cuIpcGetEventHandle(&event_handle, event));
    ASSERT_CU(cuIpcOpenEventHandle(&opened, event_handle), CUDA_ERROR_INVALID_CONTEXT);
    expect_in_child(waits_for_the_event);
}
