/* SPDX-License-Identifier: MIT */
#include <string.h>

#include "vmm/sim/entry.h"
#include "vmm/sim/machine.h"

static void (*const address[SIM_CALL_COUNT])(void) = {
#define ROW(id, name, symbol, version, checks) [SIM_CALL_##id] = (void (*)(void))symbol,
    SIM_CALL_MAP(ROW)
#undef ROW
};

/* Of the signatures of a name, the latest that a version knows.  There are no per-thread twins. */
static CUdriverProcAddressQueryResult find_symbol(const char *name, int version, void **out)
{
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    int best = -1;

    for (int i = 0; i < SIM_CALL_COUNT; i++) {
        if (strcmp(sim_call_info[i].name, name) != 0)
            continue;
        if (status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND)
            status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        if (sim_call_info[i].version <= version &&
            (best < 0 || sim_call_info[i].version > sim_call_info[best].version))
            best = i;
    }
    *out = NULL;
    if (best < 0)
        return status;
    /* Not a cast: ISO C has none between functions and objects. */
    memcpy(out, &address[best], sizeof(*out));
    return CU_GET_PROC_ADDRESS_SUCCESS;
}

/*
 * A name that is not found is answered with CUDA_ERROR_NOT_FOUND, as drivers do; the text of cuda.h
 * has it as success.  Either way *pfn is NULL and the status says why.
 */
static CUresult get_proc_address(const char *name, void **out, int version, cuuint64_t flags,
                                 CUdriverProcAddressQueryResult *status)
{
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    CUdriverProcAddressQueryResult found;

    if (name == NULL || out == NULL || (flags & ~known) != 0 || flags == known ||
        version > SIM_DRIVER_VERSION)
        return CUDA_ERROR_INVALID_VALUE;
    found = find_symbol(name, version, out);
    if (status != NULL)
        *status = found;
    return found == CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

SIM_ENTRY(GET_PROC_ADDRESS, cuGetProcAddress_v2,
          (const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
           CUdriverProcAddressQueryResult *symbolStatus),
          get_proc_address(symbol, pfn, cudaVersion, flags, symbolStatus));
SIM_ENTRY(GET_PROC_ADDRESS_V1, cuGetProcAddress,
          (const char *symbol, void **pfn, int version, cuuint64_t flags),
          get_proc_address(symbol, pfn, version, flags, NULL));
