/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <signal.h>
#include <stdio.h>

#include <sys/wait.h>

#include "tests/gpu/facts/child.h"

/* --- FACT-LATE: access to unmapped memory, in a child process, because it may crash. --- */

/* Exit statuses of the child process. */
enum late { LATE_SUCCEEDED, LATE_FAILED, LATE_UNPREPARED };

/* The child prints READY before the access, and the results of the access after it. */
#define READY "ready "

int access_late(const char *memory)
{
    const CUmemAllocationProp prop = on_device(0);
    const CUmemAccessDesc none = rights(0, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    CUmemGenericAllocationHandle handle = 0;
    CUdeviceptr base = 0;
    unsigned char byte = 0;
    char names[2][64];
    bool ready =
        cu.Init(0) == CUDA_SUCCESS && cu.DevicePrimaryCtxRetain(&primary, 0) == CUDA_SUCCESS &&
        cu.CtxPushCurrent(primary) == CUDA_SUCCESS &&
        cu.MemAddressReserve(&base, GRANULE, 0, 0, 0) == CUDA_SUCCESS &&
        cu.MemCreate(&handle, GRANULE, &prop, 0) == CUDA_SUCCESS &&
        cu.MemMap(base, GRANULE, 0, handle, 0) == CUDA_SUCCESS &&
        allow(base, GRANULE) == CUDA_SUCCESS && cu.MemsetD8(base, 1, GRANULE) == CUDA_SUCCESS &&
        cu.CtxSynchronize() == CUDA_SUCCESS && cu.MemcpyDtoH(&byte, base, 1) == CUDA_SUCCESS &&
        byte == 1;

    if (ready && strcmp(memory, "unmapped") == 0)
        ready = cu.MemUnmap(base, GRANULE) == CUDA_SUCCESS;
    else if (ready)
        ready = cu.MemSetAccess(base, GRANULE, &none, 1) == CUDA_SUCCESS;
    if (!ready)
        return LATE_UNPREPARED;
    (void)printf("%s", READY);
    (void)fflush(stdout);
    const CUresult fill_result = cu.MemsetD8(base, 2, GRANULE);
    const CUresult wait_result = cu.CtxSynchronize();
    driver_name_result(fill_result, names[0], sizeof(names[0]));
    driver_name_result(wait_result, names[1], sizeof(names[1]));
    (void)printf("cuMemsetD8: %s, then cuCtxSynchronize: %s", names[0], names[1]);
    (void)fflush(stdout);
    return fill_result != CUDA_SUCCESS || wait_result != CUDA_SUCCESS ? LATE_FAILED
                                                                      : LATE_SUCCEEDED;
}

static void expect_no_late_access(const char *memory)
{
    struct child_result result;

    child_run((const char *const[]){"--access-late", memory, NULL}, -1, &result);
    ASSERT(strncmp(result.output, READY, strlen(READY)) == 0);
    if (WIFSIGNALED(result.status))
        fact_report("signal %d ended the process, %s", WTERMSIG(result.status),
                    strsignal(WTERMSIG(result.status)));
    else
        fact_report("%s", result.output + strlen(READY));
    /* On a GPU a call fails; the simulator aborts the process. */
    ASSERT((WIFEXITED(result.status) && WEXITSTATUS(result.status) == LATE_FAILED) ||
           (WIFSIGNALED(result.status) && WTERMSIG(result.status) == SIGABRT));
}

FACT("FACT-LATE-1", an_access_to_unmapped_memory_fails, VMM)
{
    expect_no_late_access("unmapped");
}

FACT("FACT-LATE-2", an_access_to_memory_without_rights_fails, VMM)
{
    expect_no_late_access("without-rights");
}
