/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <stdio.h>

#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/facts/child.h"
#include "tests/gpu/facts/work.h"

/* --- FACT-OPEN: the entry points. --- */

FACT("FACT-OPEN-1", each_entry_point_is_found, NOTHING)
{
    const char *missing = driver_all_missing();

    if (*missing != '\0')
        fact_fail(__FILE__, __LINE__, "the driver has no %s", missing);
}

FACT("FACT-OPEN-2", an_unknown_name_has_no_function, NOTHING)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &found;

    (void)cu.GetProcAddress("cuXsegHasNoSuchCall", &function, 12000, 0, &found);
    ASSERT(function == NULL);
    ASSERT_EQUAL(found, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

FACT("FACT-OPEN-3", an_older_version_has_no_newer_function, NOTHING)
{
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    void *function = &found;

    if (cu.GetProcAddress("cuStreamGetId", &function, 12000, 0, &found) != CUDA_SUCCESS)
        fact_skip("the driver has no cuStreamGetId");
    (void)cu.GetProcAddress("cuStreamGetId", &function, 11080, 0, &found);
    ASSERT(function == NULL);
    ASSERT_EQUAL(found, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
}

FACT("FACT-OPEN-4", the_driver_is_of_cuda_12_or_later, NOTHING)
{
    int version = 0;

    ASSERT_OK(cu.DriverGetVersion(&version));
    fact_report("CUDA %d.%d", version / 1000, version % 1000 / 10);
    ASSERT(version >= 12000);
}

FACT("FACT-OPEN-5", init_can_be_called_again, DEVICE)
{
    ASSERT_OK(cu.Init(0));
}

FACT("FACT-OPEN-6", an_ordinal_past_the_last_device_is_rejected, DEVICE)
{
    CUdevice device = -1;

    ASSERT_OK(cu.DeviceGet(&device, device_count - 1));
    ASSERT_CU(cu.DeviceGet(&device, device_count), CUDA_ERROR_INVALID_DEVICE);
}

FACT("FACT-OPEN-7", only_error_codes_have_names, NOTHING)
{
    const char *name = NULL;

    ASSERT_OK(cu.GetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &name));
    ASSERT(strcmp(name, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
    ASSERT_CU(cu.GetErrorName((CUresult)123456, &name), CUDA_ERROR_INVALID_VALUE);
    ASSERT(name == NULL);
}

/* --- FACT-CTX: the primary context. --- */

FACT("FACT-CTX-1", a_primary_context_exists_until_its_last_release, DEVICE)
{
    CUcontext retained = NULL;
    unsigned flags = 0;
    int active = 0;

    ASSERT_OK(cu.DevicePrimaryCtxRetain(&retained, 0));
    ASSERT(retained == primary);
    ASSERT_OK(cu.DevicePrimaryCtxRelease(0));
    ASSERT_OK(cu.DevicePrimaryCtxGetState(0, &flags, &active));
    ASSERT_EQUAL(active, 1);
    (void)free_memory();
}

FACT("FACT-CTX-2", a_context_that_is_not_retained_cannot_be_released, DEVICE)
{
    CUcontext popped = NULL;
    char name[64];

    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.DevicePrimaryCtxRelease(0));
    ASSERT_CU(cu.DevicePrimaryCtxRelease(0), CUDA_ERROR_INVALID_CONTEXT);
    discard_work();
    const CUresult pushed = cu.CtxPushCurrent(primary);
    driver_name_result(pushed, name, sizeof(name));
    fact_report("cuCtxPushCurrent of a destroyed context: %s", name);
    ASSERT_OK(cu.DevicePrimaryCtxRetain(&primary, 0));
    ASSERT_OK(cu.CtxPushCurrent(primary));
    ASSERT(pushed == CUDA_ERROR_INVALID_CONTEXT || pushed == CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

FACT("FACT-CTX-3", push_and_pop_form_a_stack, DEVICE)
{
    CUcontext popped = NULL, current = NULL;

    ASSERT_OK(cu.CtxPushCurrent(primary));
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT(popped == primary);
    ASSERT_OK(cu.CtxGetCurrent(&current));
    ASSERT(current == primary);
    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_OK(cu.CtxGetCurrent(&current));
    ASSERT(current == NULL);
    ASSERT_CU(cu.CtxPopCurrent(&popped), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(primary));
}

FACT("FACT-CTX-4", virtual_memory_works_without_a_context, VMM)
{
    CUcontext popped = NULL;

    ASSERT_OK(cu.CtxPopCurrent(&popped));
    const CUdeviceptr base = map(GRANULE);
    ASSERT(is_mapped(base));
    unmap_and_free(base, GRANULE);
    ASSERT_OK(cu.CtxPushCurrent(popped));
}

FACT("FACT-CTX-5", allocations_and_streams_need_a_context, DEVICE)
{
    size_t free_bytes = 0, total = 0;
    CUcontext popped = NULL;
    CUdeviceptr address = 0;
    CUstream stream = NULL;
    CUevent event = NULL;

    ASSERT_OK(cu.CtxPopCurrent(&popped));
    ASSERT_CU(cu.MemAlloc(&address, GRANULE), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.MemGetInfo(&free_bytes, &total), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.StreamCreate(&stream, CU_STREAM_NON_BLOCKING), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.EventCreate(&event, CU_EVENT_DISABLE_TIMING), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cu.CtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_OK(cu.CtxPushCurrent(popped));
}

#define FORKED_SECONDS 10

FACT("FACT-CTX-6", cuda_is_not_initialized_in_a_forked_child, DEVICE)
{
    int result = 0;

    (void)fflush(NULL);
    const pid_t child = fork();
    ASSERT(child >= 0);
    if (child == 0) {
        size_t free_bytes, total;

        (void)alarm(FORKED_SECONDS); /* a child does not inherit the alarm */
        _exit((int)cu.MemGetInfo(&free_bytes, &total));
    }
    ASSERT_EQUAL(waitpid(child, &result, 0), child);
    ASSERT(WIFEXITED(result));
    ASSERT_EQUAL(WEXITSTATUS(result), CUDA_ERROR_NOT_INITIALIZED);
    (void)free_memory();
}
