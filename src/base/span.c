/* SPDX-License-Identifier: MIT */
#include "src/base/span.h"

#if XSEG_HAVE_NVTX

#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <sys/auxv.h>

/* NULL without a tool.  Written once, before the first range. */
static nvtxDomainHandle_t domain;

static void create_domain(void)
{
    if (getauxval(AT_SECURE) == 0)
        domain = nvtxDomainCreateA("xseg");
}

void xseg_nvtx_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, create_domain);
}

void xseg_nvtx_push(const char *name, uint64_t bytes)
{
    if (domain == NULL)
        return;
    const nvtxEventAttributes_t attributes = {
        .version = NVTX_VERSION,
        .size = NVTX_EVENT_ATTRIB_STRUCT_SIZE,
        .payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64,
        .payload.ullValue = bytes,
        .messageType = NVTX_MESSAGE_TYPE_ASCII,
        .message.ascii = name,
    };
    (void)nvtxDomainRangePushEx(domain, &attributes);
}

void xseg_nvtx_pop(void)
{
    if (domain != NULL)
        (void)nvtxDomainRangePop(domain);
}

#else

void xseg_nvtx_start(void) {}

void xseg_nvtx_push(const char *name, uint64_t bytes)
{
    (void)name;
    (void)bytes;
}

void xseg_nvtx_pop(void) {}

#endif
