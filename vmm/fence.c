/* SPDX-License-Identifier: MIT */
#include "vmm/fence.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/check.h"
#include "src/base/error.h"

void xseg_fences_init(struct xseg_fences *fences, struct xseg_context *context)
{
    memset(fences, 0, sizeof(*fences));
    fences->context = context;
}

xseg_status xseg_fences_fini(struct xseg_fences *fences)
{
    while (fences->count > 0) {
        const xseg_status status =
            xseg_driver_event_destroy(fences->context, fences->idle[fences->count - 1]);

        if (status != XSEG_OK)
            return status;
        fences->count--;
        fences->made--;
    }
    xseg_fences_abandon(fences);
    return XSEG_OK;
}

void xseg_fences_abandon(struct xseg_fences *fences)
{
    free(fences->idle);
    xseg_fences_init(fences, fences->context);
}

/* Make one more idle event. */
static xseg_status make(struct xseg_fences *fences)
{
    if (fences->made == fences->capacity) {
        const size_t capacity = fences->capacity == 0 ? 64 : fences->capacity * 2;
        xseg_event *idle = realloc(fences->idle, capacity * sizeof(*idle));

        if (idle == NULL)
            return xseg_fail(XSEG_ERR_HOST_MEMORY, "out of host memory, table of events");
        fences->idle = idle;
        fences->capacity = capacity;
    }
    const xseg_status status =
        xseg_driver_event_create(fences->context, &fences->idle[fences->count]);
    if (status == XSEG_OK) {
        fences->count++;
        fences->made++;
    }
    return status;
}

xseg_status xseg_fences_record(struct xseg_fences *fences, xseg_stream stream, xseg_event *out)
{
    xseg_status status = fences->count > 0 ? XSEG_OK : make(fences);

    if (status != XSEG_OK)
        return status;
    status = xseg_driver_event_record(fences->context, fences->idle[fences->count - 1], stream);
    if (status == XSEG_OK)
        *out = fences->idle[--fences->count];
    return status;
}

void xseg_fences_return(struct xseg_fences *fences, xseg_event event)
{
    XSEG_ASSERT(fences->count < fences->made);
    fences->idle[fences->count++] = event;
}
