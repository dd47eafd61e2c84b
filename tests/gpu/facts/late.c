/* SPDX-License-Identifier: MIT */
#include "tests/gpu/facts/driver.h"

#include <signal.h>
#include <stdio.h>

#include <sys/wait.h>

#include "tests/gpu/facts/child.h"

/* --- FACT-LATE: access to unmapped memory, in a child process, because it may crash. --- */

/* Exit statuses of that process; 0: the access succeeded. */
enum late { LATE_WENT_WELL, LATE_REFUSED, LATE_UNPREPARED };

/* Output before it accesses the memory. */
#define READY "now "

int touch_late(const char *what)
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

    if (ready && strcmp(what, "unmapped") == 0)
        ready = cu.MemUnmap(base, GRANULE) == CUDA_SUCCESS;
    else if (ready)
        ready = cu.MemSetAccess(base, GRANULE, &none, 1) == CUDA_SUCCESS;
    if (!ready)
        return LATE_UNPREPARED;
    (void)printf("%s", READY);
    (void)fflush(stdout);
    const CUresult filled = cu.MemsetD8(base, 2, GRANULE);
    const CUresult waited = cu.CtxSynchronize();
    driver_name_result(filled, names[0], sizeof(names[0]));
    driver_name_result(waited, names[1], sizeof(names[1]));
    (void)printf("cuMemsetD8: %s, then cuCtxSynchronize: %s", names[0], names[1]);
    (void)fflush(stdout);
    return filled != CUDA_SUCCESS || waited != CUDA_SUCCESS ? LATE_REFUSED : LATE_WENT_WELL;
}

static void expect_no_late_access(const char *what)
{
    struct child_end end;

    child_run((const char *const[]){"--touch-late", what, NULL}, -1, &end);
    ASSERT(strncmp(end.said, READY, strlen(READY)) == 0);
    if (WIFSIGNALED(end.status))
        fact_say("the process was ended by signal %d, %s", WTERMSIG(end.status),
                 strsignal(WTERMSIG(end.status)));
    else
        fact_say("%s", end.said + strlen(READY));
    /* An error, or the end of the process by the simulator's report. */
    ASSERT((WIFEXITED(end.status) && WEXITSTATUS(end.status) == LATE_REFUSED) ||
           (WIFSIGNALED(end.status) && WTERMSIG(end.status) == SIGABRT));
}

FACT("FACT-LATE-1", an_unmapped_address_is_not_touched_unnoticed, VMM)
{
    expect_no_late_access("unmapped");
}

FACT("FACT-LATE-2", memory_without_rights_is_not_touched_unnoticed, VMM)
{
    expect_no_late_access("without-rights");
}
