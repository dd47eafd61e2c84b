/* SPDX-License-Identifier: MIT */
/*
 * An NVTX injection library (NVTX_INJECTION64_PATH) that counts the ranges of each name.
 *
 * If XSEG_TEST_INJECTED is set, it prints a line when it is loaded.
 */
#include <nvtx3/nvToolsExt.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/injection.h"

#define NAMES 16u
#define DEPTH 16u

static struct injection_count counts[NAMES];
static const char domain_name[] = "xseg";
static char domain; /* its address is the handle */
static atomic_uint invalid_calls;
static _Thread_local struct injection_count *open_ranges[DEPTH];
static _Thread_local unsigned depth;

static struct injection_count *find_count(const char *name)
{
    for (unsigned i = 0; i < NAMES; i++) {
        if (counts[i].name[0] == '\0')
            (void)snprintf(counts[i].name, sizeof(counts[i].name), "%s", name);
        if (strcmp(counts[i].name, name) == 0)
            return &counts[i];
    }
    abort();
}

static nvtxDomainHandle_t create_domain(const char *name)
{
    invalid_calls += strcmp(name, domain_name) != 0;
    return (nvtxDomainHandle_t)(void *)&domain;
}

static int push_range(nvtxDomainHandle_t handle, const nvtxEventAttributes_t *attributes)
{
    struct injection_count *count = find_count(attributes->message.ascii);

    invalid_calls += handle != (nvtxDomainHandle_t)(void *)&domain ||
                     attributes->messageType != NVTX_MESSAGE_TYPE_ASCII || depth == DEPTH;
    count->begun++;
    count->bytes = attributes->payload.ullValue;
    open_ranges[depth++ % DEPTH] = count;
    return (int)depth - 1;
}

static int pop_range(nvtxDomainHandle_t handle)
{
    invalid_calls += handle != (nvtxDomainHandle_t)(void *)&domain || depth == 0;
    open_ranges[--depth % DEPTH]->ended++;
    return (int)depth;
}

struct injection_count injection_read(const char *name)
{
    return *find_count(name);
}

unsigned injection_errors(void)
{
    return invalid_calls + depth;
}

/* Called by NVTX when the process uses it first; returns 1 for success. */
NVTX_DYNAMIC_EXPORT int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable core = NULL, core2 = NULL;
    unsigned count = 0;

    if (callbacks == NULL ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &core, &count) ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &core2, &count))
        return 0;
    *core2[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *core2[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push_range;
    *core2[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop_range;
    if (getenv("XSEG_TEST_INJECTED") != NULL)
        (void)printf("injected\n");
    return 1;
}
